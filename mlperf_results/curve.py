"""Compares each evaluation of a run, while it trains or later, with those of published runs.

    python -m mlperf_results.curve output --png=curve.png

takes the log or the output directory of one run. For every evaluation it prints the accuracy, and
the least and greatest accuracy of published runs of the nearest batch sizes after the same number
of samples. A run that is far below them has wrong data or weights.

Exit codes: 3 far below; 1 bad input, in one line; else 0.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from mlperf_bert.files import paths
from mlperf_bert.files.whole import written_beside
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.mlperf.log_reader import read_run
from mlperf_bert.mlperf.rules import MAX_SEQ_LENGTH, TARGET_MASKED_LM_ACCURACY
from mlperf_bert.options import expanded_arguments
from mlperf_results import published
from mlperf_results.published import NUM_WEIGHTS_OF_BERT_LARGE, Entry, comparable
from mlperf_results.runs import runs_in

EXIT_FAR_BELOW = 3
FAR_BELOW = 0.02
"""An accuracy less than the least published one by so much is far below. Of the
evaluations of published runs, compared with those of other submitters, 0.9% are, none in the last
third of a run."""
_HALF_A_DOUBLING = 0.5
_LEAST_RUNS = 10
"""The least and greatest accuracy of fewer runs say little."""
_CAUSES = (
    "look for wrong data (all parts alike, no shuffling, a vocabulary of another model), weights "
    "that were not loaded, or a learning rate of another batch"
)


@dataclass(frozen=True)
class Band:
    """The curves of published runs with similar batch sizes."""

    batches: tuple[int, ...]
    curves: tuple[tuple[np.ndarray, np.ndarray], ...]
    """Samples before each evaluation of a run, and the accuracies."""

    def ends(self, samples: Sequence[float]) -> list[tuple[float, float] | None]:
        """Returns the least and greatest accuracy after numbers of samples; None with few runs.

        Between two evaluations accuracy is a straight line; after the last one it stays constant.
        """
        values = np.array([np.interp(samples, *curve, left=np.nan) for curve in self.curves])
        known = [column[~np.isnan(column)] for column in values.T]
        return [(k.min(), k.max()) if len(k) >= _LEAST_RUNS else None for k in known]


def band_of(batch: float, entries: Sequence[Entry]) -> Band:
    """The curves of comparable results whose batch is within half a doubling, or nearest."""
    known = [e for e in comparable(entries) if e.global_batch_size and any(e.evaluation_samples)]
    far = {e.name: abs(math.log2((e.global_batch_size or 1) / batch)) for e in known}
    limit = max(_HALF_A_DOUBLING, min(far.values()))
    like = [e for e in known if far[e.name] <= limit]
    return Band(
        tuple(sorted({e.global_batch_size or 0 for e in like})),
        tuple(
            (np.array(samples), np.array(accuracy))
            for e in like
            for samples, accuracy in zip(e.evaluation_samples, e.evaluation_accuracy)
            if samples
        ),
    )


def read_curve(name: str) -> tuple[float, list[tuple[float, float]]]:
    """Returns the batch size and (samples, accuracy) of each evaluation of a log of one run."""
    files, *others = runs_in(name)
    if others or not files.logs:
        what = f"{len(others) + 1} runs" if others else "no log"
        raise ValueError(f"{name}: {what}; give the log of one run")
    runs = [read_run(log, may_be_cut=True) for log in files.logs]
    evaluations = [
        (each.samples, each.accuracy)
        for run in runs
        for each in run.evaluations
        if each.samples is not None
    ]
    first, log = runs[0], files.logs[0]
    if (first.num_weights or NUM_WEIGHTS_OF_BERT_LARGE) < NUM_WEIGHTS_OF_BERT_LARGE:
        raise ValueError(f"{log}: a miniature; published runs are of BERT-large")
    if first.max_sequence_length not in (None, MAX_SEQ_LENGTH):
        tokens = f"sequences of {first.max_sequence_length} tokens"
        raise ValueError(f"{log}: {tokens}; published runs have {MAX_SEQ_LENGTH}")
    if not first.global_batch_size:
        raise ValueError(f"{log}: does not say global_batch_size")
    if not evaluations:
        raise ValueError(
            f"{files.logs[-1]}: no evaluation in it says after how many samples it was; wait for "
            "the first one, or give a log whose eval_accuracy has samples as epoch_num"
        )
    return first.global_batch_size, evaluations


def verdict_of(
    accuracies: Sequence[float], ends: Sequence[tuple[float, float] | None]
) -> tuple[int, str]:
    """Returns the exit code and a sentence on the last evaluations beside the ends of a band.

    A run is far below if its last two evaluations are, or its only one: early ones scatter.
    """
    below = [
        least_and_greatest[0] - accuracy if math.isfinite(accuracy) else math.inf
        for accuracy, least_and_greatest in zip(accuracies, ends)
        if least_and_greatest
    ]
    if not below:
        return 0, "too few published runs were evaluated after so few samples: wait for more"
    if all(each > FAR_BELOW for each in below[-2:]):
        return EXIT_FAR_BELOW, (
            f"FAR BELOW: {below[-1]:.4f} less than the least published accuracy; {_CAUSES}"
        )
    if below[-1] > 0:
        return 0, f"below all published runs, by {below[-1]:.4f}"
    return 0, "within what was published, or above it"


def draw(samples: Sequence[float], accuracies: Sequence[float], band: Band, path: Path) -> None:
    """Writes a picture of the accuracies within the band."""
    axes = (figure := Figure(figsize=(6.4, 4), dpi=150, layout="constrained")).subplots()
    places = np.linspace(0, 1.1 * max(samples), 300)
    least, most = np.array([each or (np.nan, np.nan) for each in band.ends(places.tolist())]).T
    axes.fill_between(places, least, most, color="#dff0e6", label="published runs")
    axes.plot(samples, accuracies, "o-", markersize=4, label="this run")
    target = f"target {TARGET_MASKED_LM_ACCURACY:.3f}"
    axes.axhline(TARGET_MASKED_LM_ACCURACY, color="#c44", linestyle="--", linewidth=1, label=target)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("samples")
    axes.set_ylabel("masked-LM accuracy")
    axes.legend(loc="lower right")
    with written_beside(path) as file:
        figure.savefig(file, format="png")


@ends_in_one_line("curve")
def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table and a sentence; returns the exit code that the module lists."""
    parser = argparse.ArgumentParser(prog="python -m mlperf_results.curve")
    parser.add_argument("run", metavar="LOG_OR_FOLDER")
    parser.add_argument("--png", help="file for a picture")
    options = parser.parse_args(expanded_arguments(arguments))
    if options.png and Path(options.png).suffix != ".png":
        raise ValueError(f"--png={options.png}: give the name of a picture, such as curve.png")
    picture = paths.require_local(options.png, flag="png") if options.png else None
    batch, evaluations = read_curve(options.run)
    samples, accuracies = zip(*evaluations)
    band = band_of(batch, published.load())
    ends = band.ends(samples)
    code, words = verdict_of(accuracies, ends)
    batches = ", ".join(f"{each:,}" for each in band.batches)
    print(f"beside {len(band.curves)} published runs of batch {batches}:")
    print(f"  {'samples':>10}  accuracy  published: least and greatest")
    for number, accuracy, published_ends in zip(samples, accuracies, ends):
        range_ = "{:.4f} to {:.4f}".format(*published_ends) if published_ends else "-"
        print(f"  {number:10,.0f}    {accuracy:.4f}  {range_}")
    print(words)
    if picture:
        draw(samples, accuracies, band, picture)
    return code


if __name__ == "__main__":
    sys.exit(main())
