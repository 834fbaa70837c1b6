"""The page of a sweep: the curves that papers draw, and a table of all points."""

import shlex
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.rcsetup import cycler
from matplotlib.ticker import PercentFormatter

from tracing import look
from tracing.look import BLUE, GREEN, INK, MUTED, ORANGE, RED, Card, bytes_text

_CURVES = cycler(color=[BLUE, ORANGE, GREEN, RED, "#8a63b8", "#8b98a5"]) + cycler(
    marker=[*"os^Dv*"]
)
_GOOD_UTILIZATION = 0.9
"""Source: the bar of MLPerf Storage for most of its workloads."""
_MOST_PASSES = 6
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
    for source in sorted({row["storage_from"] for row in done if row["storage_from"]}):
        yield f"storage bytes: {source}"
    for row in rows:
        if row["status"] != "done":
            yield f"{row['name']}: {row['status']}, {row['reason']}"


def _placed(rows: Sequence[dict]) -> pd.DataFrame:
    """The points, by their place on the axis of limits, with what they have in common as `series`.

    Places are not to scale: limits may lie decades apart, and no limit has a place, too, the last.
    """
    found = pd.DataFrame(rows)
    limits = found["memory_bytes"].astype(float).fillna(np.inf)
    ratios = found["memory_to_data_ratio"]
    found["tick"] = [
        "no limit" if np.isinf(limit)
        else f"{limit / 1e6:,.0f} MB" + (f"\n{ratio:.2f} of the data" if ratio > 0 else "")
        for limit, ratio in zip(limits, ratios.astype(float))
    ]  # fmt: skip
    differing = [n for n in ("compute", "cache", "batch", "workers") if found[n].nunique(False) > 1]
    found["series"] = [
        ", ".join(f"{n} {'as found' if pd.isna(row[n]) else row[n]}" for n in differing)
        for row in rows
    ]
    found["series"] = found["series"].replace("", "all points")
    return found.set_index(limits.rank(method="dense") - 1).sort_index(kind="stable")


def _draw(
    place: Axes, points: pd.DataFrame, column: str, by: str, title: str, *, every: pd.DataFrame
) -> None:
    """A curve for each value of `by`; points whose column is not known are left out.

    All panels have the same axis, that of `every` point.
    """
    place.set_prop_cycle(_CURVES)
    for label, curve in points.groupby(by, sort=False)[column]:
        known = curve.dropna()
        place.plot(known.index, known.astype(float), label=label)
    ticks = every["tick"].groupby(level=0).first()
    place.set_title(title, loc="left", fontsize=9, color=INK)
    place.set_xticks(ticks.index, ticks)
    place.set_ylim(bottom=0)


def speed(done: Sequence[dict]) -> str | None:
    """Throughput above utilization over memory; None if no point trained."""
    if not any(row["samples_per_second"] for row in done):
        return None
    points = _placed(done)

    def draw(axes: np.ndarray) -> None:
        rates, shares = axes[:, 0]
        title = "Throughput by limit of memory, samples/s"
        _draw(rates, points, "samples_per_second", "series", title, every=points)
        title = "Utilization: the share of the time that does not wait for input"
        _draw(shares, points, "utilization", "series", title, every=points)
        shares.axhline(_GOOD_UTILIZATION, color=MUTED, linestyle=":",
                       label="90%: what MLPerf Storage asks for")  # fmt: skip
        shares.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        shares.set_ylim(top=1.05)
        shares.figure.legend(*shares.get_legend_handles_labels(), ncols=3, loc="outside upper left")

    return look.svg(draw, 5, "Throughput and utilization", rows=2)


def by_pass(done: Sequence[dict]) -> str | None:
    """Bytes from storage in each pass, as a share of the pass, over memory; a panel a series."""
    known = [row for row in done if None not in (row["pass_storage_bytes"] or [None])]
    if not known:
        return None
    every = _placed(known)
    passes = every.reset_index(names="place").explode(["pass_storage_bytes", "pass_call_bytes"])
    passes["share"] = passes["pass_storage_bytes"] / passes["pass_call_bytes"]
    number = passes.groupby("name").cumcount() + 1
    passes["pass"] = "pass " + number.astype(str)
    series = dict(iter(passes[number <= _MOST_PASSES].set_index("place").groupby("series")))

    def draw(axes: np.ndarray) -> None:
        for place, (label, points) in zip(axes[:, 0], series.items()):
            title = f"Read from storage in each pass: {label}"
            _draw(place, points, "share", "pass", title, every=every)
            place.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        labelled = (place.get_legend_handles_labels() for place in axes[:, 0])
        most = max(labelled, key=lambda found: len(found[1]))  # a series may have fewer passes
        axes[0, 0].figure.legend(*most, ncols=_MOST_PASSES, loc="outside upper left")

    return look.svg(draw, 2.6 * len(series), "Read from storage by pass", rows=len(series))
