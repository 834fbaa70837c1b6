"""How long a run takes: what other submitters published for the same accelerators.

    python -m mlperf_bert.submission.expect --accelerator=H100 --count=8

prints minutes to 0.720, samples/s and energy: medians over the results of rounds 1.0 to 5.0 with
that accelerator and that number of them, beside their smallest and largest. Without arguments it
prints the table for all hardware that two submitters or more have published, in Markdown, with
the errors of the method.

The error of an expectation is found by leaving one submitter out: each result is compared with
the median of the other submitters' with the same accelerators.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mlperf_bert.files import paths
from mlperf_bert.submission import published
from mlperf_bert.submission.comparison import comparable
from mlperf_bert.submission.entry import Entry, family_of

SOURCE = "published results of rounds 1.0 to 5.0, closed division, resubmitted logs left out"
_NUM_SUBMITTERS_IN_TABLE = 2
_SAME_SUBMITTER = {
    "gigacomputing": "gigabyte",
    "habana": "intel-habanalabs",
    "nvidia_coreweave": "nvidia",
    "qct": "quanta_cloud_technology",
    "smc": "supermicro",
    "smc-ac-power": "supermicro",
    "smc-dc-power": "supermicro",
}
"""Names of folders, in small letters, under which a submitter published in another round."""

Figure = Callable[[Entry], float | None]


def minutes_of(entry: Entry) -> float | None:
    """Return the time to train: the score."""
    return entry.minutes


def samples_per_second_of(entry: Entry) -> float | None:
    """Return the rate of the whole system, evaluation and all."""
    return entry.samples_per_second_median


def kilowatt_hours_of(entry: Entry) -> float | None:
    """Return the measured energy of a run of the whole system."""
    if entry.watts is None or entry.minutes is None:
        return None
    return entry.watts / 1000 * entry.minutes / 60


@dataclass(frozen=True)
class Range:
    """The median of published figures, and the least and the greatest."""

    median: float
    least: float
    most: float
    num_results: int

    def __str__(self) -> str:
        if self.num_results == 1:
            return _three_digits(self.median)
        least, median, most = map(_three_digits, (self.least, self.median, self.most))
        return f"{median} ({least} to {most})"


@dataclass(frozen=True)
class Expectation:
    """What published systems with these accelerators lead one to expect."""

    accelerator: str
    count: int
    results: tuple[Entry, ...]
    """Those that it rests on, the earliest first."""

    @property
    def num_submitters(self) -> int:
        """Whose results these are."""
        return len({submitter_of(entry) for entry in self.results})

    def range_of(self, figure: Figure) -> Range | None:
        """Return median and limits of a figure; None if no result has it."""
        values = [value for entry in self.results if (value := figure(entry)) is not None]
        if not values:
            return None
        return Range(statistics.median(values), min(values), max(values), len(values))


@dataclass(frozen=True)
class Errors:
    """How far expectations are from results of a submitter whose results were left out."""

    median: float
    """Relative, as `percentile_90`: 0.05 is 5%."""
    percentile_90: float
    num_results: int
    """Those for which another submitter published the same accelerators."""

    def __str__(self) -> str:
        return (
            f"off by {self.median:.1%} in the median, {self.percentile_90:.0%} at the 90th "
            f"percentile of {self.num_results} results"
        )


def submitter_of(entry: Entry) -> str:
    """Return one name for a submitter whose folders are spelt differently."""
    name = entry.org.lower()
    return _SAME_SUBMITTER.get(name, name)


def distinct(entries: Sequence[Entry]) -> list[Entry]:
    """Return the comparable entries, each set of timed runs once, with its power if measured.

    Supermicro published the runs of one system three times: without power, and with the power of
    its alternating and of its direct current. The first that was measured is taken.
    """
    watts: dict[str | None, float | None] = {}
    for entry in entries:
        if entry.watts is not None:
            watts.setdefault(entry.same_logs_as or entry.name, entry.watts)
    return [replace(entry, watts=watts.get(entry.name)) for entry in comparable(entries)]


def expectation(entries: Sequence[Entry], accelerator: str, count: int) -> Expectation:
    """Return what to expect of accelerators.

    Args:
      entries: published results.
      accelerator: its name, also as its driver reports it: "H100", "NVIDIA A100-SXM4-40GB".
      count: in the whole system.

    Raises:
      ValueError: nobody published such accelerators, or not so many of them.
    """
    family = family_of(accelerator, count)
    alike = [e for e in distinct(entries) if e.family == family and e.accelerators]
    if not alike:
        known = sorted({e.family for e in comparable(entries) if e.accelerators})
        raise ValueError(
            f"--accelerator={accelerator}: nobody published a comparable result on it; "
            f"give one of {', '.join(known)}"
        )
    results = tuple(entry for entry in alike if entry.accelerators == count)
    if not results:
        counts = sorted({entry.accelerators or 0 for entry in alike})
        raise ValueError(
            f"--count={count}: nobody published a comparable result on {count} {family}; "
            f"give one of {', '.join(map(str, counts))}"
        )
    return Expectation(family, count, results)


def expectations(
    entries: Sequence[Entry], *, num_submitters: int = _NUM_SUBMITTERS_IN_TABLE
) -> list[Expectation]:
    """Return what to expect of all hardware that so many submitters have published."""
    kinds = {(entry.family, entry.accelerators) for entry in comparable(entries)}
    found = [
        expectation(entries, family, count) for family, count in sorted(kinds, key=str) if count
    ]
    found.sort(key=lambda each: (each.accelerator, each.count))
    return [each for each in found if each.num_submitters >= num_submitters]


def errors(entries: Sequence[Entry], figure: Figure) -> Errors:
    """Return the errors of a figure, by leaving one submitter out."""
    known = [(e, v) for e in comparable(entries) if e.accelerators and (v := figure(e))]
    found = []
    for entry, value in known:
        others = [
            other_value
            for other, other_value in known
            if (other.family, other.accelerators) == (entry.family, entry.accelerators)
            and submitter_of(other) != submitter_of(entry)
        ]
        if others:
            found.append(abs(statistics.median(others) / value - 1))
    ninth_decile = statistics.quantiles(found, n=10, method="inclusive")[-1]
    return Errors(statistics.median(found), ninth_decile, len(found))


def lines(expected: Expectation, entries: Sequence[Entry]) -> list[str]:
    """Return an expectation for a terminal."""
    energy = expected.range_of(kilowatt_hours_of)
    return [
        f"{expected.count} {expected.accelerator}: {len(expected.results)} results of "
        f"{expected.num_submitters} submitters ({SOURCE})",
        f"  minutes to 0.720: {_or_unknown(expected.range_of(minutes_of))}; "
        f"{errors(entries, minutes_of)}",
        f"  samples/s: {_or_unknown(expected.range_of(samples_per_second_of))}; "
        f"{errors(entries, samples_per_second_of)}",
        f"  kWh: {energy}; measured in {energy.num_results} of them"
        if energy
        else "  kWh: not measured by any of them",
    ]


def table(entries: Sequence[Entry]) -> str:
    """Return the expectations and the errors of the method, in Markdown."""
    rows = [
        "| accelerators | results | submitters | minutes to 0.720 | samples/s | kWh, measured |",
        "|---|---|---|---|---|---|",
    ]
    for each in expectations(entries):
        figures = map(each.range_of, (minutes_of, samples_per_second_of, kilowatt_hours_of))
        cells = [
            f"{each.count} {each.accelerator}",
            f"{len(each.results)}",
            f"{each.num_submitters}",
            *(str(figure or "") for figure in figures),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(
        [
            *rows,
            "",
            f"Minutes are {errors(entries, minutes_of)}; samples/s are "
            f"{errors(entries, samples_per_second_of)}.",
        ]
    )


def _or_unknown(figure: Range | None) -> str:
    return str(figure or "unknown")


def _three_digits(value: float) -> str:
    if value >= 100:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:#.3g}"


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r}: give a number of accelerators, 1 or more")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print an expectation, or the table; return 1 with one line if nobody published such."""
    parser = argparse.ArgumentParser(prog="python -m mlperf_bert.submission.expect")
    parser.add_argument("--accelerator", help="H100, A100 PCIe, or as its driver names it")
    parser.add_argument("--count", type=_count, help="of accelerators in the whole system")
    given = parser.parse_args(paths.words_with_home(arguments))
    if (given.accelerator is None) != (given.count is None):
        parser.error("give both --accelerator and --count, or none of them for the table")
    try:
        entries = published.load()
        if given.accelerator is None:
            print(table(entries))
        else:
            print("\n".join(lines(expectation(entries, given.accelerator, given.count), entries)))
    except ValueError as error:
        print(f"expect: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
