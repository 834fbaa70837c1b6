"""What a training takes of the host's memory, and the check for a copy of its state."""

import json
import os
import subprocess

import numpy as np
import pytest

from benchmarks import random_task
from benchmarks.training_throughput import NUM_EXAMPLES, SHAPE
from mlperf_bert.mlperf.rules import BERT_LARGE
from mlperf_bert.training import checks
from tests.training import generated_task
from tests.training.configurations import large_model
from tests.training.small_runs import command


@pytest.mark.parametrize(
    "gigabytes, changed, takes",
    [
        (3, {}, 4.0),
        (3, {"runtime": "jax"}, 4.0),
        (5, {"steps_per_update": 2, "num_train_steps": 8}, 5.4),
        (5, {}, None),
        (1, {"async_checkpoint": False}, None),
    ],
)
def test_a_copy_of_the_state_that_does_not_fit_is_told(
    config, monkeypatch, gigabytes, changed, takes
):
    monkeypatch.setattr(checks, "memory_bytes", lambda: int(gigabytes * 10**9))
    given = large_model(config, init_checkpoint=None, **changed)
    setup = checks.inspect(given)
    assert not any("memory" in finding.text for finding in setup.findings)
    checks.check_saving(setup)
    told = [str(finding) for finding in setup.findings if "memory" in finding.text]
    assert told == [
        f"warning: --async_checkpoint: a copy of the state takes {takes} GB of memory, and "
        f"{gigabytes}.0 GB are available here; give --noasync_checkpoint"
    ] * bool(takes)


@pytest.mark.all
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"precision": "bfloat16", "jit_compile": "auto"},
        {"precision": "bfloat16", "jit_compile": "auto", "pack_sequences": True},
    ],
    ids=["float32", "bfloat16", "packed"],
)
def test_bert_large_at_batch_2_stays_within_12_gib(repository, tmp_path, options):
    (tmp_path / "bert_config.json").write_text(json.dumps(dict(BERT_LARGE)))
    checkpoint, output = tmp_path / "model.ckpt-0", tmp_path / "output.txt"
    generated_task.write_initial_checkpoint(checkpoint, BERT_LARGE, np.random.RandomState(1))
    lengths = random_task.published_lengths(NUM_EXAMPLES)
    random_task.write(tmp_path, BERT_LARGE, SHAPE, lengths)
    words = command(
        tmp_path, tmp_path / "out", init_checkpoint=checkpoint, eval_input_file="",
        max_seq_length=512, max_predictions_per_seq=76, train_batch_size=2, steps_per_update=1,
        num_train_steps=3, num_warmup_steps=0, log_every_steps=1, save_checkpoints_steps=2,
        keep_checkpoint_max=1, async_checkpoint="false", **options,
    )  # fmt: skip
    with output.open("w") as file:
        process = subprocess.Popen(words, cwd=repository, stdout=file, stderr=file)
        _, status, used = os.wait4(process.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, output.read_text()
    assert len((tmp_path / "out" / "metrics.jsonl").read_text().splitlines()) == 3
    peak_bytes = used.ru_maxrss * 1024
    print(f"{peak_bytes / 2**30:.2f} GiB")
    assert peak_bytes < 12 * 2**30
