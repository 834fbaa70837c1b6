"""Writes everything that a trace leaves: tables, summary.json, summary.html, trace.pftrace."""

import json
from collections.abc import Iterator
from pathlib import Path

from tracing import conversion, figures, files, page
from tracing.calls import Losses
from tracing.exports import perfetto
from tracing.loaded import Trace
from tracing.recording import Recording
from tracing.tables import write_table, written_beside

TRACE = "trace.pftrace"


def write_all(folder: Path, recording: Recording) -> Iterator[str]:
    """Writes all of it; yields lines for the user about what it writes, and about the result.

    Raises:
      OSError: there is no room; files are whole or absent.
    """
    yield "writing tables"
    losses, locator = conversion.write_tables(folder, recording)
    yield "writing figures and pictures"
    trace = Trace(folder, figures.about(recording, losses), locator)
    of_files = list(figures.file_rows(trace))
    write_table(folder, "files", of_files, recording.alignment())
    trace.summary |= figures.figures(trace, of_files)
    trace.summary["notes"] = [*recording.notes, *figures.limits(trace)]
    with written_beside(folder / "summary.json") as file:
        file.write(json.dumps(trace.summary, indent=1) + "\n")
    with written_beside(folder / "summary.html") as file:
        file.write(page.page(trace))
    # Last, because it takes longest: 20 s for a million calls.
    yield f"writing {TRACE}"
    perfetto.write(trace, folder / TRACE)
    yield from _lines(folder, trace.summary, losses)


def _calls(number: int) -> str:
    return "1 call" if number == 1 else f"{number:,} calls"


def _lines(folder: Path, summary: dict, losses: Losses) -> Iterator[str]:
    bound_us = summary["clocks"]["error_bound_ns"] / 1000
    yield f"{summary['seconds']:.1f} s recorded, with stamps to ± {bound_us:.1f} µs; {losses}"
    for name, of_class in (summary["file_classes"] or {}).items():
        moved = [
            f"{of_class[f'{done}_bytes']:,} bytes {done} in {_calls(of_class[num])}"
            for done, num in (("read", "num_reads"), ("written", "num_writes"))
            if of_class[f"{done}_bytes"]
        ]
        if moved:
            yield f"{files.IN_WORDS[name]}: {', '.join(moved)}"
    yield f"look at {folder / 'summary.html'}; open {folder / TRACE} in ui.perfetto.dev"
