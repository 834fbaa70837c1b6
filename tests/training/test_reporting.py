"""What a run reports: the keys of its optimizer; metrics on a disk that is full. CPU, seconds."""

import contextlib
import dataclasses
import errno
import getpass
import io
import json
import os
import re
import time
import types
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

import run_pretraining
from mlperf_bert.messages import as_lines
from mlperf_bert.mlperf import energy
from mlperf_bert.mlperf.log import MlperfLog
from mlperf_bert.model.metrics import Evaluation
from mlperf_bert.optimization.config import OptimizerConfig
from mlperf_bert.training.config import Cluster, DeviceConfig
from mlperf_bert.training.evaluations import (
    RESULTS_LINES,
    data_of,
    read_evaluations,
    record_evaluation,
)
from mlperf_bert.training.reporting import (
    MetricsWriter,
    Outcome,
    clock_shift_in_words,
    precision_of_products,
)


def test_an_optimizer_without_keys_of_its_own_is_not_logged_as_another():
    with pytest.raises(ValueError, match="'no_such': no keys of the log are known"):
        OptimizerConfig(name="no_such").hyperparameters(poly_power=1.0)


def test_evaluations_are_on_the_disk_before_what_follows_them(tmp_path, monkeypatch):
    synced: list[str] = []
    path = tmp_path / "metrics.jsonl"
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(path.read_text()))
    with contextlib.closing(MetricsWriter(tmp_path)) as writer:
        writer.write("eval", step=2, samples=8, loss=float(np.float32(1 / 3)))
        writer.flush()
    [text] = synced
    assert '"kind": "eval", "step": 2' in text and '"loss": 0.333333343}' in text
    [events] = tmp_path.glob("events.out.tfevents.*")
    [(step, tag)] = [
        (event.step, value.tag)
        for event in tf.compat.v1.train.summary_iterator(str(events))
        for value in event.summary.value
    ]
    assert (step, tag) == (2, "eval/loss")


class FullDisk(io.FileIO):
    """A file that a full disk takes no more of."""

    def write(self, _):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_names_the_file_of_the_metrics_and_that_of_the_log(tmp_path):
    writer = MetricsWriter(tmp_path)
    writer._file.close()
    writer._file = io.TextIOWrapper(io.FileIO("/dev/full", "w"), write_through=True)
    with pytest.raises(OSError) as failed:
        writer.write("train", step=1, samples=1, loss=1.0)
    assert as_lines(failed.value).startswith(f"{tmp_path}/metrics.jsonl: No space left on device; ")
    file = tmp_path / "bert.log"
    with MlperfLog(file) as written:
        written.commit()
        opened = written._lines
        written._lines = io.TextIOWrapper(FullDisk(file, "a"), write_through=True)
        with pytest.raises(OSError) as failed:
            written.copy_line("line")
        written._lines = opened
    assert as_lines(failed.value).startswith(f"{file}: No space left on device; make room and ")


@pytest.mark.parametrize(
    ("status", "accuracy", "words"),
    [
        ("success", 0.73, "the run reached its target, masked-LM accuracy 0.72"),
        (
            "aborted",
            0.11,
            "without reaching its target, masked-LM accuracy 0.72 (last: 0.1100); MLPerf",
        ),
        ("aborted", None, "masked-LM accuracy 0.72 (not evaluated); MLPerf calls this aborted"),
    ],
)
def test_the_end_of_a_run_is_told_in_words_beside_the_result_line(status, accuracy, words):
    outcome = Outcome(status=status, accuracy=accuracy, samples=80)
    assert words in outcome.in_words(0.72)
    assert f",{status}," in outcome.line(seed=1, start_time=0.0, seconds=0.0)


@pytest.mark.parametrize("error", [None, KeyError, OSError])
def test_the_result_line_has_the_start_the_seconds_and_the_user(monkeypatch, error):
    """Or the number of a user without a name, as in a container."""

    def user() -> str:
        if error:
            raise error("uid not found")
        return "somebody"

    monkeypatch.setattr(getpass, "getuser", user)
    monkeypatch.setattr(time, "localtime", lambda seconds: time.gmtime(seconds))
    outcome = Outcome(status="success", accuracy=0.7234567, samples=80)
    assert outcome.line(seed=5, start_time=13 * 3600.0, seconds=61.6) == (
        f"RESULT,bert,5,62,{os.getuid() if error else 'somebody'},1970-01-01 01:00:00 PM,success,"
        "0.72346,80"
    )


@pytest.mark.parametrize(("seconds", "direction"), [(1234.56, "forward"), (-1234.56, "back")])
def test_a_clock_that_was_set_is_told(seconds, direction):
    assert str(clock_shift_in_words(seconds)) == (
        f"warning: the host's clock was set {direction} by 1,234.6 s in the run, or the host slept;"
        " the log counts on by a monotonic clock"
    )


def test_a_full_disk_is_no_lack_of_memory(small_disk):
    disk = small_disk(64)
    writer = MetricsWriter(disk)
    writer._file.close()
    writer._file = io.StringIO()  # metrics.jsonl has room
    with (disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while filler.write(bytes(1024)):
            pass
    with pytest.raises(OSError, match=f"^{disk}: .*No space left on device; make room and repeat"):
        for step in range(1000):
            writer.write("train", step=step, samples=step, loss=1.0)
    (disk / "filler").unlink()
    writer.close()


@pytest.mark.parametrize(
    "precision, device, capability, expected",
    [
        ("float32", {"num_gpus": 1}, None, "fp32"),
        ("float32", {"use_tpu": True}, None, "fp32"),
        ("bfloat16", {}, None, "bfloat16"),
        ("tf32", {}, None, "fp32"),
        ("tf32", {"use_tpu": True}, None, "bfloat16"),
        *(("tf32", {"num_gpus": 1}, newer, "tf32") for newer in ("8.0", "9.0", "10.0")),
        *(("tf32", {"num_gpus": 1}, other, "fp32") for other in ("7.0", "gfx942")),
    ],
)
def test_the_precision_that_a_device_computes_in(precision, device, capability, expected):
    gpu = types.SimpleNamespace(compute_capability=capability)
    mesh = types.SimpleNamespace(devices=np.array([gpu])) if capability else None
    assert precision_of_products(precision, DeviceConfig(**device), mesh) == expected


def test_gpus_of_all_processes_on_the_chiefs_host_are_used(config, monkeypatch):
    given = []
    monkeypatch.setattr(energy, "meter", lambda **of: given.append(of))
    own = dataclasses.replace(config, device=DeviceConfig(num_gpus=2), cuda_visible_devices="6,7")
    for cluster in (Cluster(2, 0, 2, 1, 0), Cluster(3, 0, 2, 2, 0)):
        dataclasses.replace(own, cluster=cluster).energy_meter()
    own.energy_meter()
    assert [(of["num_gpus"], of["num_hosts"]) for of in given] == [(2, 2), (4, 2), (2, 1)]
    # Which GPUs another process sees is not known here.
    assert [of["visible"] for of in given] == ["6,7", None, "6,7"]


FIGURES = dict.fromkeys(Evaluation.__annotations__, 1)
ENTRY = json.dumps({"step": 5, **FIGURES}).encode()

# A line -> why it is refused.
DAMAGED = {
    b"[]": "expected a JSON object, got list",
    b"[" * 100_000: "nested too deeply",
    b"\xff": "can't decode byte 0xff",
    b'{"step"': "not JSON",
    b"{}": "step",
    ENTRY.replace(b"5", b'"5"', 1): "not a number|not supported between",
}


@pytest.mark.parametrize("line", DAMAGED, ids=lambda line: repr(line[:20]))
def test_a_damaged_line_is_named(line, tmp_path):
    for name in (RESULTS_LINES, "metrics.jsonl"):
        (tmp_path / name).write_bytes(ENTRY + b"\n" + line + b"\n" + ENTRY + b"\n")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    message = f"line 2: damaged .*({DAMAGED[line]}).*; remove the line"
    with pytest.raises(ValueError, match=f"{RESULTS_LINES} {message}, and its check"):
        read_evaluations(tmp_path)
    with pytest.raises(ValueError, match=f"metrics.jsonl {message}"):
        MetricsWriter(tmp_path, resumed_step=5)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("given_first", [False, True])
def test_a_given_checkpoint_does_not_count_as_that_of_the_run(given_first, tmp_path):
    own, given = (Evaluation(**FIGURES | {"loss": loss}) for loss in (0.25, 0.5))
    entries = [(own, None), (given, "elsewhere/model.ckpt-5")]
    for evaluation, checkpoint in reversed(entries) if given_first else entries:
        record_evaluation(tmp_path, 5, evaluation, checkpoint=checkpoint)
    assert read_evaluations(tmp_path) == {5: own}


def test_other_figures_are_refused(tmp_path):
    entry = json.dumps({"step": 5, **FIGURES, "more": 1})
    (tmp_path / RESULTS_LINES).write_text(f"{entry}\n")
    with pytest.raises(ValueError, match=r"line 1: damaged .*'more'"):
        read_evaluations(tmp_path)


def test_a_line_that_was_cut_is_left_out_and_replaced(tmp_path):
    path = tmp_path / RESULTS_LINES
    path.write_bytes(ENTRY + b"\n" + ENTRY[:20])
    found = Evaluation(**FIGURES)
    assert read_evaluations(tmp_path) == {5: found}
    record_evaluation(tmp_path, 9, found)
    assert read_evaluations(tmp_path) == {5: found, 9: found}
    assert path.read_bytes().startswith(ENTRY + b"\n{")
    record_evaluation(tmp_path, 7, found)
    assert [*read_evaluations(tmp_path)] == [5, 7, 9]


def test_the_data_of_a_whole_evaluation_are_the_same_in_any_order(config, tmp_path):
    names = [str(tmp_path / name) for name in ("part-0", "eval")]
    (tmp_path / "eval").write_bytes(b"other")
    assert data_of(config, names) == data_of(config, names[::-1])


def test_a_resumed_run_keeps_the_lines_of_the_step_it_goes_on_from(tmp_path):
    """Its evaluation is not made again; what stands after it is trained again."""
    with contextlib.closing(MetricsWriter(tmp_path)) as written:
        for step, kind in ((4, "train"), (5, "train"), (5, "eval"), (6, "train")):
            written.write(kind, step=step, samples=8 * step)
    MetricsWriter(tmp_path, resumed_step=5).close()
    lines = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    kept = [(line["step"], line["kind"]) for line in lines]
    assert kept == [(4, "train"), (5, "train"), (5, "eval")]


@pytest.mark.parametrize("is_chief", [True, False])
def test_the_chief_alone_prints_a_result_with_the_seed_that_was_drawn(
    monkeypatch, capsys, is_chief
):
    outcome = Outcome(status="success", accuracy=0.75, samples=8) if is_chief else None
    given, team = types.SimpleNamespace(target_accuracy=0.72, seed=None), mock.Mock(seed=9)
    monkeypatch.setattr(run_pretraining, "_config", lambda: given)
    monkeypatch.setattr(run_pretraining.workers, "agree", lambda config: (config, team))
    monkeypatch.setattr(run_pretraining.run, "train", lambda *_: outcome)
    run_pretraining._train()
    line = r"the run reached .*0\.72\nRESULT,bert,9,\d+,.*,success,0\.75000,8\n" * is_chief
    assert re.fullmatch(line, capsys.readouterr().out)
