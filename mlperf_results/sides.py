"""One side of a comparison, A or B: which runs it has, what was measured in each, on what.

A side is what run_logs.py finds in a place, or a published result by its name, ROUND/ORG/SYSTEM.
Runs that failed, were resumed, have not ended or cannot be read are left out, with the reason.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mlperf_bert.data import provenance
from mlperf_bert.files import paths
from mlperf_bert.mlperf.logs import (
    RECORD_NAME,
    RunResult,
    copies_among,
    has_ended,
    in_words,
    read_own_record,
    read_run,
    reason_of,
    why_samples_are_unknown,
    without_plans,
)
from mlperf_bert.submission.run_logs import RunFiles, common_task, runs_in, task_of
from mlperf_bert.submission.system import read_description
from mlperf_results import published
from mlperf_results.published import Entry

TIME_TO_TRAIN, SAMPLES_TO_CONVERGE = "time_to_train", "samples_to_converge"
SAMPLES_PER_SECOND = "samples_per_second"
FIGURES = TIME_TO_TRAIN, SAMPLES_TO_CONVERGE, SAMPLES_PER_SECOND
MACHINE = ("host", "processor", "accelerator", "accelerators", "driver", "nodes", "memory")
"""What of `Side.made_on` is hardware: with another one A and B differ in more than is compared."""
_DESCRIBED = {
    "processor": "host_processor_model_name",
    "memory": "host_memory_capacity",
    "accelerator": "accelerator_model_name",
    "accelerators": "accelerators_per_node",
    "nodes": "number_of_nodes",
    "framework": "framework",
    "operating system": "operating_system",
}
"""What of `Side.made_on` the description of a system says, and in which field."""
_NOT_COMPARED = {"output_dir", "seed"}


@dataclass(frozen=True, kw_only=True)
class Side:
    """The runs of A or of B."""

    name: str
    runs: Mapping[str, Mapping[str, float]]
    """Name of each run that counts -> its figures, as far as its log says them: time to train in
    minutes, samples to converge, samples/s."""
    left_out: tuple[str, ...] = ()
    """A line about each run that does not count."""
    task: Mapping[str, object] = field(default_factory=dict)
    """benchmark, tokens, weights, batch and division, as far as the logs say them."""
    made_on: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Host, hardware, versions and flags -> every value among the runs."""
    unknown: str = ""
    """What logs of runs that count do not say, and why."""


def read_side(name: str) -> Side:
    """Return what a user's path, or the name of a published result, holds.

    Raises:
      ValueError: nothing there counts; one line says why.
      OSError: it cannot be read.
    """
    place = paths.location(name)
    with paths.failures_named(place):
        if not place.exists():
            return side_of_entry(published_entry(name))
        side = _side(name)
    if not side.runs:
        raise ValueError(f"{name}: no run in it counts; {in_words(side.left_out)}")
    return side


def _side(name: str) -> Side:
    """Read the runs of a place, and join them.

    Raises:
      ValueError: there are none, or not of one task.
    """
    counted: list[tuple[RunFiles, RunResult]] = []
    left_out = []
    # One run that does not count must not hide the others.
    for each in runs_in(name):
        try:
            counted.append((each, _of_run(each)))
        except ValueError as error:
            left_out.append(f"{each.name}: {reason_of(error, *each.logs)}")
    copies = copies_among([(each.name, result) for each, result in counted])
    counted = [run for number, run in enumerate(counted) if number not in copies]
    # Only all runs together show that a number of samples is a plan.
    results = without_plans([result for _, result in counted])
    return Side(
        name=name,
        runs={
            each.name: _known(run.minutes, run.samples_to_converge, run.samples_per_second)
            for (each, _), run in zip(counted, results)
        },
        left_out=(*left_out, *copies.values()),
        unknown=why_samples_are_unknown(results),
        task=common_task(name, [task_of(result) for result in results]),
        made_on=_made_on(counted),
    )


def _known(*figures: float | None) -> dict[str, float]:
    """Return those figures of a run that are known, in the order of `FIGURES`."""
    return {key: value for key, value in zip(FIGURES, figures) if value}


def _of_run(files: RunFiles) -> RunResult:
    """Read the log of a run.

    Raises:
      ValueError: it does not count; says why.
    """
    folder = files.output_dir
    # Its log may have a run_stop already, while its last checkpoint is being written.
    if folder and (folder / RECORD_NAME).exists() and not has_ended(folder):
        raise ValueError("has not ended")
    if len(files.logs) != 1:
        resumed = "was resumed, none of its logs has all of its time"
        raise ValueError(resumed if files.logs else "has no log")
    result = read_run(files.logs[0])
    if not result.succeeded:
        raise ValueError(f"{result.status}, without the target")
    return result


def _made_on(counted: Sequence[tuple[RunFiles, RunResult]]) -> dict[str, tuple[str, ...]]:
    """Return every value of host, hardware, versions and flags, in the order of the runs."""
    machine: dict[str, object] = {}
    # A vendor's runs say nothing of the machine; their description does.
    if counted and (results_dir := counted[0][0].results_dir):
        machine = _described(read_description(paths.resolve(results_dir).parent))
    made_on: dict[str, dict[str, None]] = {}
    for files, result in counted:
        recorded = _machine_of_run(files.output_dir) if files.output_dir else {}
        for key, value in (machine | dict(result.provenance) | recorded).items():
            made_on.setdefault(key, {})[str(value)] = None
    return {key: tuple(made_on[key]) for key in sorted(made_on)}


def _described(system: Mapping[str, object]) -> dict[str, object]:
    said = {key: system.get(name) for key, name in _DESCRIBED.items()}
    return {key: value for key, value in said.items() if value not in (None, "")}


def _machine_of_run(folder: paths.Location) -> dict[str, object]:
    """Return what the records of a run's directory say of host, versions and flags."""
    made_on: dict[str, object] = {}
    for record in provenance.read(folder)[-1:]:
        made_on |= {key: value for key, value in record.made_with.items() if value}
    parameters = read_own_record(folder / RECORD_NAME).get("parameters")
    for key, value in parameters.items() if isinstance(parameters, dict) else ():
        # device.num_gpus and so on: a whole group that differs would not say in what.
        nested = value.items() if isinstance(value, dict) else ()
        made_on |= {f"{key}.{inner}": each for inner, each in nested} or {key: value}
    return {key: each for key, each in made_on.items() if key not in _NOT_COMPARED}


def published_entry(name: str) -> Entry:
    """Return the published result of a name, ROUND/ORG/SYSTEM.

    Raises:
      ValueError: there is none.
    """
    for entry in published.load():
        if entry.name == name:
            return entry
    raise ValueError(f"{name}: no such file or folder, and no published result ROUND/ORG/SYSTEM")


def side_of_entry(entry: Entry) -> Side:
    """Return the runs of a published result.

    Raises:
      ValueError: none converged.
    """
    if not entry.run_minutes:
        raise ValueError(f"{entry.name}: no run of this published result has converged")
    task = {
        "benchmark": "bert",
        "tokens": entry.max_sequence_length,
        "weights": entry.num_weights,
        "batch": entry.global_batch_size,
        "division": entry.division,
    }
    whole = {"accelerators_per_node": entry.accelerators, "number_of_nodes": entry.nodes}
    return Side(
        name=entry.name,
        runs={
            f"run {number}": _known(minutes, samples, samples and samples / (60 * minutes))
            for number, (minutes, samples) in enumerate(zip(entry.run_minutes, entry.run_samples))
        },
        left_out=("a run: did not converge",) * (entry.runs - entry.runs_converged),
        task={name: value for name, value in task.items() if value is not None},
        made_on={key: (str(value),) for key, value in _described(vars(entry) | whole).items()},
    )


def differing(a: Side, b: Side, names: Iterable[str]) -> list[str]:
    """Return "NAME: OF A -> OF B" for those of `names`, recorded of both, that differ."""
    return [
        f"{name}: {' or '.join(a.made_on[name])[:60]} -> {' or '.join(b.made_on[name])[:60]}"
        for name in names
        if set(a.made_on[name]) != set(b.made_on[name])
    ]
