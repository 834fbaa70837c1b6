"""A trace's page: escaping, a template that misses nothing, numbers in units, the same bytes."""

import re
import types

import pandas as pd
import pytest

from tracing import charts, loaded, look, page
from tracing.calls import Losses
from tracing.look import Card
from tracing.tests import whole

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


@pytest.mark.parametrize(
    ("cached", "value", "note"),
    [
        ({"hit_ratio": None}, "unknown", "read calls on files"),
        ({"hit_ratio": None, "storage_bytes": None}, "unknown", "counters of the processes, /proc"),
        ({"hit_ratio": 0.0}, "0%", "13.35 kB came from storage"),
    ],
)
def test_what_is_not_wholly_known_is_said_in_its_card(whole_trace, cached, value, note):
    summary = loaded.summary_of(whole_trace)
    summary["access"]["page_cache"] |= cached
    summary["losses"]["asynchronous_processes"] = 1
    cards = list(page._cards(summary, Losses(**summary["losses"])))
    assert [card.value for card in cards[:2]] == ["at least 94.77 kB", "at least 84.64 kB"]
    assert cards[3].value == value and cards[3].note.startswith(note)


def test_pictures_of_a_long_trace_of_many_files(monkeypatch):
    """The files with the most bytes are drawn; rates are of each bin; what is unknown is not."""
    monkeypatch.setattr(look, "svg", whole.drawn)
    moved = [(n, 60.0 * n, 1_000_000 * (n + 1)) for n in range(9)] + [(0, 599.0, 1)] * 10
    reads = pd.DataFrame(moved, columns=["final_path", "seconds", "size_bytes"])
    reads = reads.assign(offset_bytes=0, kind="read", file_class="tfrecords")
    counters = pd.DataFrame({n: [0, 1, 2] for n in loaded.COUNTERS}, index=[0.0, 1.0, 2.0])
    trace = types.SimpleNamespace(
        transfers=reads.astype({"final_path": str}), seconds=600.0, has_calls=True,
        counters=counters, storage_counters=counters[:0], spans=pd.DataFrame({"name": []}),
    )  # fmt: skip
    offsets = charts.offsets_over_time(trace)
    assert re.findall(r"^(.*)\|MB\|", offsets, re.MULTILINE) == list("12345678")
    rates = charts.transfers_over_time(trace)
    assert "480:4.5 482:4.5" in rates and "storage" not in rates


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
