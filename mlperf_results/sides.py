"""Reads one side of a comparison, A or B: its runs, their figures, and their machines.

A side is what runs.py finds in a place, or a published result by its name, ROUND/ORG/SYSTEM.
Runs that failed, were resumed, have not ended or cannot be read are left out, with the reason.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mlperf_bert.files import paths
from mlperf_bert.mlperf.log_reader import RECORD_NAME, RunResult, read_own_record
from mlperf_bert.submission.runs import in_words, read_runs, why_samples_are_unknown
from mlperf_bert.submission.system import read_description
from mlperf_results import published
from mlperf_results.published import Entry
from mlperf_results.runs import WAS_RESUMED, RunFiles, runs_in

TIME_TO_TRAIN, SAMPLES_TO_CONVERGE = "time_to_train", "samples_to_converge"
SAMPLES_PER_SECOND = "samples_per_second"
FIGURE_KEYS = TIME_TO_TRAIN, SAMPLES_TO_CONVERGE, SAMPLES_PER_SECOND
MACHINE = ("host", "processor", "accelerator", "accelerators", "driver", "nodes", "memory")
"""The keys of `Side.made_on` that are hardware, in which A and B should not differ."""
_DESCRIBED = {
    "processor": "host_processor_model_name",
    "memory": "host_memory_capacity",
    "accelerator": "accelerator_model_name",
    "accelerators": "accelerators_per_node",
    "nodes": "number_of_nodes",
    "framework": "framework",
    "operating system": "operating_system",
}
"""Key of `Side.made_on` -> field of a system's description that has it."""
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
    """What the logs of runs that count do not say, and why."""


def read_side(name: str) -> Side:
    """Returns what a user's path, or the name of a published result, holds."""
    if not paths.require_local(name).exists():
        return side_of_entry(_published_entry(name))
    files = {each.name: each for each in runs_in(name)}
    # One run that does not count must not hide the others.
    why = {run: _why_left_out(each) for run, each in files.items()}
    logs = {run: each.logs[0] for run, each in files.items() if not why[run]}
    results, unread, copies = read_runs(logs)
    ended = {run: result for run, result in results.items() if result.succeeded}
    left_out = [f"{run}: {reason}" for run, reason in why.items() if reason]
    left_out += [
        f"{run}: {result.status}, without the target"
        for run, result in results.items()
        if not result.succeeded
    ]
    left_out += [*unread, *copies]
    if not ended:
        raise ValueError(f"{name}: no run in it counts; {in_words(left_out)}")
    return Side(
        name=name,
        runs={
            run: _known_figures(each.minutes, each.samples_to_converge, each.samples_per_second)
            for run, each in ended.items()
        },
        left_out=tuple(left_out),
        unknown=why_samples_are_unknown(list(ended.values())),
        task=_common_task(name, ended.values()),
        made_on=_made_on([(files[run], result) for run, result in ended.items()]),
    )


def _known_figures(*figures: float | None) -> dict[str, float]:
    """Returns the known figures of a run, in the order of `FIGURE_KEYS`."""
    return {key: value for key, value in zip(FIGURE_KEYS, figures) if value}


def _why_left_out(files: RunFiles) -> str:
    """Returns why a run does not count, whatever its log says; "" if it may."""
    if files.is_unfinished:
        return "has not ended"
    if len(files.logs) != 1:
        return WAS_RESUMED if files.logs else "has no log"
    return ""


def _common_task(name: str, results: Iterable[RunResult]) -> dict[str, object]:
    """Returns what runs must have in common to be compared, as far as their logs say it."""
    tasks: dict[str, set[object]] = {}
    for run in results:
        for key, value in (
            ("benchmark", run.benchmark),
            ("tokens", run.max_sequence_length),
            ("weights", run.num_weights),
            ("batch", run.global_batch_size),
            ("division", run.division),
        ):
            tasks.setdefault(key, set()).update([value] * (value is not None))
    for key, values in tasks.items():
        if len(values) > 1:
            listed = " and ".join(sorted(map(str, values)))
            raise ValueError(f"{name}: runs of different {key}: {listed}; give a folder of each")
    return {key: next(iter(values)) for key, values in tasks.items() if values}


def _made_on(counted: list[tuple[RunFiles, RunResult]]) -> dict[str, tuple[str, ...]]:
    """Returns every value of host, hardware, versions and flags, in the order of the runs."""
    machine: dict[str, object] = {}
    # A vendor's runs do not name the machine; the system's description does.
    if results_dir := counted[0][0].results_dir:
        machine = _machine_of(read_description(results_dir.resolve().parent))
    made_on: dict[str, dict[str, None]] = {}
    for files, result in counted:
        recorded = _machine_of_run(files.output_dir) if files.output_dir else {}
        for key, value in (machine | dict(result.provenance) | recorded).items():
            made_on.setdefault(key, {})[str(value)] = None
    return {key: tuple(made_on[key]) for key in sorted(made_on)}


def _machine_of(system: Mapping[str, object]) -> dict[str, object]:
    said = {key: system.get(name) for key, name in _DESCRIBED.items()}
    return {key: value for key, value in said.items() if value not in (None, "")}


def _machine_of_run(folder: Path) -> dict[str, object]:
    """Returns what the records of a run's directory say of host, versions and flags."""
    record = read_own_record(folder / RECORD_NAME)
    made_with, parameters = record.get("made_with"), record.get("parameters")
    made_on: dict[str, object] = dict(made_with) if isinstance(made_with, dict) else {}
    for key, value in parameters.items() if isinstance(parameters, dict) else ():
        # One value each, such as device.num_gpus: a whole group would not show what differs.
        nested = value.items() if isinstance(value, dict) else ()
        made_on |= {f"{key}.{inner}": each for inner, each in nested} or {key: value}
    return {key: each for key, each in made_on.items() if key not in _NOT_COMPARED}


def _published_entry(name: str) -> Entry:
    for entry in published.load():
        if entry.name == name:
            return entry
    raise ValueError(f"{name}: no such file or folder, and no published result ROUND/ORG/SYSTEM")


def side_of_entry(entry: Entry) -> Side:
    """Returns the runs of a published result."""
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
            f"run {number}": _known_figures(minutes, samples, samples and samples / (60 * minutes))
            for number, (minutes, samples) in enumerate(zip(entry.run_minutes, entry.run_samples))
        },
        left_out=("a run: did not converge",) * (entry.runs - entry.runs_converged),
        task={name: value for name, value in task.items() if value is not None},
        made_on={key: (str(value),) for key, value in _machine_of(vars(entry) | whole).items()},
    )
