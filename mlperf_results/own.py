"""Makes the row of one's own system, with the columns of the table of published results."""

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mlperf_bert.mlperf.log_reader import MOST_SAMPLES_TO_CONVERGE, RunResult
from mlperf_bert.submission.runs import far_off, in_words, why_samples_are_unknown
from mlperf_bert.submission.verdict import System, olympic_mean
from mlperf_results.published import Entry


def entry_of(system: System, *, org: str = "") -> Entry:
    """Returns the row on a system, which `org` names with its own name."""
    runs, description, rcp = system.runs, system.description, system.rcp
    scaling = rcp.scaling if rcp and rcp.scaling != 1.0 else None
    converged = [run for run in runs if run.succeeded]
    minutes = [run.minutes for run in converged]
    num_runs = len(runs) + len(system.left_out)
    mean = olympic_mean(minutes, num_failed=num_runs - len(converged))
    accelerators = _accelerators(description, runs)
    return Entry(
        round="",
        org=org,
        system=system.name,
        division=_division(description, runs),
        nodes=_whole(description.get("number_of_nodes")),
        accelerators=accelerators,
        accelerator_model_name=_text(description, "accelerator_model_name"),
        host_processor_model_name=_text(description, "host_processor_model_name"),
        framework=_text(description, "framework"),
        global_batch_size=_common([run.global_batch_size for run in runs]),
        max_sequence_length=_common([run.max_sequence_length for run in runs]),
        num_weights=_common([run.num_weights for run in runs]),
        runs=num_runs,
        runs_converged=len(converged),
        rcp_scaling_factor=scaling,
        minutes_scored=_round(mean and mean * (scaling or 1), 4),
        rcp=str(rcp) if rcp else None,
        notes="\n".join(_notes(system)) or None,
        run_minutes=tuple(float(f"{value:.4f}") for value in minutes),
        **_convergence(converged, accelerators),
    )


def _notes(system: System) -> Iterator[str]:
    """Yields what a reader of the row has to know of the logs."""
    if system.copies:
        yield f"copies left out: {in_words(system.copies)}"
    if system.left_out:
        yield f"runs left out: {in_words(system.left_out)}"
    if names := far_off({run.path.name: run.minutes for run in system.runs if run.succeeded}):
        yield f"far off in minutes: {', '.join(names)}"
    if why := why_samples_are_unknown(system.runs):
        yield why


def _convergence(runs: Sequence[RunResult], accelerators: int | None) -> dict[str, Any]:
    """Returns the fields on samples of converged runs."""
    # Two open entries of Google in round 1.1 resumed larger models, and also count the samples
    # before the timed run.
    counted = [r for r in runs if 0 < (r.samples_to_converge or 0) <= MOST_SAMPLES_TO_CONVERGE]
    samples = [run.samples_to_converge for run in counted if run.samples_to_converge]
    rates = [run.samples_per_second for run in counted if run.samples_per_second]
    rate = statistics.median(rates) if rates else None
    return {
        "samples_mean": _round(statistics.fmean(samples), 0) if samples else None,
        "samples_per_second_median": _round(rate, 2),
        "samples_per_second_per_accelerator": _round(
            rate / accelerators if rate and accelerators else None, 2
        ),
        "run_samples": tuple(run.samples_to_converge if run in counted else None for run in runs),
    }


def _division(description: Mapping[str, object], runs: Sequence[RunResult]) -> str | None:
    """Returns closed or open, which PCL and others spelt differently."""
    named = _text(description, "division") or next((run.division for run in runs), None) or ""
    return {"c": "closed", "o": "open"}.get(named[:1].lower(), named or None)


def _accelerators(description: Mapping[str, object], runs: Sequence[RunResult]) -> int | None:
    nodes = _whole(description.get("number_of_nodes"))
    each = _whole(description.get("accelerators_per_node"))
    if nodes is not None and each is not None:
        return nodes * each
    return _common([run.num_replicas for run in runs])


def _text(description: Mapping[str, object], name: str) -> str | None:
    return str(description.get(name) or "").strip() or None


def _whole(value: object) -> int | None:
    digits = re.fullmatch(r"\s*(\d{1,9})(\.0)?\s*", str(value), re.ASCII)
    return int(digits[1]) if digits else None


def _common(values: Sequence[float | None]) -> int | None:
    """Returns what all logs that say it agree on."""
    distinct = {value for value in values if value is not None}
    return int(distinct.pop()) if len(distinct) == 1 else None


def _round(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
