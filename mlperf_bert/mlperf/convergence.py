"""How many samples the reference needs to converge: the reference convergence points (RCP).

The numbers are mlperf-logging's own, read from the JSON files of its RCP checker; mean and the
fewest credible samples are computed by that checker. This module adds what the checker answers only
for logs: the bound that a batch size must meet.

Source: mlperf-logging, rcp_checker, rulesets 1.0.0 to 5.0.0.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from mlperf_bert.files import errors, json_text
from mlperf_bert.mlperf.rules import RULESETS, require_ruleset


@dataclass(frozen=True)
class ReferencePoint:
    """What the reference needs at one global batch size."""

    global_batch_size: int
    mean_samples: float
    """Olympic mean of the samples to converge."""
    min_mean_samples: float
    """A result whose mean is less is too fast to be credible."""
    hyperparameters: Mapping[str, float]
    """MLLOG key -> value."""


@dataclass(frozen=True)
class Bound:
    """The bound that results at a batch size must meet."""

    kind: str
    """point, interpolation, smallest batch (there is no smaller point: the bound of the smallest
    one counts) or missing (larger than all points: the check fails)."""
    point: ReferencePoint | None
    """None if missing."""

    def __str__(self) -> str:
        if self.point is None:
            return "no RCP is as large: the check fails unless one is submitted"
        how = {
            "point": "RCP at batch",
            "interpolation": "interpolation at batch",
            "smallest batch": "no RCP is as small; judged by batch",
        }[self.kind]
        return (
            f"{how} {self.point.global_batch_size}: mean {self.point.mean_samples:,.0f} samples, "
            f"at least {self.point.min_mean_samples:,.0f}"
        )


@functools.cache
def reference_points(
    ruleset: str = RULESETS[-1], custom_rcps: Path | None = None
) -> Mapping[int, ReferencePoint]:
    """Returns the points of a ruleset, or of a custom RCP file: global batch size -> point."""
    records = _by_batch_size(_checker(ruleset, custom_rcps).rcp_data)
    return MappingProxyType({record["BS"]: _point(record) for record in records})


def bound_of(
    global_batch_size: int, ruleset: str = RULESETS[-1], custom_rcps: Path | None = None
) -> Bound:
    """Returns the bound that the RCP checker applies at a batch size."""
    checker = _checker(ruleset, custom_rcps)
    # Points that the checker prunes are left out: it judges results there by an interpolation.
    records = _by_batch_size(checker.pruned_rcp_data)
    smaller = [record for record in records if record["BS"] <= global_batch_size]
    larger = [record for record in records if record["BS"] >= global_batch_size]
    if smaller and smaller[-1]["BS"] == global_batch_size:
        return Bound("point", _point(smaller[-1]))
    if not larger:
        return Bound("missing", None)
    if not smaller:
        return Bound("smallest batch", _point(larger[0]))
    # Private; mlperf-logging is pinned.
    _, record = checker._create_interp_rcp(global_batch_size, smaller[-1], larger[0])
    return Bound("interpolation", _point(record))


def _by_batch_size(records: Mapping[str, dict]) -> list[dict]:
    return sorted(records.values(), key=lambda record: record["BS"])


def _point(record: Mapping) -> ReferencePoint:
    return ReferencePoint(
        global_batch_size=record["BS"],
        mean_samples=float(record["RCP Mean"]),
        min_mean_samples=float(record["Min Epochs"]),
        hyperparameters=MappingProxyType(record["Hyperparams"]),
    )


@functools.cache
def _checker(ruleset: str, custom_rcps: Path | None):
    require_ruleset(ruleset)
    # Imported here, because it imports SciPy: every training imports this module, few use it.
    from mlperf_logging.rcp_checker.rcp_checker import RCP_Checker

    if custom_rcps is None:
        return RCP_Checker("training", ruleset, "bert", verbose=False)
    # Numbers in quotes would crash the checker; two runs or fewer leave it nothing to average.
    remedy = (
        "give records with Benchmark, BS, Hyperparams and Epochs to converge, as mlperf-logging's "
        "rcps_bert.json"
    )
    with errors.named(custom_rcps, damaged=remedy):
        for record in json_text.read_object(custom_rcps).values():
            numbers = [record["BS"], *record["Epochs to converge"]]
            if not all(0 < number < 2**63 for number in numbers) or len(numbers) < 4:
                raise ValueError("BS and Epochs to converge are positive, of three runs or more")
            if record["Benchmark"] != "bert" or not isinstance(record["Hyperparams"], dict):
                raise ValueError("the benchmark is not bert, or Hyperparams are no object")
        with custom_rcps.open(encoding="utf-8") as file:
            return RCP_Checker("training", ruleset, "bert", verbose=False, rcp_file=file)
