"""The page of a sweep: the curves that papers draw, and a table of all points."""

import shlex
from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from tracing import look
from tracing.look import BLUE, GREEN, INK, MUTED, ORANGE, RED, Card, bytes_text

_COLORS = (BLUE, ORANGE, GREEN, RED, "#8a63b8", "#8b98a5")
_MARKS = "os^Dv*"
_GOOD_UTILIZATION = 0.9
"""Source: the bar of MLPerf Storage for most of its workloads."""
_MOST_PASSES = 6
_NO_LIMIT = float("inf")
_CELLS: look.Columns = {
    "point": ("name", "{}"), "status": ("status", "{}"),
    "memory / data": ("memory_to_data_ratio", "{:.2f}"),
    "peak memory": ("peak_resident_bytes", bytes_text),
    "samples/s": ("samples_per_second", "{:,.0f}"), "utilization": ("utilization", "{:.0%}"),
    "step": ("step_seconds", "{:.4f} s"), "read": ("call_bytes", bytes_text),
    "from storage": ("storage_bytes", bytes_text), "page cache": ("hit_ratio", "{:.0%}"),
    "from storage by pass": (
        "pass_storage_bytes", lambda moved: ", ".join(bytes_text(each or 0) for each in moved)
    ),
}  # fmt: skip
# Figures at the head: label, column, how it is written, what the numbers are of.
_CARDS = (
    ("Throughput", "samples_per_second", "{:,.0f}", "samples/s"),
    ("Utilization", "utilization", "{:.0%}", "of the time"),
    ("From the page cache", "hit_ratio", "{:.0%}", "of bytes"),
)
_TERMS = (
    "memory to data: the limit of memory / the size of the training's files. Programs take their "
    "share of the limit first, and the page cache has the rest",
    "utilization: the share of the training's time that does not wait for input; 90% is what "
    "MLPerf Storage asks of an accelerator",
    "pass: reads of as many bytes as the data have, an epoch shifted by what is read ahead",
    "sleep: each step fetches its batch and sleeps instead of computing; no result",
)


def page(command: Sequence[str], rows: Sequence[dict], notes: Sequence[str]) -> str:
    """Returns the page; `rows` are those of runs.parquet."""
    done = [row for row in rows if row["status"] == "done"]
    data = next((row["data_bytes"] for row in rows if row["data_bytes"]), None)
    size = "data of unknown size" if data is None else f"{data / 1e6:,.0f} MB of data"
    return look.page(
        title=shlex.join(command),
        subtitle=f"a sweep of {len(rows)} points, {size}",
        figures=_cards(rows, done),
        charts=[
            ("Throughput and utilization", speed(done), "No point trained samples."),
            ("Read from storage, by pass over the data", by_pass(done),
             "No point read the data with calls that were recorded."),
        ],
        tables=[("Points", look.table(_CELLS, rows))],
        notes=[*notes, *_notes(rows, done)] or ["every point is done"],
        terms=_TERMS,
    )  # fmt: skip


def _cards(rows: Sequence[dict], done: Sequence[dict]) -> Iterator[Card]:
    others = {s: sum(r["status"] == s for r in rows) for s in ("killed", "failed", "skipped")}
    rest = ", ".join(f"{n} {status}" for status, n in others.items() if n) or "none was killed"
    yield Card("Points done", f"{len(done)} of {len(rows)}", rest)
    for label, column, spec, what in _CARDS:
        if values := [row[column] for row in done if row[column] is not None]:
            yield Card(label, f"{spec.format(min(values))} to {spec.format(max(values))}", what)


def _notes(rows: Sequence[dict], done: Sequence[dict]) -> Iterator[str]:
    for name, what in (("utilization_from", "utilization"), ("storage_from", "storage bytes")):
        for source in sorted({row[name] for row in done if row[name]}):
            yield f"{what}: {source}"
    for row in rows:
        if row["status"] != "done":
            yield f"{row['name']}: {row['status']}, {row['reason']}"


def _series(rows: Sequence[dict]) -> dict[str, list[dict]]:
    """Label, of what differs, -> rows that differ in memory alone, the least memory first."""
    names = ("compute", "cache", "batch", "workers")
    varying = [name for name in names if len({row[name] for row in rows}) > 1]
    found: dict[str, list[dict]] = {}
    for row in sorted(rows, key=_limit):
        label = ", ".join(f"{name} {row[name] or 'as found'}" for name in varying)
        found.setdefault(label or "all points", []).append(row)
    return found


def _limit(row: dict) -> float:
    return row["memory_bytes"] or _NO_LIMIT


def _draw(
    place: Axes,
    curves: dict[str, list[tuple[dict, float | None]]],
    title: str,
    rows: Sequence[dict],
) -> None:
    """Curves over the limits of memory, which stand side by side, the least first, none last.

    Args:
      curves: label -> (row, value) of its points; without a value a point is left out.
      rows: all points of the picture, which have the same axis in each panel.
    """
    limits = {_limit(row): row["memory_to_data_ratio"] for row in sorted(rows, key=_limit)}
    # Not to scale: limits may lie decades apart, and no limit has a place, too.
    places = {limit: n for n, limit in enumerate(limits)}
    for number, (label, points) in enumerate(curves.items()):
        known = [(places[_limit(row)], value) for row, value in points if value is not None]
        color, mark = _COLORS[number % 6], _MARKS[number % 6]
        [line] = place.plot([x for x, _ in known], [y for _, y in known], color=color, marker=mark)
        line.set_label(label)
    place.set_title(title, loc="left", fontsize=9, color=INK)
    ticks = [
        "no limit" if limit == _NO_LIMIT
        else f"{limit / 1e6:,.0f} MB" + (f"\n{ratio:.2f} of the data" if ratio else "")
        for limit, ratio in limits.items()
    ]  # fmt: skip
    place.set_xticks(range(len(ticks)), ticks)
    place.set_ylim(bottom=0)


def speed(done: Sequence[dict]) -> str | None:
    """Throughput above utilization over memory; None if no point trained."""
    if not any(row["samples_per_second"] for row in done):
        return None

    def draw(axes: np.ndarray) -> None:
        panels = {
            "samples_per_second": "Throughput by limit of memory, samples/s",
            "utilization": "Utilization: the share of the time that does not wait for input",
        }
        for place, (column, title) in zip(axes[:, 0], panels.items()):
            curves = {
                label: [(row, row[column]) for row in rows] for label, rows in _series(done).items()
            }
            _draw(place, curves, title, done)
        axes[1, 0].axhline(_GOOD_UTILIZATION, color=MUTED, linestyle=":",
                           label="90%: what MLPerf Storage asks for")  # fmt: skip
        axes[1, 0].yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes[1, 0].set_ylim(top=1.05)
        handles = axes[1, 0].get_legend_handles_labels()
        axes[1, 0].figure.legend(*handles, ncols=3, loc="outside upper left")

    return look.svg(draw, 5, "Throughput and utilization", rows=2)


def by_pass(done: Sequence[dict]) -> str | None:
    """Bytes from storage in each pass, as a share of the pass, over memory; a panel a series."""
    known = [row for row in done if None not in (row["pass_storage_bytes"] or [None])]
    if not known:
        return None
    series = _series(known)
    num = min(max(len(row["pass_call_bytes"]) for row in known), _MOST_PASSES)

    def share(row: dict, number: int) -> float | None:
        moved = row["pass_call_bytes"][number : number + 1]
        return row["pass_storage_bytes"][number] / moved[0] if any(moved) else None

    def draw(axes: np.ndarray) -> None:
        for place, (label, rows) in zip(axes[:, 0], series.items()):
            curves = {f"pass {n + 1}": [(row, share(row, n)) for row in rows] for n in range(num)}
            _draw(place, curves, f"Read from storage in each pass: {label}", known)
            place.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        handles = axes[0, 0].get_legend_handles_labels()
        axes[0, 0].figure.legend(*handles, ncols=num, loc="outside upper left")

    return look.svg(draw, 2.6 * len(series), "Read from storage by pass", rows=len(series))
