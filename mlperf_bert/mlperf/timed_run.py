"""The timed part of a run in its log, from run_start to exactly one run_stop."""

from typing import TYPE_CHECKING

from mlperf_logging.mllog import constants

from mlperf_bert.mlperf import energy, ledger
from mlperf_bert.mlperf.energy import Energy, Meter
from mlperf_bert.mlperf.ledger import Ledger

if TYPE_CHECKING:  # it imports this module
    from mlperf_bert.mlperf.log import MllogWriter


class Run:
    """The timed part of a run, between run_start and run_stop; made by `MlperfLog.run`.

    After run_stop only checkpoints may be logged: all else raises a RuntimeError.

    Attributes:
      samples: how many samples have been trained so far. `block_stop` and `eval_accuracy` set it;
        the training loop may set it more often, so that an aborted run logs the right number.
      is_stopped: run_stop has been logged.
      ledger: where the time goes since the run's start. Once anything but host work is counted, its
        seconds are logged after every block and before run_stop, with the joules of `meter`.
      meter: what the run takes of energy, logged after every checkpoint and before run_stop; None:
        it is not measured.
    """

    def __init__(self, log: "MllogWriter", meter: Meter | None = None) -> None:
        self.samples = 0
        self.is_stopped = False
        self.ledger = Ledger()
        self.meter = meter
        if meter:
            meter.start()
        self._num_eval_samples: int | None = None
        self._log = log
        self._block_start_samples = 0
        self._block_start_seconds = self.ledger.read()
        self._block_start_joules: float | None = None

    def block_start(self, samples: int, *, num_samples: int) -> None:
        """Log the start of a block that trains `num_samples`, 1 or more, after `samples`."""
        self._require_running()
        if num_samples < 1:
            raise ValueError(f"num_samples={num_samples}: a block trains 1 sample or more")
        self._block_start_samples = samples
        self._block_start_seconds = self.ledger.read()
        metadata = {
            "first_epoch_num": samples,
            "epoch_count": num_samples,
            "samples_count": samples,
        }
        self._log.start(constants.BLOCK_START, metadata)
        self._block_start_joules = self._enter(energy.TRAINING)

    def block_stop(self, samples: int) -> None:
        """Log the end of a block of training, with `samples` trained so far."""
        self._require_running()
        self.samples = samples
        metadata = {"first_epoch_num": self._block_start_samples, "samples_count": samples}
        self._log.end(constants.BLOCK_STOP, metadata)
        joules, before = self._enter(energy.OTHER), self._block_start_joules
        seconds = ledger.difference(self.ledger.read(), self._block_start_seconds)
        taken = None if joules is None or before is None else joules - before
        self._log_ledger(seconds, {**metadata, "of": "block"}, joules=taken)

    def eval_samples(self, num_samples: int) -> None:
        """Log the number of samples of every evaluation, if it was not known before the run."""
        self._require_running()
        self._num_eval_samples = num_samples
        self._log.event(constants.EVAL_SAMPLES, num_samples)

    def eval_start(self, samples: int) -> None:
        """Log the start of the evaluation after `samples` trained."""
        self._require_running()
        self._log.start(constants.EVAL_START, _position(samples))
        self._enter(energy.EVALUATION)

    def eval_stop(self, samples: int) -> None:
        """Log the end of the evaluation after `samples` trained."""
        self._require_running()
        self._log.end(constants.EVAL_STOP, _position(samples))
        self._enter(energy.OTHER)

    def eval_accuracy(
        self, value: float, samples: int, step: int, *, num_eval_samples: int | None = None
    ) -> None:
        """Log the masked-LM accuracy after `samples` trained in `step` steps.

        Raises:
          ValueError: the accuracy is outside 0 to 1, or NaN: the checkers would accept it, or
            crash. Or `num_eval_samples`, on which it was computed, is not the number that was
            logged for every evaluation.
        """
        self._require_running()
        expected = self._num_eval_samples
        if None not in (num_eval_samples, expected) and num_eval_samples != expected:
            raise ValueError(
                f"the evaluation after {samples} samples covered {num_eval_samples} examples, and "
                f"the log says {expected} for all: the files of --eval_input_file have changed; "
                "start a new run with files that stay as they are"
            )
        if not 0.0 <= value <= 1.0:
            raise ValueError(
                f"masked-LM accuracy {value} after {samples} samples: must be from 0 to 1; "
                "look for NaN weights or an evaluation without masked tokens"
            )
        self.samples = samples
        metadata = {**_position(samples), "step_num": step}
        self._log.event(constants.EVAL_ACCURACY, value, metadata)

    def checkpoint_start(self, step: int) -> None:
        """Log that the checkpoint of `step` is being written."""
        self._log.start("checkpoint_start", {"step_num": step})

    def checkpoint_stop(self, step: int) -> None:
        """Log that the checkpoint of `step` has been written."""
        self._log.end("checkpoint_stop", {"step_num": step})
        if self.meter and not self.is_stopped:
            self.log_energy(self.meter.read(), of="checkpoint", step_num=step)

    def time_budget_spent(self, step: int, *, seconds: float) -> None:
        """Log how much of its time budget the run has used."""
        self._require_running()
        metadata = {**_position(self.samples), "step_num": step}
        self._log.event("time_budget_spent", round(seconds, 3), metadata)

    def succeed(self) -> None:
        """Stop the clock: the target is reached. Logs train_samples and run_stop at once."""
        self._stop(constants.SUCCESS)

    def abort(self, **metadata: object) -> None:
        """Stop the clock without success, with `metadata` in run_stop; as `succeed`."""
        self._stop(constants.ABORTED, **metadata)

    def stop_unless_stopped(self) -> None:
        """Log train_samples and run_stop with status "aborted" if the run has not succeeded."""
        if not self.is_stopped:
            self.abort()

    def _stop(self, status: str, **metadata: object) -> None:
        self._require_running()
        self.is_stopped = True
        self.ledger.stop()
        taken = self.meter.stop() if self.meter else None
        joules = taken.joules if taken else None
        metadata_of_run = {**_position(self.samples), "of": "run"}
        self._log_ledger(self.ledger.read(), metadata_of_run, joules=joules)
        if taken:
            self.log_energy(taken, of="run")
        # The checkers read train_samples only before run_stop.
        self._log.event(constants.TRAIN_SAMPLES, self.samples)
        self._log.end(constants.RUN_STOP, {"status": status, **metadata})

    def log_energy(self, taken: Energy, *, of: str, **metadata: object) -> None:
        """Log the energy since the start of the run, up to its end or up to a checkpoint."""
        value, remarks = taken.as_event()
        self._log.event(energy.LOG_KEY, value, {"of": of, **metadata, **remarks})

    def _enter(self, phase: str) -> float | None:
        """Returns the joules until now, if they are known."""
        return self.meter.enter(phase).joules if self.meter else None

    def _log_ledger(
        self, seconds: ledger.Seconds, metadata: dict[str, object], *, joules: float | None
    ) -> None:
        """With the energy of the same time, if it is known."""
        if not any(seconds[kind] for kind in ledger.KINDS if kind != ledger.HOST):
            return
        utilization = ledger.accelerator_utilization(seconds)
        value = {**ledger.as_fields(seconds), "accelerator_utilization": utilization}
        if joules is not None:
            value["joules"] = joules
        rounded = {name: round(number, 6) for name, number in value.items()}
        self._log.event(ledger.LOG_KEY, rounded, metadata)

    def _require_running(self) -> None:
        if self.is_stopped:
            raise RuntimeError("run_stop has been logged: the run is over")


def _position(samples: int) -> dict[str, int]:
    return {"epoch_num": samples, "samples_count": samples}
