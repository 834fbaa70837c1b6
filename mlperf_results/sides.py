"""One side of a comparison, A or B: which runs it has, what was measured in each, on what.

A side is what run_logs.py finds in a place, or a published result by its name, ROUND/ORG/SYSTEM.
Runs that failed, were resumed, have not ended or cannot be read are left out, with the reason.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from mlperf_bert.data import provenance
from mlperf_bert.files import json_text, paths
from mlperf_bert.files.whole import read_regular_file
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
from mlperf_bert.submission.power import measured_watts
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
"""What of `Side.made_on` the description of a vendor's system says, and in which field."""
_BASELINE_REMEDY = "write it again with --write_baseline"
_NOT_COMPARED = {"output_dir", "seed"}
_LEAST, _MOST = 1e-30, 1e30
"""Of any figure: what is outside of this is no measurement."""


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """What was measured in one run that counts; None for what is not known."""

    name: str
    minutes: float | None = None
    """To train: from run_start to run_stop of a run that reached the target."""
    samples_to_converge: float | None = None
    samples_per_second: float | None = None
    """Samples over the whole time, evaluation and all."""
    joules: float | None = None
    measured_parts: tuple[str, ...] = ()
    """Of the system, whose energy it is."""
    samples: float | None = None
    """Trained while `seconds` passed."""
    seconds: Mapping[str, float] | None = None
    """Where the time went: the ledger."""

    def __post_init__(self) -> None:
        for name in ("minutes", "samples_to_converge", "samples_per_second", "joules", "samples"):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (is_number and _LEAST < value < _MOST):
                raise ValueError(f"{name} is {value!r:.80}, which is not a number above 0")


@dataclass(frozen=True, kw_only=True)
class Side:
    """The runs of A or of B."""

    name: str
    runs: tuple[MeasuredRun, ...]
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


class _LeftOut(Exception):
    """Why a run does not count."""


class _Counted(NamedTuple):
    """One log or folder: a run with its task and machine."""

    run: MeasuredRun
    task: Mapping[str, object]
    made_on: Mapping[str, object]
    result: RunResult | None = None
    """Of a log."""


def _side(name: str, place: paths.Location) -> Side:
    """Read the runs of a place, and join them.

    Raises:
      ValueError: there are none, or not of one task.
    """
    files = runs_in(name)
    # One run that does not count must not hide the others.
    counted, left_out = [], []
    for each in files:
        try:
            counted.append(_of_run(each))
        except _LeftOut as reason:
            left_out.append(f"{each.name}: {reason}")
    copies = copies_among(
        [(run.run.name, run.result or replace(run.run, name="")) for run in counted]
    )
    counted = [run for number, run in enumerate(counted) if number not in copies]
    # Only all runs together show that a number of samples is a plan.
    results = {run.path: run for run in without_plans([r.result for r in counted if r.result])}
    # A vendor's runs say nothing of the machine; their description does.
    results_dir = files[0].results_dir
    described = read_description(paths.resolve(results_dir).parent) if results_dir else {}
    machine = {key: described[name] for key, name in _DESCRIBED.items() if described.get(name)}
    above = paths.resolve(place).parent
    # Pairs are those of one folder: runs of two campaigns never met the same moods of a machine.
    alternates = (place / CAMPAIGN_RECORD).exists() and (above / ALTERNATING_RECORD).exists()
    made_on: dict[str, dict[str, None]] = {}  # each value once, in the order of the runs
    for run in counted:
        for key, value in (machine | dict(run.made_on)).items():
            made_on.setdefault(key, {})[str(value)] = None
    return Side(
        name=name,
        runs=tuple(
            replace(run.run, **_samples(results[run.result.path])) if run.result else run.run
            for run in counted
        ),
        left_out=(*left_out, *copies.values()),
        unknown=why_samples_are_unknown([*results.values()]),
        task=common_task(name, [run.task for run in counted]),
        made_on={key: tuple(made_on[key]) for key in sorted(made_on)},
        alternates_in=str(above) if alternates else None,
    )


def _of_run(files: RunFiles) -> _Counted:
    folder = files.output_dir
    # Its log may have a run_stop already, while its last checkpoint is being written.
    if folder and (folder / RECORD_NAME).exists() and not has_ended(folder):
        raise _LeftOut("has not ended")
    if len(files.logs) > 1:
        raise _LeftOut("was resumed, none of its logs has all of its time")
    if files.logs:
        counted = _of_log(files)
    elif files.metrics:
        counted = _Counted(_of_metrics(files.metrics, files.name), {}, {})
    else:
        raise _LeftOut("has no log")
    recorded = _machine_of_run(folder) if folder else {}
    return counted._replace(made_on=dict(counted.made_on) | recorded)


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


def _of_log(files: RunFiles) -> _Counted:
    [log] = files.logs
    try:
        result = read_run(log)
    except ValueError as error:
        reason = str(error).removeprefix(f"{log}: ").removeprefix(f"{log} ")
        raise _LeftOut(reason.replace(": ", ", ")) from error
    if not result.succeeded:
        raise _LeftOut(f"{result.status}, without the target")
    # Some logs say success of a run that has diverged.
    if result.evaluations and not math.isfinite(result.evaluations[-1].accuracy):
        raise _LeftOut(f"says {result.status} with accuracy {result.evaluations[-1].accuracy}")
    if not result.minutes > 0:
        raise _LeftOut("its log has no times, run_start and run_stop are the same")
    joules, parts = _joules(result, files.results_dir)
    run = _measured(result, files.name, joules=joules, measured_parts=parts)
    return _Counted(run, task_of(result), result.provenance, result)


def _measured(result: RunResult, name: str, **energy: Any) -> MeasuredRun:
    minutes, seconds = result.minutes, result.seconds
    return MeasuredRun(name=name, minutes=minutes, seconds=seconds, **_samples(result), **energy)


def _samples(result: RunResult) -> dict[str, Any]:
    samples = result.samples_to_converge or None
    rate = result.samples_per_second
    return {"samples_to_converge": samples, "samples": samples, "samples_per_second": rate}


def _joules(
    result: RunResult, folder_of_power: paths.Location | None
) -> tuple[float | None, tuple[str, ...]]:
    if folder_of_power:
        watts, _ = measured_watts(folder_of_power, [result], num_nodes=None)
        return (watts * result.minutes * 60, ("system",)) if watts else (None, ())
    energy = result.energy
    # Of a run that was killed only a part is known.
    if energy is None or energy.at_least or not energy.joules:
        return None, ()
    return energy.joules, tuple(sorted(energy.parts))


def _of_metrics(path: paths.Location, name: str) -> MeasuredRun:
    """Of a run without its log: samples, and the ledger up to the last line of training."""
    seconds: ledger.Seconds = dict.fromkeys(ledger.KINDS, 0.0)
    samples, where = 0, path
    try:
        # What stands behind the last end of a line may still be written.
        for number, line in enumerate(read_regular_file(path).split(b"\n")[:-1], start=1):
            where = f"{path} line {number}"
            fields = json_text.parse_object(line)
            # An evaluation's line has accuracies, and NaN among them.
            if fields["kind"] != "train":
                continue
            samples = int(fields["samples"])
            if not (spent := ledger.from_fields(fields)):
                raise ValueError("no seconds of the ledger")
            seconds = {kind: seconds[kind] + spent[kind] for kind in ledger.KINDS}
        total = sum(seconds.values())
        if not samples or not total:
            raise _LeftOut("no line of training with samples and seconds")
        rate = samples / total
        return MeasuredRun(name=name, samples_per_second=rate, samples=samples, seconds=seconds)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"{where}: damaged ({error!r:.200}); copy it again") from error


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
    results = entry.results
    if not results:
        raise ValueError(f"{entry.name}: no run of this published result has converged")
    made_on = {
        "accelerator": entry.accelerator_model_name,
        "accelerators": entry.accelerators,
        "nodes": entry.nodes,
        "processor": entry.host_processor_model_name,
        "framework": entry.framework,
    }
    return Side(
        name=entry.name,
        runs=tuple(_measured(run, f"run {number}") for number, run in enumerate(results)),
        left_out=("a run: did not converge",) * (entry.runs - entry.runs_converged),
        task=common_task(entry.name, [task_of(results[0])]),
        made_on={key: (str(value),) for key, value in made_on.items() if value is not None},
    )


def write_baseline(side: Side, path: str) -> None:
    """Write a side to a file, whole or not at all, to be compared with later."""
    json_text.write_record(paths.with_folder_made(path), asdict(side))


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
    runs = []
    for run in content["runs"]:
        parts = tuple(map(str, run.pop("measured_parts")))
        runs.append(MeasuredRun(name=str(run.pop("name")), measured_parts=parts, **run))
        seconds = runs[-1].seconds
        if seconds is not None and ledger.from_fields(ledger.as_fields(dict(seconds))) is None:
            raise ValueError("seconds are not those of the ledger")
    if not runs:
        raise ValueError("no runs")
    return Side(
        name=str(content["name"]),
        runs=tuple(runs),
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
