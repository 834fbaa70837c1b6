"""One page on what to decide: will a run converge, how long does it take, is B faster than A.

    python -m mlperf_bert.submission.deciding A [B] --output=page.html --accelerator=H100 --count=8

A and B are as `compare` takes them, and A may be a run that has not ended. The page has the curves
in the band of other runs with the forecast (watch.py), what published results let expect of the
accelerators (expect.py), and how B differs from A (compare.py). Without B or --accelerator that
part is left out.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pages
from mlperf_bert.files import paths
from mlperf_bert.files.whole import write_whole
from mlperf_bert.messages import as_lines
from mlperf_bert.mlperf import results
from mlperf_bert.mlperf.results import RunResult
from mlperf_bert.submission import compare, published, reference_runs, report_charts, watch
from mlperf_bert.submission.compare import Comparison
from mlperf_bert.submission.entry import family_of
from mlperf_bert.submission.expectation import LEVEL, Expectation, Published, Question
from mlperf_bert.submission.reference_runs import Reference
from mlperf_bert.submission.sides import read_side
from pages import Card

_COLUMNS = ("figure", "A", "B", "B/A, 95% interval", "in words")
_NUM_SYSTEMS_SHOWN = 8


def page(
    sides: Mapping[str, Sequence[RunResult]],
    others: Reference,
    *,
    expected: Expectation | None = None,
    compared: Comparison | None = None,
) -> str:
    """Return the page.

    Args:
      sides: "A" and perhaps "B" -> their runs.
      others: the runs that these are watched beside.
      expected: of an accelerator.
      compared: B with A.
    """
    runs = [run for side in sides.values() for run in side]
    return pages.render(
        "deciding.html",
        title="Will it converge, how long does it take, is B faster?",
        subtitle=f"{len(runs)} runs beside {len(others)} {others.words}",
        columns=_COLUMNS,
        outlooks=[_outlook(name, side, others) for name, side in sides.items()],
        warnings=_warnings(runs, others),
        curves=report_charts.accuracy_over_samples(runs, others=others),
        **_expectation(expected),
        **_comparison(compared),
    )


def _outlook(name: str, runs: Sequence[RunResult], others: Reference) -> Card:
    """What is said of the newest run of a side."""
    run = max(runs, key=lambda run: run.status == "running")
    seen = reference_runs.last_outlook(run, others)
    if seen is None:
        return Card(f"{name}: {run.path}", "unknown", "its log does not say its samples")
    words = watch.in_words(seen, others, samples_per_second=_rate(run, seen.samples))
    value = f"{seen.accuracy:.4f} after {seen.samples / 1e6:.2f} M samples"
    return Card(f"{name}: {run.path}", value, words, good=not seen.is_outside)


def _rate(run: RunResult, samples: float) -> float | None:
    minutes = run.evaluations[-1].minutes
    return samples / (60 * minutes) if run.status == "running" and minutes > 0 else None


def _warnings(runs: Sequence[RunResult], others: Reference) -> list[str]:
    return [
        f"{run.path}: {line}"
        for run in runs
        for line in watch.lines(run, others)
        if "WARNING" in line
    ]


def _expectation(expected: Expectation | None) -> dict[str, object]:
    if expected is None:
        return {"expectation": [], "basis": ""}
    names = ", ".join(entry.name for entry in expected.results[:_NUM_SYSTEMS_SHOWN])
    return {
        "expectation": [
            Card("Minutes to 0.720", str(expected.minutes), f"{expected.question}"),
            Card("Samples/s", str(expected.samples_per_second), "evaluation and all"),
            Card("kWh of a run", str(expected.kilowatt_hours or "unknown"), "where measured"),
        ],
        "basis": f"From {expected.basis()}, with {LEVEL:.0%} intervals; for instance {names}.",
    }


def _comparison(compared: Comparison | None) -> dict[str, object]:
    if compared is None:
        return {"changes": [], "parts": [], "cautions": [], "ratios": None, "methods": "",
                "parts_title": ""}  # fmt: skip
    cautions = [*compared.other_machine, *compared.task_differs]
    methods = dict.fromkeys(change.method for change in compared.changes)
    unit = compared.parts[0].unit if compared.parts else ""
    return {
        "changes": [_cells(change) for change in compared.changes],
        "parts": [_cells(part) for part in compared.parts],
        "parts_title": f"Where the seconds went, {unit}, largest change first",
        "cautions": cautions,
        "ratios": report_charts.ratios(compared.changes),
        "methods": f"By {'; '.join(methods)}.",
    }


def _cells(change: compare.Change) -> list[str]:
    interval = "-" if change.ratio is None else f"{change.ratio:.3f}"
    if change.low is not None and change.high is not None:
        interval += f" ({change.low:.3f} to {change.high:.3f})"
    figures = [
        f"{value:,.0f}" if value >= 1000 else f"{value:.4g}" for value in (change.a, change.b)
    ]
    return [change.figure.replace("_", " "), *figures, interval, change.verdict]


def read_runs(place: str) -> list[RunResult]:
    """Return the runs of a path, also those that have not ended.

    Raises:
      ValueError: there are none, or a log cannot be read.
    """
    return [results.read_run(log, may_run=True) for log in reference_runs.logs_of(Path(place))]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page; return 1 with one line if something cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m mlperf_bert.submission.deciding")
    parser.add_argument("sides", nargs="+", metavar="A [B]")
    parser.add_argument("--output", type=Path, required=True, help="HTML file")
    parser.add_argument("--reference", type=Path, help="runs of one's own, in place of published")
    parser.add_argument("--accelerator", help="as `expect` takes it; needs --count")
    parser.add_argument("--count", type=int, help="of accelerators")
    given = parser.parse_args(paths.words_with_home(arguments))
    if len(given.sides) > 2 or (given.accelerator is None) != (given.count is None):
        parser.error("give A, or A and B; give both --accelerator and --count, or none")
    try:
        sides = {name: read_runs(place) for name, place in zip("AB", given.sides)}
        if given.reference:
            others = reference_runs.own_reference(given.reference)
        else:
            others = watch.reference_of_log(sides["A"][0])
        expected = compared = None
        if given.accelerator:
            question = Question(family_of(given.accelerator, given.count), given.count)
            expected = Published(published.load()).expectation(question)
        if len(given.sides) == 2:
            compared = compare.compare(*map(read_side, given.sides))
        write_whole(given.output, page(sides, others, expected=expected, compared=compared))
    except (ValueError, OSError) as error:
        print(f"deciding: {as_lines(error)}", file=sys.stderr)
        return 1
    print(f"look at {given.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
