"""One run: trains a task with one learning rate and seed, evaluates each epoch, saves, resumes."""

import contextlib
import dataclasses
import functools
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tf_keras

from mlperf_bert.checkpoints.state import RunState, newest_checkpoint
from mlperf_bert.data.examples import hint_of_unknown
from mlperf_bert.files import errors
from mlperf_bert.finetuning import model as task_model
from mlperf_bert.finetuning import task_trainer
from mlperf_bert.finetuning.config import FinetuningConfig, Setting, Task
from mlperf_bert.finetuning.splits import TRAIN, Split
from mlperf_bert.finetuning.task_trainer import TaskTrainer, TaskTrainerContract
from mlperf_bert.finetuning.weights import PretrainedModel
from mlperf_bert.messages import ERROR, Finding, Progress, lasting
from mlperf_bert.mlperf.log_reader import is_end
from mlperf_bert.optimization.optimizers import WarmupPolynomialDecay
from mlperf_bert.signals import StopRequest
from mlperf_bert.training import loop
from mlperf_bert.training.events import LastStep, RequireFinite
from mlperf_bert.training.loop import Event, Trained, next_multiple
from mlperf_bert.training.output import METRICS_NAME, RECORD_NAME, OutputDirectory, read_record
from mlperf_bert.training.reporting import MetricsWriter

_LOG_EVERY_STEPS = 10


@lasting("reading and encoding examples")
def read_split(task: Task, source: PretrainedModel, name: str) -> Split:
    """Reads and encodes a split; raises ValueError as `Task.read`, or if it is empty."""
    examples: Sequence[Any] = task.read(name)
    features = task.encode(examples, source.tokenizer, is_training=name == TRAIN)
    ids = features["input_ids"]
    if not len(ids):
        raise ValueError(
            f"{task.name}: no examples of {name}: its file holds no text; copy it here again"
        )
    num_unknown = np.count_nonzero(ids == source.tokenizer.vocabulary["[UNK]"])
    num_tokens = np.count_nonzero(features["input_mask"])
    if hint := hint_of_unknown(f"{task.name}, {name}", int(num_unknown), int(num_tokens)):
        print(hint, file=sys.stderr)
    print(f"{task.name}: {len(examples):,} examples of {name}", file=sys.stderr)
    return Split(examples=examples, features=features)


@functools.cache  # said once, because all runs of a sweep compute alike
def _tell(finding: Finding) -> None:
    print(finding, file=sys.stderr)


@dataclasses.dataclass
class Every(Event):
    """Acts after every `num_steps` steps."""

    num_steps: int
    act: Callable[[Trained], None]

    def next(self, step: int) -> int:
        """The next step at which it acts."""
        return next_multiple(step, self.num_steps)

    def at(self, trained: Trained) -> None:
        """Acts if it is due."""
        if trained.step % self.num_steps == 0:
            self.act(trained)


class TaskRun:
    """A run in a folder of its own."""

    def __init__(
        self,
        config: FinetuningConfig,
        task: Task,
        source: PretrainedModel,
        splits: Mapping[str, Split],
        setting: Setting,
    ):
        """Writes nothing; `splits` are the splits to train on, evaluate and predict, by name."""
        self._config, self._task, self._source = config, task, source
        self._splits, self.setting = splits, setting
        self.folder = Path(config.output_dir, task.name, setting.folder)
        self._name = f"{task.name}, {setting}"
        self._num_features = len(splits[TRAIN].features["input_ids"])
        # The last batch of an epoch can be short.
        self._steps_per_epoch = -(-self._num_features // config.train_batch_size)
        self._num_steps = config.num_train_epochs * self._steps_per_epoch
        self._output = OutputDirectory(str(self.folder), self._parameters())
        self.main_metric = f"{self._task.eval_splits[0]}/{self._task.main_metric}"
        """The key of `epochs` by which runs are compared."""

    def _parameters(self) -> dict:
        """The parameters that decide the result."""
        config = self._config
        model = dataclasses.asdict(self._source.config)
        return {
            "task": self._task.name,
            "checkpoint": self._source.name,
            "weights_sha256": self._source.sha256,
            **{f"bert_config.{name}": value for name, value in model.items()},
            "max_seq_length": self._task.max_seq_length,
            "train_batch_size": config.train_batch_size,
            "learning_rate": self.setting.learning_rate,
            "num_train_epochs": config.num_train_epochs,
            "warmup_proportion": config.warmup_proportion,
            "precision": config.precision,
            "runtime": config.runtime,
            **{
                f"{name}_sha256": self._splits[name].sha256
                for name in (TRAIN, *self._task.eval_splits)
            },
        }

    def _num_samples(self, step: int) -> int:
        """Examples trained after `step` steps; for SQuAD, windows."""
        epochs, steps = divmod(step, self._steps_per_epoch)
        return epochs * self._num_features + steps * self._config.train_batch_size

    def is_finished(self) -> bool:
        """Whether the run has ended in an earlier process."""
        if not (self.folder / RECORD_NAME).exists() or not is_end(read_record(self.folder).status):
            return False
        self._output.require_same_run()
        return bool(self.epochs)

    @functools.cached_property
    def epochs(self) -> list[dict[str, float]]:
        """Split/metric -> value after each epoch of a finished run, of earlier processes too."""
        path = self.folder / METRICS_NAME
        remedy = f"remove the folder {self.folder} to train again"
        with errors.named(path, damaged=remedy):
            lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
            epochs = [
                {name: float(value) for name, value in line.items() if "/" in name}
                for line in lines
                if line["kind"] == "eval"
            ]
            epochs[self._config.num_train_epochs - 1][self.main_metric]  # it must be there
        return epochs

    @property
    def score(self) -> float:
        """What runs are compared by: the main metric after the last epoch."""
        return self.epochs[-1][self.main_metric]

    def train(self, stop: StopRequest) -> None:
        """Trains all epochs, or those that an earlier process has not finished.

        A signal interrupts at once until the first step, then between two steps.

        Raises:
          ValueError: bad input, or the folder holds another run.
          FloatingPointError: the loss or a logit is not finite.
          KeyboardInterrupt: a signal came; the run resumes from the end of the last epoch.
        """
        self._output.claim()
        try:
            resumes = bool(self._output.earlier_record)
            trainer, state = self._build()
            self._require_fit(trainer)
            self._output.record(status="running", seed=self.setting.seed)
            if path := newest_checkpoint(str(self.folder))[1]:
                state.restore(path)
            trainer.put_state()
            step = int(trainer.step.numpy())
            batches = task_trainer.training_batches(
                self._splits[TRAIN].features,
                size=self._config.train_batch_size,
                seed=self.setting.seed,
                first_epoch=step // self._steps_per_epoch,
            )
            with (
                contextlib.closing(
                    MetricsWriter(self.folder, resumed_step=step if resumes else None)
                ) as metrics,
                Progress(
                    total=self._num_samples(self._num_steps),
                    unit="examples",
                    description=self._name,
                    initial=self._num_samples(step),
                ) as progress,
            ):

                def train_steps(num_steps: int) -> tuple[np.ndarray, float]:
                    stop.defer()  # raises, if a signal came meanwhile
                    losses, done = trainer.train(batches, num_steps), int(trainer.step.numpy())
                    num_trained = self._num_samples(done) - progress.done
                    progress.advance(num_trained, f"loss {losses[-1, 0]:.4f}")
                    return losses, 0.0

                loop.train(train_steps, self._events(trainer, state, metrics, progress), step=step)
            self._output.record(status="success", seed=self.setting.seed)
        finally:
            self._output.release()
        stop.defer()

    def predictions(self, splits: tuple[str, ...]) -> Iterator[tuple[str, np.ndarray]]:
        """Split and logits, by the weights after the last epoch.

        Raises:
          ValueError: a sweep has removed the checkpoint, because another run was better.
          FloatingPointError: a logit is not finite.
        """
        if not (path := newest_checkpoint(str(self.folder))[1]):
            raise ValueError(
                f"{self.folder}: its checkpoint is gone, as that of a run that was not the best of "
                "its sweep; repeat the sweep's command, or remove the folder to train again"
            )
        trainer, state = self._build()
        with contextlib.redirect_stdout(None):  # "Resuming from": no training does
            state.restore(path)
        trainer.put_state()
        for split in splits:
            yield split, self._outputs(trainer, split)

    def remove_checkpoints(self) -> None:
        """Removes all checkpoints; records and metrics stay."""
        for path in self.folder.glob("*"):
            if path.name == "checkpoint" or path.name.startswith("model.ckpt-"):
                # A killed process leaves a folder: model.ckpt-N_temp.
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _build(self) -> tuple[TaskTrainerContract, RunState]:
        config = self._config
        tf_keras.backend.clear_session()  # frees the model of the run before
        trainer = TaskTrainer(
            build_model=lambda: task_model.build(
                self._task, self._source, seed=self.setting.seed, precision=config.precision
            ),
            schedule=WarmupPolynomialDecay(
                learning_rate=self.setting.learning_rate,
                num_train_steps=self._num_steps,
                num_warmup_steps=int(config.warmup_proportion * self._num_steps),
            ),
        )
        computing: TaskTrainerContract = trainer
        if config.runtime == "jax":
            from mlperf_bert.finetuning import by_jax  # no other runtime loads jax

            computing = by_jax.JaxTaskTrainer(trainer, by_jax.mesh_of(config))
        return computing, RunState(
            str(self.folder),
            parts=computing.state,
            keep_checkpoint_max=1,
            fetch=computing.fetch_state,
        )

    @lasting("compiling")
    def _require_fit(self, trainer: TaskTrainerContract) -> None:
        """Compiles before the first step; raises ValueError if the device has too little memory."""
        config, features, row = self._config, self._splits[TRAIN].features, np.arange(1)
        finding = trainer.compile_for(
            task_trainer.batch_of(features, row, config.train_batch_size),
            task_trainer.inputs_of(features, row, config.eval_batch_size),
        )
        if finding and finding.level == ERROR:
            raise ValueError(finding.text)
        if finding:
            _tell(finding)

    def _events(
        self,
        trainer: TaskTrainerContract,
        state: RunState,
        metrics: MetricsWriter,
        progress: Progress,
    ) -> list[Event]:
        """The list of what the run does between its device calls, in this order."""

        def log(trained: Trained) -> None:
            samples = self._num_samples(trained.step)
            metrics.write("train", step=trained.step, samples=samples, loss=trained.figures[-1, 0])

        def end_epoch(trained: Trained) -> None:
            scores = {
                f"{name}/{metric}": value
                for name in self._task.eval_splits
                for metric, value in self._task.metrics(
                    self._splits[name], self._outputs(trainer, name)
                ).items()
            }
            step, epoch = trained.step, trained.step // self._steps_per_epoch
            samples = self._num_samples(step)
            metrics.write("eval", step=step, samples=samples, epoch=epoch, **scores)
            metrics.flush()  # before the checkpoint: a resumed run does not evaluate it again
            listed = ", ".join(f"{name} {value:.2f}" for name, value in scores.items())
            progress.line(f"{self._name}: epoch {epoch}: {listed}")
            state.save(step)

        # A signal waits for the end of a call: on a CPU one step takes seconds.
        longest = 1 if self._config.device.kind == "CPU" else _LOG_EVERY_STEPS
        return [
            # Comes first, so that no NaN is written, evaluated or saved.
            RequireFinite(lambda n, loss: self._diverged(f"the loss of step {n} is {loss}")),
            Every(_LOG_EVERY_STEPS, log),
            Every(self._steps_per_epoch, end_epoch),
            LastStep(self._num_steps, longest_call_steps=longest),
        ]

    @lasting("computing predictions")
    def _outputs(self, trainer: TaskTrainerContract, name: str) -> np.ndarray:
        """The logits of a split."""
        size = self._config.eval_batch_size
        outputs = task_trainer.predictions(trainer, self._splits[name].features, size=size)
        if not np.isfinite(outputs).all():  # the last update diverged; its loss was still finite
            raise self._diverged(f"a logit of {name} is infinite or not a number")
        return outputs

    def _diverged(self, what: str) -> FloatingPointError:
        return FloatingPointError(
            f"{self._name}: {what}: training has diverged; lower --learning_rate (with --sweep: "
            "leave this one out of --learning_rates), or check the checkpoint"
        )
