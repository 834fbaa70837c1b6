"""Reads MLPerf logs: the lines of logs by any submitter, and what a log says of its run.

Source: how mlperf_logging's result_summarizer and rcp_checker read logs. Two conventions are in
use: eval_accuracy's epoch_num is the number of samples, or it counts epochs, evaluations or steps
and train_samples holds the number. A train_samples from before the training does not count: logs of
Google and Habana have the planned number there, others the size of the data set.
"""

import contextlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from mlperf_bert.files import errors, json_text, paths
from mlperf_bert.files.whole import read_regular_file
from mlperf_bert.mlperf import energy, ledger
from mlperf_bert.mlperf.energy import Energy
from mlperf_bert.mlperf.rules import TARGET_MASKED_LM_ACCURACY

LOG_NAME = "bert.log"
RESUMED_LOGS = "bert.resumed-*.log"
RESULT_LOG = "bert.offline.log"
"""Written by evaluations that were made after the training."""
METRICS_NAME = "metrics.jsonl"
RECORD_NAME = "run.json"
CAMPAIGN_RECORD = "campaign.json"
"""The record in the folder of several runs of the same kind."""
RECORD_REMEDY = "copy it here again, or choose another --output_dir"
MOST_SAMPLES_TO_CONVERGE = 50_000_000
"""Ten times what any BERT-large needs; the data set of the benchmark has three times as many."""
_TOKEN = re.compile(r":::MLLOG\s*")
_OTHER_TOKEN = re.compile(r":::[A-Z][\w.]*")
# The first bytes of a log in another form -> how to get the log itself.
_OTHER_FORMS = {
    '{"log":': "is docker's own record of a container; take what `docker logs` prints",
    "\xff\xfe": "is UTF-16; write it as plain text (iconv -f UTF-16 -t UTF-8)",
}
# Beginnings of the keys of a run's configuration.
_HYPERPARAMETERS = re.compile(
    "global_batch_size|gradient_accumulation_steps|micro_batch_size|num_warmup_steps|"
    "start_warmup_step|time_budget_seconds|opt_|lowest_numerical_precision_in_|"
    "(tensor|pipeline|context|expert)_parallelism"
)
# After one of these keys some samples have been trained.
_TRAINED = ("block_stop", "epoch_stop", "eval_start", "eval_stop")
_END_OF_TIME_MS = 2**63
_STAMPS_MS = 10**12, 10**13
"""The milliseconds since 1970 in the years 2001 to 2286."""
_UNITS = {10: "seconds", 16: "microseconds", 19: "nanoseconds"}
"""Number of digits of a time since 1970 -> its unit."""
_DIVISIONS = {"c": "closed", "o": "open"}
_T = TypeVar("_T")


@dataclass(frozen=True)
class LogRecord:
    """One line of a log."""

    time_ms: float
    key: str
    value: object
    metadata: dict


@dataclass(frozen=True)
class LoggedEvaluation:
    """One eval_accuracy."""

    minutes: float
    """Minutes since run_start."""
    samples: float | None
    """Samples trained before it; None if the log does not say."""
    accuracy: float
    """The accuracy of the masked-LM task; NaN for a run that has diverged."""


@dataclass(frozen=True)
class RunResult:
    """What one log says of its run; None for what it does not say."""

    path: Path
    status: str
    """The status of run_stop, "success" or "aborted" in most logs."""
    minutes: float
    """The time from run_start to run_stop."""
    init_minutes: float | None = None
    """The time from the first init_start to init_stop."""
    samples_to_converge: float | None = None
    """None for a run that did not succeed."""
    counts_by_train_samples: bool = False
    """Whether samples_to_converge was taken from train_samples."""
    global_batch_size: float | None = None
    num_eval_samples: float | None = None
    """The number of samples in every evaluation."""
    seeds: tuple[int, ...] = ()
    """Every seed logged."""
    evaluations: tuple[LoggedEvaluation, ...] = ()
    """The evaluations before run_stop, in the order of the log."""
    benchmark: str | None = None
    """bert, in small letters."""
    division: str | None = None
    """closed or open."""
    cache_cleared: bool = False
    """Whether the log says that the file caches were emptied."""
    hyperparameters: Mapping[str, object] = field(default_factory=dict)
    """MLLOG key -> value of batch, optimizer, schedule, precision and parallelism."""
    provenance: Mapping[str, str] = field(default_factory=dict)
    """Commit, image and digests of data and initial weights, in this project's logs."""
    seconds: ledger.Seconds | None = None
    """What the time from run_start to run_stop was spent on, in this project's logs."""
    energy: Energy | None = None
    """The energy from run_start to run_stop, in this project's logs."""
    max_sequence_length: int | None = None
    """The length in tokens."""
    num_weights: int | None = None
    """How many weights the log names; BERT-large has NUM_WEIGHTS_OF_BERT_LARGE."""
    num_replicas: int | None = None
    """Accelerators that trained, in this project's logs."""
    planned_samples: float | None = None
    """A train_samples that is no number of trained samples, if the log has no other."""
    started_ms: float | None = None
    """Milliseconds since 1970; no two runs have the same."""

    @property
    def samples_per_second(self) -> float | None:
        """Samples to converge over the whole time, evaluation and all; None without them."""
        if not self.samples_to_converge or not self.minutes:
            return None
        return self.samples_to_converge / (60 * self.minutes)

    @property
    def succeeded(self) -> bool:
        """Whether the run reached its target."""
        return self.status == "success"


def read_records(path: paths.Location, *, may_be_cut: bool = False) -> list[LogRecord]:
    """Returns the records of a log; what stands before or behind one (a rank, say) is skipped.

    Several on a line, as writers that do not wait for each other leave them, are all read. With
    `may_be_cut` an incomplete last line, which a killed run leaves, is skipped.
    """
    # Read as Latin-1, as by the official tools: no byte of a foreign log is refused.
    text = read_regular_file(path).decode("latin-1")
    for begin, remedy in _OTHER_FORMS.items():
        if text.startswith(begin):
            raise ValueError(f"{path}: {remedy}")
    # The last line, if it has no end, is still being written, or was cut by a kill.
    if may_be_cut:
        text = text[: text.rfind("\n") + 1]
    records = []
    # splitlines would take some letters of UTF-8, read as Latin-1, for ends of lines.
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            end = 0
            while token := _TOKEN.search(line, end):
                fields, end = json_text.parse_object_at(line, token.end())
                records.append(_record(fields))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} line {number}: cut or damaged; copy the log again, as plain text"
            ) from error
    if not records:
        other = _OTHER_TOKEN.search(text)
        has = f", its lines have {other[0]}" if other else ""
        raise ValueError(f"{path}: no line starts with :::MLLOG{has}, so this is no MLPerf log")
    return records


def _record(fields: Mapping) -> LogRecord:
    metadata, time_ms, key = fields["metadata"] or {}, fields["time_ms"], fields["key"]
    if not isinstance(metadata, dict) or not isinstance(key, str):
        raise TypeError("metadata is an object, key a text")
    if not isinstance(time_ms, int | float) or not abs(time_ms) < _END_OF_TIME_MS:
        raise TypeError("time_ms is a number")
    value = fields["value"]
    # Graphcore's logs of round 1.1 hold a list of one number in place of the number.
    is_listed = isinstance(value, list) and len(value) == 1 and type(value[0]) is int
    return LogRecord(time_ms, key, value[0] if is_listed else value, metadata)


def values_of(records: list[LogRecord], key: str) -> list:
    """Every value that a log has for a key."""
    return [record.value for record in _of_key(records, key)]


def _of_key(records: Sequence[LogRecord], key: str) -> list[LogRecord]:
    return [record for record in records if record.key == key]


def counts_of(records: list[LogRecord], key: str) -> list[float]:
    """Numbers of samples, of which a log may also say that it does not know them."""
    return [require_count(value, key) for value in values_of(records, key) if value is not None]


def require_count(value: object, key: str) -> float:
    """Returns a number of samples; raises ValueError if the value of the key is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**63:
        raise ValueError(f"{key} is {value!r:.80}, which is not a number of samples")
    return value


def read_run(path: Path, *, may_be_cut: bool = False) -> RunResult:
    """Returns what a log says of its run; `may_be_cut` as in `read_records`.

    If the log may be cut, one without a run_stop is of a run with the status "running", up to its
    last line.

    Raises:
      ValueError: the file is not a log, or of another benchmark, has not one run_start and one
        run_stop in this order, or its times, accuracies or success cannot be what they say.
    """
    records = read_records(path, may_be_cut=may_be_cut)
    with errors.named(path):
        return _result(path, records, may_be_cut=may_be_cut)


def _result(path: Path, records: list[LogRecord], *, may_be_cut: bool) -> RunResult:
    start = _only(records, "run_start")
    if may_be_cut and not _of_key(records, "run_stop"):
        records = [*records, replace(records[-1], key="run_stop", metadata={"status": "running"})]
    stop = _only(records, "run_stop")
    _require_units(records)
    if stop.time_ms < start.time_ms or records.index(stop) < records.index(start):
        raise ValueError("run_stop lies before run_start: the clocks ran backwards")
    batch_size = next(reversed(counts_of(records, "global_batch_size")), None)
    train_samples, planned_samples = _train_samples(records)
    evaluations = _evaluations(
        # Accuracies behind run_stop are of weights that the run has left.
        records[: records.index(stop)],
        start.time_ms,
        global_batch_size=batch_size,
        train_samples=train_samples,
    )
    status = str(stop.metadata.get("status"))
    # Evaluations count before train_samples, which may be a plan.
    last_samples = evaluations[-1].samples if evaluations else None
    samples = last_samples if last_samples is not None else train_samples
    provenance = _first(records, "provenance", dict) or {}
    benchmark = (_first(records, "submission_benchmark", str) or "").strip().lower() or None
    if benchmark not in (None, "bert"):
        raise ValueError(f"a log of {benchmark:.80}, not of bert")
    division = _first(records, "submission_division", str)
    division = _DIVISIONS.get((division or "").strip()[:1].lower(), division)
    if status == "success":
        if stop.time_ms == start.time_ms:
            raise ValueError("its log has no times, run_start and run_stop are the same")
        # Another rank may log the last evaluation after the first one has logged run_stop.
        late = _of_key(records[records.index(stop) :], "eval_accuracy")
        _require_success(
            [each.accuracy for each in evaluations],
            [_accuracy(each.value) for each in late if each.time_ms <= stop.time_ms],
            may_have_other_target=division == "open",  # a log does not say its target
        )
    return RunResult(
        path=path,
        status=status,
        minutes=(stop.time_ms - start.time_ms) / 60_000,
        init_minutes=_init_minutes(records),
        samples_to_converge=samples if status == "success" else None,
        counts_by_train_samples=last_samples is None,
        global_batch_size=batch_size,
        num_eval_samples=next(iter(counts_of(records, "eval_samples")), None),
        seeds=_seeds(records),
        evaluations=evaluations,
        benchmark=benchmark,
        division=division,
        cache_cleared=any(value is True for value in values_of(records, "cache_clear")),
        hyperparameters={r.key: r.value for r in records if _HYPERPARAMETERS.match(r.key)},
        provenance={str(name): str(value) for name, value in provenance.items()},
        seconds=_seconds(records),
        energy=energy_of_run(records),
        max_sequence_length=_first(records, "max_sequence_length", int),
        num_weights=len(_names_of_weights(records)) or None,
        num_replicas=_first(records, "num_replicas", int),
        planned_samples=planned_samples if samples is None else None,
        started_ms=start.time_ms,
    )


def _require_units(records: Sequence[LogRecord]) -> None:
    """Refuses times that are no milliseconds since 1970, accuracies that are no share of 1."""
    # Only these keys count: Google's logs have submission_platform at the time 0.
    timed = [r for r in records if r.key in ("run_start", "run_stop", "eval_accuracy")]
    for record in timed:
        if not _STAMPS_MS[0] <= record.time_ms < _STAMPS_MS[1]:
            # The message names no time: what is alike in several logs is said once.
            unit = _UNITS.get(len(str(int(record.time_ms))), "something else")
            raise ValueError(
                f"time_ms of {record.key} is not in milliseconds since 1970 but in {unit}"
            )
        # NaN, which a diverged run logs, is neither less nor more.
        if record.key == "eval_accuracy":
            accuracy = _accuracy(record.value)
            if accuracy < 0 or accuracy > 1:
                raise ValueError("eval_accuracy is not from 0 to 1, is it in percent?")


def _require_success(
    accuracies: Sequence[float], late: Sequence[float], *, may_have_other_target: bool
) -> None:
    """Refuses a success if no accuracy, also behind run_stop, reaches the target."""
    if accuracies and not math.isfinite(accuracies[-1]):
        raise ValueError(f"says success with accuracy {accuracies[-1]}")
    target = TARGET_MASKED_LM_ACCURACY
    if not may_have_other_target and not any(each >= target for each in (*accuracies, *late)):
        raise ValueError(f"says success, and no evaluation has an accuracy of {target:.3f} or more")


def _train_samples(records: Sequence[LogRecord]) -> tuple[float | None, float | None]:
    """Returns the last train_samples that counts trained samples, and the last one that does not.

    A number from before the training, or before evaluations with another result, is a plan.
    """
    begun = [record.key for record in records].index("run_start")
    evaluated = [
        (n, repr(record.value))
        for n, record in enumerate(records)
        if n > begun and record.key == "eval_accuracy"
    ]
    trained_at = [n for n, record in enumerate(records) if n > begun and record.key in _TRAINED]
    # Several ranks may log the last evaluation and its train_samples, one after the other.
    last = [n for n, result in evaluated if result == evaluated[-1][1]] or trained_at
    end = last[0] if last else len(records)
    counts = [
        (n > end, require_count(record.value, record.key))
        for n, record in enumerate(records)
        if record.key == "train_samples" and record.value is not None
    ]
    planned = [n for is_late, n in counts if not is_late or n > MOST_SAMPLES_TO_CONVERGE]
    trained = [n for _, n in counts if n not in planned]
    return next(reversed(trained), None), next(reversed(planned), None)


def _first(records: list[LogRecord], key: str, kind: type[_T]) -> _T | None:
    return next((value for value in values_of(records, key) if type(value) is kind), None)


def _names_of_weights(records: list[LogRecord]) -> set[str]:
    # A set: every rank of some logs names them all. Some name none, but say "all".
    return {
        str(record.metadata.get("tensor", "all"))
        for record in records
        if record.key.lower() == "weights_initialization"
    } - {"all"}


def _seconds(records: list[LogRecord]) -> ledger.Seconds | None:
    stats = _of_key(records, ledger.LOG_KEY)
    of_run = [record.value for record in stats if record.metadata.get("of") == "run"]
    return ledger.from_fields(of_run[0]) if of_run else None


def _only(records: list[LogRecord], key: str) -> LogRecord:
    lines = _of_key(records, key)
    if len(lines) != 1:
        raise ValueError(f"{len(lines)} lines {key}, a log of one run has 1")
    return lines[0]


def _seeds(records: list[LogRecord]) -> tuple[int, ...]:
    try:
        return tuple(int(seed) for seed in values_of(records, "seed"))
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"a seed is not a whole number ({error})") from error


def _evaluations(
    records: list[LogRecord],
    start_ms: float,
    *,
    global_batch_size: float | None,
    train_samples: float | None,
) -> tuple[LoggedEvaluation, ...]:
    evaluated = _of_key(records, "eval_accuracy")
    samples = [record.metadata.get("epoch_num") for record in evaluated]
    counts = [require_count(n, "epoch_num of eval_accuracy") for n in samples if n is not None]
    results = {repr(record.value) for record in evaluated}
    counts_samples = (
        None not in samples
        and _are_samples(counts, global_batch_size, train_samples)
        # The same number beside different results is a plan.
        and not (len({*counts} - {0}) == 1 and len(results) > 1 + (0 in counts))
    )
    return tuple(
        LoggedEvaluation(
            minutes=(record.time_ms - start_ms) / 60_000,
            samples=number if counts_samples else None,
            accuracy=_accuracy(record.value),
        )
        for record, number in zip(evaluated, samples, strict=True)
    )


def _are_samples(
    counts: Sequence[float], global_batch_size: float | None, train_samples: float | None
) -> bool:
    """Whether the evaluations' epoch_num counts samples, not epochs, evaluations or steps.

    A stack that counts epochs says 1 in every line, or fractions; one that counts evaluations says
    1, 2, 3. Some stacks write the train_samples that were planned: more of them than the last
    epoch_num alone tell nothing.
    """
    distinct = {count for count in counts if count > 0}
    # Between two evaluations there is at least one step, which trains a batch of samples.
    if not distinct or max(distinct) / len(distinct) < (global_batch_size or 2):
        return False
    are_steps = train_samples == max(distinct) * (global_batch_size or 0)
    return not are_steps or global_batch_size == 1


def _accuracy(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"eval_accuracy {value!r:.80} is not a number") from None


def _init_minutes(records: list[LogRecord]) -> float | None:
    starts, stops = _of_key(records, "init_start"), _of_key(records, "init_stop")
    if not starts or not stops:
        return None
    # With several ranks: from the first that starts to the last that stops.
    return (stops[-1].time_ms - min(record.time_ms for record in starts)) / 60_000


def is_end(status: object) -> bool:
    """Returns whether a status of run.json is that of a run which has ended."""
    return status != "running"


def read_own_record(path: paths.Location) -> dict:
    """Returns what a run or a campaign recorded of itself; nothing if it has no record."""
    return json_text.read_record(path, dict, remedy=RECORD_REMEDY) or {}


def energy_of_run(records: Sequence[LogRecord]) -> Energy | None:
    """Returns what a log says of the energy from its run_start to its run_stop; None if nothing."""
    events = _of_key(records, energy.LOG_KEY)
    return Energy.from_event(events[0].value, events[0].metadata) if events else None


def logs_of_run(output_dir: paths.Location) -> list[paths.Location]:
    """Returns the logs that a run has written during its training, the oldest first."""
    # Sorted by number: as text, resumed-10 would come before resumed-2.
    numbers = {log.stem.rpartition("-")[2]: log for log in output_dir.glob(RESUMED_LOGS)}
    resumed = [numbers[number] for number in sorted(filter(str.isdecimal, numbers), key=int)]
    return [log for log in (output_dir / LOG_NAME, *resumed) if log.exists()]


def readable_runs(logs: Sequence[paths.Location]) -> Iterator[RunResult]:
    """Yields what the logs of one run say, also while it trains; what cannot be read is skipped."""
    for path in logs:
        with contextlib.suppress(ValueError, OSError):
            yield read_run(path, may_be_cut=True)


def seconds_spent(logs: Sequence[paths.Location]) -> float:
    """Returns the used seconds of a time budget: from run_start to the last line, in all its logs.

    A killed run wrote its last line at its last evaluation or checkpoint, or later.
    """
    seconds = 0.0
    for path in logs:
        records = read_records(path, may_be_cut=True)
        for start in _of_key(records, "run_start")[:1]:
            seconds += max(0.0, records[-1].time_ms - start.time_ms) / 1000
    return seconds
