"""Other runs with which a run is compared: their curves, the band around them, and the forecast.

The others are the published runs (published.py) of the nearest batch sizes, so many that eight
systems or more are among them; samples at another batch size are multiplied by what the reference
points (RCP) say of the two. Or they are runs of one's own.

Band: from the lowest to the highest accuracy of the others, also if these took `slow` times as many
samples, or `fast` times fewer, and `slack` of accuracy beyond. A run that is not at the target
after `slow` times the samples of the slowest is outside too. The margins are such that 99.5% of the
published runs are inside from their first to their last evaluation, while their own system is left
out of the others.

Forecast: with the accuracy that a run has now, the others still needed so many samples. Their
median, added to its own, is expected, and the 3% to 97% of theirs are the interval. It is right for
nine runs of ten, as `python -m mlperf_bert.submission.watch --table` shows.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mlperf_bert.files import json_text
from mlperf_bert.files.whole import write_whole
from mlperf_bert.mlperf import convergence, results
from mlperf_bert.mlperf.results import RunResult
from mlperf_bert.mlperf.rules import TARGET_MASKED_LM_ACCURACY
from mlperf_bert.submission.comparison import comparable
from mlperf_bert.submission.entry import Entry
from mlperf_bert.submission.expectation import log_reference_samples
from mlperf_bert.submission.folder import result_files

SLOW, FAST, SLACK = 1.15, 1.35, 0.005
INITIAL_ACCURACY = 0.34085
"""What the given checkpoint has on the 10,000 examples."""
_NUM_SYSTEMS = 8
_QUANTILES = (0.03, 0.5, 0.97)
_USUAL = (0.05, 0.95)
_NUM_POINTS = 1000
_FEWEST_OWN_RUNS = 3
_ABOUT = "runs to compare others with; written by python -m mlperf_bert.submission.watch"


@dataclass(frozen=True)
class Curve:
    """The evaluations of one run, in order, up to the target."""

    samples: np.ndarray
    """[evaluations], float64."""
    accuracy: np.ndarray
    """[evaluations], float64."""

    def scaled(self, factor: float) -> "Curve":
        """The same with so many times the samples."""
        return Curve(self.samples * factor, self.accuracy)

    @property
    def best(self) -> np.ndarray:
        """The best accuracy up to each evaluation."""
        return np.maximum.accumulate(self.accuracy)


@dataclass(frozen=True)
class Margins:
    """How far outside of other runs a run may be."""

    slow: float = SLOW
    """Times the samples."""
    fast: float = FAST
    """Times fewer samples."""
    slack: float = SLACK
    """Of accuracy."""


@dataclass(frozen=True)
class Outlook:
    """Where a run stands at one evaluation."""

    samples: float
    accuracy: float
    band: tuple[float, float]
    """Accuracies beyond which it is outside."""
    usual: tuple[float, float]
    """Accuracies between which nine of ten other runs are."""
    expected: tuple[float, float, float] | None
    """Samples at the target: least, median, most; None: it is outside, or at the target."""

    @property
    def is_low(self) -> bool:
        """Whether it is below the band."""
        return not self.accuracy >= self.band[0]  # NaN is low

    @property
    def is_outside(self) -> bool:
        """Whether it is below or above the band."""
        return self.is_low or self.accuracy > self.band[1]


class Reference:
    """Runs with which a run is compared."""

    def __init__(
        self,
        curves: Sequence[Curve],
        *,
        words: str,
        margins: Margins,
        target: float = TARGET_MASKED_LM_ACCURACY,
        initial_accuracy: float | None = None,
        hyperparameters: Mapping[str, float] | None = None,
    ):
        """Draws the band.

        Args:
          curves: of runs that have reached the target.
          words: name the runs: "published runs at batch 448".
          margins: of the band.
          target: the accuracy at which the runs ended.
          initial_accuracy: of the weights with which they began; None: not known.
          hyperparameters: of these runs, by their keys in the MLLOG.
        """
        self.words, self.margins = words, margins
        self.target, self.initial_accuracy = target, initial_accuracy
        self.hyperparameters = hyperparameters or {}
        self.curves = curves
        self._ends = np.array([curve.samples[-1] for curve in curves])
        first = min(curve.samples[0] for curve in curves)
        self._grid = np.geomspace(first / 8, 4 * self._ends.max(), _NUM_POINTS)
        self._rows = np.array([self._drawn(curve) for curve in curves])
        # Without dips, so that a band has one accuracy for each number of samples.
        self._low = np.maximum.accumulate(self._rows.min(axis=0))
        self._high = np.maximum.accumulate(self._rows.max(axis=0))

    def _drawn(self, curve: Curve) -> np.ndarray:
        began = curve.best[0] if self.initial_accuracy is None else self.initial_accuracy
        x, y = np.append(0, curve.samples), np.append(began, curve.best)
        return np.interp(self._grid, x, y, right=max(self.target, y[-1]))

    def __len__(self) -> int:
        return len(self.curves)

    def band(self, samples: float) -> tuple[float, float]:
        """The least and the greatest accuracy inside, after so many samples."""
        margins = self.margins
        if not samples:
            initial = self.initial_accuracy
            return (0, 1) if initial is None else (initial - margins.slack, initial + margins.slack)
        low = self._at(self._low, samples / margins.slow) - margins.slack
        if samples > margins.slow * self._ends.max():
            low = self.target
        return low, self._at(self._high, samples * margins.fast) + margins.slack

    def _at(self, heights: np.ndarray, samples: float) -> float:
        return float(np.interp(samples, self._grid, heights))

    def usual(self, samples: float) -> tuple[float, float]:
        """Between which accuracies nine of ten of the runs are after so many samples."""
        column = np.array([np.interp(samples, self._grid, row) for row in self._rows])
        low, high = np.quantile(column, _USUAL)
        return float(low), float(high)

    def forecast(self, samples: float, best: float) -> tuple[float, float, float]:
        """Samples at the target, least, median and most, of a run with its best accuracy so far."""
        left = []
        for curve, end in zip(self.curves, self._ends):
            # A flat stretch counts from its end: it is the later evaluation that got no further.
            rising = curve.best + 1e-9 * np.arange(len(curve.best))
            left.append(end - np.interp(best, rising, curve.samples, left=0))
        least, median, most = np.quantile(left, _QUANTILES)
        return samples + max(least, 0), samples + median, samples + most

    def outlook(self, samples: float, accuracy: float, *, best: float) -> Outlook:
        """Where a run stands; `best` is its best accuracy so far."""
        seen = Outlook(samples, accuracy, self.band(samples), self.usual(samples), None)
        if seen.is_outside or best >= self.target or not samples:
            return seen
        expected = self.forecast(samples, best)
        return Outlook(samples, accuracy, seen.band, seen.usual, expected)


def published_reference(global_batch_size: int, entries: Sequence[Entry]) -> Reference:
    """Published runs of a batch size, or of the nearest ones.

    Args:
      global_batch_size: of an update.
      entries: published results; those that are not comparable are left out.
    """
    known = [entry for entry in comparable(entries) if entry.global_batch_size and entry.curve]

    def distance(entry: Entry) -> float:
        return abs(math.log((entry.global_batch_size or 1) / global_batch_size))

    known.sort(key=distance)
    farthest = distance(known[min(_NUM_SYSTEMS, len(known)) - 1])
    near = [entry for entry in known if distance(entry) <= farthest + 1e-9]
    batches = sorted({entry.global_batch_size or 0 for entry in near})
    needed = {
        batch: float(log_reference_samples(math.log2(batch)))
        for batch in {global_batch_size, *batches}
    }
    curves = [
        curve.scaled(math.exp(needed[global_batch_size] - needed[entry.global_batch_size or 0]))
        for entry in near
        for curve in curves_of(entry)
    ]
    return Reference(
        curves,
        words=_words(global_batch_size, batches),
        margins=Margins(),
        initial_accuracy=INITIAL_ACCURACY,
        hyperparameters=_nearest_point(global_batch_size).hyperparameters,
    )


def curves_of(entry: Entry) -> list[Curve]:
    """The converged runs of a system whose evaluations are known."""
    return [
        curve
        for samples, accuracy in zip(entry.evaluation_samples, entry.evaluation_accuracy)
        if (curve := _trained(np.array(samples), np.array(accuracy)))
    ]


def _trained(samples: np.ndarray, accuracy: np.ndarray) -> Curve | None:
    """Without the evaluation before the first step, which some log."""
    is_trained = samples > 0
    return Curve(samples[is_trained], accuracy[is_trained]) if is_trained.any() else None


def _words(wanted: int, batches: Sequence[int]) -> str:
    if batches == [wanted]:
        return f"published runs at batch {wanted:,}"
    few = "few" if wanted in batches else "nobody"
    return f"published runs at batch {batches[0]:,} to {batches[-1]:,} ({few} published {wanted:,})"


def _nearest_point(global_batch_size: int) -> convergence.ReferencePoint:
    points = convergence.reference_points().values()
    return min(points, key=lambda p: abs(math.log(p.global_batch_size / global_batch_size)))


def own_reference(path: Path) -> Reference:
    """Runs of one's own: a campaign, a folder of runs or results, or what `save` has written.

    Raises:
      ValueError: as `reference_of`, or the file holds no runs.
    """
    if path.is_file() and path.suffix == ".json":
        content = json_text.read_object(path)
        try:
            curves = [Curve(*map(np.array, pair)) for pair in content["curves"]]
            words, target = str(content["words"]), float(content["target"])
            return _own(curves, words, target, dict(content["hyperparameters"]))
        except (LookupError, TypeError, ValueError) as error:
            raise ValueError(
                f"--reference={path}: no runs to compare with ({error!r:.200})"
            ) from error
    return reference_of(logs_of(path), f"runs of {path}")


def reference_of(logs: Sequence[Path], words: str) -> Reference:
    """Runs of one's own, from their logs; those that have not reached their target do not count.

    Raises:
      ValueError: fewer than three have reached it.
    """
    runs = [run for log in logs if (run := results.read_run(log, may_run=True)).succeeded]
    known = [(run, curve) for run in runs if (curve := curve_of(run))]
    if len(known) < _FEWEST_OWN_RUNS:
        raise ValueError(
            f"{words}: {len(known)} that have reached their target; {_FEWEST_OWN_RUNS} are the "
            "fewest to compare with, ten make a band"
        )
    numbers = {
        key: value
        for key, value in known[0][0].hyperparameters.items()
        if isinstance(value, int | float)
    }
    curves = [curve for _, curve in known]
    return _own(curves, words, min(curve.best[-1] for curve in curves), numbers)


def _own(
    curves: Sequence[Curve], words: str, target: float, hyperparameters: Mapping[str, float]
) -> Reference:
    """With slack for each of them in the band of the others, twice."""
    margins = own_margins(curves, target)
    return Reference(
        curves, words=words, margins=margins, target=target, hyperparameters=hyperparameters
    )


def logs_of(place: Path) -> list[Path]:
    """The logs of runs: a log itself, of a run, of a campaign, of a folder of runs, or results.

    Raises:
      ValueError: there are none.
    """
    if place.is_file():
        return [place]
    for pattern in (results.LOG_NAME, *(f"{n}/{results.LOG_NAME}" for n in ("runs/*", "*"))):
        if logs := sorted(place.glob(pattern)):
            return logs
    if logs := [*result_files(place)]:
        return logs
    raise ValueError(
        f"{place}: no runs; give a log, the folder of a run or a campaign, or one with "
        "result_0.txt, result_1.txt ..."
    )


def curve_of(run: RunResult) -> Curve | None:
    """The evaluations of a run; None if its log does not say the samples of any."""
    known = [(e.samples, e.accuracy) for e in run.evaluations if e.samples is not None]
    return _trained(*np.array(known, dtype=float).reshape(-1, 2).T)


def last_outlook(run: RunResult, reference: Reference) -> Outlook | None:
    """Where a run stands at the last evaluation of its log; None without one."""
    curve = curve_of(run)
    if curve is None:
        return None
    return reference.outlook(curve.samples[-1], curve.accuracy[-1], best=curve.best[-1])


def own_margins(curves: Sequence[Curve], target: float) -> Margins:
    """Twice as much slack as makes room for each run in the band of the others."""
    excess = 0.0
    for number, curve in enumerate(curves):
        others = [*curves[:number], *curves[number + 1 :]]
        band = Reference(others, words="", margins=Margins(1, 1, 0), target=target)
        for samples, accuracy in zip(curve.samples, curve.accuracy):
            low, high = band.band(samples)
            # After the end of the slowest other run its band is the target itself.
            is_over = samples > max(other.samples[-1] for other in others)
            excess = max(excess, 0 if is_over else low - accuracy, accuracy - high)
    return Margins(slack=max(SLACK, 2 * excess))


def save(reference: Reference, path: Path) -> None:
    """Writes runs to compare others with: a JSON object with about, target, curves and so on."""
    content = {
        "about": _ABOUT,
        "words": reference.words,
        "target": reference.target,
        "hyperparameters": dict(reference.hyperparameters),
        "curves": [[c.samples.tolist(), c.accuracy.tolist()] for c in reference.curves],
    }
    write_whole(path, json.dumps(content) + "\n")
