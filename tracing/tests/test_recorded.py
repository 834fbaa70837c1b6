"""Lines of both tracers, recorded from the same small program, as rows: all are as expected."""

import pytest

from tracing.tests import whole


@pytest.mark.parametrize("backend", ["strace", "bpftrace"])
def test_every_recorded_line_is_the_row_that_is_expected(backend):
    rows, losses = whole.recorded(backend)
    assert losses == "nothing was lost"
    expected = (whole.EXPECTED / "recorded" / f"{backend}.txt").read_text()
    assert rows.splitlines() == expected.splitlines()
