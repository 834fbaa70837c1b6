"""Other runs with which a run is compared: their curves, the band around them, and the forecast.

The others are the published runs (published.py) of the nearest batch sizes, so many that eight
systems or more are among them; samples at another batch size are multiplied by what the reference
points (RCP) say of the two. Or they are runs of one's own.

benchmarks/watch_table.py measures how often the band and the forecast are right.
"""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np

from mlperf_bert.files import json_text, paths
from mlperf_bert.mlperf import convergence
from mlperf_bert.mlperf.logs import copies_among
from mlperf_bert.mlperf.rules import INITIAL_MASKED_LM_ACCURACY, TARGET_MASKED_LM_ACCURACY
from mlperf_bert.submission.run_logs import common_task, runs_so_far, work_of
from mlperf_results.published import Entry, comparable

SLACK = 0.005
_NUM_SYSTEMS = 8
_QUANTILES = (0.03, 0.5, 0.97)
_USUAL = (0.05, 0.95)
_NUM_POINTS = 1000
_FEWEST_OWN_RUNS = 3
_ABOUT = "runs to compare others with; written by python -m mlperf_results.watch"
_REMEDY = "write it again with python -m mlperf_results.watch --save"


@dataclass(frozen=True)
class Curve:
    """The evaluations of one run, one or more, up to the target."""

    samples: np.ndarray
    """[evaluations], float64, above 0 and rising."""
    accuracy: np.ndarray
    """[evaluations], float64, without NaN."""

    @property
    def best(self) -> np.ndarray:
        """The best accuracy up to each evaluation."""
        return np.maximum.accumulate(self.accuracy)


@dataclass(eq=False)
class Reference:
    """Runs with which a run is compared."""

    curves: Sequence[Curve]
    """Of runs that have reached the target."""
    _: KW_ONLY
    words: str
    """Name the runs: "published runs at batch 448"."""
    slow: float = 1.15
    """How many times the samples of the others are still inside of the band."""
    fast: float = 1.35
    """The same for fewer samples."""
    slack: float = SLACK
    """How far the band goes beyond accuracies of the others."""
    target: float = TARGET_MASKED_LM_ACCURACY
    """The accuracy at which the runs ended."""
    initial_accuracy: float | None = None
    """Of the weights with which they began; None: not known."""
    hyperparameters: Mapping[str, object] = field(default_factory=dict)
    """Of these runs, by their keys in the MLLOG."""
    task: Mapping[str, object] = field(default_factory=dict)
    """What a run must have in common with these, as `run_logs.work_of`."""

    def __post_init__(self) -> None:
        """Draws the band."""
        # A flat stretch counts from its end: it is the later evaluation that got no further.
        self._rising = [curve.best + 1e-9 * np.arange(len(curve.best)) for curve in self.curves]
        self._ends = np.array([curve.samples[-1] for curve in self.curves])
        self.first_samples = float(min(curve.samples[0] for curve in self.curves))
        """Of the first evaluation of any."""
        self._grid = np.geomspace(self.first_samples / 8, 4 * self._ends.max(), _NUM_POINTS)
        self._rows = np.array([self._drawn(curve) for curve in self.curves])
        # Without dips, so that a band has one accuracy for each number of samples.
        self._low = np.maximum.accumulate(self._rows.min(axis=0))
        self._high = np.maximum.accumulate(self._rows.max(axis=0))

    def _drawn(self, curve: Curve) -> np.ndarray:
        # To its first evaluation a run is drawn straight, and at its target it stays.
        began = curve.best[0] if self.initial_accuracy is None else self.initial_accuracy
        x, y = np.append(0, curve.samples), np.append(began, curve.best)
        return np.interp(self._grid, x, y, right=max(self.target, y[-1]))

    def __len__(self) -> int:
        return len(self.curves)

    @property
    def end_samples(self) -> float:
        """After how many samples the slowest was at the target."""
        return float(self._ends.max())

    def require_same_work(self, task: Mapping[str, object], who: str) -> None:
        """Raises ValueError if a run's samples cannot be compared with those of the others."""
        for name, own in task.items():
            others = self.task.get(name)
            if own is not None and others is not None and own != others:
                raise ValueError(
                    f"{who}: has {name} {own}, the {self.words} have {others}; give runs like it "
                    "as --reference"
                )

    def band(self, samples: float) -> tuple[float, float]:
        """The least and the greatest accuracy inside, after so many samples."""
        # From the lowest to the highest accuracy of the others, also if these took `slow` times as
        # many samples or `fast` times fewer, and `slack` beyond. So 99.5% of the published runs are
        # inside from end to end, while their own system is left out of the others.
        # Before the first step a run has the accuracy of its checkpoint.
        if not samples:
            initial = self.initial_accuracy
            return (0, 1) if initial is None else (initial - self.slack, initial + self.slack)
        low = self._at(self._low, samples / self.slow) - self.slack
        if samples < self.first_samples:
            # Nobody was evaluated as early: how the others got to their first one is not known.
            low = (self.initial_accuracy or 0) - self.slack
        # By then the slowest would have been at the target with time to spare.
        elif samples > self.slow * self._ends.max():
            low = self.target
        return low, self._at(self._high, samples * self.fast) + self.slack

    def _at(self, heights: np.ndarray, samples: float) -> float:
        return float(np.interp(samples, self._grid, heights))

    def usual(self, samples: float) -> tuple[float, float]:
        """Between which accuracies nine of ten of the runs are after so many samples."""
        low, high = np.quantile([self._at(row, samples) for row in self._rows], _USUAL)
        return float(low), float(high)

    def forecast(self, samples: float, best: float) -> tuple[float, float, float]:
        """Samples at the target, least, median and most, of a run with its best accuracy so far."""
        # With the accuracy that this run has now, the others still needed so many samples.
        left = []
        for curve, rising, end in zip(self.curves, self._rising, self._ends):
            left.append(end - np.interp(best, rising, curve.samples, left=0))
        # 3% to 97%: right for nine runs of ten of a submitter of whom nothing is known.
        least, median, most = np.quantile(left, _QUANTILES)
        return samples + max(least, 0), samples + median, samples + most


def published_reference(global_batch_size: int, entries: Sequence[Entry]) -> Reference:
    """Published runs of a batch size, or of the nearest ones.

    Args:
      global_batch_size: of an update.
      entries: published results; those that are not comparable are left out.

    Raises:
      ValueError: it is less than half or more than twice that of all of them.
    """
    known = [entry for entry in comparable(entries) if entry.global_batch_size and entry.curve]
    batches = np.array([entry.global_batch_size for entry in known], float)
    if not batches.min() / 2 <= global_batch_size <= batches.max() * 2:
        raise ValueError(
            f"nobody published a batch near {global_batch_size:,}, only {batches.min():,.0f} to "
            f"{batches.max():,.0f}; give runs like this one as --reference"
        )
    # The nearest batch sizes, so many that some systems are among them, and all of the last size.
    distances = np.abs(np.log(batches / global_batch_size))
    near = np.flatnonzero(distances <= np.sort(distances)[:_NUM_SYSTEMS][-1] + 1e-9)
    # As the reference needs more samples at a larger batch, so do the others.
    log2_batches = np.log2([global_batch_size, *batches])
    needed = np.asarray(convergence.log_reference_samples(log2_batches))
    factors = np.exp(needed[0] - needed[1:])
    curves = [
        Curve(curve.samples * factors[place], curve.accuracy)
        for place in near
        for curve in curves_of(known[place])
    ]
    points = convergence.reference_points()
    nearest = min(points, key=lambda batch: abs(math.log(batch / global_batch_size)))
    return Reference(
        curves,
        words=_words(global_batch_size, [*np.unique(batches[near]).astype(int)]),
        initial_accuracy=INITIAL_MASKED_LM_ACCURACY,
        hyperparameters=points[nearest].hyperparameters,
    )


@functools.cache
def curves_of(entry: Entry) -> list[Curve]:
    """The converged runs of a system whose evaluations are known."""
    runs = map(zip, entry.evaluation_samples, entry.evaluation_accuracy)
    return [curve for run in runs if (curve := _curve(run))]


def _words(wanted: int, batches: Sequence[int]) -> str:
    if batches == [wanted]:
        return f"published runs at batch {wanted:,}"
    few = "few" if wanted in batches else "nobody"
    return f"published runs at batch {batches[0]:,} to {batches[-1]:,} ({few} published {wanted:,})"


def own_reference(name: str, *, target: float | None = None) -> Reference:
    """Runs of one's own that have reached their target.

    Args:
      name: what `run_logs.runs_in` takes, or a file that `save` has written.
      target: of the run that is watched; None: the least with which one of these ended.

    Raises:
      ValueError: they are fewer than three, or of several tasks, or a file is damaged.
    """
    place = paths.location(name)
    own = None
    if place.suffix == ".json":
        own = json_text.read_record(place, _parsed, remedy=_REMEDY)
    own = own or _read_own(name)
    curves = own.pop("curves")
    if target is None:
        target = min((curve.best[-1] for curve in curves), default=0.0)
    reached = [
        Curve(curve.samples[: place + 1], curve.accuracy[: place + 1])
        for curve in curves
        for place in np.flatnonzero(curve.accuracy >= target)[:1]
    ]
    if len(reached) < _FEWEST_OWN_RUNS:
        raise ValueError(
            f"--reference={name}: {len(reached)} of its runs have reached the target {target:g}; "
            f"{_FEWEST_OWN_RUNS} are the fewest to compare with, ten make a band"
        )
    return Reference(reached, slack=own_slack(reached, target), target=target, **own)


def _read_own(name: str) -> dict[str, Any]:
    """Return the fields of a `Reference` that the logs of its runs say."""
    runs = [run for run in runs_so_far(name) if run.succeeded]
    copies = copies_among([(str(run.path), run) for run in runs])
    runs = [run for number, run in enumerate(runs) if number not in copies]
    known = []
    for run in runs:
        if curve := _curve((each.samples, each.accuracy) for each in run.evaluations):
            known.append((run, curve))
    works = [work_of(run) for run, _ in known]
    return {
        "curves": [curve for _, curve in known],
        "words": f"runs of {name}" + (f" (without {len(copies)} copies of them)" if copies else ""),
        "hyperparameters": known[0][0].hyperparameters if known else {},
        "task": common_task(f"--reference={name}", works, all_say=True),
    }


def _parsed(content: dict) -> dict[str, Any]:
    """Return the same fields, as `save` has written them."""
    curves = [Curve(*np.array(each, float)) for each in content["curves"]]
    for curve in curves:
        # A band of other curves would be drawn, and mean nothing.
        if (
            not (np.diff(curve.samples, prepend=0) > 0).all()
            or not np.isfinite(curve.accuracy).all()
        ):
            raise ValueError("the samples of a curve do not rise, or an accuracy is not a number")
    own = {name: dict(content[name]) for name in ("hyperparameters", "task")}
    return {"curves": curves, "words": str(content["words"]), **own}


def save(name: str, reference: Reference) -> None:
    """Writes runs to compare others with: a JSON object with about, words, curves and so on.

    Raises:
      ValueError: the name does not end with .json.
      OSError: it cannot be written.
    """
    if paths.location(name).suffix != ".json":
        raise ValueError(f"--save={name}: give a name that ends with .json")
    curves = [[curve.samples.tolist(), curve.accuracy.tolist()] for curve in reference.curves]
    content = {"about": _ABOUT, "words": reference.words, "curves": curves}
    own = {"hyperparameters": dict(reference.hyperparameters), "task": dict(reference.task)}
    json_text.write_record(paths.with_folder_made(name), content | own)


def _curve(evaluations: Iterable[tuple[float | None, float]]) -> Curve | None:
    """The evaluations of a run; None if its log does not say the samples of any.

    Without the one before the first step, which some log, and without NaN.
    """
    known = [each for each in evaluations if each[0] and math.isfinite(each[1])]
    return Curve(*np.array(known, dtype=float).T) if known else None


def own_slack(curves: Sequence[Curve], target: float) -> float:
    """Twice as much slack as makes room for each run in the band of the others."""
    excess = 0.0
    for number, curve in enumerate(curves):
        others = [*curves[:number], *curves[number + 1 :]]
        band = Reference(others, words="", slow=1, fast=1, slack=0, target=target)
        for samples, accuracy in zip(curve.samples, curve.accuracy):
            low, high = band.band(samples)
            # After the last evaluation of the others nobody is too low.
            is_among = samples <= band.end_samples
            excess = max(excess, low - accuracy if is_among else 0.0, accuracy - high)
    return max(SLACK, 2 * excess)
