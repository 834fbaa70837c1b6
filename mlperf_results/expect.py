"""How long a run takes on an accelerator: from published results.

    python -m mlperf_results.expect --accelerator=H100 --count=8 --batch=448 --nodes=1

prints minutes to 0.720, samples/s and energy, each with an interval of 80%, the systems that they
rest on, and with `--price_per_hour` money: `Published` has the method, and
`python -m mlperf_results.benchmarks.expect_table` prints its errors.
"""

import argparse
import contextlib
import difflib
import functools
import math
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import astuple, dataclass, replace

import numpy as np

from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.mlperf.convergence import log_reference_samples
from mlperf_bert.mlperf.rules import NUM_RUNS_PER_RESULT
from mlperf_bert.options import whole_number, words_with_home
from mlperf_results import published
from mlperf_results.published import Entry, comparable, family_of

SOURCE = "closed division, rounds 1.0 to 5.0"
LEVEL = 0.8
RATE, MINUTES = 0, 1
COUNT, BATCH, NODES = 0, 1, 2
_NUM_SYSTEMS_SHOWN = 3
_NUM_NEAR = 30
_WEIGHT_OF_OTHERS = 5
_LEAST_DEVIATION = 0.02  # a result that is nearer to the fit weighs no more
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


@dataclass(frozen=True)
class Interval:
    """An expected figure, and between what it lies with probability `LEVEL`."""

    expected: float
    least: float
    most: float

    def __str__(self) -> str:
        expected, least, most = map(three_digits, (self.expected, self.least, self.most))
        return f"{expected} ({least} to {most})"


@dataclass(frozen=True)
class Question:
    """The hardware that is asked for."""

    family: str
    count: int
    batch: int | None = None
    """Global batch size."""
    nodes: int | None = None

    def __str__(self) -> str:
        given = [f"batch {self.batch:,}"] if self.batch else []
        given += [f"{self.nodes} node{'s' * (self.nodes > 1)}"] if self.nodes else []
        return ", ".join([f"{self.count} {self.family}", *given])


@dataclass(frozen=True, eq=False)
class Errors:
    """What published results were, over what others let expect, for one kind of question."""

    families: np.ndarray
    submitters: np.ndarray
    doublings: np.ndarray
    """From the count to the nearest that the expectation rests on, at least 1."""
    errors: np.ndarray
    """Natural logarithms of published over expected for N results, [N, 2]: RATE, MINUTES."""

    def relative(self, figure: int, quantile: float) -> float:
        """Return a quantile of |expected / published - 1|."""
        return float(np.quantile(np.abs(np.expm1(-self.errors[:, figure])), quantile))

    def factors(self, figure: int, family: str, doublings: float) -> tuple[float, float]:
        """Return by what an expected figure is multiplied for the ends of its interval."""
        level, _ = self.level_and_coverage(figure)
        # Far from all published counts an interval grows with every doubling.
        values = self.errors[:, figure] / self.doublings
        order = np.argsort(values, kind="stable")
        shares = np.cumsum(self._weights(family, self.families != "")[order])
        # Percentiles of what the method was wrong by, mostly of the family's own errors.
        ends = np.searchsorted(shares, [(1 - level) / 2, (1 + level) / 2])
        least, most = values[order][np.minimum(ends, len(order) - 1)] * doublings
        return math.exp(min(least, 0)), math.exp(max(most, 0))

    @functools.cache  # noqa: B019 - they live as long as the program
    def level_and_coverage(self, figure: int) -> tuple[float, float]:
        """Return the level of the percentiles, and the share of results that it holds.

        A level is a quantile of the levels that results need. It is the least one for which
        `LEVEL` of the results are held, each by the level and the errors of other submitters.
        """
        values, needed = self.errors[:, figure] / self.doublings, []
        # The level at which an interval made without a result's submitter would just hold it.
        for family, submitter, value in zip(self.families, self.submitters, values):
            weights = self._weights(family, self.submitters != submitter)
            below, up_to = weights[values < value].sum(), weights[values <= value].sum()
            needed.append(max(2 * below - 1 if value > 0 else 1 - 2 * up_to, 0))
        levels = np.array(needed) + 1e-9
        for quantile in np.linspace(LEVEL, 1, 41):
            least = {
                s: np.quantile(levels[self.submitters != s], quantile, method="higher")
                for s in np.unique(self.submitters)
            }
            coverage = float(np.mean(levels <= [least[s] for s in self.submitters]))
            if coverage >= LEVEL:
                break
        return float(np.quantile(levels, quantile, method="higher")), coverage

    def _weights(self, family: str, among: np.ndarray) -> np.ndarray:
        # Errors of the family count once each, all others together as `_WEIGHT_OF_OTHERS`.
        own = (self.families == family) & among
        others = among & ~own
        weights = own + others * (_WEIGHT_OF_OTHERS / max(others.sum(), 1))
        return weights / weights.sum()


def _listed(numbers: Collection[int]) -> str:
    return ", ".join(f"{number:,}" for number in sorted(numbers))


@dataclass(frozen=True)
class Expectation:
    """The answer to a question."""

    question: Question
    results: tuple[Entry, ...]
    """Those of the family that the rate rests on: the nearest counts first, then the latest."""
    minutes: Interval
    samples_per_second: Interval
    kilowatt_hours: Interval | None
    """Minutes times measured watts for each accelerator; None: nobody measured the family."""
    errors: Errors

    @property
    def num_submitters(self) -> int:
        """Whose results these are."""
        return len(set(map(submitter_of, self.results)))

    def basis(self) -> str:
        """Return what it rests on, in short."""
        counts = sorted({entry.accelerators or 0 for entry in self.results})
        other = counts != [self.question.count]
        how = f" on {', '.join(map(str, counts))}: nobody published {self.question.count}" * other
        batches = {entry.global_batch_size or 0 for entry in self.results}
        nodes = {entry.nodes or 1 for entry in self.results}
        for name, asked, known in (
            ("batch", self.question.batch, batches),
            ("nodes", self.question.nodes, nodes),
        ):
            if asked and asked not in known:
                how += f", with {name} {_listed(known)}: nobody published {name} {asked:,}"
        results, submitters = len(self.results), self.num_submitters
        count = f"{results} result{'s' * (results > 1)} of {submitters} submitter"
        return f"{count}{'s' * (submitters > 1)}{how}"


class Published:
    """Published results as arrays, and what they let expect."""

    def __init__(self, entries: Sequence[Entry]):
        """Take the comparable entries with accelerators whose batch, samples and rate are known."""
        self.entries = [
            e
            for e in distinct(entries)
            if e.accelerators and e.global_batch_size and e.samples_mean
            if e.samples_per_second_median and e.minutes
        ]  # fmt: skip
        figures = [
            (e.accelerators, e.global_batch_size, e.nodes or 1, e.samples_per_second_median,
             e.samples_mean, e.minutes)
            for e in self.entries
        ]  # fmt: skip
        known = np.array(figures, float).reshape(-1, 6)
        self.log_rate, self.log_samples, self.log_minutes = np.log(known[:, 3:]).T
        self.place = np.log2(known[:, :3])
        """Of N results [N, 3]: log2 of count, batch and nodes."""
        self.family = np.array([e.family for e in self.entries])
        self.submitter = np.array([submitter_of(e) for e in self.entries])

    def slopes(self, values: np.ndarray, columns: Sequence[int], among: np.ndarray) -> np.ndarray:
        """Return the slopes of values over columns of `place`, the same in all families.

        Least absolute deviations, by least squares that are weighted again and again.
        """
        family, rows = self.family[among], np.column_stack([self.place[:, columns], values])[among]
        members = (family[:, None] == np.unique(family)).astype(float)
        weights, slopes = np.ones(len(rows)), np.zeros(len(columns))
        for _ in range(20):
            means = (members.T * weights) @ rows / (members.T @ weights)[:, None]
            centred = (rows - members @ means) * np.sqrt(weights)[:, None]
            slopes = np.linalg.lstsq(centred[:, :-1], centred[:, -1], rcond=None)[0]
            left = (rows - members @ means) @ [*-slopes, 1]
            weights = 1 / np.maximum(np.abs(left), _LEAST_DEVIATION)
        return slopes

    def predictor(
        self, columns: Sequence[int], among: np.ndarray
    ) -> Callable[[np.ndarray, np.ndarray, bool], tuple[float, float]]:
        """Return a function of a place, rows of its family, and whether they have its count.

        It returns the logarithms of samples/s and minutes.
        """
        # log(samples/s) is linear in the logarithms of count, batch and nodes, with slopes that all
        # families have in common: few families have results enough for slopes of their own.
        rate_slopes = self.slopes(self.log_rate, columns, among)
        batch_slopes = self.slopes(self.place[:, BATCH], [COUNT], among)

        def predict(place: np.ndarray, rows: np.ndarray, is_published: bool) -> tuple[float, float]:
            # Results are moved to the place that is asked for; their median is robust to odd ones.
            moves = place - self.place[rows]
            rate = np.median(self.log_rate[rows] + moves[:, columns] @ rate_slopes)
            batch = place[BATCH]
            # A batch that is not given is moved to the count as a rate is.
            if math.isnan(batch):
                batch = np.median(self.place[rows, BATCH] + moves[:, [COUNT]] @ batch_slopes)
            # Where nobody published the count any accelerator helps: samples follow the batch.
            if not is_published:
                known = np.flatnonzero(among)
                far = np.abs(self.place[known, BATCH] - batch)
                rows = known[np.argsort(far, kind="stable")[:_NUM_NEAR]]
            # From batch to batch along the reference's curve, its RCPs.
            moved = log_reference_samples(batch) - log_reference_samples(self.place[rows, BATCH])
            samples = np.median(self.log_samples[rows] + moved)
            return rate, samples - rate - math.log(60)

        return predict

    @functools.cache  # noqa: B019 - it lives as long as the program
    def errors(self, columns: tuple[int, ...], is_published: bool) -> Errors:
        """Return the errors of questions that give these columns of `place`.

        Every result is predicted without all of its submitter and, unless its count is to be a
        published one, without those of its count.
        """
        predicted = []
        for submitter in np.unique(self.submitter):
            # One submitter publishes the same machine several times: all of them are left out.
            among = self.submitter != submitter
            predict = self.predictor(columns, among)
            for row in np.flatnonzero(~among):
                place = np.full(3, math.nan)
                place[list(columns)] = self.place[row, list(columns)]
                # As the question asks: by the same count, or where nobody published it.
                with_count = self.place[:, COUNT] == place[COUNT]
                alike = among & (self.family == self.family[row]) & (with_count == is_published)
                if alike.any():
                    rows = np.flatnonzero(alike)
                    rate, minutes = predict(place, rows, is_published)
                    errors = self.log_rate[row] - rate, self.log_minutes[row] - minutes
                    predicted.append((row, self.doublings(place, rows), errors))
        of, doublings = [row for row, *_ in predicted], [far for _, far, *_ in predicted]
        logarithms = np.array([errors for *_, errors in predicted])
        return Errors(self.family[of], self.submitter[of], np.array(doublings), logarithms)

    def _batch_refusal(self, question: Question, rows: np.ndarray) -> str:
        """Return that nobody published such a batch, and which were published."""
        batches = {self.entries[row].global_batch_size or 0 for row in rows}
        counts = {self.entries[row].accelerators or 0 for row in rows}
        return (
            f"--batch={question.batch}: nobody published it, or one like it, on "
            f"{question.count} {question.family}; published is batch {_listed(batches)} on "
            f"{_listed(counts)} of them"
        )

    def doublings(self, place: np.ndarray, rows: np.ndarray) -> float:
        """Return those from a count to the nearest one of results; 1 if it is less."""
        return max(float(np.abs(self.place[rows, COUNT] - place[COUNT]).min()), 1)

    def expectation(self, question: Question) -> Expectation:
        """Return the answer.

        Raises:
          ValueError: nobody published the family, or a batch like that; names what was published.
        """
        family = self.family == question.family
        if not family.any():
            names = {str(name).lower(): str(name) for name in self.family}
            near = difflib.get_close_matches(question.family.lower(), names, n=5, cutoff=0)
            raise ValueError(
                f"--accelerator={question.family}: nobody published a comparable result on it; "
                f"the nearest names are {', '.join(names[name] for name in near)}"
            )
        given = question.count, question.batch or math.nan, question.nodes or math.nan
        place = np.log2(given)
        # The same count, if anybody published it; else the whole family.
        same = family & (self.place[:, COUNT] == place[COUNT])
        is_published = bool(same.any())
        rows = np.flatnonzero(same if is_published else family)
        # Of each accelerator, in doublings: nobody knows what more of them does to the rate.
        published = (self.place[:, BATCH] - self.place[:, COUNT])[family]
        of_each = place[BATCH] - place[COUNT]
        if of_each < published.min() - 1 or of_each > published.max() + 1:  # not for NaN
            raise ValueError(self._batch_refusal(question, rows))
        columns = tuple(n for n in range(3) if not math.isnan(place[n]))
        predict = self.predictor(columns, np.ones(len(self.entries), bool))
        errors, doublings = self.errors(columns, is_published), self.doublings(place, rows)
        rate, minutes = (
            Interval(value, *(value * f for f in errors.factors(n, question.family, doublings)))
            for n, value in enumerate(np.exp(predict(place, rows, is_published)))
        )
        # Few have measured: power scales with the count, whatever the batch.
        watts = [e.watts / e.accelerators for e in self.entries
                 if e.family == question.family and e.watts and e.accelerators]  # fmt: skip
        energy = None
        if watts:
            of_minute = np.median(watts) * question.count / 60_000  # in kWh
            energy = Interval(*(of_minute * value for value in astuple(minutes)))
        far = np.abs(self.place[rows, COUNT] - place[COUNT])
        order = sorted(zip(far, rows), key=lambda each: (each[0], -each[1]))
        results = tuple(self.entries[row] for _, row in order)
        return Expectation(question, results, minutes, rate, energy, errors)


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


def three_digits(value: float) -> str:
    """Return a number for people."""
    if value >= 99.95:  # 100 with three digits
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:#.3g}"


def lines_of(expected: Expectation) -> list[str]:
    """Return an expectation for a terminal."""
    energy = expected.kilowatt_hours
    names = ", ".join(entry.name for entry in expected.results[:_NUM_SYSTEMS_SHOWN])
    more = len(expected.results) - _NUM_SYSTEMS_SHOWN
    return [
        f"{expected.question}: from {expected.basis()} ({SOURCE}); the {LEVEL:.0%} intervals in "
        f"brackets and the errors are those of {len(expected.errors.families)} results, each "
        "expected from others",
        f"  minutes to 0.720: {expected.minutes}; {_errors_text(expected.errors, MINUTES)}",
        f"  samples/s: {expected.samples_per_second}; {_errors_text(expected.errors, RATE)}",
        f"  kWh of a run: {energy or 'unknown: nobody published the power of this family'}",
        f"  rests on: {names}{f' and {more} more' if more > 0 else ''}",
    ]


def _errors_text(errors: Errors, figure: int) -> str:
    middle, far = (errors.relative(figure, quantile) for quantile in (0.5, 0.9))
    return f"off by {middle:.1%} in the median, {far:.0%} at the 90th percentile"


def price_line(minutes: Sequence[float], price_per_hour: float) -> str:
    """Return the price of a run and of a result; minutes are expected, least and most."""

    def of(number: int) -> str:
        price, least, most = (three_digits(m * price_per_hour / 60 * number) for m in minutes)
        return f"{price} ({least} to {most})"

    return (
        f"  price: a run {of(1)}, the {NUM_RUNS_PER_RESULT} of a result {of(NUM_RUNS_PER_RESULT)}; "
        f"of the timed minutes alone, at {price_per_hour:g} an hour for the whole system"
    )


def _price(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= float(text) < 1e9:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r}: give the price of an hour, below 1,000,000,000")


@ends_in_one_line("expect")
def main(arguments: Sequence[str] | None = None) -> int:
    """Print an expectation; return 1 with one line if there is none."""
    parser = argparse.ArgumentParser(prog="python -m mlperf_results.expect")
    parser.add_argument(
        "--accelerator", required=True, help="H100, A100 PCIe, or as its driver names it"
    )
    parser.add_argument(
        "--count", type=whole_number, required=True, help="of accelerators in the whole system"
    )
    parser.add_argument("--batch", type=whole_number, help="global batch size")
    parser.add_argument("--nodes", type=whole_number, help="that the accelerators are in")
    parser.add_argument("--price_per_hour", type=_price, help="of the whole system")
    given = parser.parse_args(words_with_home(arguments))
    if given.nodes and given.nodes > given.count:
        parser.error(f"--nodes={given.nodes}: more than --count={given.count} accelerators")
    family = family_of(given.accelerator, given.count)
    question = Question(family, given.count, given.batch, given.nodes)
    expected = Published(published.load()).expectation(question)
    print("\n".join(lines_of(expected)))
    if given.price_per_hour is not None:
        print(price_line(astuple(expected.minutes), given.price_per_hour))
    return 0


if __name__ == "__main__":
    sys.exit(main())
