"""How far a comparison of runs can be trusted: groups of published runs, whose truth is known.

    python -m mlperf_results.benchmarks.comparing

prints two tables of benchmarks/NOTES.md, in some seconds:

- False alarms: two groups are drawn without overlap from the ten runs of one published system, so
  nothing differs between them. 20,000 pairs of groups, from all comparable results of ten
  converged runs. To draw without overlap is fair: given its runs, the
  groups of a system are a random division of them, under which the t of equal groups has the size
  that it claims (Fisher's permutation test). Draws from normal numbers of the same spreads stand
  beside them: what is too few there too is Welch's t itself.
- Power: the same groups, B's figures times 1.03, 1.05 or 1.10.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.options import expanded_arguments
from mlperf_results import published
from mlperf_results.compare import intervals_of_logarithms
from mlperf_results.published import Entry, comparable

NUM_PAIRS = 20_000
SEED = 1
_NUM_RUNS = 10
_GROUPS = ((5, 5), (3, 3), (2, 3), (2, 2))
_PLANTED = (0.03, 0.05, 0.10)


@dataclass(frozen=True)
class Runs:
    """All published systems that are drawn from: [systems, 10 runs]."""

    minutes: np.ndarray
    samples_per_second: np.ndarray

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> "Runs":
        """Returns those of ten converged runs."""
        whole = [
            entry
            for entry in comparable(entries)
            if len(entry.run_minutes) == _NUM_RUNS and all(entry.run_samples)
        ]
        minutes = np.array([entry.run_minutes for entry in whole])
        samples = np.array([entry.run_samples for entry in whole], float)
        return cls(minutes, samples / (60 * minutes))

    def groups(self, figure: str, sizes: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """Returns [NUM_PAIRS, size of A] and [NUM_PAIRS, size of B], without overlap."""
        rng = np.random.default_rng(SEED)
        systems = rng.integers(len(self.minutes), size=NUM_PAIRS)
        drawn = rng.permuted(getattr(self, figure)[systems], axis=1)
        return drawn[:, : sizes[0]], drawn[:, sizes[0] : sum(sizes)]

    def normal_groups(self, sizes: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """Groups as those of `minutes`, drawn from normal logarithms of the same spreads."""
        rng = np.random.default_rng(SEED)
        spreads = np.log(self.minutes).std(axis=1, ddof=1)
        drawn = rng.normal(size=(NUM_PAIRS, sum(sizes)))
        drawn = np.exp(drawn * rng.choice(spreads, size=(NUM_PAIRS, 1)))
        return drawn[:, : sizes[0]], drawn[:, sizes[0] :]


def share_told(a: np.ndarray, b: np.ndarray) -> float:
    """Returns the share of pairs of groups that are called different."""
    ends = intervals_of_logarithms(a, b)
    return float(((ends.low > 0) | (ends.high < 0)).mean())


def false_alarms(runs: Runs) -> Iterator[str]:
    """Yields the rows of the table of false alarms."""
    yield "| runs | minutes | samples/s | normal numbers |\n|---|---|---|---|"
    for sizes in _GROUPS:
        drawn = [runs.groups(figure, sizes) for figure in ("minutes", "samples_per_second")]
        cells = [f"{share_told(a, b):.1%}" for a, b in (*drawn, runs.normal_groups(sizes))]
        yield f"| {sizes[0]} and {sizes[1]} | {' | '.join(cells)} |"


def power(runs: Runs) -> Iterator[str]:
    """Yields the rows of the table of power."""
    planted = [f"{share:.0%}" for share in _PLANTED]
    yield (
        f"| runs | minutes: {' | '.join(planted)} | samples/s: {' | '.join(planted)} |\n"
        f"|---|{'---|' * (2 * len(_PLANTED))}"
    )
    for sizes in ((10, 10), *_GROUPS):
        cells = []
        for figure in ("minutes", "samples_per_second"):
            if sizes == (10, 10):
                # No system has twenty runs: both groups are drawn from its ten, with replacement.
                whole, _ = runs.groups(figure, (_NUM_RUNS, 0))
                rng = np.random.default_rng(SEED)
                a, b = (
                    np.take_along_axis(whole, rng.integers(_NUM_RUNS, size=whole.shape), axis=1)
                    for _ in "AB"
                )
            else:
                a, b = runs.groups(figure, sizes)
            cells += [f"{share_told(a, b * (1 + s)):.1%}" for s in _PLANTED]
        yield f"| {sizes[0]} and {sizes[1]} | {' | '.join(cells)} |"


def tables(entries: Sequence[Entry]) -> list[str]:
    """Returns the tables of false alarms and of power, in Markdown."""
    runs = Runs.of(entries)
    return ["\n".join(rows) for rows in (false_alarms(runs), power(runs))]


@ends_in_one_line("comparing")
def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(prog="python -m mlperf_results.benchmarks.comparing")
    parser.parse_args(expanded_arguments())
    print("\n\n".join(tables(published.load())))


if __name__ == "__main__":
    sys.exit(main())
