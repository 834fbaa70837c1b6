"""How true emulations of a training are: their traces beside the trace of the real one.

    python -m tracing.fidelity traces/real sleep=traces/sleep dlio=traces/dlio,0.87 fio=traces/fio

prints for each how far utilization, bytes, request sizes and queue depth are from the real run's,
and writes the table with --output=table.md, a picture with --picture=errors.svg. docs/tracing.md
says how the traces are made.
Utilization is MLPerf Storage's, from the log's ledger, without the first of several blocks; what
logs none, as DLIO, gives its own after a comma. Exit codes: 0; 1 bad input.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pages import charts
from tracing import ends_in_one_line, files, mllog, parser_of, path_with_home
from tracing.exports.finished import Finished
from tracing.tables import written_beside

NEAR = 0.1
"""What an emulation may be off by."""
_CACHED = 0.99
_MOST_DRAWN = 1.0
_WIDTH_INCHES = 9.6
FIGURES = ("utilization", "call bytes", "storage bytes", "request size", "queue depth")


def utilization(trace: Finished) -> float | None:
    """Computing / (computing + waiting), without the first of several blocks; None: no ledger."""
    blocks = list(mllog.ledger_shares(trace.table("mllog")))
    computing = waiting = 0.0
    for begin, end, shares in blocks[1:] or blocks:
        computing += (end - begin) * shares.get("compute", 0)
        waiting += (end - begin) * shares.get("input wait", 0)
    return computing / (computing + waiting) if computing + waiting else None


def figures(trace: Finished, given: float | None = None) -> dict[str, float | None]:
    """The figures of a trace, and the share of its bytes that the page cache gave.

    Raises:
      ValueError: an older version of the tracing wrote it, or it has no single calls.
    """
    trace.require_calls()
    summary: dict[str, Any] = trace.summary
    try:
        found, access = summary["file_classes"], summary["access"]
        # fio and DLIO may name their files otherwise.
        of = files.TFRECORDS if found[files.TFRECORDS]["num_reads"] else files.OTHER
        call_bytes, passes = found[of]["read_bytes"], access["passes"] or []
        storage = [each["storage_bytes"] for each in passes]
        storage_bytes = access["page_cache"]["storage_bytes"]
        if storage and None not in storage:
            # Without what the programs themselves are loaded from.
            storage_bytes = sum(storage)
        values = (
            utilization(trace) if given is None else given,
            call_bytes,
            storage_bytes,
            _half_of_bytes(trace, of),
            access["queue_depth"].get("read_calls", {}).get("mean"),
        )
    except (KeyError, TypeError, AttributeError) as missing:
        raise ValueError(
            f"{trace.folder}: its summary.json lacks {missing}; an older version wrote it: trace "
            "again"
        ) from None
    known = call_bytes and storage_bytes is not None
    return dict(zip(FIGURES, values)) | {
        "hit ratio": 1 - storage_bytes / call_bytes if known else None
    }


def _half_of_bytes(trace: Finished, file_class: str) -> float | None:
    """Half of the bytes come in requests up to this size; None without any.

    A median of the calls would be that of the many small ones that look at records' lengths.
    """
    columns = ("monotonic_ns", "kind", "file_class", "size_bytes", "error")
    calls = trace.table("file_ops", columns)
    of = (calls["kind"] == "read") & (calls["file_class"] == file_class) & calls["error"].isna()
    sizes = np.sort(calls.loc[of, "size_bytes"].to_numpy(np.int64))
    if not sizes.sum():
        return None
    return float(sizes[np.searchsorted(sizes.cumsum(), sizes.sum() / 2)])


def errors_of(real: dict, emulated: dict[str, dict]) -> dict[str, dict[str, float | None]]:
    """How far every emulation is from the real run, by figure, as a share of the real one's."""
    return {
        name: {
            n: found[n] / real[n] - 1 if real[n] and found[n] is not None else None for n in FIGURES
        }
        for name, found in emulated.items()
    }


def table(real: dict, emulated: dict[str, dict]) -> str:
    """All emulations as Markdown, a line for each, and what is wrong in words."""
    lines = [["", *FIGURES, "within 10%"], ["---"] * (len(FIGURES) + 2)]
    lines.append(["the real run", *(_cell(name, real[name]) for name in FIGURES), ""])
    notes = []
    for name, errors in errors_of(real, emulated).items():
        near = {figure: abs(e) <= NEAR for figure, e in errors.items() if e is not None}
        cells = list(map(_percent, errors.values()))
        lines.append([name, *cells, f"{sum(near.values())} of {len(near)}"])
        far = [figure for figure, is_near in near.items() if not is_near]
        if far:
            notes.append(f"- {name}: to be within 10% it must be nearer in {', '.join(far)}")
    cached = [name for name, found in [("the real run", real), *emulated.items()]
              if (found["hit ratio"] or 0) >= _CACHED]  # fmt: skip
    if cached:
        notes.append(
            f"- the page cache gave all data of {', '.join(cached)}: there the comparison says "
            "nothing about storage; limit the memory to less than the data"
        )
    return "\n".join([*("| " + " | ".join(line) + " |" for line in lines), "", *notes]).rstrip()


def _percent(value: float | None) -> str:
    """An error, without the sign of a zero."""
    return "unknown" if value is None else re.sub(r"[+-]0%", "0%", f"{value:+.0%}")


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return "unknown"
    return f"{value:.1%}" if name == "utilization" else f"{value:,.4g}"


def picture(cases: Sequence[tuple[str, dict[str, dict[str, float | None]]]]) -> str:
    """SVG: a row for each (title, errors by emulation and figure), a column for each figure."""

    def draw(axes: np.ndarray) -> None:
        for row, (title, errors) in zip(axes, cases):
            for place, figure in zip(row, FIGURES):
                _draw_errors(place, {name: found[figure] for name, found in errors.items()})
                place.set_title(figure, loc="left", fontsize=9)
                if place is row[0]:
                    place.set_yticks(range(len(errors)), list(errors))
                    place.set_ylabel(title)

    num_lines = sum(len(errors) + 2.2 for _, errors in cases)
    size = (_WIDTH_INCHES, 0.26 * num_lines)
    return charts.svg(draw, size, salt="fidelity", rows=len(cases), columns=len(FIGURES))


def _draw_errors(axes: Any, errors: dict[str, float | None]) -> None:
    """A bar for each, up to what is drawn, beside what it says in words; the band is near."""
    axes.axvspan(-NEAR, NEAR, color=charts.GRID, linewidth=0)
    for n, value in enumerate(errors.values()):
        drawn = min(max(value or 0.0, -_MOST_DRAWN), _MOST_DRAWN)
        near = value is not None and abs(value) <= NEAR
        axes.barh(n, drawn, height=0.55, color=charts.GREEN if near else charts.ORANGE)
        words = _percent(value)
        side = -1 if drawn > 0 else 1  # on the side without the bar
        axes.text(
            0.05 * side, n, words, ha="right" if side < 0 else "left", va="center", fontsize=8
        )
    axes.set(xlim=(-_MOST_DRAWN, _MOST_DRAWN), xticks=[], yticks=[])
    axes.grid(visible=False)
    axes.axvline(0, color=charts.INK, linewidth=0.8)
    axes.set_ylim(len(errors) - 0.4, -0.6)  # the first one on top


def _emulation(word: str) -> tuple[str, Path, float | None]:
    name, has_folder, rest = word.partition("=")
    folder, has_number, number = rest.partition(",")
    try:
        given = float(number) if has_number else None
    except ValueError:
        given = -1.0
    if not (name and has_folder and folder) or (given is not None and not 0 <= given <= 1):
        raise ValueError(f"{word}: give NAME=FOLDER, or NAME=FOLDER,UTILIZATION from 0 to 1")
    return name, path_with_home(folder), given


@ends_in_one_line("fidelity")
def main(arguments: Sequence[str] | None = None) -> None:
    """Compares once."""
    parser = parser_of("fidelity", __doc__)
    parser.add_argument("real", type=path_with_home, help="the trace of the real training")
    parser.add_argument("emulations", nargs="+", metavar="NAME=FOLDER[,UTILIZATION]")
    parser.add_argument("--output", type=path_with_home, help="also write the table, a .md file")
    parser.add_argument("--picture", type=path_with_home, help="also draw the errors, a .svg file")
    given = parser.parse_args(arguments)
    asked = [_emulation(word) for word in given.emulations]
    found = {name: figures(Finished(folder), used) for name, folder, used in asked}
    real = figures(Finished(given.real))
    text = table(real, found)
    if given.output:
        with written_beside(given.output) as file:
            file.write(text + "\n")
    if given.picture:
        with written_beside(given.picture) as file:
            file.write(picture([("", errors_of(real, found))]))
    print(text)


if __name__ == "__main__":
    main()
