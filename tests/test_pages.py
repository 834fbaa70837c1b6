"""A template misses nothing and shows all that it is given; the same data give the same bytes."""

import io
import re
import struct
from types import SimpleNamespace

import jinja2
import pytest

import pages
from pages import Card


def test_a_value_that_is_not_given_is_an_error():
    with pytest.raises(jinja2.UndefinedError, match="'systems' is undefined"):
        pages.render("report.html", title="t", subtitle="s", columns=[])


def test_a_report_shows_what_it_is_given():
    runs = [SimpleNamespace(hyperparameters={"batch": n}, provenance={"commit": n}) for n in "12"]
    about = {"runs": runs, "rcp": "an RCP", "olympic_minutes": 9}
    page = pages.render(
        "report.html",
        title="<T>",
        subtitle="S",
        columns=["run", "status"],
        systems=[SimpleNamespace(name=name, description={"of": name}, **about) for name in "ab"],
        charts=SimpleNamespace(
            accuracy_over_samples=lambda runs, rcp: f"<svg>{len(runs)} {rcp}</svg>",
            minutes_by_run=lambda runs, minutes: f"<svg>{len(runs)} in {minutes}</svg>",
            ledgers=lambda _: None,
        ),
        figures_of=lambda _: [
            Card("l", v, f"n{v}", good) for v, good in (("1", True), ("2", False), ("3", None))
        ],
        problems_of=lambda system: ["one", "two"] if system.name == "a" else [],
        rows_of=lambda _: [
            [("r", None), ("yes", True), ("beyond", None)],
            [("q", None), ("no", False)],
        ],
        facts_of=lambda facts: list(facts.items()),
    )
    page = re.sub(r">\s+<", "><", page)
    for part, times in {
        "<h1>&lt;T&gt;</h1><p>S</p>": 1,
        '<nav><a href="#system-0">a</a><a href="#system-1">b</a></nav>': 1,
        '<section id="system-1"><h2>b</h2>': 1,
        '<span class="label">l</span><b class="good">1</b><small>n1</small>': 2,
        '<b class="bad">2</b><small>n2</small>': 2,
        "<b>3</b>": 2,
        "<li>one</li><li>two</li>": 1,
        "<li>": 2,
        "<th>run</th><th>status</th></tr>": 2,
        '<tr><td data-label="run">r</td>': 2,
        '<td data-label="status"><span class="good">yes</span></td></tr>': 2,
        '<td data-label="status"><span class="bad">no</span></td></tr>': 2,
        "<tr><td>batch</td><td>1</td></tr></table>": 2,
        "<tr><td>commit</td><td>1</td></tr></table>": 2,
        "<tr><td>of</td><td>b</td></tr></table>": 1,
        'aria-label="Accuracy over samples"><svg>2 an RCP</svg></figure>': 2,
        'aria-label="Time to train of every run"><svg>2 in 9</svg></figure>': 2,
        "second": 0,
    }.items():
        assert page.count(part) == times, part


def test_the_same_data_give_the_same_picture():
    first, second = (pages.svg(lambda axes: axes.plot([1, 2], label="x"), (2, 1)) for _ in range(2))
    assert first == second
    assert first.startswith("<svg") and ">x</text>" in first


def test_a_picture_has_its_size_and_its_rows():
    with pages.png(file := io.BytesIO(), (4, 3), rows=2) as axes:
        assert axes.shape == (2, 1)
    assert struct.unpack(">II", file.getvalue()[16:24]) == (600, 450)
