"""Two processes started into one directory at random distances: one of them trains."""

import json
import random
import re
import time

import pytest

from tests.helpers import starts
from tests.training.generated_task import SMALL
from tests.training.small_runs import command

TASK = SMALL


FLAGS = {
    "num_train_steps": 30,
    "steps_per_update": 1,
    "eval_interval_samples": 8 * 15,
    "save_checkpoints_steps": 10,
    "log_every_steps": 1,
}


@pytest.mark.parametrize(
    "num_starts",
    [
        pytest.param(4, marks=pytest.mark.all),
        pytest.param(20, marks=pytest.mark.soak),
    ],
)
def test_one_of_two_trains_and_the_other_leaves_no_trace(task, tmp_path, num_starts):
    rng = random.Random(num_starts)
    for number in range(num_starts):
        output = tmp_path / str(number)
        first = starts.Start(command(task, output, **FLAGS))
        time.sleep(rng.choice([0, rng.uniform(0, 0.1), rng.uniform(0, 10)]))
        second = starts.Start(command(task, output, **FLAGS))
        texts = [started.communicate(timeout=300)[1] for started in (first, second)]
        codes = [first.returncode, second.returncode]
        assert sorted(codes) == [0, 1], texts
        [refusal] = texts[codes.index(1)].splitlines()
        assert re.search(r"another process trains into it|holds a finished run", refusal)
        lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines if line["kind"] == "train"] == list(range(1, 31))
        assert [line["step"] for line in lines if line["kind"] == "eval"] == [15, 30]
        [log] = output.glob("bert*.log*")
        assert log.read_text().count('"run_start"') == log.read_text().count('"run_stop"') == 1
        assert not list(output.glob(".*"))
