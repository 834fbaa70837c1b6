"""What two traces cannot be compared for; test_whole has what changed between two."""

from tests.fixtures import REPOSITORY
from tests.helpers.programs import refusal
from tracing import backends, compare
from tracing.loaded import Trace

SAMPLE = REPOSITORY / "tracing" / "sample"


def test_another_backend_is_told_first_and_its_calls_are_compared_unless_there_are_none(
    whole_trace,
):
    a, b = Trace(whole_trace), Trace(SAMPLE)
    b.summary["backend"] = backends.BPFTRACE
    first, *_ = compare.lines(compare.compare(a, b))
    assert first.startswith(
        "ANOTHER BACKEND (strace and bpftrace): each adds its own time to a call"
    )
    b.summary["backend"] = backends.PROC
    found = compare.compare(a, b)
    assert found.calls.empty and not found.usage.empty
    assert "single calls are not compared: proc records none" in found.remarks


def test_bad_input_is_told_in_one_line(tmp_path):
    line = refusal(compare.main, tmp_path, SAMPLE)
    assert "summary.json is not of a finished trace (" in line
    line = refusal(compare.main, SAMPLE, SAMPLE / "../sample")
    assert line == f"compare: A and B are both {SAMPLE}; give two traces"
