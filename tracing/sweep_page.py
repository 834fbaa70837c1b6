"""The page of a sweep: the curves that papers draw, and a table of all points."""

import shlex
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter, PercentFormatter

from tracing import look
from tracing.look import BLUE, GREEN, GREY, INK, MUTED, ORANGE, RED, Card

_COLORS = (BLUE, ORANGE, GREEN, RED, "#8a63b8", "#8b98a5")
_MARKS = "os^Dv*"
_PHASES = {"init": GREY, "block": BLUE, "checkpoint": GREEN, "eval": ORANGE}
_GOOD_UTILIZATION = 0.9
"""Source: the bar of MLPerf Storage for most of its workloads."""
_SERIES = ("compute", "cache", "batch", "workers")
_MOST_BARS = 24
_ONE_SERIES = "with a limit of memory"


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
            ("Bytes by phase", by_phase(done), ""),
        ],
        tables=[("Points", _table(rows))],
        notes=[*notes, *_notes(rows, done)] or ["every point is done"],
        terms=[
            "memory to data: the limit of memory / the size of the training's files. Programs take "
            "their share of the limit first, and the page cache has the rest",
            "utilization: the share of the training's time that does not wait for input; 90% is "
            "what MLPerf Storage asks of an accelerator",
            "pass: reads of as many bytes as the data have, an epoch shifted by what is read ahead",
            "sleep: each step fetches its batch and sleeps instead of computing; no result",
        ],
    )  # fmt: skip


def _cards(rows: Sequence[dict], done: Sequence[dict]) -> list[Card]:
    others = {s: sum(r["status"] == s for r in rows) for s in ("killed", "failed", "skipped")}
    rest = ", ".join(f"{n} {status}" for status, n in others.items() if n) or "none was killed"
    cards = [Card("Points done", f"{len(done)} of {len(rows)}", rest)]
    if rates := [row["samples_per_second"] for row in done if row["samples_per_second"]]:
        cards.append(Card("Throughput", f"{min(rates):,.0f} to {max(rates):,.0f}", "samples/s"))
    if shares := [row["utilization"] for row in done if row["utilization"] is not None]:
        cards.append(Card("Utilization", f"{min(shares):.0%} to {max(shares):.0%}", "of the time"))
    if hits := [row["hit_ratio"] for row in done if row["hit_ratio"] is not None]:
        cards.append(Card("From the page cache", f"{min(hits):.0%} to {max(hits):.0%}", "of bytes"))
    return cards


def _notes(rows: Sequence[dict], done: Sequence[dict]) -> Iterator[str]:
    for name, what in (("utilization_from", "utilization"), ("storage_from", "storage bytes")):
        for source in sorted({row[name] for row in done if row[name]}):
            yield f"{what}: {source}"
    for row in rows:
        if row["status"] != "done":
            yield f"{row['name']}: {row['status']}, {row['reason']}"


def _series(rows: Sequence[dict]) -> dict[str, list[dict]]:
    """Label, of what differs, -> rows that differ in memory alone, the least memory first."""
    varying = [name for name in _SERIES if len({row[name] for row in rows}) > 1]
    found: dict[str, list[dict]] = {}
    for row in sorted(rows, key=lambda row: row["memory_bytes"] or float("inf")):
        label = ", ".join(_part(name, row[name]) for name in varying) or _ONE_SERIES
        found.setdefault(label, []).append(row)
    return found


def _part(name: str, value) -> str:
    if name == "compute":
        return {"real": "computed", "sleep": "slept"}[value]
    if name == "cache":
        return f"{value or 'found'} cache"
    return f"{name} {value}"


def _x_of(row: dict) -> float | None:
    """Memory to data; of unknown data the memory in GB; None without a limit."""
    if row["memory_bytes"] is None:
        return None
    return row["memory_to_data_ratio"] or row["memory_bytes"] / 1e9


def _line(place: Axes, rows: Sequence[dict], value: Callable, **look) -> None:
    """A curve over memory, and a dashed line, labeled so, for the point without a limit."""
    known = [(_x_of(row), value(row)) for row in rows if value(row) is not None]
    curve = [(x, y) for x, y in known if x is not None]
    label = look.pop("label")
    if curve:
        place.plot(*zip(*curve), label=label, markersize=5, **look)
    for y in (y for x, y in known if x is None):
        label = None if curve else f"{label}, no limit"
        place.axhline(y, color=look["color"], linestyle="--", linewidth=1, label=label)
        if curve:
            _beside(place, y, "no limit of memory", look["color"])


def _beside(place: Axes, y: float, text: str, color: str) -> None:
    """Words on a line across; of lines side by side the first has them."""
    near = 0.05 * max(y, *place.get_ylim())
    if all(abs(other.get_position()[1] - y) > near for other in place.texts):
        place.text(
            0.67, y, text, transform=place.get_yaxis_transform(), fontsize=7, color=color,
            ha="center", va="bottom", bbox={"facecolor": "white", "linewidth": 0, "pad": 0.5},
        )  # fmt: skip


def _finish(place: Axes, rows: Sequence[dict], *, has_label: bool = True) -> None:
    place.set_ylim(0, 1.1 * place.get_ylim()[1])  # with room for words on a line
    limited = sorted({x for row in rows if (x := _x_of(row)) is not None})
    if has_label:
        is_ratio = any(row["memory_to_data_ratio"] for row in rows)
        unit = "limit of memory" + (", as a multiple of the data's size" if is_ratio else ", GB")
        place.set_xlabel(unit if limited else "no limit of memory")
    if not limited:
        place.set_xticks([])
    elif limited[-1] > 8 * limited[0]:
        place.set_xscale("log")
        place.set_xticks(limited)
        place.xaxis.set_minor_formatter(NullFormatter())
        place.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.3g}"))


def speed(done: Sequence[dict]) -> str | None:
    """Throughput above utilization over memory; None if no point trained."""
    if not any(row["samples_per_second"] for row in done):
        return None

    def draw(axes: np.ndarray) -> None:
        rates, shares = axes[:, 0]
        for number, (label, rows) in enumerate(_series(done).items()):
            look = {"color": _COLORS[number % 6], "marker": _MARKS[number % 6], "label": label}
            _line(rates, rows, lambda row: row["samples_per_second"], **look)
            _line(shares, rows, lambda row: row["utilization"], **look)
        rates.set_ylabel("samples/s")
        shares.set_ylabel("utilization")
        shares.axhline(_GOOD_UTILIZATION, color=MUTED, linestyle=":", linewidth=1)
        _beside(shares, _GOOD_UTILIZATION, "90%: what MLPerf Storage asks for", MUTED)
        rates.set_title("Throughput by limit of memory", loc="left", fontsize=9, color=INK)
        title = "Utilization: the share of the time that does not wait for input"
        shares.set_title(title, loc="left", fontsize=9, color=INK)
        shares.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        rates.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.0f}"))
        rates.figure.legend(*rates.get_legend_handles_labels(), ncols=3, loc="outside upper left")
        _finish(rates, done, has_label=False)
        _finish(shares, done)
        shares.set_ylim(0, 1.05)

    return look.svg(draw, 4.6, "Throughput and utilization", rows=2)


def by_pass(done: Sequence[dict]) -> str | None:
    """Bytes from storage in each pass, as a share of the pass, over memory; a panel a series."""
    series = {
        label: known
        for label, rows in _series(done).items()
        if (known := [r for r in rows if None not in (r["pass_storage_bytes"] or [None])])
    }
    if not series:
        return None
    # The last pass may be the beginning of one.
    num = min(max(len(row["pass_call_bytes"]) for rows in series.values() for row in rows), 6)
    num_columns = min(len(series), 3)

    def share(row: dict, number: int) -> float | None:
        if number >= len(row["pass_call_bytes"]) or not row["pass_call_bytes"][number]:
            return None
        return row["pass_storage_bytes"][number] / row["pass_call_bytes"][number]

    shares = [share(row, n) or 0 for rows in series.values() for row in rows for n in range(num)]
    most = 1.12 * max(1, *shares)

    def draw(axes: np.ndarray) -> None:
        for place in axes.flat[len(series) :]:
            place.set_visible(False)
        for place, (label, rows) in zip(axes.flat, series.items()):
            for number in range(num):
                _line(place, rows, lambda row, number=number: share(row, number),
                      color=_COLORS[number], marker=_MARKS[number],
                      label=f"pass {number + 1}")  # fmt: skip
            of = "" if label == _ONE_SERIES else f": {label}"
            place.set_title(
                f"Read from storage in each pass{of}", loc="left", fontsize=9, color=INK
            )
            place.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
            _finish(place, rows)
            place.set_ylim(0, most)
        axes[0, 0].set_ylabel("share of a pass's bytes")
        axes[0, 0].figure.legend(*axes[0, 0].get_legend_handles_labels(), ncols=num,
                                 loc="outside upper left")  # fmt: skip

    num_rows = -(-len(series) // num_columns)
    return look.svg(draw, 3.1 * num_rows, "Read from storage by pass", rows=num_rows,
                    columns=num_columns)  # fmt: skip


def by_phase(done: Sequence[dict]) -> str | None:
    """Bytes of calls in each kind of phase, a bar a point; None without phases."""
    drawn = [row for row in done if row["phase_names"]][:_MOST_BARS]
    if not drawn:
        return None

    def draw(axes: np.ndarray) -> None:
        kinds = {
            "read": "read by calls",
            "storage": "read from storage",
            "written": "written by calls",
        }
        for place, (kind, title) in zip(axes[0], kinds.items()):
            base = np.zeros(len(drawn))
            for name, color in _PHASES.items():
                moved = np.array(
                    [dict(zip(r["phase_names"], r[f"phase_{kind}_bytes"])).get(name, 0)
                     for r in drawn]
                ) / 1e6  # fmt: skip
                place.barh(range(len(drawn)), moved, left=base, color=color, height=0.7,
                           label="training" if name == "block" else name)  # fmt: skip
                base += moved
            place.set_xlabel(f"{title}, MB")
            place.set_yticks(range(len(drawn)), [row["name"] for row in drawn], fontsize=7)
            place.grid(axis="y", visible=False)
            place.invert_yaxis()
        for place in axes[0, 1:]:
            place.set_yticklabels([])
        axes[0, 0].figure.legend(
            *axes[0, 0].get_legend_handles_labels(), ncols=4, loc="outside upper left"
        )

    return look.svg(draw, 1.1 + 0.24 * len(drawn), "Bytes by phase", columns=3)


def _table(rows: Sequence[dict]) -> list[list[str]]:
    found = [["point", "status", "memory / data", "peak memory", "samples/s", "utilization",
              "step", "read", "from storage", "page cache", "from storage by pass"]]  # fmt: skip
    for row in rows:
        by_pass = ", ".join(_text(n, "{:,.0f}", 1e6) for n in row["pass_storage_bytes"] or [])
        found.append(
            [row["name"], row["status"], _text(row["memory_to_data_ratio"], "{:.2f}"),
             _text(row["peak_resident_bytes"], "{:,.0f} MB", 1e6),
             _text(row["samples_per_second"], "{:,.0f}"), _text(row["utilization"], "{:.0%}"),
             _text(row["step_seconds"], "{:.1f} ms", 1e-3),
             _text(row["call_bytes"], "{:,.0f} MB", 1e6),
             _text(row["storage_bytes"], "{:,.0f} MB", 1e6),
             _text(row["hit_ratio"], "{:.0%}"), f"{by_pass} MB" if by_pass else "-"]
        )  # fmt: skip
    return found


def _text(value: float | None, spec: str, unit: float = 1) -> str:
    return "-" if value is None else spec.format(value / unit)
