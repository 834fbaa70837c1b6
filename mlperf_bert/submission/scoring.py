"""What several runs are together: their score, energy and phases, or why they are not a result."""

from collections.abc import Sequence
from dataclasses import replace

from mlperf_bert.mlperf import energy
from mlperf_bert.mlperf.energy import Energy
from mlperf_bert.mlperf.results import PHASES, RunResult
from mlperf_bert.mlperf.rules import NUM_EVAL_SAMPLES, NUM_RUNS_PER_RESULT

_PARTS_DIFFER = "not the same parts of the system were measured in all runs"


def olympic_mean(minutes: Sequence[float], *, num_failed: int = 0) -> float | None:
    """Return the mean without the fastest and the slowest; one failed run counts as slowest.

    None if more runs failed than the slowest one, or nothing is left.
    """
    if num_failed > 1:
        return None
    ordered = sorted(minutes)
    counted = ordered[1 : len(ordered) - (1 - num_failed)]
    return sum(counted) / len(counted) if counted else None


def problems_of_result(runs: Sequence[RunResult]) -> list[str]:
    """Return why these runs are not one result; empty if they are."""
    problems = []
    if len(runs) != NUM_RUNS_PER_RESULT:
        logs = "log" if len(runs) == 1 else "logs"
        problems.append(f"{len(runs)} {logs}, the rules require {NUM_RUNS_PER_RESULT}")
    batch_sizes = {run.global_batch_size for run in runs}
    if len(batch_sizes) > 1:
        problems.append(f"different global batch sizes: {sorted(map(str, batch_sizes))}")
    closed = [run for run in runs if run.division == "closed"]
    sizes = {run.num_eval_samples for run in closed if run.num_eval_samples is not None}
    sizes.discard(NUM_EVAL_SAMPLES)
    if sizes:
        problems.append(
            f"evaluated on {', '.join(map(str, sorted(sizes)))} samples, the rules require "
            f"{NUM_EVAL_SAMPLES:,}"
        )
    unseeded = [run.path.name for run in runs if not run.seeds]
    if unseeded:
        problems.append(f"no seed in {', '.join(unseeded)}")
    for name in sorted({name for run in runs for name in run.provenance}):
        if len({run.provenance.get(name) for run in runs}) > 1:
            problems.append(f"the runs differ in {name.replace('_', ' ')}, which their logs name")
    first_seeds = [run.seeds[0] for run in runs if run.seeds]
    if len(set(first_seeds)) < len(first_seeds):
        problems.append("the same seed in several runs")
    failed = [run.path.name for run in runs if not run.succeeded]
    if len(failed) > 1:
        problems.append(f"{len(failed)} runs did not converge, the rules forgive 1")
    return problems


def mean_energy(runs: Sequence[RunResult]) -> Energy | None:
    """Return what a run took, the mean; None if the log of one of them does not say it at all.

    Unknown if not the same parts were measured in all.
    """
    known = [run.energy for run in runs if run.energy]
    if not runs or len(known) < len(runs):
        return None
    whole = energy.total(known)
    if len({frozenset(each.parts) for each in known}) > 1:
        return replace(whole, unknown=whole.unknown or _PARTS_DIFFER)
    return replace(
        whole,
        parts={name: joules / len(runs) for name, joules in whole.parts.items()},
        phases={name: joules / len(runs) for name, joules in whole.phases.items()},
    )


def mean_phase_minutes(runs: Sequence[RunResult]) -> dict[str, float]:
    """Return kind of phase -> minutes that a run spends in it, the mean over runs."""
    kinds = [kind for kind, _ in PHASES.values()]
    sums = dict.fromkeys(kinds, 0.0)
    for phase in (phase for run in runs for phase in run.phases):
        sums[phase.kind] += phase.stop_minutes - phase.start_minutes
    return {kind: total / len(runs) for kind, total in sums.items() if total}
