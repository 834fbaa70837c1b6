"""What drawn programs did is in their trace, or the trace says that it does not know."""

import pytest

from tracing import backends
from tracing.tests import drawn
from tracing.tests.conftest import require


@pytest.mark.parametrize(
    ("trace", "backend", "seeds"),
    [
        (drawn.trace_soon, backends.STRACE, range(1093, 1100)),
        pytest.param(drawn.trace_soon, backends.STRACE, range(1060, 1093), marks=pytest.mark.gate),
        pytest.param(drawn.trace, backends.BPFTRACE, range(1060, 1100), marks=pytest.mark.gate),
    ],
)
def test_what_drawn_programs_did_is_in_a_trace_or_unknown_to_it(trace, backend, seeds, tmp_path):
    require(backend)
    records = trace(tmp_path, backend, seeds)
    assert [record for record in records if record.differences] == []
    moved = [record for record in records if record.kind in ("read", "write")]
    assert len(moved) > 5 * len(seeds)
    # One that never knows would be of no use.
    assert sum(not record.nulls for record in moved) > len(moved) / 2
