"""What changed between two traces, of which one is the other with changes made by hand."""

import json

import pandas as pd
import pytest

from tests.fixtures import REPOSITORY
from tests.helpers.programs import refusal
from tracing import backends, compare, tables
from tracing.clocks import Alignment
from tracing.exports.finished import Finished
from tracing.tests import generated_trace

SAMPLE = REPOSITORY / "tracing" / "sample"


def changed(folder, change_calls=lambda calls: calls, **summary):
    """The generated trace with other calls and summary."""
    generated_trace.write(folder)
    calls = tables.read_table(folder, "file_ops")
    rows = change_calls(calls).astype(object)
    rows = rows.where(rows.notna(), None).to_dict("records")
    alignment: Alignment = generated_trace.alignment()
    tables.write_table(folder, "file_ops", rows, alignment)
    path = folder / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | summary))
    return Finished(folder)


@pytest.fixture(name="a")
def before(tmp_path):
    return changed(tmp_path / "a")


def test_calls_belong_to_the_innermost_phase(a):
    """Against the calls of the generated trace, counted by their stamps in microseconds."""
    found = compare._calls(a)["calls"]
    # Two turns of fifteen reads; the first at 100 ms, the second at 500 ms, in the block.
    assert found["block", "other", "read"] == 30 + 3  # 17 bytes, 1 byte, and the end of a file
    # What was written as /out/temporary, and renamed.
    assert found["checkpoint", "checkpoints", "write"] == 8
    assert found["checkpoint", "checkpoints", "sync"] == 1
    assert found["run", "pseudo", "read"] == 1
    assert found.sum() == len(tables.read_table(a.folder, "file_ops"))


def test_the_largest_change_stands_first_whatever_its_sign(a, tmp_path):
    def slower(calls: pd.DataFrame) -> pd.DataFrame:
        saved = (calls["path"] == "/out/temporary") & (calls["kind"] == "write")
        calls.loc[saved, "latency_ns"] += 50_000_000
        reads = (calls["path"] == generated_trace.DATA[0]) & (calls["kind"] == "read")
        return calls[~(reads & (calls["monotonic_ns"] > generated_trace.BEGIN_NS + 5e8 - 1))]

    b = changed(tmp_path / "b", slower)
    found = compare.compare(a, b)
    first, second = found.calls[:2].itertuples()
    assert first.Index == ("checkpoint", "checkpoints", "write")
    assert first.longer == pytest.approx(8 * 0.05)
    assert (first.calls_b - first.calls_a, first.bytes_b - first.bytes_a) == (0, 0)
    assert second.Index == ("block", "other", "read")
    # The second turn's five reads, and the one at the end of the file.
    assert second.calls_b - second.calls_a == -6
    assert second.bytes_b - second.bytes_a == -5 * 65536
    assert not found.calls["longer"][2:].any()
    printed = compare.lines(found)
    assert any(
        "checkpoint checkpoints write" in line and line.endswith("+0.400") for line in printed
    )
    assert len(printed) <= 45  # a page


def test_what_differs_besides_is_told_first(a, tmp_path):
    changes = {"backend": "bpftrace", "losses": {"lost_lines": 3}, "machine": {"num_cpus": 4}}
    b = changed(tmp_path / "b", **changes, command=["python", "train.py", "--x=2"])
    a.summary["command"] = ["python", "train.py", "--x=1"]
    a.summary["machine"] = {"num_cpus": 2}
    printed = compare.lines(compare.compare(a, b))
    assert printed[0].startswith("ANOTHER BACKEND (strace and bpftrace): each adds its own time")
    assert printed[1] == "ANOTHER MACHINE, or another state of it: num_cpus 4, not 2"
    assert printed[2] == "another command: '--x=1' (A), '--x=2' (B)"
    assert printed[3] == "B has lost 3 events or lines: its counts are too small"


def test_without_single_calls_phases_and_usage_are_compared(a, tmp_path):
    usage = {"cpu_seconds": 2.5, "major_faults": 3}
    b = changed(tmp_path / "b", backend=backends.PROC, usage=usage)
    a.summary["usage"] = {"cpu_seconds": 1.5, "major_faults": 3}
    found = compare.compare(a, b)
    assert found.calls.empty
    assert "single calls are not compared: proc records none" in found.remarks
    assert found.usage["B - A"].to_dict() == {"processor seconds": 1.0, "page faults with I/O": 0.0}
    assert found.usage.index[0] == "processor seconds"


def test_bad_input_is_told_in_one_line(tmp_path):
    line = refusal(compare.main, tmp_path, SAMPLE)
    assert "summary.json is not of a finished trace (" in line
    line = refusal(compare.main, SAMPLE, SAMPLE / "../sample")
    assert line == f"compare: A and B are both {SAMPLE}; give two traces"
