"""How far emulations are from a real run, on traces of known figures."""

import json
import re
from pathlib import Path

import pytest

from tests.helpers.programs import refusal
from tests.tracing import generated_trace
from tracing import fidelity, tables
from tracing.exports.finished import Finished

BEGIN_NS = generated_trace.BEGIN_NS


def traced(
    folder: Path, *, blocks: list | None = None, num_bytes: int = 1000, request: int = 100,
    depth: float = 2.0, hit_ratio: float = 0.5, of: str = "tfrecords",
    libraries: int = 0, passes: tuple = (),
) -> Path:  # fmt: skip
    """A finished trace; blocks are (seconds of waiting, of computing)."""
    trace = generated_trace.write(folder)
    rows = [
        generated_trace.point(
            100 * (n + 1), "tracked_stats",
            {"input_wait_seconds": waiting, "compute_seconds": computing}, {"of": "block"},
        )
        for n, (waiting, computing) in enumerate(blocks or [])
    ]  # fmt: skip
    tables.write_table(trace, "mllog", rows, generated_trace.alignment())
    # Most calls are small, and few of the bytes are theirs.
    calls = [
        {"monotonic_ns": BEGIN_NS + n, "pid": 1, "tid": 1, "kind": "read", "operation": "pread64",
         "path": "/part-0", "file_class": of, "size_bytes": size, "latency_ns": 1}
        for n, size in enumerate([1] * 9 + [request] * 2)
    ]  # fmt: skip
    tables.write_table(trace, "file_ops", calls, generated_trace.alignment())
    empty = {"num_reads": 0, "read_bytes": 0}
    read = {"num_reads": 9, "read_bytes": num_bytes}
    summary = json.loads((trace / "summary.json").read_text()) | {
        "file_classes": {"tfrecords": empty, "other": empty} | {of: read},
        "access": {
            "page_cache": {"storage_bytes": num_bytes * (1 - hit_ratio) + libraries},
            "passes": passes and [{"storage_bytes": share * num_bytes} for share in passes],
            "queue_depth": {"read_calls": {"mean": depth}} if depth else {},
        },
    }
    (trace / "summary.json").write_text(json.dumps(summary))
    return trace


def test_the_table_has_every_error_and_what_is_missing(tmp_path, capsys):
    real = traced(tmp_path / "real", blocks=[(9, 1), (1, 3), (1, 3)])  # the first does not count
    near = traced(tmp_path / "near", blocks=[(9, 1), (1, 4)], num_bytes=1090, request=95)
    far = traced(tmp_path / "far", of="other", num_bytes=2000, depth=0, hit_ratio=1.0)
    words = [str(real), f"sleep={near}", f"dlio={far},0.9", f"--output={tmp_path / 'table.md'}"]
    fidelity.main(words)
    told = capsys.readouterr().out
    assert told == (tmp_path / "table.md").read_text()
    lines = told.splitlines()
    assert lines[2] == "| the real run | 75.0% | 1,000 | 500 | 100 | 2 |  |"
    assert lines[3] == "| sleep | +7% | +9% | +9% | -5% | 0% | 5 of 5 |"
    assert lines[4] == "| dlio | +20% | +100% | -100% | 0% | unknown | 1 of 4 |"
    assert lines[6:] == [
        "- dlio: to be within 10% it must be nearer in utilization, call bytes, storage bytes",
        "- the page cache gave all data of dlio: there the comparison says nothing about storage; "
        "limit the memory to less than the data",
    ]


def test_storage_is_that_of_the_passes_over_the_data(tmp_path):
    """What the programs are loaded from is in the whole, and not in these."""
    whole = fidelity.figures(Finished(traced(tmp_path / "whole", libraries=700)))
    assert (whole["storage bytes"], whole["hit ratio"]) == (1200, pytest.approx(-0.2))
    of_passes = traced(tmp_path / "passes", libraries=700, passes=(0.5, 0.25))
    found = fidelity.figures(Finished(of_passes))
    assert (found["storage bytes"], found["hit ratio"]) == (750, 0.25)
    unknown = fidelity.figures(Finished(traced(tmp_path / "none", depth=0)))
    assert unknown["queue depth"] is None and unknown["request size"] == 100


def test_the_picture_says_every_error(tmp_path):
    real = traced(tmp_path / "real", blocks=[(9, 1), (1, 3)])
    far = traced(tmp_path / "far", blocks=[(9, 1), (1, 3)], num_bytes=3500, request=95, depth=0)
    picture = tmp_path / "errors.svg"
    fidelity.main([str(real), f"sleep={far}", f"--picture={picture}"])
    texts = re.findall(r"<text [^>]*>([^<]*)</text>", picture.read_text())
    assert [*fidelity.FIGURES] == [text for text in texts if text in fidelity.FIGURES]
    words = [text for text in texts if text == "unknown" or text.endswith("%")]
    assert words == ["0%", "+250%", "+250%", "-5%", "unknown"]


def test_without_a_ledger_utilization_is_unknown(tmp_path, capsys):
    real, same = (traced(tmp_path / name) for name in ("real", "same"))
    fidelity.main([str(real), f"fio={same}"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[3] == "| fio | unknown | 0% | 0% | 0% | 0% | 4 of 4 |" and len(lines) == 4


@pytest.mark.parametrize("word", ["sleep", "=x", "a=", "a=x,b", "a=x,1.5", "a=x,-1", "a=x,nan"])
def test_a_wrong_word_is_one_line(tmp_path, word):
    line = refusal(fidelity.main, tmp_path, word)
    assert line == f"fidelity: {word}: give NAME=FOLDER, or NAME=FOLDER,UTILIZATION from 0 to 1"


def test_what_is_no_trace_or_of_an_older_version_is_one_line(tmp_path):
    real = traced(tmp_path / "real")
    old = generated_trace.write(tmp_path / "old")
    counters = generated_trace.write(tmp_path / "counters", backend="proc")
    for one, other, message in (
        (real, tmp_path / "none", "none is not a finished trace: there is no such folder"),
        (old, real, "lacks 'file_classes'; an older version wrote it: trace again"),
        (real, counters, "holds no single calls: trace with strace or bpftrace"),
    ):
        assert message in refusal(fidelity.main, one, f"fio={other}")
