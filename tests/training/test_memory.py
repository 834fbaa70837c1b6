"""The model of memory agrees with measurements on CPUs, and the checks say what fits."""

import dataclasses
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from benchmarks import memory as measuring
from benchmarks import random_task, reports
from benchmarks.processes import ROOT
from benchmarks.training_throughput import NUM_EXAMPLES, SHAPE
from mlperf_bert.checkpoints import names
from mlperf_bert.mlperf.rules import BERT_LARGE
from mlperf_bert.model.config import BertConfig
from mlperf_bert.training import checks, memory
from mlperf_bert.training.config import DeviceConfig
from tests.training import generated_task
from tests.training.configurations import large_model, run_config
from tests.training.small_runs import command

RECORDED = reports.stored(ROOT / "benchmarks" / "memory.jsonl")
MODEL = BertConfig(**BERT_LARGE)


def estimate_of(num_rows: int = 8, **flags) -> int:
    """Of a step of BERT-large on 512 tokens."""
    usual = {"max_seq_length": 512, "max_predictions_per_seq": 76, "async_checkpoint": False}
    config = run_config(**usual | flags)
    return memory.step_bytes(config, MODEL, num_rows=num_rows)


@pytest.mark.parametrize(
    "found",
    RECORDED,
    ids=lambda f: f"{f['precision']}-{f['jit_compile']}-{f['train_batch_size']}-{f['recompute']}",
)
def test_the_estimate_is_within_its_tolerance_of_what_was_measured(found):
    assert measuring.estimated_bytes(found) == pytest.approx(
        found["peak_bytes"], rel=memory.TOLERANCE
    )


def test_every_option_has_its_effect():
    default, fused = estimate_of(), estimate_of(jit_compile="true")
    attention, blocks = (estimate_of(recompute=recompute) for recompute in ("attention", "blocks"))
    assert default > fused > attention > blocks
    assert estimate_of(precision="bfloat16") < fused
    weights = 4 * names.num_weights(MODEL)
    assert estimate_of(steps_per_update=2) - default == weights
    assert estimate_of(async_checkpoint=True) - default == 3 * weights
    assert estimate_of(9) > default and estimate_of(max_predictions_per_seq=80) > default
    packed = estimate_of(pack_sequences=True)  # a row has room for more predictions
    assert packed > fused


def shortfalls(config) -> list[str]:
    findings = checks.inspect(config).findings
    findings.require_none()
    return [str(finding) for finding in findings if "does not fit" in finding.text]


NOT_ASYNC = {"async_checkpoint": False}
ON_A_GPU = {"device": DeviceConfig(num_gpus=1)}


@pytest.mark.parametrize(
    "gigabytes, changed, expected",
    [
        (15, NOT_ASYNC, r"warning: the run does not fit into the 15\.0 GB available here: about "
         r"18\.\d GB; --recompute=attention does"),
        (15, NOT_ASYNC | {"recompute": "attention"}, None),
        (20, {}, ".* GB; --async_checkpoint=False does"),
        (15, {}, ".* GB; --async_checkpoint=False --recompute=attention does"),
        (9, NOT_ASYNC, ".* GB; --recompute=blocks does"),
        (12, NOT_ASYNC | {"train_batch_size": 64}, ".*; --recompute=blocks --train_batch_size=32 "
         r"--steps_per_update=2 --num_train_steps=\d+ does; multiply the other flags .*"),
        (2, {}, ".*; no change of --recompute and --train_batch_size makes it fit"),
        # What is not computed by TensorFlow on a CPU has the copy for checkpoints alone here.
        (3, {"emulate_step_seconds": 0.1, "eval_input_file": None}, ".* about 4.0 GB; --async.*"),
        (3, {"runtime": "jax"}, ".* about 4.0 GB; --async_checkpoint=False does"),
        (5, {"runtime": "jax"}, None),  # its compiler says it
        (1, {"runtime": "jax", **NOT_ASYNC}, None),
    ],
)  # fmt: skip
def test_a_run_that_does_not_fit_is_told_with_what_does(
    config, monkeypatch, gigabytes, changed, expected
):
    monkeypatch.setattr(memory, "memory_bytes", lambda: int(gigabytes * 10**9))
    shape = dataclasses.replace(config.shape, max_seq_length=512)
    usual = {"train_batch_size": 8, "init_checkpoint": None}
    found = shortfalls(large_model(config, shape=shape, jit_compile="auto", **usual | changed))
    assert [bool(re.fullmatch(expected or "", line)) for line in found] == [True] * bool(expected)


def test_replicas_share_what_a_batch_takes_also_of_what_would_fit(config, monkeypatch):
    monkeypatch.setattr(memory, "memory_bytes", lambda: 12 * 10**9)
    shape = dataclasses.replace(config.shape, max_seq_length=512)
    given = dataclasses.replace(config, shape=shape, **NOT_ASYNC)
    one, two = (
        memory.shortfall(
            dataclasses.replace(given, train_batch_size=64 * number), MODEL, num_replicas=number
        )
        for number in (1, 2)
    )
    assert "--train_batch_size=32 --steps_per_update=2" in one.text
    assert two.text == one.text.replace("--train_batch_size=32", "--train_batch_size=64")


def test_what_tensorflow_computes_on_gpus_is_not_estimated(config):
    on_gpu = dataclasses.replace(config, **ON_A_GPU, **NOT_ASYNC)
    assert memory.run_bytes(on_gpu, MODEL, num_rows=8) == 0


def test_the_smallest_change_comes_first(config):
    given = dataclasses.replace(config, train_batch_size=24, num_train_steps=10, **NOT_ASYNC)
    assert [flags.replace("--recompute=", "") for flags, _ in memory.smaller(given, 6)] == [
        "attention",
        "blocks",
        "blocks --train_batch_size=12 --steps_per_update=2 --num_train_steps=20",
        "blocks --train_batch_size=8 --steps_per_update=3 --num_train_steps=30",
        "blocks --train_batch_size=4 --steps_per_update=6 --num_train_steps=60",
    ]
    changes = memory.smaller(dataclasses.replace(config, recompute="blocks", **NOT_ASYNC), 1)
    assert list(changes) == []


def test_a_measurement_is_kept_in_a_new_folder_and_not_repeated(tmp_path, monkeypatch):
    words = ["--batch_sizes", "1", "2", "--precisions=bfloat16", "--recompute=none"]
    monkeypatch.setattr("sys.argv", ["memory", f"--output={tmp_path}/new/memory", *words])
    asked, answer = [], {"peak_bytes": 2**30, "seconds": 1.0}
    monkeypatch.setattr(measuring, "in_a_process", lambda *given: asked.append(given) or answer)
    measuring.main()
    measuring.main()
    kept = reports.stored(tmp_path / "new" / "memory.jsonl")
    assert len(asked) == 2 and [row["train_batch_size"] for row in kept] == [1, 2]
    assert all(answer.items() <= row.items() for row in kept)


@pytest.mark.soak
def test_the_estimate_of_a_step_that_is_measured_now(tmp_path):
    words = [sys.executable, "-m", "benchmarks.memory", "--precisions=bfloat16", "--steps=0"]
    options = ["--batch_sizes=1", "--recompute=blocks", f"--output={tmp_path}/memory"]
    subprocess.run([*words, *options], cwd=ROOT, check=True)
    [found] = reports.stored(tmp_path / "memory.jsonl")
    estimate = measuring.estimated_bytes(found)
    assert found["peak_bytes"] == pytest.approx(estimate, rel=memory.TOLERANCE)


@pytest.mark.soak
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
