"""What all pages share: escaping, templates that miss nothing, numbers in units, the same bytes."""

import jinja2
import pytest

import pages
from pages import Card, charts

HOSTILE = "<script>alert(\"a\" & 'b')</script>{{ 7 * 7 }}"
ESCAPED = "&lt;script&gt;alert(&quot;a&quot; &amp; &#x27;b&#x27;)&lt;/script&gt;{{ 7 * 7 }}"


def trace_page(**changes):
    given = {"title": "t", "subtitle": "s", "figures": [], "charts": []}
    given |= {"tables": [], "notes": [], "terms": []}
    return pages.render("trace.html", **given | changes)


def test_every_value_is_escaped():
    page = trace_page(
        title=HOSTILE,
        subtitle=HOSTILE,
        figures=[Card(HOSTILE, HOSTILE, HOSTILE, good=True)],
        charts=[(HOSTILE, None, HOSTILE)],
        tables=[(HOSTILE, [[HOSTILE], [HOSTILE]])],
        notes=[HOSTILE],
        terms=[HOSTILE],
    )
    assert "<script" not in page
    assert page.count(ESCAPED) == 13  # the title twice


def test_a_value_that_is_not_given_is_an_error():
    with pytest.raises(jinja2.UndefinedError, match="'systems' is undefined"):
        pages.render("report.html", title="t", subtitle="s", columns=[])


@pytest.mark.parametrize(("number", "shown"), [(26, 25), (25, 25)])
def test_long_tables_are_cut_and_say_so(number, shown):
    page = trace_page(tables=[("files", [["file"], *([f"f{n}"] for n in range(number))])])
    assert page.count("<td>") == shown
    assert ("and 1 more in summary.json" in page) == (number > shown)


def test_the_same_data_give_the_same_picture():
    first, second = (charts.svg(lambda axes: None, (2, 1), salt="x") for _ in range(2))
    assert first == second
    assert first.startswith("<svg")


@pytest.mark.parametrize(
    ("value", "text"), [(2.5e6, "2.5M"), (12_480, "12.48k"), (-3000, "-3k"), (7, "7"), (0.5, "0.5")]
)
def test_numbers_are_shown_in_their_unit(value, text):
    assert charts.in_units(value, [(1e6, "M"), (1e3, "k"), (1, "")]) == text
