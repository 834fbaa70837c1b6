"""The row of a system, made of what its logs and its description say."""

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from mlperf_bert.mlperf.results import (
    MOST_SAMPLES_TO_CONVERGE,
    RunResult,
    in_words,
    why_samples_are_unknown,
)
from mlperf_bert.submission.entry import COPIES, POWER_UNKNOWN, Entry
from mlperf_bert.submission.power import measured_watts
from mlperf_bert.submission.verdict import System, olympic_mean

_STATUSES = {"preview": "preview", "research": "research", "rdi": "research"}


def entry_of(
    system: System,
    *,
    round: str = "",
    org: str = "",
    num_failed_logs: int = 0,
    num_missing_logs: int = 0,
    scaling: float | None = None,
    notes: Sequence[str] = (),
) -> Entry:
    """Return the row on a system.

    Args:
      system: with the runs whose logs can be read; beside them those of power may be too.
      round, org: name the row, with the system's name.
      num_failed_logs: of runs without an end.
      num_missing_logs: of logs that are not there.
      scaling: multiplies the score; None: as the RCP checker says, if it was asked.
      notes: on the row.
    """
    runs, description, rcp = system.runs, system.description, system.rcp
    if rcp and scaling is None and rcp.scaling != 1.0:
        scaling = rcp.scaling
    converged = [run for run in runs if run.succeeded]
    num_nodes = _whole(description.get("number_of_nodes"))
    folder = runs[0].path.parent if runs else None
    watts, why = measured_watts(folder, runs, num_nodes=num_nodes) if folder else (None, None)
    if why:
        notes = [*notes, f"{POWER_UNKNOWN}{why}"]
    if system.copies:
        notes = [*notes, f"{COPIES}{in_words(system.copies)}"]
    if why := why_samples_are_unknown(runs):
        notes = [*notes, why]
    minutes = [run.minutes for run in converged]
    num_failed = len(runs) + num_failed_logs - len(converged)
    mean = None if num_missing_logs else olympic_mean(minutes, num_failed=num_failed)
    accelerators = _accelerators(description, runs)
    name = _text(description, "accelerator_model_name")
    rating = re.search(r"\((\d+) ?W\)", name or "")
    return Entry(
        round=round,
        org=org,
        system=system.name,
        division=_division(description, runs),
        status=_status(description),
        nodes=num_nodes,
        accelerators=accelerators,
        accelerator_model_name=name,
        host_processor_model_name=_text(description, "host_processor_model_name"),
        framework=_text(description, "framework"),
        precision=_precision(runs),
        global_batch_size=_common([run.global_batch_size for run in runs]),
        max_sequence_length=_common([run.max_sequence_length for run in runs]),
        num_weights=_common([run.num_weights for run in runs]),
        runs=len(runs) + num_failed_logs,
        runs_missing=num_missing_logs,
        runs_converged=len(converged),
        minutes_olympic_mean=_rounded(mean, 4),
        rcp_scaling_factor=scaling,
        minutes_scored=_rounded(mean and mean * (scaling or 1), 4),
        watts=watts,
        rated_watts=float(rating[1]) if rating else None,
        rcp=str(rcp) if rcp else None,
        rcp_unaided=str(system.rcp_unaided) if system.rcp_unaided else None,
        notes="; ".join(notes) or None,
        run_minutes=tuple(float(f"{value:.4f}") for value in minutes),
        **_convergence(converged, accelerators),
    )


def _convergence(runs: Sequence[RunResult], accelerators: int | None) -> dict[str, Any]:
    """Return the fields on samples of converged runs."""
    # Two entries of Google in the open division of round 1.1 resumed larger models: they count the
    # samples before the timed run too.
    counted = [r for r in runs if 0 < (r.samples_to_converge or 0) <= MOST_SAMPLES_TO_CONVERGE]
    samples = [run.samples_to_converge for run in counted if run.samples_to_converge]
    rates = [run.samples_per_second for run in counted if run.samples_per_second]
    rate = statistics.median(rates) if rates else None
    sources = {"train_samples" if run.counts_by_train_samples else "epoch_num" for run in counted}
    evaluations = [_logged_evaluations(run) if run in counted else [] for run in runs]
    return {
        "samples_mean": _rounded(statistics.fmean(samples), 0) if samples else None,
        "samples_source": " and ".join(sorted(sources)) or None,
        "samples_per_second_median": _rounded(rate, 2),
        "samples_per_second_per_accelerator": _rounded(
            rate / accelerators if rate and accelerators else None, 2
        ),
        "run_samples": tuple(run.samples_to_converge if run in counted else None for run in runs),
        "evaluation_samples": tuple(tuple(n for n, _ in each) for each in evaluations),
        "evaluation_accuracy": tuple(tuple(a for _, a in each) for each in evaluations),
    }


def _logged_evaluations(run: RunResult) -> list[tuple[float, float]]:
    """Return (samples, accuracy) of those with both."""
    return [
        (e.samples, round(e.accuracy, 4))
        for e in run.evaluations
        if e.samples is not None and math.isfinite(e.accuracy)
    ]


def _division(description: Mapping[str, object], runs: Sequence[RunResult]) -> str | None:
    """Return closed or open; PCL and others spelt it otherwise."""
    named = _text(description, "division") or next((run.division for run in runs), None) or ""
    return {"c": "closed", "o": "open"}.get(named[:1].lower(), named or None)


def _status(description: Mapping[str, object]) -> str | None:
    filed = (_text(description, "status") or "").lower()
    return next(
        (name for word, name in _STATUSES.items() if word in filed), "available" if filed else None
    )


def _accelerators(description: Mapping[str, object], runs: Sequence[RunResult]) -> int | None:
    nodes = _whole(description.get("number_of_nodes"))
    each = _whole(description.get("accelerators_per_node"))
    if nodes is not None and each is not None:
        return nodes * each
    return _common([run.num_replicas for run in runs])


def _precision(runs: Sequence[RunResult]) -> str | None:
    """Return that of linear layers, on which all logs agree; a foreign log may hold anything."""
    named = [run.hyperparameters.get("lowest_numerical_precision_in_linear") for run in runs]
    found = {name if isinstance(name, str) else None for name in named}
    return found.pop() if len(found) == 1 else None


def _text(description: Mapping[str, object], name: str) -> str | None:
    return str(description.get(name) or "").strip() or None


def _whole(value: object) -> int | None:
    digits = re.fullmatch(r"\s*(\d{1,9})(\.0)?\s*", str(value), re.ASCII)
    return int(digits[1]) if digits else None


def _common(values: Sequence[float | None]) -> int | None:
    """Return what all logs that say it agree on."""
    found = {value for value in values if value is not None}
    return int(found.pop()) if len(found) == 1 else None


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
