"""What all pages share: escaping, templates that miss nothing, numbers in units, the same bytes."""

import jinja2
import pytest

import pages
from pages import Card, charts

HOSTILE = "<script>alert(\"a\" & 'b')</script>{{ 7 * 7 }}"
ESCAPED = "&lt;script&gt;alert(&#34;a&#34; &amp; &#39;b&#39;)&lt;/script&gt;{{ 7 * 7 }}"


def test_every_value_is_escaped():
    whole = '{% extends "base.html" %}{% from "parts.html" import box, cards, list, remark %}'
    whole += "{% block main %}{{ cards(figures) }}{{ list(notes) }}{{ remark(notes[0]) }}"
    whole += "{% call box(title, 'h2') %}{{ notes[0] }}{% endcall %}{% endblock %}"
    page = (
        pages._templates()
        .from_string(whole)
        .render(
            title=HOSTILE,
            subtitle=HOSTILE,
            figures=[Card(HOSTILE, HOSTILE, HOSTILE, good=True)],
            notes=[HOSTILE],
        )
    )
    assert "<script" not in page
    assert page.count(ESCAPED) == 10  # the title thrice


def test_a_value_that_is_not_given_is_an_error():
    with pytest.raises(jinja2.UndefinedError, match="'systems' is undefined"):
        pages.render("report.html", title="t", subtitle="s", columns=[])


def test_the_same_data_give_the_same_picture():
    first, second = (charts.svg(lambda axes: None, (2, 1), salt="x") for _ in range(2))
    assert first == second
    assert first.startswith("<svg")


@pytest.mark.parametrize(
    ("value", "text"), [(2.5e6, "2.5M"), (12_480, "12.48k"), (-3000, "-3k"), (7, "7"), (0.5, "0.5")]
)
def test_numbers_are_shown_in_their_unit(value, text):
    assert charts.in_units(value, [(1e6, "M"), (1e3, "k"), (1, "")]) == text
