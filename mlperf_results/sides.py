"""One side of a comparison, A or B: which runs it has, what was measured in each, on what.

A side is what run_logs.py finds in a place, or a published result by its name, ROUND/ORG/SYSTEM.
Runs that failed, were resumed, have not ended or cannot be read are left out, with the reason.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mlperf_bert.data import provenance
from mlperf_bert.files import json_text, paths
from mlperf_bert.mlperf import ledger
from mlperf_bert.mlperf.logs import (
    RECORD_NAME,
    RunResult,
    copies_among,
    has_ended,
    in_words,
    read_own_record,
    read_run,
    why_samples_are_unknown,
    without_plans,
)
from mlperf_bert.submission.run_logs import (
    ALTERNATING_RECORD,
    CAMPAIGN_RECORD,
    RunFiles,
    common_task,
    runs_in,
    task_of,
)
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
_BASELINE_REMEDY = "write it again with --write_baseline"
_NOT_COMPARED = {"output_dir", "seed"}
_LEAST, _MOST = 1e-30, 1e30
"""Of any figure: what is outside of this is no measurement. Seconds of a kind may be 0."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """The runs of A or of B."""

    name: str
    runs: Mapping[str, Mapping[str, float]]
    """Name of each run that counts -> its figures, as far as its log says them: time to train in
    minutes, samples to converge, samples/s, seconds of each of `ledger.KINDS`."""
    left_out: tuple[str, ...] = ()
    """A line about each run that does not count."""
    task: Mapping[str, object] = field(default_factory=dict)
    """benchmark, tokens, weights, batch and division, as far as the logs say them."""
    made_on: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Host, hardware, versions and flags -> every value among the runs."""
    unknown: str = ""
    """What logs of runs that count do not say, and why."""
    alternates_in: str | None = None
    """The folder of the campaign in which the runs alternated with those of another side."""


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
        side = _side(name, place)
    if not side.runs:
        raise ValueError(f"{name}: no run in it counts; {in_words(side.left_out)}")
    return side


def read_alternating(name: str) -> tuple[str, str] | None:
    """Return the folders of the two variants of a campaign whose runs alternate; None if others.

    Raises:
      ValueError: its record is damaged.
    """
    place = paths.location(name)
    return json_text.read_record(
        place / ALTERNATING_RECORD,
        lambda content: (str(place / content["variants"][0]), str(place / content["variants"][1])),
        remedy="give A and B by themselves",
    )


def _side(name: str, place: paths.Location) -> Side:
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
            reason = str(error)
            for log in each.logs:
                reason = reason.removeprefix(f"{log}: ").removeprefix(f"{log} ")
            left_out.append(f"{each.name}: {reason.replace(': ', ', ')}")
    copies = copies_among([(each.name, result) for each, result in counted])
    counted = [run for number, run in enumerate(counted) if number not in copies]
    # Only all runs together show that a number of samples is a plan.
    results = without_plans([result for _, result in counted])
    above = paths.resolve(place).parent
    # Pairs are those of one folder: runs of two campaigns never met the same moods of a machine.
    alternates = (place / CAMPAIGN_RECORD).exists() and (above / ALTERNATING_RECORD).exists()
    return Side(
        name=name,
        runs={each.name: _figures(result) for (each, _), result in zip(counted, results)},
        left_out=(*left_out, *copies.values()),
        unknown=why_samples_are_unknown(results),
        task=common_task(name, [task_of(result) for result in results]),
        made_on=_made_on(counted),
        alternates_in=str(above) if alternates else None,
    )


def _figures(run: RunResult) -> dict[str, float]:
    known = _known(run.minutes, run.samples_to_converge, run.samples_per_second)
    return known | (run.seconds or {})


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
    # Some logs say success of a run that has diverged.
    if result.evaluations and not math.isfinite(result.evaluations[-1].accuracy):
        raise ValueError(f"says {result.status} with accuracy {result.evaluations[-1].accuracy}")
    if not result.minutes > 0:
        raise ValueError("its log has no times, run_start and run_stop are the same")
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


def write_baseline(side: Side, path: str) -> None:
    """Write a side to a file, whole or not at all, to be compared with later."""
    content = {name: value for name, value in vars(side).items() if name != "alternates_in"}
    json_text.write_record(paths.with_folder_made(path), content)


def read_baseline(path: str) -> Side:
    """Return the side that `write_baseline` wrote.

    Raises:
      ValueError: the file is missing or damaged.
    """
    read = json_text.read_record(paths.location(path), _parsed, remedy=_BASELINE_REMEDY)
    if read is None:
        raise ValueError(f"--baseline={path}: no such file; {_BASELINE_REMEDY}")
    return read


def _parsed(content: dict) -> Side:
    """Return a baseline; a value of another kind raises, or becomes the text that is printed."""
    for name, figures in content["runs"].items():
        for key in (TIME_TO_TRAIN, *figures):
            value, least = figures[key], 0 if key in ledger.KINDS else _LEAST
            if type(value) not in (int, float) or not least <= value < _MOST:
                raise ValueError(f"{key} of run {name} is {value!r:.80}, which is no measurement")
    if not content["runs"]:
        raise ValueError("no runs")
    return Side(
        name=str(content["name"]),
        runs=dict(content["runs"]),
        left_out=tuple(map(str, content["left_out"])),
        task=dict(content["task"]),
        made_on={key: tuple(map(str, values)) for key, values in content["made_on"].items()},
        unknown=str(content["unknown"]),
    )


def differing(a: Side, b: Side, names: Iterable[str]) -> list[str]:
    """Return "NAME: OF A -> OF B" for those of `names`, recorded of both, that differ."""
    return [
        f"{name}: {' or '.join(a.made_on[name])[:60]} -> {' or '.join(b.made_on[name])[:60]}"
        for name in names
        if set(a.made_on[name]) != set(b.made_on[name])
    ]
