"""One run: trains a task with one learning rate and seed, evaluates each epoch, saves, resumes."""

import contextlib
import dataclasses
import functools
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tf_keras

from mlperf_bert.checkpoints.state import RunState, newest_checkpoint
from mlperf_bert.data.examples import hint_of_unknown
from mlperf_bert.finetuning import events, training
from mlperf_bert.finetuning import model as task_model
from mlperf_bert.finetuning.config import FinetuningConfig, Setting, Task
from mlperf_bert.finetuning.glue import TRAIN
from mlperf_bert.finetuning.splits import Split
from mlperf_bert.finetuning.training import Predicts, TaskTrainer
from mlperf_bert.finetuning.weights import Source
from mlperf_bert.messages import Progress, lasting
from mlperf_bert.mlperf.logs import is_end
from mlperf_bert.optimization.optimizers import WarmupPolynomialDecay
from mlperf_bert.signals import StopRequest
from mlperf_bert.training import loop
from mlperf_bert.training.events import LastStep, RequireFinite, StopOnSignal
from mlperf_bert.training.loop import Event
from mlperf_bert.training.output import METRICS_NAME, RECORD_NAME, OutputDirectory, read_record
from mlperf_bert.training.reporting import MetricsWriter


class Prepared:
    """A task and the model to begin with; splits are read and encoded at their first use."""

    def __init__(self, task: Task, source: Source):
        self.task, self.source = task, source
        self._splits: dict[str, Split] = {}

    @lasting("reading and encoding examples")
    def split(self, name: str) -> Split:
        """A split.

        Raises:
          ValueError: as `Task.read`, or it is empty.
        """
        if name not in self._splits:
            examples: Sequence[Any] = self.task.read(name)
            features = self.task.encode(examples, self.source.tokenizer, is_training=name == TRAIN)
            if not len(features["input_ids"]):
                raise ValueError(
                    f"{self.task.name}: no examples of {name}: its file holds no text; copy it "
                    "here again"
                )
            unknown = np.count_nonzero(
                features["input_ids"] == self.source.tokenizer.vocabulary["[UNK]"]
            )
            num_tokens = np.count_nonzero(features["input_mask"])
            if hint := hint_of_unknown(f"{self.task.name}, {name}", int(unknown), int(num_tokens)):
                print(hint, file=sys.stderr)
            self._splits[name] = Split(examples=examples, features=features)
            print(f"{self.task.name}: {len(examples):,} examples of {name}", file=sys.stderr)
        return self._splits[name]


class TaskRun:
    """A run in a folder of its own."""

    def __init__(
        self, config: FinetuningConfig, prepared: Prepared, setting: Setting, *, folder: Path
    ):
        """Reads the examples to train on and to evaluate, if nothing has yet; writes nothing."""
        self._config, self._prepared = config, prepared
        self._task, self._source = prepared.task, prepared.source
        self.setting, self.folder = setting, folder
        self._epochs = events.Epochs(
            number=config.num_train_epochs,
            num_features=prepared.split(TRAIN).num_features,
            batch_size=config.train_batch_size,
        )
        self._output = OutputDirectory(str(folder), self._parameters())

    def _parameters(self) -> dict:
        """What the result depends on."""
        config, ready = self._config, self._prepared
        model = dataclasses.asdict(self._source.config)
        splits = (TRAIN, *self._task.eval_splits)
        return {
            "task": self._task.name,
            "checkpoint": self._source.name,
            "weights_sha256": self._source.sha256,
            **{f"bert_config.{name}": value for name, value in model.items()},
            "max_seq_length": config.max_seq_length,
            "train_batch_size": config.train_batch_size,
            "learning_rate": self.setting.learning_rate,
            "num_train_epochs": config.num_train_epochs,
            "warmup_proportion": config.warmup_proportion,
            "precision": config.precision,
            "runtime": config.runtime,
            **{f"{name}_sha256": ready.split(name).sha256 for name in splits},
        }

    def is_finished(self) -> bool:
        """Whether the run has ended in an earlier process.

        Raises:
          ValueError: the folder holds another run, or its records are damaged.
        """
        if not (self.folder / RECORD_NAME).exists() or not is_end(read_record(self.folder).status):
            return False
        self._output.require_same_run()
        return bool(self.epochs)

    @functools.cached_property
    def epochs(self) -> list[dict[str, dict[str, float]]]:
        """Of a finished run split -> metric -> value after each epoch, of earlier processes too.

        Raises:
          ValueError: metrics.jsonl is damaged.
        """
        path, epochs = self.folder / METRICS_NAME, []
        try:
            for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
                if line["kind"] == "eval":
                    epoch: dict[str, dict[str, float]] = {}
                    for name, value in line.items():
                        split, _, metric = name.partition("/")
                        if metric:
                            epoch.setdefault(split, {})[metric] = float(value)
                    epoch[self._task.eval_splits[0]][self._task.main_metric]  # it must be there
                    epochs.append(epoch)
            epochs[self._config.num_train_epochs - 1]
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path}: damaged, an epoch is missing ({error}); remove the folder {self.folder} "
                "to train again"
            ) from error
        return epochs

    @property
    def score(self) -> float:
        """What runs are compared by: the main metric after the last epoch, on the first dev set."""
        return self.epochs[-1][self._task.eval_splits[0]][self._task.main_metric]

    def train(self, stop: StopRequest) -> None:
        """Trains all epochs, or those that an earlier process has left.

        A signal interrupts at once until the first step, then between two steps.

        Raises:
          ValueError: bad input, or the folder holds another run.
          FloatingPointError: the loss or a logit is not finite.
          Interrupted: a signal came; the checkpoint is saved.
        """
        self._output.claim()
        try:
            resumes = bool(self._output.before)
            trainer, state = self._build()
            self._output.record(status="running", seed=self.setting.seed)
            if resumes and (path := newest_checkpoint(str(self.folder))[1]):
                state.restore(path)
            trainer.put_state()
            step = int(trainer.step.numpy())
            stop.defer()
            with (
                contextlib.closing(
                    MetricsWriter(self.folder, resumed_step=step if resumes else None)
                ) as metrics,
                Progress(
                    total=self._epochs.examples(self._epochs.num_steps),
                    unit="examples",
                    description=f"{self._task.name}, {self.setting}",
                    initial=self._epochs.examples(step),
                ) as progress,
            ):
                batches = training.training_batches(
                    self._prepared.split(TRAIN).features,
                    size=self._config.train_batch_size,
                    seed=self.setting.seed,
                    step=step,
                )
                loop.train(
                    lambda num_steps: (trainer.train(batches, num_steps), 0.0),
                    self._events(trainer, state, metrics, progress, stop),
                    step=step,
                )
            self._output.record(status="success", seed=self.setting.seed)
        finally:
            self._output.release()

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
        with contextlib.redirect_stdout(None):  # "Going on from": no training does
            state.restore(path)
        trainer.put_state()
        for split in splits:
            yield split, self._outputs(trainer, split)

    def remove_checkpoints(self) -> None:
        """Leaves records and metrics."""
        for path in self.folder.glob("*"):
            if path.name == "checkpoint" or path.name.startswith("model.ckpt-"):
                # A killed process leaves a folder: model.ckpt-N_temp.
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _build(self) -> tuple[Predicts, RunState]:
        config = self._config
        tf_keras.backend.clear_session()  # of the run before
        num_steps = self._epochs.num_steps
        trainer = TaskTrainer(
            build_model=lambda: task_model.build(
                self._task,
                self._source,
                seed=self.setting.seed,
                precision=config.precision,
            ),
            schedule=WarmupPolynomialDecay(
                learning_rate=self.setting.learning_rate,
                num_train_steps=num_steps,
                num_warmup_steps=int(config.warmup_proportion * num_steps),
            ),
        )
        computing: Predicts = trainer
        if config.runtime == "jax":
            from mlperf_bert.finetuning import by_jax  # no other runtime loads jax

            computing = by_jax.JaxTaskTrainer(trainer, by_jax.mesh_of(config))
        return computing, RunState(
            str(self.folder),
            parts=computing.state,
            keep_checkpoint_max=1,
            fetch=computing.fetch_state,
        )

    def _events(
        self,
        trainer: Predicts,
        state: RunState,
        metrics: MetricsWriter,
        progress: Progress,
        stop: StopRequest,
    ) -> list[Event]:
        """What the run does between its device calls, in this order."""

        def scores() -> dict[str, float]:
            return {
                f"{name}/{metric}": value
                for name in self._task.eval_splits
                for metric, value in self._task.metrics(
                    self._prepared.split(name), self._outputs(trainer, name)
                ).items()
            }

        # A signal waits for the end of a call: on a CPU one step takes seconds.
        longest = 1 if self._config.device.kind == "CPU" else events.LOG_EVERY_STEPS
        return [
            # First: no NaN is written, evaluated or saved.
            RequireFinite(lambda n, loss: self._diverged(f"the loss of step {n} is {loss}")),
            events.Log(self._epochs, metrics, progress),
            events.Evaluate(
                self._epochs,
                scores,
                metrics,
                lambda what: progress.line(f"{self._task.name}, {self.setting}: {what}"),
            ),
            # After the evaluation, which a resumed run does not repeat.
            events.Save(self._epochs, state, self._config.save_checkpoints_steps),
            LastStep(self._epochs.num_steps, longest_call_steps=longest),
            # Last: a run that ends anyway is not interrupted, and its `end` raises.
            StopOnSignal(stop, trainer.gathered),
        ]

    def _outputs(self, trainer: Predicts, name: str) -> np.ndarray:
        """The logits of a split."""
        split = self._prepared.split(name)
        with Progress(
            total=split.num_features, unit="features", description=f"{self._task.name}, {name}"
        ) as progress:
            outputs = training.predictions(
                trainer,
                split.features,
                size=self._config.eval_batch_size,
                on_features=progress.advance,
            )
        if not np.isfinite(outputs).all():  # the last update, whose loss was still finite
            raise self._diverged(f"a logit of {name} is infinite or not a number")
        return outputs

    def _diverged(self, found: str) -> FloatingPointError:
        return FloatingPointError(
            f"{self._task.name}, {self.setting}: {found}: training has diverged; lower "
            "--learning_rate (with --sweep: leave this one out of --learning_rates), or check the "
            "checkpoint"
        )
