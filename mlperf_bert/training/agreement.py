"""Before a run starts, its processes compare flags and data, and share the seed and the step."""

import contextlib
import dataclasses
import secrets
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

from mlperf_bert.checkpoints import state
from mlperf_bert.files import paths
from mlperf_bert.files.reading import read_regular_file
from mlperf_bert.input import pipeline
from mlperf_bert.mlperf import budget
from mlperf_bert.mlperf.results import samples_at_success
from mlperf_bert.signals import Interrupted
from mlperf_bert.training import peers
from mlperf_bert.training.config import RunConfig
from mlperf_bert.training.output import OutputDirectory, read_record, run_logs

# All processes raise these at the same step.
_AGREED_ENDS = (Interrupted, FloatingPointError)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Team:
    """The processes of a run, seen from one of them."""

    is_chief: bool
    output: OutputDirectory
    """Locked by the chief until the end."""
    seed: int
    resumes: bool
    """Whether the run was started before."""
    latest_step: int | None
    """The step of the chief's newest checkpoint at the start; None without one."""
    others: peers.Peers | None
    on_loss: contextlib.ExitStack
    """What this process does when another one is lost; the last callback runs first."""
    time_spent: float = 0.0
    """Seconds that the run has used of its time budget before."""
    samples_at_success: float | None = None
    """After how many samples the run has reached its target before; it has only to end then."""

    @property
    def goes_on(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return self.resumes and self.latest_step is not None

    def log_path(self) -> Path | None:
        """Where this process writes its MLPerf log; None if it writes none."""
        return self.output.log_path() if self.is_chief else None

    def record(self, status: str) -> None:
        """Writes run.json, on the chief."""
        if self.is_chief:
            self.output.record(status=status, seed=self.seed)

    def publish(self) -> None:
        """Uploads logs and metrics, on the chief, if they belong in a bucket."""
        if self.is_chief:
            self.output.publish()

    def say(self, text: object) -> None:
        """Prints a line, on the chief."""
        if self.is_chief:
            print(text, flush=True)

    def require_same_step(self, latest_step: int | None) -> None:
        """Checks that this process sees the chief's newest checkpoint.

        Raises:
          ValueError: it sees another one.
        """
        if latest_step != self.latest_step:
            raise ValueError(
                f"--output_dir: this process finds the checkpoint of step {latest_step}, the chief "
                f"that of {self.latest_step}; give a directory that all processes share"
            )

    @contextlib.contextmanager
    def failures_reported(self) -> Iterator[None]:
        """Reports a failure of this part of the run to the other processes."""
        try:
            yield
        except _AGREED_ENDS:
            self._leave(None)
            raise
        except tf.errors.OpError as error:
            loss = self._loss(str(error))
            self._leave(loss or _first_line(error))
            if loss:
                raise OSError(loss) from error
            raise
        except BaseException as error:
            self._leave(_first_line(error))
            raise

    def _loss(self, tensorflow_error: str) -> str | None:
        if not self.others:
            return None
        self.others.await_end()
        return self.others.loss(tensorflow_error)

    def finish(self) -> None:
        """Reports to the other processes that this one has ended as agreed."""
        self._leave(None)

    def _leave(self, failure: str | None) -> None:
        self.output.release()
        if self.others:
            self.others.leave(failure)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def agree(config: RunConfig) -> Team:
    """Connects to the other processes, if any; from then on the loss of one ends this process.

    The chief locks the output directory before it decides anything.

    Raises:
      ValueError: flags or data differ (the message names the process and the difference), or the
        output directory cannot be used.
      OSError: a process is missing.
    """
    cluster = config.cluster
    output = OutputDirectory(config.output_dir, config.parameters(), may_change=config.may_change)
    output.time_budget = config.time_budget
    on_loss = contextlib.ExitStack()
    on_loss.callback(output.release)  # os._exit in peers.py runs no `finally`
    try:
        others = None
        if cluster is None:
            decision = _decide(config, output)
        else:
            others, decision = peers.meet(
                cluster, _compared(config), lambda: _decide(config, output), folder=output.location
            )
            others.watch(on_loss=on_loss.close)
        return Team(
            is_chief=cluster is None or cluster.is_chief,
            output=output,
            others=others,
            on_loss=on_loss,
            **decision,
        )
    except BaseException:
        output.release()
        raise


def _decide(config: RunConfig, output: OutputDirectory) -> dict:
    output.claim()
    seed = secrets.randbits(31) if config.seed is None else config.seed
    latest_step = state.latest_step(config.output_dir)
    spent = time_spent(config, output, latest_step=latest_step)
    return {
        "seed": read_record(output.path).seed if output.resumes else seed,
        "resumes": output.resumes,
        "latest_step": latest_step,
        "time_spent": spent,
        "samples_at_success": samples_at_success(run_logs(output.path)) if output.resumes else None,
    }


def require_known_course(
    config: RunConfig, output: OutputDirectory, *, latest_step: int | None
) -> None:
    """Checks what a resumed run reads of its logs, for --check.

    Raises:
      ValueError: as `time_spent`, or a log is damaged.
    """
    time_spent(config, output, latest_step=latest_step)
    if output.resumes:
        samples_at_success(run_logs(output.path))


def time_spent(config: RunConfig, output: OutputDirectory, *, latest_step: int | None) -> float:
    """The seconds that the run has used of its time budget; see `OutputDirectory.time_spent`.

    Raises:
      ValueError: the budget is used up and nothing is saved, or as there.
    """
    spent = output.time_spent()
    if config.time_budget is not None and spent >= config.time_budget and not latest_step:
        raise ValueError(
            f"--time_budget={budget.in_words(config.time_budget)}: the run in "
            f"--output_dir={config.output_dir} has used {budget.in_words(spent)} already "
            "and has saved no step; give more"
        )
    return spent


def _compared(config: RunConfig) -> dict:
    """Everything that must be equal on all processes, by flag."""
    flags = dataclasses.asdict(config)
    del flags["cluster"]  # it has the index of the process
    return {
        **flags,
        "TensorFlow": tf.__version__,
        "data of --input_file": _sizes(config.input_file, "input_file"),
        "data of --eval_input_file": _sizes(config.eval_input_file, "eval_input_file"),
        "content of --bert_config_file": _content(config.bert_config_file),
    }


def _sizes(patterns: str | None, flag: str) -> dict[str, int] | str:
    try:
        files = pipeline.expand_input(patterns, flag=flag) if patterns else []
        return dict(zip(files, paths.in_parallel(paths.size_bytes, files)))
    except (ValueError, OSError, tf.errors.OpError) as error:
        return str(error)


def _content(path: str) -> str:
    try:
        return " ".join(read_regular_file(path).decode(errors="replace").split())
    except FileNotFoundError:
        return "no such file"
    except (ValueError, OSError) as error:
        return str(error)
