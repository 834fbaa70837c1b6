"""One side of a comparison, A or B: which runs it has, what was measured in each, on what.

A side is read from the output directory of a run, a campaign's folder, a vendor's folder of
result_*.txt or the ORG folder above it, a log, metrics.jsonl, or the name of a published result,
ROUND/ORG/SYSTEM. Runs that failed, have not ended or cannot be read are left out, with the reason.
"""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mlperf_bert.data import provenance
from mlperf_bert.files import json_text, paths
from mlperf_bert.files.whole import read_regular_file
from mlperf_bert.mlperf import ledger
from mlperf_bert.mlperf.results import (
    LOG_NAME,
    RECORD_NAME,
    RESULT_LOG,
    RunResult,
    has_ended,
    read_own_record,
    read_records,
    read_run,
)
from mlperf_bert.submission import published
from mlperf_bert.submission.entry import Entry
from mlperf_bert.submission.folder import description_path, result_files
from mlperf_bert.submission.power import measured_power
from mlperf_bert.submission.system import read_overrides

CAMPAIGN_RECORD = "campaign.json"
ALTERNATING_RECORD = "alternate.json"
"""In the folder of a campaign whose runs alternate; `variants` in it names two folders beside."""
METRICS_NAME = "metrics.jsonl"
MACHINE = ("host", "processor", "accelerator", "accelerators", "driver", "nodes", "memory")
"""What of `Run.made_on` is hardware: with another one A and B differ in more than is compared."""
_DESCRIBED = {
    "processor": "host_processor_model_name",
    "memory": "host_memory_capacity",
    "accelerator": "accelerator_model_name",
    "nodes": "number_of_nodes",
    "framework": "framework",
    "operating system": "operating_system",
}
_RUN = re.compile(r"(\d+)(?:\.repeat-(\d+))?")
_BASELINE_REMEDY = "write it again with --write_baseline"
_NOT_COMPARED = {"output_dir", "seed"}


@dataclass(frozen=True, kw_only=True)
class Run:
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
            if value is not None and not (isinstance(value, int | float) and 0 < value < math.inf):
                raise ValueError(f"{name} is {value!r:.80}, which is not a number above 0")


@dataclass(frozen=True, kw_only=True)
class Side:
    """The runs of A or of B."""

    name: str
    runs: tuple[Run, ...]
    left_out: tuple[str, ...] = ()
    """A line about each run that does not count."""
    task: Mapping[str, object] = field(default_factory=dict)
    """benchmark, tokens, weights, batch and division, as far as the logs say them."""
    made_on: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Host, hardware, versions and flags -> every value among the runs."""
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
            return _of_published(name)
        found = _read(name, place)
    if not found.runs:
        raise ValueError(f"{name}: no run in it counts; {in_words(found.left_out)}")
    return found


def read_alternating(name: str) -> tuple[str, str] | None:
    """Return the folders of the two variants of a campaign whose runs alternate; None if others.

    Raises:
      ValueError: its record is damaged.
    """
    place = paths.location(name)
    record = place / ALTERNATING_RECORD

    def parsed(content: dict) -> tuple[str, str]:
        first, second = map(str, content["variants"])
        return str(place / first), str(place / second)

    return json_text.read_record(record, parsed, remedy="give A and B by themselves")


def _read(name: str, place: paths.Location) -> Side:
    if paths.is_file(place):
        found = _of_metrics(place) if place.suffix == ".jsonl" else _of_log(place)
        if place.name in (LOG_NAME, RESULT_LOG, METRICS_NAME):
            found = _with_machine(found, place.parent)
        return _side(name, [found])
    if (place / "clock_pairs.parquet").exists():
        raise ValueError(f"{name}: is a trace; python -m tracing.compare A B compares two")
    if (place / ALTERNATING_RECORD).exists():
        raise ValueError(f"{name}: holds A and B, whose runs alternate; give it alone")
    if (place / CAMPAIGN_RECORD).exists():
        return _of_campaign(name, place)
    if any((place / file).exists() for file in (LOG_NAME, RESULT_LOG, METRICS_NAME)):
        return _side(name, [_of_run_dir(place)])
    return _of_vendor(name, _folder_of_results(name, place))


def _folder_of_results(name: str, place: paths.Location) -> paths.Location:
    if result_files(place):
        return place
    folders = [folder for folder in sorted(place.glob("results/*/bert")) if result_files(folder)]
    if len(folders) == 1:
        return folders[0]
    if folders:
        raise ValueError(f"{name}: results of {len(folders)} systems; give one, as {folders[0]}")
    raise ValueError(
        f"{name}: no run, campaign or submission; give a folder with {LOG_NAME}, "
        f"{CAMPAIGN_RECORD} or result_*.txt, a log, {METRICS_NAME}, or ROUND/ORG/SYSTEM"
    )


@dataclass(frozen=True, kw_only=True)
class _Read:
    """One log or folder: a run with its task and machine, or why it does not count."""

    run: Run | None = None
    left_out: str = ""
    task: Mapping[str, object] = field(default_factory=dict)
    made_on: Mapping[str, object] = field(default_factory=dict)


def _side(name: str, found: Sequence[_Read], *, alternates_in: str | None = None) -> Side:
    """Join what was read.

    Raises:
      ValueError: the runs are not of one task.
    """
    counted = [each for each in found if each.run]
    task = {}
    for key in dict.fromkeys(key for each in counted for key in each.task):
        values = {each.task[key] for each in counted if each.task.get(key) is not None}
        if len(values) > 1:
            listed = " and ".join(sorted(map(str, values)))
            raise ValueError(f"{name}: runs of different {key}: {listed}; give a folder of each")
        if values:
            task[key] = values.pop()
    made_on = {
        key: tuple(dict.fromkeys(str(each.made_on[key]) for each in counted if key in each.made_on))
        for key in sorted({key for each in counted for key in each.made_on})
    }
    return Side(
        name=name,
        runs=tuple(each.run for each in found if each.run),
        left_out=tuple(each.left_out for each in found if not each.run),
        task=task,
        made_on=made_on,
        alternates_in=alternates_in,
    )


def _of_campaign(name: str, place: paths.Location) -> Side:
    newest: dict[int, tuple[int, paths.Location]] = {}
    for folder in (place / "runs").glob("*"):
        if match := _RUN.fullmatch(folder.name):  # not 3.interrupted-1, which was run again
            number, repetition = int(match[1]), int(match[2] or 0)
            newest[number] = max(newest.get(number, (-1, folder)), (repetition, folder))
    above = paths.resolve(place).parent
    alternates = (above / ALTERNATING_RECORD).exists()
    return _side(
        name,
        [_of_run_dir(newest[number][1], str(number)) for number in sorted(newest)],
        alternates_in=str(above) if alternates else None,
    )


def _of_run_dir(folder: paths.Location, name: str | None = None) -> _Read:
    name = name or str(folder)
    if (folder / RECORD_NAME).exists() and not has_ended(folder):
        return _Read(left_out=f"{name}: has not ended")
    logs = [log for log in (folder / RESULT_LOG, folder / LOG_NAME) if log.exists()]
    if logs:
        found = _of_log(logs[0], name)
    elif (folder / METRICS_NAME).exists():
        found = _of_metrics(folder / METRICS_NAME, name)
    else:
        return _Read(left_out=f"{name}: has no log")
    return _with_machine(found, folder)


def _with_machine(found: _Read, folder: paths.Location) -> _Read:
    """Add what the records of a run's directory say of host, versions and flags."""
    made_on: dict[str, object] = {}
    for record in provenance.read(folder)[-1:]:
        made_on |= {key: value for key, value in record.made_with.items() if value}
    parameters = read_own_record(folder / RECORD_NAME).get("parameters")
    for key, value in parameters.items() if isinstance(parameters, dict) else ():
        nested = value.items() if isinstance(value, dict) else ()
        made_on |= {f"{key}.{inner}": each for inner, each in nested} or {key: value}
    made_on = {key: each for key, each in made_on.items() if key not in _NOT_COMPARED}
    return dataclasses.replace(found, made_on=dict(found.made_on) | made_on)


def _of_vendor(name: str, folder: paths.Location) -> Side:
    found = []
    resolved = paths.resolve(folder)
    described = description_path(resolved.parents[2], resolved.parent.name)
    description = read_overrides(described) if described.exists() else {}
    made_on = {key: description.get(field) for key, field in _DESCRIBED.items()}
    made_on["accelerators"] = description.get("accelerators_per_node")
    made_on = {key: value for key, value in made_on.items() if value}
    for log in result_files(folder):
        each = _of_log(log, log.name, folder_of_power=folder)
        found.append(dataclasses.replace(each, made_on=made_on | dict(each.made_on)))
    return _side(name, found)


def _of_log(
    log: paths.Location, name: str | None = None, *, folder_of_power: paths.Location | None = None
) -> _Read:
    name = name or str(log)
    try:
        result = read_run(log)
    except ValueError as error:
        reason = str(error).removeprefix(f"{log}: ").removeprefix(f"{log} ")
        return _Read(left_out=f"{name}: {reason.replace(': ', ', ')}")
    if why := _does_not_count(result):
        return _Read(left_out=f"{name}: {why}")
    joules, parts = _joules(result, folder_of_power)
    run = Run(
        name=name,
        minutes=result.minutes,
        samples_to_converge=result.samples_to_converge or None,
        samples_per_second=result.samples_per_second,
        joules=joules,
        measured_parts=parts,
        samples=result.samples_to_converge or None,
        seconds=result.seconds,
    )
    task = {
        "benchmark": _benchmark(log),
        "tokens": result.max_sequence_length,
        "weights": result.num_weights,
        "batch": result.global_batch_size,
        "division": result.division,
    }
    return _Read(run=run, task=task, made_on=result.provenance)


def _benchmark(log: paths.Location) -> str | None:
    named = (each.value for each in read_records(log) if each.key == "submission_benchmark")
    return next((str(value).lower() for value in named), None)


def _does_not_count(result: RunResult) -> str:
    if not result.succeeded:
        return f"{result.status}, without the target"
    if result.evaluations and not math.isfinite(result.evaluations[-1].accuracy):
        return f"says {result.status} with accuracy {result.evaluations[-1].accuracy}"
    if not result.minutes > 0:
        return "its log has no times, run_start and run_stop are the same"
    return ""


def _joules(
    result: RunResult, folder_of_power: paths.Location | None
) -> tuple[float | None, tuple[str, ...]]:
    if folder_of_power:
        watts = measured_power(folder_of_power, [result], num_nodes=None).watts
        return (watts * result.minutes * 60, ("system",)) if watts else (None, ())
    energy = result.energy
    if energy is None or energy.at_least or not energy.joules:
        return None, ()
    return energy.joules, tuple(sorted(energy.parts))


def _of_metrics(path: paths.Location, name: str | None = None) -> _Read:
    """Of a run without its log: samples, and the ledger up to the last line of training."""
    seconds: ledger.Seconds = dict.fromkeys(ledger.KINDS, 0.0)
    samples = 0
    for number, line in enumerate(read_regular_file(path).split(b"\n")[:-1], start=1):
        try:
            fields = json_text.parse_object(line)
            if fields["kind"] != "train":
                continue
            spent, samples = ledger.from_fields(fields), int(fields["samples"])
            seconds = {kind: seconds[kind] + spent[kind] for kind in ledger.KINDS} if spent else {}
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} line {number}: damaged ({error!r:.200}); copy it again"
            ) from error
        if not spent:
            raise ValueError(f"{path} line {number}: has no seconds of the ledger")
    total = sum(seconds.values())
    if not samples or not total:
        return _Read(left_out=f"{name or path}: no line of training with samples and seconds")
    run = Run(
        name=name or str(path), samples_per_second=samples / total, samples=samples, seconds=seconds
    )
    return _Read(run=run)


def _of_published(name: str) -> Side:
    entries = [entry for entry in published.load() if entry.name == name]
    if not entries:
        raise ValueError(
            f"{name}: no such file or folder, and no published result ROUND/ORG/SYSTEM"
        )
    return side_of_entry(entries[0])


def side_of_entry(entry: Entry) -> Side:
    """Return the runs of a published result.

    Raises:
      ValueError: none converged.
    """
    runs = [
        Run(
            name=f"run {number}",
            minutes=minutes,
            samples_to_converge=samples,
            samples_per_second=samples / (60 * minutes) if samples else None,
        )
        for number, (minutes, samples) in enumerate(
            zip(entry.run_minutes, entry.run_samples, strict=True)
        )
    ]
    if not runs:
        raise ValueError(f"{entry.name}: no run of this published result has converged")
    num_failed = entry.runs - entry.runs_converged
    task = {
        "benchmark": "bert",
        "tokens": entry.max_sequence_length,
        "weights": entry.num_weights,
        "batch": entry.global_batch_size,
        "division": entry.division,
    }
    made_on = {
        "accelerator": entry.accelerator_model_name,
        "accelerators": entry.accelerators,
        "nodes": entry.nodes,
        "processor": entry.host_processor_model_name,
        "framework": entry.framework,
    }
    return Side(
        name=entry.name,
        runs=tuple(runs),
        left_out=("a run: did not converge",) * num_failed,
        task={key: value for key, value in task.items() if value is not None},
        made_on={key: (str(value),) for key, value in made_on.items() if value is not None},
    )


def write_baseline(side: Side, path: str) -> None:
    """Write a side to a file, whole or not at all, to be compared with later."""
    json_text.write_record(paths.location(path), dataclasses.asdict(side))


def read_baseline(path: str) -> Side:
    """Return the side that `write_baseline` wrote.

    Raises:
      ValueError: the file is missing or damaged.
    """
    found = json_text.read_record(paths.location(path), _parsed, remedy=_BASELINE_REMEDY)
    if found is None:
        raise ValueError(f"--baseline={path}: no such file; {_BASELINE_REMEDY}")
    return dataclasses.replace(found, alternates_in=None)


def _parsed(content: dict) -> Side:
    runs = [
        Run(**{**run, "measured_parts": tuple(run["measured_parts"])}) for run in content["runs"]
    ]
    for run in runs:
        if run.seconds and ledger.from_fields(ledger.as_fields(dict(run.seconds))) is None:
            raise ValueError("seconds are not those of the ledger")
    if not runs:
        raise ValueError("no runs")
    made_on = {key: tuple(map(str, values)) for key, values in content["made_on"].items()}
    left_out = tuple(map(str, content["left_out"]))
    return Side(**{**content, "runs": tuple(runs), "made_on": made_on, "left_out": left_out})


def in_words(left_out: Sequence[str]) -> str:
    """Return the lines about runs that do not count as one, those of one reason together."""
    names: dict[str, list[str]] = {}
    for line in left_out:
        name, _, reason = line.rpartition(": ")
        names.setdefault(reason, []).append(name)
    shown = [
        f"{first}{f' and {len(others)} more' if others else ''}: {reason:.200}"
        for reason, (first, *others) in names.items()
    ]
    return "; ".join(shown[:3]) + ("; ..." if len(shown) > 3 else "")


def differing(a: Side, b: Side, names: Iterable[str]) -> list[str]:
    """Return "NAME: OF B, not OF A" for what is recorded of both and differs."""
    found = []
    for name in names:
        of_a, of_b = a.made_on.get(name), b.made_on.get(name)
        if of_a and of_b and set(of_a) != set(of_b):
            found.append(f"{name}: {' or '.join(of_b)[:60]}, not {' or '.join(of_a)[:60]}")
    return found
