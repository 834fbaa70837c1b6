"""One run of the benchmark as an MLLOG file that the official checkers accept.

    with MlperfLog(path) as log:
        log.init_start(cache_cleared=True)
        log.submission(SubmissionInfo(org="example", platform="8xExample"))
        log.hyperparameters(Hyperparameters(...))
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
first_epoch_num. Every method takes `time_ms` (milliseconds since 1970) to date an event back,
as an evaluation after the training must.

Source: the rule files of mlperf_logging.compliance_checker, rulesets 1.0.0 to 5.0.0.
"""

import contextlib
import json
import logging
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
from mlperf_logging.mllog import constants
from mlperf_logging.mllog.mllog import MLLogger

BENCHMARK = constants.BERT
DIVISIONS = (constants.CLOSED, constants.OPEN)
STATUSES = (constants.ONPREM, constants.CLOUD, "preview", constants.RESEARCH)

# The official RCP checker looks for these words anywhere in a line, not for keys.
_WORDS_OF_THE_CHECKERS = ("train_samples", "eval_accuracy", "global_batch_size", "submission_")

_BEFORE_RUN = {"init_start", "submission", "hyperparameters", "init_stop"}

_PROJECT_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class SubmissionInfo:
    """Who submits what; the official checker refuses empty names.

    Attributes:
      org: the submitting organisation.
      platform: the system, for instance "8xH200".
      division: "closed" or "open".
      status: one of STATUSES (rulesets up to 4.0.0 check it).

    Raises:
      ValueError: an empty name, or a division or status outside the official lists.
    """

    org: str
    platform: str
    division: str = constants.CLOSED
    status: str = constants.ONPREM

    def __post_init__(self) -> None:
        for name in ("org", "platform"):
            if not getattr(self, name).strip():
                raise ValueError(f"submission {name} is empty: the official checker wants a name")
        if self.division not in DIVISIONS:
            raise ValueError(f"submission division={self.division!r}: use {' or '.join(DIVISIONS)}")
        if self.status not in STATUSES:
            raise ValueError(f"submission status={self.status!r}: use one of {', '.join(STATUSES)}")


@dataclass(frozen=True)
class Hyperparameters:
    """What the log must say about a run before it starts.

    Attributes:
      global_batch_size: samples per update, over all replicas and accumulated gradients.
      gradient_accumulation_steps: gradients summed on a replica for one update; 1 for none.
      optimizer: "lamb" or "adamw".
      learning_rate: peak of the schedule.
      epsilon, beta_1, beta_2, weight_decay_rate: of the optimizer.
      num_train_steps: length of the learning-rate schedule in steps.
      num_warmup_steps, start_warmup_step: of the warm-up, in steps.
      poly_power: power of the polynomial decay.
      max_seq_length: tokens per sample.
      max_predictions_per_seq: masked tokens per sample.
      num_eval_samples: samples in every evaluation; None when they may not be counted before
        the clock runs: log `Run.eval_samples` then.
      seed: of the training.
    """

    global_batch_size: int
    gradient_accumulation_steps: int
    optimizer: str
    learning_rate: float
    epsilon: float
    num_train_steps: int
    num_warmup_steps: int
    start_warmup_step: int
    beta_1: float
    beta_2: float
    weight_decay_rate: float
    poly_power: float
    max_seq_length: int
    max_predictions_per_seq: int
    num_eval_samples: int | None
    seed: int


class MlperfLog:
    """The log of one run: lines go to a file and, with `echo`, to stdout.

    The file lies beside its final place under the name PATH.partial until `commit`, which
    closing does too: a run refused for bad input calls `discard` and leaves nothing.

    Args:
      path: the log to write, by custom result_N.txt; None writes no file, as all processes of a
        run but one.
      echo: also print every line.

    Raises:
      ValueError: the file exists; logs of several runs in one file fail every checker.
    """

    def __init__(self, path: str | os.PathLike | None, *, echo: bool = True) -> None:
        self._steps_done: set[str] = set()
        self._handlers: list[logging.Handler] = [logging.StreamHandler(sys.stdout)] if echo else []
        self.path = None
        if path is not None:
            self._open(Path(path))
        self._mllog = _make_mllogger(self._handlers)

    def _open(self, path: Path) -> None:
        self.path = path
        if self.path.exists():
            raise ValueError(
                f"{self.path} already holds the log of a run: name another file or move it away"
            )
        self._created_folders = _make_folders(self.path.parent)
        self._partial = self.path.with_name(self.path.name + ".partial")
        self._handlers.append(logging.FileHandler(self._partial, mode="w", encoding="utf-8"))

    @classmethod
    def continuing(cls, path: str | os.PathLike, header: Iterable[str]) -> "MlperfLog":
        """A log that begins with another's lines, up to its run_start, as they stand there."""
        log = cls(path, echo=False)
        for line in header:
            log._mllog.logger.info(line)
        log._steps_done |= _BEFORE_RUN
        return log

    def __enter__(self) -> "MlperfLog":
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def commit(self) -> None:
        """Give the file its final name; writing goes on. Further calls do nothing."""
        if self.path and self._partial.exists():
            self._partial.replace(self.path)

    def close(self) -> None:
        """Commit the file and end the writing. Further calls do nothing."""
        self.commit()
        self._close_handlers()

    def discard(self) -> None:
        """End the writing and remove the file, committed or not, and the folders made for it."""
        self._close_handlers()
        if self.path is None:
            return
        self._partial.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)
        for folder in self._created_folders:
            with contextlib.suppress(OSError):  # another hand has put something into it
                folder.rmdir()

    def init_start(self, cache_cleared: bool | None, *, time_ms: int | None = None) -> None:
        """Log the start of the untimed initialisation.

        Args:
          cache_cleared: whether the system's file caches were emptied before; None for unknown.
          time_ms: when, if not now.
        """
        self.event(constants.CACHE_CLEAR, cache_cleared, time_ms=time_ms)
        self.start(constants.INIT_START, time_ms=time_ms)
        self._steps_done.add("init_start")

    def submission(self, info: SubmissionInfo) -> None:
        """Log who submits; the checker wants it before init_stop."""
        self.event(constants.SUBMISSION_BENCHMARK, BENCHMARK)
        self.event(constants.SUBMISSION_ORG, info.org)
        self.event(constants.SUBMISSION_PLATFORM, info.platform)
        self.event(constants.SUBMISSION_DIVISION, info.division)
        self.event(constants.SUBMISSION_STATUS, info.status)
        self._steps_done.add("submission")

    def hyperparameters(self, given: Hyperparameters) -> None:
        """Log sizes, seed, schedule and optimizer."""
        for key, value in _hyperparameter_events(given).items():
            self.event(key, value)
        self._steps_done.add("hyperparameters")

    def weights_initialization(self, tf1_names: Iterable[str]) -> None:
        """Log one line per initialised weight, under its TensorFlow 1 name without ":0".

        Rulesets 1.1.0 to 2.1.0 compare these with the 398 weights of BERT-large.
        """
        for name in tf1_names:
            self.event(constants.WEIGHTS_INITIALIZATION, metadata={"tensor": name})

    def init_stop(self, *, time_ms: int | None = None) -> None:
        """Log the end of the initialisation."""
        self.end(constants.INIT_STOP, time_ms=time_ms)
        self._steps_done.add("init_stop")

    @contextlib.contextmanager
    def run(self, *, time_ms: int | None = None) -> Iterator["Run"]:
        """Log run_start, hand out the `Run`, and log exactly one run_stop whatever happens.

        The status is "success" after `Run.succeed`, else "aborted"; exceptions, KeyboardInterrupt
        and SystemExit among them, pass through.

        Raises:
          RuntimeError: a step that the checkers require before run_start is missing, or this
            log has had its run.
        """
        missing = sorted(_BEFORE_RUN - self._steps_done)
        if missing:
            raise RuntimeError(f"call MlperfLog.{', '.join(missing)} before MlperfLog.run")
        if "run" in self._steps_done:
            raise RuntimeError("this log has had its run: one log, one run")
        self._steps_done.add("run")
        self.start(constants.RUN_START, time_ms=time_ms)
        run = Run(self)
        try:
            yield run
        finally:
            run.stop_unless_stopped()

    def event(
        self,
        key: str,
        value: object = None,
        metadata: Mapping[str, object] | None = None,
        *,
        time_ms: int | None = None,
    ) -> None:
        """Log a point in time. NumPy values and non-finite numbers become plain JSON.

        Raises:
          TypeError: a value that JSON cannot hold.
        """
        self._mllog.event(key, _json_safe(value), _json_safe(metadata or {}), time_ms=time_ms)

    def start(
        self,
        key: str,
        metadata: Mapping[str, object] | None = None,
        *,
        time_ms: int | None = None,
    ) -> None:
        """Log the start of an interval."""
        self._mllog.start(key, None, _json_safe(metadata or {}), time_ms=time_ms)

    def end(
        self,
        key: str,
        metadata: Mapping[str, object] | None = None,
        *,
        time_ms: int | None = None,
    ) -> None:
        """Log the end of an interval."""
        self._mllog.end(key, None, _json_safe(metadata or {}), time_ms=time_ms)

    def _close_handlers(self) -> None:
        for handler in self._handlers:
            self._mllog.logger.removeHandler(handler)
            handler.close()


class Run:
    """The timed part of a run, between run_start and run_stop; made by `MlperfLog.run`.

    Attributes:
      samples: how many samples have been trained so far. `block_stop` and `eval_accuracy` set it;
        the training loop may set it more often, so that an aborted run logs the right number.
      is_stopped: run_stop has been logged.
    """

    def __init__(self, log: MlperfLog) -> None:
        self.samples = 0
        self.is_stopped = False
        self._log = log
        self._block_start_samples = 0

    def block_start(self, samples: int, *, num_samples: int, time_ms: int | None = None) -> None:
        """Log the start of a stretch of training.

        Args:
          samples: trained before it.
          num_samples: to be trained in it, 1 or more.
          time_ms: when, if not now.
        """
        self._require_running()
        if num_samples < 1:
            raise ValueError(f"num_samples={num_samples}: a block trains 1 sample or more")
        self._block_start_samples = samples
        metadata = {
            "first_epoch_num": samples,
            "epoch_count": num_samples,
            "samples_count": samples,
        }
        self._log.start(constants.BLOCK_START, metadata, time_ms=time_ms)

    def block_stop(self, samples: int, *, time_ms: int | None = None) -> None:
        """Log the end of a stretch of training, with `samples` trained so far."""
        self._require_running()
        self.samples = samples
        metadata = {"first_epoch_num": self._block_start_samples, "samples_count": samples}
        self._log.end(constants.BLOCK_STOP, metadata, time_ms=time_ms)

    def eval_samples(self, num_samples: int, *, time_ms: int | None = None) -> None:
        """Log how many samples every evaluation has, when this was not known before the run."""
        self._require_running()
        self._log.event(constants.EVAL_SAMPLES, num_samples, time_ms=time_ms)

    def eval_start(self, samples: int, *, time_ms: int | None = None) -> None:
        """Log the start of the evaluation after `samples` trained."""
        self._require_running()
        self._log.start(constants.EVAL_START, _position(samples), time_ms=time_ms)

    def eval_stop(self, samples: int, *, time_ms: int | None = None) -> None:
        """Log the end of the evaluation after `samples` trained."""
        self._require_running()
        self._log.end(constants.EVAL_STOP, _position(samples), time_ms=time_ms)

    def eval_accuracy(
        self, value: float, samples: int, step: int, *, time_ms: int | None = None
    ) -> None:
        """Log the masked-LM accuracy after `samples` trained in `step` steps.

        Raises:
          ValueError: an accuracy outside 0 to 1, NaN among them: the checkers would take it, or
            crash on it.
        """
        self._require_running()
        if not 0.0 <= value <= 1.0:
            raise ValueError(
                f"masked-LM accuracy {value} after {samples} samples: an accuracy lies in 0 to 1; "
                "look for NaN weights or an evaluation without masked tokens"
            )
        self.samples = samples
        metadata = {**_position(samples), "step_num": step}
        self._log.event(constants.EVAL_ACCURACY, value, metadata, time_ms=time_ms)

    def checkpoint_start(self, step: int, *, time_ms: int | None = None) -> None:
        """Log that the checkpoint of `step` is being written. Allowed after run_stop."""
        self._log.start("checkpoint_start", {"step_num": step}, time_ms=time_ms)

    def checkpoint_stop(self, step: int, *, time_ms: int | None = None) -> None:
        """Log that the checkpoint of `step` has been written. Allowed after run_stop."""
        self._log.end("checkpoint_stop", {"step_num": step}, time_ms=time_ms)

    def event(
        self,
        key: str,
        value: object = None,
        metadata: Mapping[str, object] | None = None,
        *,
        time_ms: int | None = None,
    ) -> None:
        """Log an event of one's own, such as the throughput of a block.

        Raises:
          ValueError: the line would hold a word that the official checkers search lines for.
        """
        text = json.dumps(_json_safe([key, value, metadata or {}]))
        for word in _WORDS_OF_THE_CHECKERS:
            if word in text:
                raise ValueError(f"event {key!r} holds {word!r}, which the checkers would misread")
        self._log.event(key, value, metadata, time_ms=time_ms)

    def succeed(self, *, samples: int | None = None, time_ms: int | None = None) -> None:
        """Stop the clock: the target is reached. Logs train_samples and run_stop at once.

        Args:
          samples: trained up to the evaluation that reached the target; default `self.samples`.
          time_ms: when; for an evaluation after training, the time of the checkpoint that passed.

        Raises:
          RuntimeError: the run has stopped already.
        """
        if samples is not None:
            self.samples = samples
        self._stop(constants.SUCCESS, time_ms)

    def abort(self, *, time_ms: int | None = None) -> None:
        """Stop the clock without success. Logs train_samples and run_stop at once.

        Raises:
          RuntimeError: the run has stopped already.
        """
        self._stop(constants.ABORTED, time_ms)

    def stop_unless_stopped(self) -> None:
        """Log train_samples and run_stop with status "aborted" if the run has not succeeded."""
        if not self.is_stopped:
            self._stop(constants.ABORTED, None)

    def _stop(self, status: str, time_ms: int | None) -> None:
        self._require_running()
        self.is_stopped = True
        # The checkers read train_samples only before run_stop.
        self._log.event(constants.TRAIN_SAMPLES, self.samples, time_ms=time_ms)
        self._log.end(constants.RUN_STOP, {"status": status}, time_ms=time_ms)

    def _require_running(self) -> None:
        if self.is_stopped:
            raise RuntimeError("run_stop has been logged: the run is over")


def _position(samples: int) -> dict[str, int]:
    return {"epoch_num": samples, "samples_count": samples}


def _hyperparameter_events(given: Hyperparameters) -> dict[str, object]:
    """Return log key -> value; both spellings of epsilon, of which each ruleset wants one."""
    events: dict[str, object] = {
        constants.SEED: given.seed,
        constants.GLOBAL_BATCH_SIZE: given.global_batch_size,
        constants.GRADIENT_ACCUMULATION_STEPS: given.gradient_accumulation_steps,
        constants.MAX_SEQUENCE_LENGTH: given.max_seq_length,
        "max_predictions_per_seq": given.max_predictions_per_seq,
        constants.EVAL_SAMPLES: given.num_eval_samples,
        constants.OPT_NAME: given.optimizer,
        constants.OPT_BASE_LR: given.learning_rate,
        constants.OPT_LR_TRAINING_STEPS: given.num_train_steps,
        constants.OPT_LR_WARMUP_STEPS: given.num_warmup_steps,
        constants.NUM_WARMUP_STEPS: given.num_warmup_steps,
        constants.START_WARMUP_STEP: given.start_warmup_step,
        "opt_epsilon": given.epsilon,
    }
    if given.num_eval_samples is None:
        del events[constants.EVAL_SAMPLES]
    if given.optimizer == constants.ADAMW:
        return events | {
            constants.OPT_ADAMW_EPSILON: given.epsilon,
            constants.OPT_ADAMW_BETA_1: given.beta_1,
            constants.OPT_ADAMW_BETA_2: given.beta_2,
            constants.OPT_ADAMW_WEIGHT_DECAY: given.weight_decay_rate,
        }
    return events | {
        constants.OPT_LAMB_EPSILON: given.epsilon,
        constants.OPT_LAMB_BETA_1: given.beta_1,
        constants.OPT_LAMB_BETA_2: given.beta_2,
        constants.OPT_LAMB_WEIGHT_DECAY: given.weight_decay_rate,
        constants.OPT_LAMB_LR_DECAY_POLY_POWER: given.poly_power,
    }


def _make_mllogger(handlers: list[logging.Handler]) -> MLLogger:
    """Return an MLLogger over a logger of its own.

    mllog's default logger is global and gains a handler each time it is asked for: two runs in
    one process would write into each other's files, and every line twice.
    """
    logger = logging.Logger(constants.DEFAULT_LOGGER_NAME, level=logging.INFO)
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)
    # root_dir serves as a regular expression there.
    return MLLogger(logger, root_dir=re.escape(str(_PROJECT_ROOT)))


def _make_folders(folder: Path) -> list[Path]:
    """Create a folder with its parents; return those that were missing, deepest first."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return missing


def _json_safe(value: object) -> object:
    """Return `value` as plain JSON: NumPy unwrapped, NaN and the infinities as words."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _json_safe(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_json_safe(entry) for entry in value]
    raise TypeError(f"{value!r} ({type(value).__name__}) cannot stand in a JSON log line")
