"""How often watching is right: every published run, watched as if others were all that is known.

    python -m mlperf_results.benchmarks.watch_table

A false alarm is a run that converged and was outside of the band at one evaluation or more. It is
counted while the run's own system is left out of the others, and while all systems of its submitter
are. Forecasts are made while the submitter is left out.
"""

import sys
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from mlperf_results import published
from mlperf_results.expect import submitter_of
from mlperf_results.other_runs import Curve, Reference, curves_of, published_reference
from mlperf_results.published import Entry, comparable

SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)
"""Of the samples to converge, at which forecasts are judged."""


def left_out(
    entries: Sequence[Entry], group_of: Callable[[Entry], str]
) -> Iterator[tuple[Curve, Reference]]:
    """Every run, with the runs of all other groups near its batch size."""
    known: dict[tuple[str, int], Reference] = {}
    for entry in comparable(entries):
        if not entry.global_batch_size or not entry.curve:
            continue
        group, batch = group_of(entry), entry.global_batch_size
        if (group, batch) not in known:
            others = [other for other in entries if group_of(other) != group]
            known[group, batch] = published_reference(batch, others)
        for curve in curves_of(entry):
            yield curve, known[group, batch]


def is_outside(curve: Curve, reference: Reference) -> bool:
    """Whether a run is outside of the band at any evaluation."""
    seen = zip(curve.accuracy, map(reference.band, curve.samples))
    return any(not low <= accuracy <= high for accuracy, (low, high) in seen)


def false_alarms(entries: Sequence[Entry], group_of: Callable[[Entry], str]) -> tuple[int, int]:
    """Runs outside, and runs in all."""
    found = [is_outside(curve, reference) for curve, reference in left_out(entries, group_of)]
    return sum(found), len(found)


def forecasts(entries: Sequence[Entry]) -> np.ndarray:
    """[runs, shares, 3] of the samples to converge: error of the median, is it inside, the width.

    NaN where a run had no evaluation between that share and its end.
    """
    made = []
    for curve, reference in left_out(entries, submitter_of):
        made.append([_forecast(curve, share, reference) for share in SHARES])
    return np.array(made)


def _forecast(curve: Curve, share: float, reference: Reference) -> tuple[float, float, float]:
    end = curve.samples[-1]
    number = int(np.searchsorted(curve.samples, share * end))
    if number >= len(curve.samples) - 1 or curve.best[number] >= reference.target:
        return np.nan, np.nan, np.nan
    least, median, most = reference.forecast(curve.samples[number], curve.best[number])
    return abs(median / end - 1), float(least <= end <= most), (most - least) / end


def table(entries: Sequence[Entry]) -> str:
    """Both as Markdown."""
    rows = ["| left out | runs outside | of | share |", "|---|---|---|---|"]
    for words, group_of in (("its system", lambda e: e.name), ("its submitter", submitter_of)):
        outside, total = false_alarms(entries, group_of)
        rows.append(f"| {words} | {outside} | {total:,} | {outside / total:.2%} |")
    rows += [
        "",
        "| after | forecasts | median error | 90% below | inside the interval | its width |",
        "|---|---|---|---|---|---|",
    ]
    made = forecasts(entries)
    for share, column in [*zip(SHARES, made.swapaxes(0, 1)), (None, made.reshape(-1, 3))]:
        known = column[~np.isnan(column[:, 0])]
        errors, inside, width = known.T
        rows.append(
            f"| {'all together' if share is None else f'{share:.0%} of the samples'} | "
            f"{len(known):,} | {np.median(errors):.1%} | {np.quantile(errors, 0.9):.1%} | "
            f"{inside.mean():.1%} | {np.median(width):.0%} |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    print("watching every published run, half a minute", file=sys.stderr, flush=True)
    print(table(published.load()))
