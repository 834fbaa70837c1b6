"""A wait that is put into the input is found in the ledger, and nowhere else. CPU, a minute.

Computing overlaps with reading: what is put in is so long that a step computes for a few hundredths
of it, however busy the machine.
"""

import json
import re
import time
from pathlib import Path

import pytest
import tensorflow as tf

from mlperf_bert.data import tfrecord
from mlperf_bert.input import pipeline
from mlperf_bert.mlperf import ledger
from tests.helpers import starts
from tests.training import generated_task
from tests.training.small_runs import command, run_seconds
from tests.training.small_trainer import BATCH_SIZE, make_trainer, slowed

TASK = {"num_examples": 64 * 40, "num_hidden_layers": 1}


def pause_seconds(step_seconds: float) -> float:
    """A sleep beside which a step takes little."""
    return max(0.5, 30 * step_seconds)


def waits(trainer, batches, num_steps: int) -> tuple[list[float], float]:
    """Each step's wait for its batch, and how long all steps took; in seconds."""
    began = time.monotonic()
    history = trainer.train(iter(batches), tf.constant(num_steps)).numpy()
    return history[:, -1].tolist(), time.monotonic() - began


@pytest.mark.gate
def test_a_sleep_in_the_input_is_waited_for_whatever_is_computed_meanwhile(task):
    trainer = make_trainer()
    batch = pipeline.synthetic_batch(generated_task.SHAPE, batch_size=BATCH_SIZE)
    fast = tf.data.Dataset.from_tensors(batch).repeat()
    waits(trainer, fast, 2)
    without, seconds = waits(trainer, fast, 6)
    assert sum(without) < 0.5 * seconds
    pause = pause_seconds(seconds / 6)
    shares = []
    for _ in range(3):
        slept: list[float] = []
        found, _ = waits(trainer, slowed(fast, pause, slept), 4)
        shares.append(sum(found) / sum(slept[:4]))
    # A step hides as much of a sleep as it takes: most on a busy machine, so the best turn counts.
    assert max(shares) == pytest.approx(1, abs=0.1)
    # Made ahead, the first batches are there. The next is made while a step computes.
    ahead = iter(slowed(fast, pause, []).prefetch(3))
    next(ahead)
    time.sleep(6 * pause)
    found = trainer.train(ahead, tf.constant(7)).numpy()[:, -1]
    assert max(found[:3]) < 0.2 * pause and min(found[5:]) > 0.4 * pause


NUM_STEPS = 12


def training(task: Path, output: Path, **changed) -> list[str]:
    """One file of 64 examples, in file order, for each step of 64."""
    flags = {
        "input_file": f"{task}/part-*",
        "train_batch_size": 64,
        "steps_per_update": 1,
        "num_train_steps": NUM_STEPS,
        "iterations_per_loop": 3,
        "eval_interval_samples": 64 * 6,
        "save_checkpoints_steps": 4,
        "log_every_steps": 2,
    } | changed
    return [*command(task, output, **flags), "--noshuffle"]


@pytest.fixture(scope="module")
def parts(task) -> Path:
    """The task with its examples in files of 64."""
    frames = [tfrecord.frame(f.record) for f in tfrecord.read_frames(task / "train.tfrecord")]
    for number in range(40):
        content = b"".join(frames[64 * number : 64 * (number + 1)])
        (task / f"part-{number:02}").write_bytes(content)
    return task


@pytest.fixture(scope="module")
def undisturbed(parts, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("undisturbed") / "out"
    done = starts.run(training(parts, output), check=True)
    line = re.search(r"^where the time went: (.*)$", done.stdout, re.MULTILINE).group(1)
    found = {kind for kind in ledger.KINDS if kind.replace("_", " ") + " " in line}
    assert found == set(ledger.KINDS) and re.search(r"accelerator utilization [\d.]+%$", line)
    return output


def events(output: Path) -> list[dict]:
    lines = (output / "bert.log").read_text().splitlines()
    return [json.loads(line.partition(":::MLLOG ")[2]) for line in lines]


def ledgers(output: Path, of: str) -> list[ledger.Seconds]:
    """The ledgers that a log holds, of its blocks or of the run."""
    found = [event for event in events(output) if event["key"] == "tracked_stats"]
    return [ledger.from_fields(e["value"]) for e in found if e["metadata"]["of"] == of]


def time_ms(output: Path, key: str) -> float:
    return next(event["time_ms"] for event in events(output) if event["key"] == key)


def metrics(output: Path) -> list[dict]:
    lines = (output / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["kind"] == "train"]


@pytest.mark.gate
def test_the_sum_is_the_time_between_run_start_and_run_stop(undisturbed):
    [whole] = ledgers(undisturbed, "run")
    least, most = run_seconds(undisturbed / "bert.log")
    assert least <= sum(whole.values()) <= most
    assert all(whole.values())
    blocks = ledgers(undisturbed, "block")
    assert len(blocks) == 2
    for block in blocks:
        assert block["compute"] and not block["evaluation_compute"]
    lines = metrics(undisturbed)
    assert [line["step"] for line in lines] == list(range(2, NUM_STEPS + 1, 2))
    for kind in ("input_wait", "compute"):
        assert sum(line[f"{kind}_seconds"] for line in lines) == pytest.approx(
            whole[kind], abs=1e-5
        )
    # Lines say what lies before them: the last evaluation and checkpoint come after the last line.
    assert lines[3]["evaluation_compute_seconds"] > 0 and lines[2]["saving_seconds"] > 0
    assert sum(line["saving_seconds"] for line in lines) < whole["saving"]


# No evaluation in between, for batches are made ahead meanwhile. And the first one reaches the
# target: the checkpoint lies after run_stop. It keeps the input's position, and for that waits
# until the input stands still.
