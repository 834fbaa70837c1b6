"""Damaged JSON files and logs: each reader takes what it can, or refuses in one line.

Hypothesis makes them from a fixed seed: some thousand a target in the slow tests, some dozens else.
"""

import dataclasses
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlperf_bert.data import parts
from mlperf_bert.data import published as of_the_data
from mlperf_bert.files import json_text
from mlperf_bert.messages import as_lines
from mlperf_bert.mlperf import convergence, joining, log_reader
from mlperf_bert.model.config import BertConfig
from mlperf_bert.model.metrics import Evaluation
from mlperf_bert.submission import campaign, compliance, report, runs, system, verdict
from mlperf_bert.submission.official import RcpVerdict, ToolVerdict
from mlperf_bert.submission.verdict import SystemVerdict
from mlperf_bert.training import output, workers
from mlperf_bert.training.evaluations import RESULTS_LINES, read_evaluations, record_evaluation
from mlperf_bert.training.reporting import MetricsWriter
from mlperf_results import published, standing
from mlperf_results.own import entry_of
from tests.helpers.fuzzing import damaged, damaged_lines, seeded
from tests.mlperf.example_log import write_log
from tests.training.configurations import TINY
from tracing import mllog, tables
from tracing.clocks import Alignment, ClockPair

LONGEST_LINE = 5000
MARK = b":::MLLOG "
PUBLISHED = published.load()[::30]
LOG = object()  # the log of a run

FILE = {"bytes": 5, "md5": 32 * "0", "examples": 2}
DATA_SET = {
    "parameters": {"examples_per_part": 0, "max_seq_length": 128},
    "inputs": {"part-0": FILE},
    "files": {"part-0": FILE, "part-1": FILE},
    "made_with": {"numpy": "2"},
}
RESULTS = [{"step": n, **dict.fromkeys(Evaluation.__annotations__, 1)} for n in (10, 20, 30)]
METRICS = [{"kind": "train", "step": n, "samples": 8 * n, "loss": 2.5} for n in range(1, 9)]
POINTS = {
    f"point {size}": {
        "Benchmark": "bert",
        "BS": size,
        "Hyperparams": {"opt_base_learning_rate": 0.1},
        "Epochs to converge": list(range(1000, 1020)),
    }
    for size in (64, 128)
}
TF_CONFIG = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}
PAIR = {"monotonic_ns": 1, "realtime_ns": 10**18, "boottime_ns": 1, "uncertainty_ns": 1}


def log_lines(folder: Path) -> list[dict]:
    """The log of a short run with two checkpoints, line by line, at the same times on each call."""
    log = write_log(folder / "whole.log", [0.5, 0.73])
    found = [json.loads(line.removeprefix(MARK.decode())) for line in log.read_text().splitlines()]
    saved = [{"key": "checkpoint_stop", "metadata": {"step_num": step}} for step in (3, 350)]
    stop = next(number for number, line in enumerate(found) if line["key"] == "run_stop")
    found[stop:stop] = [found[stop] | line for line in saved]
    return [line | {"time_ms": 10**12 + 1000 * number} for number, line in enumerate(found)]


def read_parts(path: Path) -> None:
    (path.parent / "part-0").write_bytes(b"12345")
    of_the_data.verify(path.parent)
    parts.of_files([str(path.parent / "part-0")])
    made = parts.read(path.parent)
    parts.write(path.parent, parts.PARTS, made[parts.PARTS])


def read_log(path: Path) -> None:
    """As for a report; the verdicts of the official tools are made up."""
    run = log_reader.read_run(path)
    rcp = RcpVerdict(True, "made up", None, None, None, 1.0)
    found = SystemVerdict(
        name="box",
        ruleset="5.0.0",
        runs=(run, run),
        compliance=(compliance.Verdict(path, "5.0.0", True, ()),) * 2,
        rcp=rcp,
        seeds=ToolVerdict("seed checker", True),
        problems=tuple(verdict.problems_of_result([run, run])),
        olympic_minutes=verdict.olympic_mean([run.minutes] * 5),
    )
    report.as_text(found)
    report.as_json([found])
    standing.standing_of(entry_of(found), PUBLISHED)


def join_log(path: Path) -> None:
    joining.join(
        [path],
        {3: 0.5, 350: 0.73},
        num_eval_samples=10_000,
        target_accuracy=0.72,
        output=path.with_name("joined.log"),
    )


def trace_log(path: Path) -> None:
    """To tables, as after a training that was traced."""
    if not mllog.holds_log(path):
        return
    rows = list(mllog.event_rows(path, begin_ns=0, end_ns=2**62))
    alignment = Alignment([ClockPair(**PAIR)])
    tables.write_table(path.parent, "mllog", rows, alignment)
    spans = mllog.span_rows(rows, end_ns=2**62)
    tables.write_table(
        path.parent, "spans", [s | {"end_monotonic_ns": 1} for s in spans], alignment
    )


def add_evaluation(folder: Path) -> None:
    found = read_evaluations(folder)
    record_evaluation(folder, 40, Evaluation(**dict.fromkeys(Evaluation.__annotations__, 1)))
    assert read_evaluations(folder).keys() == found.keys() | {40}


def drop_metrics(path: Path) -> None:
    MetricsWriter(path.parent, resumed_step=4).close()
    assert path.read_bytes().endswith(b"\n") or not path.read_bytes()


# target -> name of the file, what it holds when whole, who reads it
TARGETS = {
    "parts": (parts.NAME, {parts.PARTS: DATA_SET}, read_parts),
    "bert_config": (
        "bert_config.json",
        dataclasses.asdict(TINY),
        lambda path: BertConfig.from_json_file(str(path)),
    ),
    "eval_results": (RESULTS_LINES, RESULTS, lambda path: add_evaluation(path.parent)),
    "metrics": ("metrics.jsonl", METRICS, drop_metrics),
    "log": ("result_0.txt", LOG, read_log),
    "joined log": ("bert.log", LOG, join_log),
    "traced log": ("bert.log", LOG, trace_log),
    "points": ("rcps.json", POINTS, lambda path: str(convergence.bound_of(100, "5.0.0", path))),
    "system": (
        "system.json",
        {"cooling": "air", "hw_notes": ""},
        lambda path: system.require_fields(json_text.read_object(path)),  # "system description"
    ),
    "TF_CONFIG": (
        "TF_CONFIG",
        TF_CONFIG,
        lambda path: workers.read_cluster({"TF_CONFIG": os.fsdecode(path.read_bytes())}),
    ),
}


def given_file(target: str, folder: Path) -> tuple[Path, bytes, st.SearchStrategy[bytes]]:
    """Where a reader looks for its file, the whole content, and damaged ones."""
    name, content, _ = TARGETS[target]
    path = folder / "given" / name
    path.parent.mkdir(parents=True)
    content = log_lines(folder) if content is LOG else content
    if not isinstance(content, list):
        return path, json.dumps(content).encode(), damaged(content)
    mark = MARK if TARGETS[target][1] is LOG else b""
    whole = b"".join(mark + json.dumps(line).encode() + b"\n" for line in content)
    return path, whole, damaged_lines(content, mark=mark)


def require_good_end(read, path: Path) -> None:
    """It works, or one line says what is wrong; nothing half-written is left."""
    before = {entry.name for entry in path.parent.iterdir()}
    try:
        read(path)
    except (ValueError, OSError) as error:
        [line] = as_lines(error).splitlines()  # as it is told
        assert line.isprintable() and len(line) < LONGEST_LINE
        assert any(name in line for name in (str(path.parent), path.name, path.stem)), line
    left = {entry.name for entry in path.parent.iterdir()} - before
    assert not [name for name in left if "partial" in name or name.endswith(".new")]


@pytest.mark.parametrize("target", TARGETS)
def test_whole_files_are_read(target, tmp_path):
    """Else the damage would hide behind a reader that refuses everything."""
    path, whole, _ = given_file(target, tmp_path)
    path.write_bytes(whole)
    TARGETS[target][2](path)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("num_cases", [40, pytest.param(1000, marks=pytest.mark.all)])
def test_damaged_files_are_refused_in_one_line(target, tmp_path, num_cases):
    path, _, contents = given_file(target, tmp_path)

    @seeded(num_cases)
    @given(contents)
    def attempt(content: bytes):
        convergence.reference_points.cache_clear()
        path.write_bytes(content)
        require_good_end(TARGETS[target][2], path)

    attempt()


AGAIN = "copy it here again"


def finished_run(folder: Path) -> None:
    (folder / log_reader.LOG_NAME).touch()
    runs.finished_run(folder)


def claim(folder: Path) -> None:
    given = {"org": "o", "system": "s", "status": "onprem", "num_runs": 1, "flags": ("--x=1",)}
    with campaign.claimed(campaign.Campaign(**given, folder=folder)):
        pass


# Who reads a record from its folder, its name, a text, and what is said: the fault, and the remedy.
READERS = [
    (parts.read, parts.NAME, '{"parts": {"inputs": {"x": {}}}}', rf"lacks.*\); {AGAIN}"),
    (
        output.read_record,
        log_reader.RECORD_NAME,
        '{"status": "running"}',
        rf"\); {AGAIN}, or choose",
    ),
    (finished_run, log_reader.RECORD_NAME, "[", rf"\); {AGAIN}, or choose another --output_dir"),
    (claim, log_reader.CAMPAIGN_RECORD, "[", rf"\); {AGAIN}, or choose another --output_dir"),
]


@pytest.mark.parametrize("read, name, text, message", READERS)
def test_a_record_whose_fields_are_wrong_is_refused_with_a_remedy(
    tmp_path, read, name, text, message
):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=rf"^{tmp_path}/{name}: damaged \(.*{message}"):
        read(tmp_path)


REFUSED = {
    b"": r"not JSON \(Expecting value",
    b'{"status": "runn': r"not JSON \(",
    b"\xff\xfe{": r"not JSON \(",
    b"[" * 100_000: r"not JSON \(nested too deeply\)",
    b'{"a":' * 100_000: r"not JSON \(nested too deeply\)",
    b'{"a": 1' + b"0" * 5000 + b"}": r"not JSON \(Exceeds the limit",
    b"null": "expected a JSON object, got NoneType",
    b"[1]": "expected a JSON object, got list",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: repr(text[:20]))
def test_what_is_no_json_object_is_one_line(text, tmp_path):
    (tmp_path / "x.json").write_bytes(text)
    with pytest.raises(ValueError, match=f"^{REFUSED[text]}") as error:
        json_text.parse_object(text)
    assert len(str(error.value).splitlines()) == 1
    with pytest.raises(ValueError, match=f"/x.json: {REFUSED[text]}"):
        json_text.read_object(tmp_path / "x.json")
    with pytest.raises(ValueError, match=rf"/x.json: damaged \({REFUSED[text]}.*\); copy it$"):
        json_text.read_record(tmp_path / "x.json", dict, remedy="copy it")


def test_json_of_others_is_taken(tmp_path):
    text = '{"a": "é \\ud83d\\ude00", "b": [{"a": 1}, {"a": 2}]}'
    expected = {"a": "é \U0001f600", "b": [{"a": 1}, {"a": 2}]}
    assert json_text.parse_object(text) == json_text.parse_object(text.encode()) == expected
    for encoding in ("utf-8", "utf-8-sig"):
        (tmp_path / "x.json").write_text(text, encoding=encoding)
        assert json_text.read_object(tmp_path / "x.json") == expected


def test_a_record_that_is_not_there_is_none_and_one_that_cannot_be_read_is_not(tmp_path):
    record = tmp_path / "run.json"
    assert json_text.read_record(record, dict, remedy="") is None
    json_text.write_record(record, {"seed": 1})
    assert json_text.read_record(record, dict, remedy="") == {"seed": 1}
    with pytest.raises(ValueError, match=r"run.json: damaged \(lacks 'status'\); copy it"):
        json_text.read_record(record, lambda content: content["status"], remedy="copy it")
    record.unlink()
    record.symlink_to("/proc/self/mem")  # has no first byte: EIO
    with pytest.raises(OSError, match="Input/output error"):
        json_text.read_record(record, dict, remedy="copy it again")
