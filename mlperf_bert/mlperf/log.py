"""One run of the benchmark as an MLLOG file that the official checkers accept.

    with MlperfLog(path) as log:
        log.init_start(cache_cleared=True)
        log.events(SubmissionInfo(org="example", platform="8xExample").events())
        log.events({"global_batch_size": 448, ...})
        log.weights_initialization(tf1_names)
        log.init_stop()
        with log.run() as run:
            run.block_start(0, num_samples=150_000)
            run.block_stop(150_000)
            run.eval_start(150_000)
            run.eval_stop(150_000)
            run.eval_accuracy(0.7205, samples=150_000, step=6250)
            run.succeed()

All positions are in samples trained so far; the official keys call them epoch_num and
first_epoch_num. `log.time_ms = ...` dates what follows, for events of the past, which an evaluation
after the training needs. All other lines have the time of the log's making plus what a monotonic
clock has counted since, so that a result does not depend on changes of the host's clock.

Source: the rule files of mlperf_logging.compliance_checker, rulesets 1.0.0 to 5.0.0, and
training_6.1.0/common.yaml for precision and parallelism.
"""

import contextlib
import inspect
import io
import logging
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from mlperf_logging.mllog import constants
from mlperf_logging.mllog.mllog import MLLogger

from mlperf_bert.files import paths
from mlperf_bert.files.whole import write_whole
from mlperf_bert.mlperf import energy, ledger
from mlperf_bert.mlperf.energy import Meter
from mlperf_bert.mlperf.ledger import Ledger, Seconds

Metadata = Mapping[str, object] | None
_PROJECT_ROOT = Path(__file__).resolve().parents[2]
# mllog asks for the caller of every line, whose module Python would look for among thousands.
inspect.modulesbyfile[__file__] = __name__

NO_PARALLELISM = dict.fromkeys(
    [f"{kind}_parallelism" for kind in ("tensor", "pipeline", "context", "expert")], 1
)
"""MLLOG key -> value where the replicas share nothing but the data; rulesets from 6.1.0 on ask."""
# A clock that NTP slews stays nearer to the monotonic one, which it slews too.
_LEAST_SHIFT_SECONDS = 0.05
STATUSES = (constants.ONPREM, constants.CLOUD, "preview", constants.RESEARCH)


@dataclass(frozen=True)
class SubmissionInfo:
    """Who submits what; the official checker refuses empty names."""

    org: str
    platform: str
    """The system, for instance "8xH200"."""
    division: str = constants.CLOSED
    """closed or open."""
    status: str = constants.ONPREM
    """One of STATUSES (rulesets up to 4.0.0 check it)."""

    def __post_init__(self) -> None:
        for name in ("org", "platform"):
            if not getattr(self, name).strip():
                raise ValueError(f"submission {name} is empty: the official checker needs a name")
        if self.status not in STATUSES:
            raise ValueError(f"submission status={self.status!r}: use one of {', '.join(STATUSES)}")

    def events(self) -> dict[str, str]:
        """MLLOG key -> value; the checker requires them before init_stop."""
        values = {name: getattr(self, name) for name in ("org", "platform", "division", "status")}
        of_all = {constants.SUBMISSION_BENCHMARK: constants.BERT}
        return of_all | {f"submission_{name}": value for name, value in values.items()}


def json_safe(value: object) -> object:
    """Returns `value` as plain JSON: no NumPy types, NaN and the infinities as strings."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): json_safe(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(entry) for entry in value]
    raise TypeError(f"{value!r} ({type(value).__name__}) cannot be written as JSON to the log")


@dataclass(eq=False)
class TimedRun:
    """The timed part of a run, between run_start and run_stop; made by `MlperfLog.run`.

    After run_stop only checkpoints may be logged: all else raises a RuntimeError.
    """

    log: "MlperfLog"
    meter: Meter | None = None
    """Measures the energy of the run, which is logged before run_stop."""
    samples: int = 0
    """Samples trained so far. `block_stop` and `eval_accuracy` set it; the loop may set it more
    often, so that an aborted run logs the right number."""
    is_stopped: bool = False
    """run_stop has been logged."""
    ledger: Ledger = field(default_factory=Ledger)
    """Where the time goes since the run's start. Once anything but host work is counted, its
    seconds are logged after every block and before run_stop."""

    def __post_init__(self) -> None:
        self._num_eval_samples: int | None = None
        self._block_start_samples, self._seconds_before_block = 0, self.ledger.read()
        if self.meter:
            self.meter.read()  # the first reading, from which the joules count

    @property
    def _running(self) -> "MlperfLog":
        """The log, for lines that may only stand before run_stop."""
        if self.is_stopped:
            raise RuntimeError("run_stop has been logged: the run is over")
        return self.log

    def block_start(self, samples: int, *, num_samples: int) -> None:
        """Logs the start of a block that trains `num_samples`, 1 or more, after `samples`."""
        if num_samples < 1:
            raise ValueError(f"num_samples={num_samples}: a block trains 1 sample or more")
        self._block_start_samples, self._seconds_before_block = samples, self.ledger.read()
        position = {"first_epoch_num": samples, "epoch_count": num_samples}
        self._running.start(constants.BLOCK_START, position | {"samples_count": samples})

    def block_stop(self, samples: int) -> None:
        """Logs the end of a block of training, with `samples` trained so far."""
        metadata = {"first_epoch_num": self._block_start_samples, "samples_count": samples}
        self._running.end(constants.BLOCK_STOP, metadata)
        self.samples = samples
        seconds = ledger.difference(self.ledger.read(), self._seconds_before_block)
        self._log_ledger(seconds, metadata | {"of": "block"})

    def eval_samples(self, num_samples: int) -> None:
        """Logs the number of samples of every evaluation, if it was not known before the run."""
        self._running.event(constants.EVAL_SAMPLES, num_samples)
        self._num_eval_samples = num_samples

    def eval_start(self, samples: int) -> None:
        """Logs the start of the evaluation after `samples` trained."""
        self._running.start(constants.EVAL_START, _position(samples))

    def eval_stop(self, samples: int) -> None:
        """Logs the end of the evaluation after `samples` trained."""
        self._running.end(constants.EVAL_STOP, _position(samples))

    def eval_accuracy(
        self, value: float, samples: int, step: int, *, num_eval_samples: int | None = None
    ) -> None:
        """Logs the masked-LM accuracy after `samples` trained in `step` steps.

        Raises:
          ValueError: the accuracy is outside 0 to 1, or NaN: the checkers would accept it, or
            crash. Or `num_eval_samples`, on which it was computed, is not the number that was
            logged for every evaluation.
        """
        expected = self._num_eval_samples
        if None not in (num_eval_samples, expected) and num_eval_samples != expected:
            raise ValueError(
                f"the evaluation after {samples} samples covered {num_eval_samples} examples, but "
                f"the log says {expected} for all: the files of --eval_input_file have changed; "
                "start a new run with files that stay as they are"
            )
        if not 0.0 <= value <= 1.0:
            raise ValueError(
                f"masked-LM accuracy {value} after {samples} samples: must be from 0 to 1; "
                "look for NaN weights or an evaluation without masked tokens"
            )
        metadata = {**_position(samples), "step_num": step}
        self._running.event(constants.EVAL_ACCURACY, value, metadata)
        self.samples = samples

    def checkpoint_start(self, step: int) -> None:
        """Logs that the checkpoint of `step` is being written."""
        # Allowed after run_stop too: the last checkpoint is written when the clock has stopped.
        self.log.start("checkpoint_start", {"step_num": step})

    def checkpoint_stop(self, step: int) -> None:
        """Logs that the checkpoint of `step` has been written."""
        self.log.end("checkpoint_stop", {"step_num": step})

    def succeed(self) -> None:
        """Stops the clock: the target is reached. Logs train_samples and run_stop at once."""
        self._stop(constants.SUCCESS)

    def abort(self, **metadata: object) -> None:
        """Stops the clock without success, with `metadata` in run_stop; as `succeed`."""
        self._stop(constants.ABORTED, **metadata)

    def stop_unless_stopped(self) -> None:
        """Logs train_samples and run_stop with status "aborted" if the run has not succeeded."""
        if not self.is_stopped:
            self.abort()

    def _stop(self, status: str, **metadata: object) -> None:
        log = self._running
        # Set first: if a line cannot be written, nothing tries to log another end.
        self.is_stopped = True
        self.ledger.stop()
        self._log_ledger(self.ledger.read(), {**_position(self.samples), "of": "run"})
        if self.meter:
            value, about = self.meter.read().as_event()
            log.event(energy.LOG_KEY, value, {"of": "run", **about})
        if shift := log.clock_shift_seconds():
            log.event("clock_shift_seconds", round(shift, 3))
        # The checkers read train_samples only before run_stop.
        log.event(constants.TRAIN_SAMPLES, self.samples)
        log.end(constants.RUN_STOP, {"status": status, **metadata})

    def _log_ledger(self, seconds: Seconds, metadata: dict[str, object]) -> None:
        if any(seconds[kind] for kind in ledger.KINDS if kind != ledger.HOST):
            utilization = ledger.accelerator_utilization(seconds)
            value = {**ledger.as_fields(seconds), "accelerator_utilization": utilization}
            rounded = {name: round(number, 6) for name, number in value.items()}
            self.log.event(ledger.LOG_KEY, rounded, metadata)


def _position(samples: int) -> dict[str, int]:
    return {"epoch_num": samples, "samples_count": samples}


class _Lines(logging.Logger):
    """Takes mllog's lines; raises a failure to write, which logging's handlers would only print."""

    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__(constants.DEFAULT_LOGGER_NAME)
        self._write = write

    def log(self, level: int, msg: object, *args: object, **options: Any) -> None:
        """Writes a line."""
        self._write(str(msg))


class MlperfLog:
    """The log of one run.

    Until `commit` lines are held in memory: a run refused for bad input leaves no file, and the
    division can still be changed. Closing commits.

    Args:
      path: the log to write, usually result_N.txt; None writes no file, for processes other than
        the chief.

    Attributes:
      time_ms: the time of the lines to come, in milliseconds since 1970; None: that of the call,
        by a monotonic clock.

    Raises:
      ValueError: the file exists; logs of several runs in one file fail every checker.
    """

    def __init__(self, path: str | os.PathLike | None) -> None:
        self.path = None if path is None else Path(path)
        self._require_absent()
        self.time_ms: float | None = None
        # The host's clock minus the monotonic one: later times are added to this difference.
        self._epoch_seconds = time.time() - time.monotonic()
        self._lines: TextIO = io.StringIO()
        self._lock = threading.Lock()
        self._has_run = False
        # mllog's default logger is global and gets another handler at each call: two runs in one
        # process would write into each other's files, and every line twice. It uses root_dir as a
        # regular expression.
        self._mllog = MLLogger(_Lines(self.copy_line), root_dir=re.escape(str(_PROJECT_ROOT)))

    def _require_absent(self) -> None:
        if self.path and self.path.exists():
            raise ValueError(
                f"{self.path} already holds the log of a run: name another file or move it away"
            )

    def __enter__(self) -> "MlperfLog":
        return self

    def __exit__(self, *exc_info) -> None:
        self.commit()
        self.discard()

    @property
    def held(self) -> str:
        """The lines before `commit`; nothing after it."""
        return self._lines.getvalue() if isinstance(self._lines, io.StringIO) else ""

    def _now_ms(self) -> float:
        """The time of the next line, in whole milliseconds since 1970 unless it was given."""
        if self.time_ms is not None:
            return self.time_ms
        return round((self._epoch_seconds + time.monotonic()) * 1000)

    def clock_shift_seconds(self) -> float:
        """The seconds by which the host's clock was set forward since the log was made.

        Negative if it was set back; 0 for less than `_LEAST_SHIFT_SECONDS` and for given times.
        """
        shift = time.time() - time.monotonic() - self._epoch_seconds
        return shift if self.time_ms is None and abs(shift) >= _LEAST_SHIFT_SECONDS else 0.0

    def event(self, key: str, value: object = None, metadata: Metadata = None) -> None:
        """Logs a point in time. NumPy values and non-finite numbers become plain JSON.

        Raises:
          TypeError: a value that JSON cannot hold.
        """
        self._mllog.event(key, json_safe(value), json_safe(metadata or {}), time_ms=self._now_ms())

    def events(self, values: Mapping[str, object]) -> None:
        """Logs MLLOG key -> value: names, sizes, seed, schedule, optimizer, precision."""
        for key, value in values.items():
            self.event(key, value)

    def start(self, key: str, metadata: Metadata = None) -> None:
        """Logs the start of an interval."""
        self._mllog.start(key, None, json_safe(metadata or {}), time_ms=self._now_ms())

    def end(self, key: str, metadata: Metadata = None) -> None:
        """Logs the end of an interval."""
        self._mllog.end(key, None, json_safe(metadata or {}), time_ms=self._now_ms())

    def copy_line(self, line: str) -> None:
        """Writes a line, such as one of another log, as it is."""
        # The thread that writes a checkpoint logs too, even when the log is closed.
        with self._lock, paths.failures_named(str(self.path)):
            if not self._lines.closed:
                self._lines.write(f"{line}\n")
                # Flushed at once: a killed run leaves what it has logged.
                self._lines.flush()

    def declare_open(self) -> None:
        """Changes the division to open; only before `commit`."""
        division = r'("key": "submission_division", "value": )"\w+"'
        if held := self.held:
            self._lines = io.StringIO()
            self._lines.write(re.sub(division, r'\1"open"', held))

    def commit(self) -> None:
        """Writes all lines so far to the file, and later lines at once. Further calls do nothing.

        Raises:
          OSError: it cannot be written; nothing is left of it.
        """
        is_held = isinstance(self._lines, io.StringIO) and not self._lines.closed
        if self.path is None or not is_held:
            return
        self._require_absent()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, self.held)
        self._lines = self.path.open("a", encoding="utf-8")

    def discard(self) -> None:
        """Stops writing; without `commit` no file is left."""
        # A line that failed has raised its error already.
        with contextlib.suppress(OSError):
            self._lines.close()

    def init_start(self, cache_cleared: bool | None) -> None:
        """Logs the start of the untimed initialisation.

        `cache_cleared` says whether the system's file caches were emptied before; None: unknown.
        """
        self.event(constants.CACHE_CLEAR, cache_cleared)
        self.start(constants.INIT_START)

    def weights_initialization(self, tf1_names: Iterable[str]) -> None:
        """Logs one line per initialised weight, under its TensorFlow 1 name without ":0".

        Rulesets 1.1.0 to 2.1.0 compare these with the 398 weights of BERT-large.
        """
        for name in tf1_names:
            self.event(constants.WEIGHTS_INITIALIZATION, metadata={"tensor": name})

    def init_stop(self) -> None:
        """Logs the end of the initialisation."""
        self.end(constants.INIT_STOP)

    @contextlib.contextmanager
    def run(self, *, meter: Meter | None = None) -> Iterator[TimedRun]:
        """Logs run_start, yields the `TimedRun`, and logs exactly one run_stop whatever happens.

        `meter` measures the energy between the two; None: it is not logged.

        The status is "success" after `TimedRun.succeed`, else "aborted"; all exceptions, also
        KeyboardInterrupt and SystemExit, are raised again.

        Raises:
          RuntimeError: this log already has a run.
        """
        if self._has_run:
            raise RuntimeError("this log already has a run: one log, one run")
        self._has_run = True
        self.start(constants.RUN_START)
        run = TimedRun(self, meter)
        try:
            yield run
        except BaseException:
            # The first error, such as a full disk, is useful; this one is not.
            with contextlib.suppress(OSError):
                run.stop_unless_stopped()
            raise
        # This is not in a `finally`, because an error of this line is the first one.
        run.stop_unless_stopped()


def last_time_ms(text: str) -> int:
    """The last time in the text of a log, in milliseconds since 1970; 0 if there is none."""
    return _last("time_ms", text)


def _last(name: str, text: str) -> int:
    return int([0, *re.findall(rf'"{name}": (\d+)', text)][-1])


def close_log(path: Path) -> bool:
    """Adds train_samples and run_stop, status "aborted", to a log that has a run_start only.

    Both have the time of the last line, as the run may have ended right after it. `written_ms` in
    run_stop's metadata is the time of this call; it shows a reader that the run was killed. An
    incomplete last line is dropped.

    Returns: whether the log was changed.
    """
    # Read as text: the log of a killed run may end in the middle of a line.
    text = path.read_text(encoding="utf-8", errors="replace")
    whole = text[: text.rfind("\n") + 1]
    if '"key": "run_start"' not in whole or '"key": "run_stop"' in whole:
        return False

    log = MlperfLog(None)
    log.time_ms = last_time_ms(whole)
    TimedRun(log, samples=_last("samples_count", whole)).abort(written_ms=round(time.time() * 1000))
    write_whole(path, whole + log.held)
    return True
