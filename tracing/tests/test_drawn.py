"""What drawn programs did is in their trace, or the trace says that it does not know."""

import pytest

from tracing import backends
from tracing.tests import drawn
from tracing.tests.conftest import require


@pytest.mark.gate
@pytest.mark.parametrize(
    ("backend", "seeds"),
    [(backends.STRACE, range(1060, 1063)), (backends.BPFTRACE, range(1060, 1100))],
)
def test_what_drawn_programs_did_is_in_a_trace_or_unknown_to_it(backend, seeds, tmp_path):
    require(backend)
    check(drawn.trace(tmp_path, backend, seeds), len(seeds))


@pytest.mark.parametrize(
    "seeds", [range(1093, 1100), pytest.param(range(1060, 1093), marks=pytest.mark.gate)]
)
def test_what_they_did_is_in_straces_lines_or_unknown_by_them(seeds, tmp_path):
    require(backends.STRACE)
    check(drawn.trace_soon(tmp_path, seeds), len(seeds))


def check(records: list[drawn.Record], num_programs: int) -> None:
    assert [record for record in records if record.differences] == []
    moved = [record for record in records if record.kind in ("read", "write")]
    assert len(moved) > 5 * num_programs
    # One that never knows would be of no use.
    assert sum(not record.nulls for record in moved) > len(moved) / 2
