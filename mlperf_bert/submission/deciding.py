"""One page on what to decide: will a run converge, how long does it take, is B faster than A.

    python -m mlperf_bert.submission.deciding A [B] --output=page.html --accelerator=H100 --count=8

A and B are what `compare` takes, if they have evaluations; A may be a run that has not ended. The
page has the curves in the band of other runs with the forecast (observer.py), what published
results let expect of the accelerators (expect.py), and how B differs from A (compare.py). Without B
or --accelerator that part is left out.
"""

import argparse
import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import pages
from mlperf_bert.files import paths
from mlperf_bert.files.whole import write_whole
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.mlperf.results import RunResult
from mlperf_bert.options import whole_number
from mlperf_bert.submission import compare, published, reference_runs, report_charts, watch
from mlperf_bert.submission.compare import Comparison
from mlperf_bert.submission.entry import family_of
from mlperf_bert.submission.expect import names_of
from mlperf_bert.submission.expectation import LEVEL, Expectation, Published, Question
from mlperf_bert.submission.observer import in_words
from mlperf_bert.submission.reference_runs import Reference, outlooks
from mlperf_bert.submission.report_charts import Picture
from mlperf_bert.submission.run_logs import common_task, runs_so_far, work_of
from mlperf_bert.submission.sides import published_entry, read_alternating, read_side
from pages import Card

_COLUMNS = ("figure", "A", "B", "B/A, 95% interval", "in words")


@dataclass(frozen=True)
class Watched:
    """The runs of A or of B, and those that they are watched beside."""

    name: str
    """A or B."""
    place: str
    """As the user names it."""
    runs: Sequence[RunResult]
    others: Reference

    @functools.cached_property
    def outside(self) -> list[RunResult]:
        """The runs that were outside at any evaluation."""
        return [run for run in self.runs if any(o.is_outside for o in outlooks(run, self.others))]


def page(
    sides: Sequence[Watched],
    *,
    expected: Expectation | None = None,
    compared: Comparison | None = None,
    not_compared: str = "",
) -> str:
    """Return the page.

    Args:
      sides: A, and perhaps B.
      expected: of an accelerator.
      compared: B with A.
      not_compared: why B is not compared with A.
    """
    named = ", ".join(f"{side.name}: {side.place}" for side in sides)
    beside = dict.fromkeys(f"{len(side.others)} {side.others.words}" for side in sides)
    return pages.render(
        "deciding.html",
        title="Will it converge, how long does it take, is B faster?",
        subtitle=f"{named}; beside {' and '.join(beside)}",
        columns=_COLUMNS,
        outlooks=[_outlook(side) for side in sides],
        warnings=[line for side in sides for run in side.outside for line in _warnings(run, side)],
        curves=_curves(sides),
        expectation=_expectation(expected) if expected else None,
        compared=compared,
        cells_of=_cells,
        charts=report_charts,
        not_compared=not_compared,
    )


def _outlook(side: Watched) -> Card:
    """What is said of a run of a side: of one that goes on, else one outside, else the last."""
    outside = side.outside
    running = [run for run in side.runs if run.status == "running"]
    run = [*side.runs, *outside, *running][-1]
    label = f"{side.name}: {_short(run)}"
    if len(side.runs) > 1:
        label += f", one of {len(side.runs)} runs; {len(outside) or 'none'} outside"
    seen = outlooks(run, side.others)
    if not seen:
        return Card(label, "unknown", "its log has no evaluation that says its samples")
    last = seen[-1]
    minutes = run.evaluations[-1].minutes
    rate = last.samples / (60 * minutes) if run.status == "running" and minutes > 0 else None
    samples = f"{last.samples / 1e6:.2f} million" if last.samples >= 1e6 else f"{last.samples:,.0f}"
    words = in_words(last, side.others, samples_per_second=rate)
    return Card(label, f"{last.accuracy:.4f} after {samples} samples", words, good=not outside)


def _short(run: RunResult) -> str:
    """A run as the page calls it: 9/bert.log, bert/result_9.txt."""
    return f"{run.path.parent.name}/{run.path.name}".removeprefix("/")


def _warnings(run: RunResult, side: Watched) -> list[str]:
    """The first and the last one of a run."""
    found = [line for line in watch.lines(run, side.others) if "WARNING" in line]
    between = [f"{len(found) - 2} more between"] if len(found) > 2 else []
    return [f"{_short(run)}: {line}" for line in [*found[:1], *between, *found[1:][-1:]]]


def _curves(sides: Sequence[Watched]) -> list[Picture | None]:
    """A picture for each band; A and B share one if they are watched beside the same runs."""
    share = len({side.others for side in sides}) == 1
    groups = [sides] if share else [[side] for side in sides]
    return [
        report_charts.accuracy_beside({side.name: side.runs for side in group}, group[0].others)
        for group in groups
    ]


def _expectation(expected: Expectation) -> dict[str, object]:
    return {
        "cards": [
            Card("Minutes to 0.720", str(expected.minutes), f"{expected.question}"),
            Card("Samples/s", str(expected.samples_per_second), "evaluation and all"),
            Card("kWh of a run", str(expected.kilowatt_hours or "unknown"), "where measured"),
        ],
        "basis": f"From {expected.basis()}, with {LEVEL:.0%} intervals: {names_of(expected)}.",
    }


def _cells(change: compare.Change) -> list[str]:
    figures = map(compare.number_in_words, (change.a, change.b))
    name = change.figure.replace("_", " ")
    return [name, *figures, compare.ratio_in_words(change), change.verdict]


def read_runs(name: str) -> list[RunResult]:
    """Return the runs of a path, also those that have not ended, or of a published result.

    Raises:
      ValueError: there are none, or a log cannot be read.
    """
    if paths.location(name).exists():
        return runs_so_far(name)
    entry = published_entry(name)
    runs = [run for run in entry.results if run.evaluations]
    if not runs:
        raise ValueError(
            f"{entry.name}: the table has no evaluations of this published result; choose another"
        )
    return runs


def _watched(places: Sequence[str], reference: str | None) -> list[Watched]:
    sides: list[Watched] = []
    given = reference and reference_runs.own_reference(reference)
    for name, place in zip("AB", places):
        runs = read_runs(place)
        # They share a band, so that all must be of its work.
        task = common_task(place, [work_of(run) for run in runs])
        others, *_ = [given or watch.reference_of_log(run) for run in runs]
        others.require_same_work(task, place)
        sides.append(Watched(name, place, runs, others))
    return sides


@ends_in_one_line("deciding")
def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page; return 1 with one line if something cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m mlperf_bert.submission.deciding")
    parser.add_argument("sides", nargs="+", metavar="A [B]")
    parser.add_argument("--output", required=True, help="HTML file")
    parser.add_argument("--reference", help="runs of one's own, in place of published")
    parser.add_argument("--accelerator", help="as `expect` takes it; needs --count")
    parser.add_argument("--count", type=whole_number, help="of accelerators")
    given = parser.parse_args(paths.words_with_home(arguments))
    if len(given.sides) > 2 or (given.accelerator is None) != (given.count is None):
        parser.error("give A, or A and B; give both --accelerator and --count, or none")
    # The folder of a campaign whose runs alternate is both.
    places = (len(given.sides) == 1 and read_alternating(given.sides[0])) or given.sides
    sides = _watched(places, given.reference)
    expected = compared = None
    if given.accelerator:
        question = Question(family_of(given.accelerator, given.count), given.count)
        expected = Published(published.load()).expectation(question)
    not_compared = ""
    if len(sides) == 2:
        waiting = [side.name for side in sides if not any(run.succeeded for run in side.runs)]
        if waiting:
            not_compared = f"No run of {' or '.join(waiting)} has reached the target."
        else:
            compared = compare.compare(*map(read_side, places))
    output = paths.with_folder_made(given.output)
    text = page(sides, expected=expected, compared=compared, not_compared=not_compared)
    write_whole(output, text)
    print(f"look at {output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
