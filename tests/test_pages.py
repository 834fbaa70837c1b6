"""A template misses nothing, and the same data give the same bytes."""

import jinja2
import pytest

import pages


def test_a_value_that_is_not_given_is_an_error():
    with pytest.raises(jinja2.UndefinedError, match="'systems' is undefined"):
        pages.render("report.html", title="t", subtitle="s", columns=[])


def test_the_same_data_give_the_same_picture():
    first, second = (pages.svg(lambda axes: axes.plot([1, 2], label="x"), (2, 1)) for _ in range(2))
    assert first == second
    assert first.startswith("<svg")
