"""How true emulations of a training are: their traces beside the trace of the real one.

    python -m tracing.fidelity traces/real sleep=traces/sleep dlio=traces/dlio,0.87 fio=traces/fio

prints for each how far utilization, bytes, request sizes and queue depth are from the real run's,
and writes the table with --output=table.md. docs/tracing.md says how the traces are made.
Utilization is MLPerf Storage's, from the log's ledger without its first block; what logs none, as
DLIO, gives its own behind a comma. Exit codes: 0; 1 bad input.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tracing import files, mllog, path_with_home
from tracing.exports.finished import Finished
from tracing.tables import written_beside

NEAR = 0.1
"""What an emulation may be off by."""
_CACHED = 0.99
FIGURES = ("utilization", "call bytes", "storage bytes", "median request", "queue depth")


def utilization(trace: Finished) -> float | None:
    """Computing / (computing + waiting) of the blocks but the first; None without a ledger."""
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
        found, access = summary["file_classes"][files.TFRECORDS], summary["access"]
        if not found["num_reads"]:
            # fio and DLIO name their files otherwise.
            found = summary["file_classes"][files.OTHER]
        values = (
            utilization(trace) if given is None else given,
            found["read_bytes"],
            access["page_cache"]["storage_bytes"],
            (found["read_size_bytes"] or {}).get("p50"),
            access["queue_depth"].get("read_calls", {}).get("mean"),
        )
        return dict(zip(FIGURES, values)) | {"hit ratio": access["page_cache"]["hit_ratio"]}
    except (KeyError, TypeError, AttributeError) as missing:
        raise ValueError(
            f"{trace.folder}: its summary.json lacks {missing}; an older version wrote it: trace "
            "again"
        ) from None


def error(real: float | None, emulated: float | None) -> float | None:
    """How far the second is from the first, as a share of the first."""
    return None if not real or emulated is None else emulated / real - 1


def table(real: dict, emulated: dict[str, dict]) -> str:
    """All emulations as Markdown, a line for each, and what is wrong in words."""
    lines = [["", *FIGURES, "within 10%"], ["---"] * (len(FIGURES) + 2)]
    lines.append(["the real run", *(_cell(name, real[name]) for name in FIGURES), ""])
    notes = []
    for name, found in emulated.items():
        errors = {figure: error(real[figure], found[figure]) for figure in FIGURES}
        near = {figure: abs(e) <= NEAR for figure, e in errors.items() if e is not None}
        cells = ["unknown" if e is None else f"{e:+.0%}" for e in errors.values()]
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


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return "unknown"
    return f"{value:.1%}" if name == "utilization" else f"{value:,.4g}"


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


def main(arguments: Sequence[str] | None = None) -> None:
    """Compares once."""
    parser = argparse.ArgumentParser(
        prog="python -m tracing.fidelity",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("real", type=path_with_home, help="the trace of the real training")
    parser.add_argument("emulations", nargs="+", metavar="NAME=FOLDER[,UTILIZATION]")
    parser.add_argument("--output", type=path_with_home, help="also write the table, a .md file")
    given = parser.parse_args(arguments)
    try:
        asked = [_emulation(word) for word in given.emulations]
        found = {name: figures(Finished(folder), used) for name, folder, used in asked}
        text = table(figures(Finished(given.real)), found)
        if given.output:
            with written_beside(given.output) as file:
                file.write(text + "\n")
        print(text)
    except (ValueError, OSError) as problem:
        sys.exit(f"fidelity: {problem}")


if __name__ == "__main__":
    main()
