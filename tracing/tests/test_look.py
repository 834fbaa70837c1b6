"""A trace's page: escaping, a template that misses nothing, numbers in units, the same bytes."""

import pytest

from tracing import loaded, look, page
from tracing.look import Card

HOSTILE = "<script>alert(\"a\" & 'b')</script>{{ 7 * 7 }}"
ESCAPED = "&lt;script&gt;alert(&#34;a&#34; &amp; &#39;b&#39;)&lt;/script&gt;{{ 7 * 7 }}"


def trace_page(**changes):
    given = {"title": "t", "subtitle": "s", "figures": [], "charts": []}
    given |= {"tables": [], "notes": [], "terms": []}
    return look.page(**given | changes)


def test_every_value_is_escaped():
    page = trace_page(
        title=HOSTILE,
        subtitle=HOSTILE,
        figures=[Card(HOSTILE, HOSTILE, HOSTILE)],
        charts=[(HOSTILE, None), (HOSTILE, "")],
        tables=[(HOSTILE, [[HOSTILE], [HOSTILE]])],
        notes=[HOSTILE],
        terms=[HOSTILE],
    )
    assert "<script" not in page
    assert page.count(ESCAPED) == 12  # the title twice


@pytest.mark.parametrize(("number", "shown"), [(26, 25), (25, 25)])
def test_long_tables_are_cut_and_say_so(number, shown):
    page = trace_page(tables=[("files", [["file"], *([f"f{n}"] for n in range(number))])])
    assert page.count("<td>") == shown
    assert ("and 1 more in summary.json" in page) == (number > shown)


@pytest.mark.parametrize(("length", "shown"), [(48, "x" * 48), (49, "…" + "x" * 47)])
def test_the_end_of_a_long_path_is_shown(length, shown):
    assert page._tail("x" * length) == shown


def test_the_page_of_what_ran_already(whole_trace, monkeypatch):
    monkeypatch.setattr(look, "svg", lambda *_, **__: "")
    clocks = {"error_bound_ns": 960, "drift_ns": -40}
    summary = loaded.summary_of(whole_trace) | {"command": [], "seconds": 0.0, "clocks": clocks}
    found = page.page(loaded.Trace(whole_trace, summary))
    assert "<title>Trace: a running program" in found and "drift 0.0 µs over" in found


def test_the_same_data_give_the_same_picture():
    first, second = (look.svg(lambda axes: None, 1, "nothing") for _ in range(2))
    assert first == second
    assert first.startswith('<svg role="img" aria-label="nothing" ')


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0 B"), (999, "999 B"), (2500, "2.50 kB"), (2.5e6, "2.50 MB"), (12_345e9, "12.35 TB")],
)
def test_bytes_are_written_in_the_largest_unit_that_they_reach(number, shown):
    assert look.bytes_text(number) == shown
