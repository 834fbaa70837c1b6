"""Everything that a trace leaves and its exports hold, of both tracers, against what is expected.

expected/ was written by `python -m tracing.tests.whole`; what follows from its lines on paper is
worked out in test_access.
"""

import pytest

from tracing.tests import whole


@pytest.mark.parametrize("backend", whole.BACKENDS)
def test_a_whole_trace_is_as_expected(tmp_path, backend):
    found = dict(whole.parts(whole.write(tmp_path, backend)))
    expected = {path.name: path.read_text() for path in (whole.EXPECTED / backend).iterdir()}
    assert found.keys() == expected.keys()
    for name, text in found.items():
        told = whole.not_of_strace(backend, name, whole.stable(text, tmp_path))
        assert told.splitlines() == expected[name].splitlines(), name
