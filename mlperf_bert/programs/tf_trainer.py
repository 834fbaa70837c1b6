"""The steps of training and evaluation, and the inner loop: what runs on the devices.

Shapes, of one device: R=rows (= its batch without packing), S=sequence, P=predictions of a row,
E=examples of a row, V=vocabulary.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from time import monotonic, sleep

import numpy as np
import tensorflow as tf

from mlperf_bert.mlperf import ledger
from mlperf_bert.mlperf.ledger import Ledger
from mlperf_bert.model import metrics, pretrainer
from mlperf_bert.optimization.optimizers import GradientAggregationOptimizer
from mlperf_bert.programs.config import NO_COMPILATION, STEP_FIGURES, Compilation
from mlperf_bert.programs.contract import LocalState, PretrainerContract


class Trainer(LocalState, tf.Module):
    """Model, optimizer and step counter, with the compiled inner loop over them.

    It computes on one CPU. For other devices, and for several, its two halves, `gradients_of` and
    `apply`, are exported (program.py) and executed with jax (jax_trainer.py).

    With normalization "global", losses are normalised over the global batch (the masked-LM sum of
    all devices is divided by the number of predictions of all devices) and the sum of the gradients
    is clipped: the number of devices does not change the result. The reference lets each device
    normalise its own loss and clip its own gradients, and then sums them on GPUs ("replica_sum") or
    averages them on TPUs ("replica_mean").
    """

    def __init__(
        self,
        *,
        model: tf.Module,
        optimizer: GradientAggregationOptimizer,
        batch_size: int,
        normalization: str = "global",
        compilation: Compilation = NO_COMPILATION,
    ):
        """Wraps the parts; `batch_size` is that of one micro-batch, over all devices."""
        super().__init__(name="trainer")
        self.model = model
        self.optimizer = optimizer
        self.batch_size = batch_size
        self.normalization = normalization
        self.variables_to_train = optimizer.variables_to_train
        self._gradients_of, self._apply = self.gradients_of, self.apply
        if compilation.step:  # as two programs: TensorFlow keeps the order of `_micro_step`
            self._gradients_of, self._apply = (
                tf.function(half, jit_compile=True, autograph=False)
                for half in (self.gradients_of, self.apply)
            )
        with pretrainer.one_replica().scope():
            self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="global_step")

    @property
    def state(self) -> dict[str, object]:
        """What a checkpoint holds, except the position in the input."""
        # These names, and the order within lists, are the keys of a checkpoint: if they change,
        # runs cannot resume from the checkpoints that they have.
        return {
            "model": self.model,
            "optimizer": self.optimizer.optimizer,
            "accumulators": self.optimizer.accumulators,
            "step": self.step,
            "generators": pretrainer.random_generators(self.model),
        }

    @tf.function
    def train(self, iterator, num_steps: tf.Tensor) -> tf.Tensor:
        """Trains `num_steps` (int32 scalar) micro-batches; one trace works for any number.

        AutoGraph turns the loop and the condition on the step into TensorFlow's.

        Returns: float32 [num_steps, figures], for each step the losses before it, the counts of its
        batch, and how long it waited for the batch, in the order of `STEP_FIGURES`.

        TensorFlow draws the next batch while a step computes. So a step waits from the end of the
        step before it, or from the call, until its batch is there: meanwhile nothing is computed.
        """
        # Figures stay on the device until the loop ends: one transfer a call, not one a step.
        history = tf.TensorArray(tf.float32, size=num_steps, element_shape=[len(STEP_FIGURES)])
        idle_since = tf.timestamp()  # seconds, float64
        for index in tf.range(num_steps):
            batch = next(iterator)
            wait = tf.maximum(_time_after(batch) - idle_since, 0.0)
            figures = self._step(batch)
            idle_since = _time_after(figures)
            figures = tf.concat([figures, [tf.cast(wait, tf.float32)]], 0)
            history = history.write(index, figures)
        return history.stack()

    @tf.function(autograph=False)
    def _step(self, batch: dict[str, tf.Tensor]) -> tf.Tensor:
        """One micro-batch, and the update that it may complete; float32 [figures - 1].

        As a tf.function: whatever waits for its result also waits for the new weights.
        """
        return pretrainer.one_replica().run(self._micro_step, args=(batch,))

    def _micro_step(self, features: dict[str, tf.Tensor]) -> tf.Tensor:
        losses, gradients = self._gradients_of(
            features,
            pretrainer.dropout_seed(self.model),
            tf.reduce_sum(features["masked_lm_weights"]),
            self.batch_size,
        )
        # The optimizer waits for all gradients. Otherwise TensorFlow computes the terms that need
        # none, such as the decay of every weight, as soon as the step begins, and keeps them in
        # memory until its end.
        with tf.control_dependencies([tf.group(*gradients)]):
            self._apply(gradients)
        mask = features["input_mask"]  # [R, S]
        num_real_tokens, num_rows = tf.reduce_sum(mask), tf.shape(mask)[0]
        return tf.concat([losses, tf.cast(tf.stack([num_real_tokens, num_rows]), tf.float32)], 0)

    @tf.function(autograph=False)
    def dropout_seeds(self, num_devices: int) -> tf.Tensor:
        """Draws the seeds of one step for several devices, as `train` draws that of one."""
        return pretrainer.one_replica().run(
            lambda: pretrainer.dropout_seed(self.model, num_devices)
        )

    def gradients_of(
        self, features: dict[str, tf.Tensor], dropout_seed, num_predictions, num_examples
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """The first half of a step, of one device: its losses [3], and what it adds to gradients.

        The losses are divided by the given counts. Packed batches have `next_sentence_weights`, 0
        where a row has fewer than E examples.
        """
        with tf.GradientTape() as tape:
            token_logits, sentence_logits = pretrainer.forward(  # [R, P, V], [R * E, 2]
                self.model, features, training=True, seed=dropout_seed
            )
            token_losses = metrics.masked_lm_losses(
                token_logits, features["masked_lm_ids"]
            )  # [R, P]
            sentence_losses = metrics.next_sentence_losses(  # [R * E]
                sentence_logits, features["next_sentence_labels"]
            )
            if "next_sentence_weights" in features:
                sentence_losses *= tf.reshape(features["next_sentence_weights"], [-1])
            # loss = sum(w * -log p(token)) / (sum(w) + epsilon) + sum(-log p(label)) / B; the
            # padding of predictions has w = 0.
            weighted_losses = token_losses * features["masked_lm_weights"]
            # The reference's epsilon: a batch without predictions has the loss 0, not NaN.
            masked_lm = tf.reduce_sum(weighted_losses) / (num_predictions + metrics.EPSILON)
            next_sentence = tf.reduce_sum(sentence_losses) / num_examples
            loss = masked_lm + next_sentence
        gradients = tape.gradient(loss, self.variables_to_train)
        # The gradient of an embedding comes as slices; norms and all-reduce take whole tensors.
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        # In "global" mode `apply` clips, after the all-reduce.
        if self.normalization != "global":
            gradients = self.optimizer.clip(gradients)
        return tf.stack([loss, masked_lm, next_sentence]), gradients

    def apply(self, gradients: list[tf.Tensor]) -> None:
        """The second half: takes gradients, reduced over all devices, and counts the step.

        Whichever step completes an update changes the weights.
        """
        self.optimizer.step(gradients, clips=self.normalization == "global")
        # This counts micro-batches; the optimizer's own count is of updates.
        step = self.step.assign_add(1, read_value=True)
        if self.optimizer.steps_per_update > 1:

            def update() -> bool:
                self.optimizer.update()
                return True

            is_complete = tf.equal(step % self.optimizer.steps_per_update, 0)
            tf.cond(is_complete, update, lambda: False)

    def warm_up(self, batches: tf.data.Dataset, *, keeps_weights: bool = True) -> None:
        """Compiles the inner loop on synthetic batches, then restores all variables.

        Takes one batch of every shape that the run will use. Weights that are loaded
        afterwards need not be kept; a copy takes as much memory as the weights.
        """
        # Generators are always restored: dropout begins at the state that the seed made.
        kept = [generator.state for generator in pretrainer.random_generators(self.model)]
        if keeps_weights:
            kept += self.model.variables
        values = [variable.numpy() for variable in kept]
        steps_per_update = self.optimizer.steps_per_update
        # Whole updates, so that the optimizer's program runs too. What they change is restored.
        num_steps = -(-int(batches.cardinality()) // steps_per_update) * steps_per_update
        self.train(iter(batches.repeat()), tf.constant(num_steps))
        for variable, value in zip(kept, values):
            variable.assign(value)
        self.optimizer.reset()
        self.step.assign(0)

    def batches(self, make_dataset: Callable[[tf.distribute.InputContext], tf.data.Dataset]):
        """An iterator over what `make_dataset` makes for one process with one device."""
        return iter(make_dataset(tf.distribute.InputContext()))

    def profiling(self, directory: str) -> AbstractContextManager:
        """Profiles what happens within, for TensorBoard."""
        return tf.profiler.experimental.Profile(directory)


@tf.autograph.experimental.do_not_convert
def _time_after(values) -> tf.Tensor:
    """The host's time when the values are ready; float64 scalar, seconds since 1970."""
    with tf.control_dependencies(tf.nest.flatten(values, expand_composites=True)):
        return tf.timestamp()


class SleepingTrainer:
    """A trainer that fetches every batch and then sleeps; all else is the wrapped trainer's.

    It shows what storage would have to do for a fast device: input, checkpoints and logs are real.
    Nothing is learnt, so such a run is never evaluated, and ends as aborted in the open division.
    """

    def __init__(self, trainer: PretrainerContract, step_seconds: float):
        self._step_seconds = step_seconds
        self.step, self.state = trainer.step, trainer.state
        self.variables_to_train = trainer.variables_to_train
        self.put_state, self.fetch_state = trainer.put_state, trainer.fetch_state
        self.batches, self.gather = trainer.batches, trainer.gather
        self.profiling = trainer.profiling

    def train(self, iterator, num_steps: tf.Tensor) -> tf.Tensor:
        """Fetches `num_steps` batches, and sleeps after each; returns zeros and the waits."""
        waits = []
        for _ in range(int(num_steps)):
            began = monotonic()
            next(iterator)
            waits.append(monotonic() - began)
            sleep(self._step_seconds)
            self.step.assign_add(1)
        # The wait is the last of the figures.
        return tf.pad(tf.constant(waits)[:, None], [[0, 0], [len(STEP_FIGURES) - 1, 0]])

    def warm_up(self, batches: tf.data.Dataset, *, keeps_weights: bool = True) -> None:
        """Does nothing: there is nothing to compile."""


class Evaluator(tf.Module):
    """The compiled evaluation step of a model, on one CPU."""

    def __init__(self, *, model: tf.Module):
        super().__init__(name="evaluator")
        self.model = model

    @tf.function(autograph=False)
    def evaluate_batch(self, features, example_weights) -> tf.Tensor:
        """The totals of one batch, compiled."""
        return self.totals(features, example_weights)

    def totals(self, features, example_weights) -> tf.Tensor:
        """Totals of one batch: float32 [6], in the order of `metrics.Totals`."""
        token_logits, sentence_logits = pretrainer.forward(self.model, features, training=False)
        return metrics.batch_totals(token_logits, sentence_logits, features, example_weights)

    def evaluate(self, dataset: tf.data.Dataset, time: Ledger | None = None) -> metrics.Evaluation:
        """Evaluates all batches of `pipeline.evaluation_batches`; `time` takes the seconds."""
        time = time or Ledger()
        with time.counting(ledger.EVALUATION_COMPUTE):
            # Reading a total waits for the device: that is done once, after all batches.
            totals = [self.evaluate_batch(*batch) for batch in time.waiting(dataset)]
            return metrics.Evaluation.from_totals([total.numpy().tolist() for total in totals])


def timed_train_steps(
    trainer: PretrainerContract, batches: Iterator, time: Ledger
) -> Callable[[int], tuple[np.ndarray, float]]:
    """Returns the loop's function that trains a number of steps; the ledger takes the times."""

    def train_steps(num_steps: int) -> tuple[np.ndarray, float]:
        before = time.read()
        with time.counting(ledger.COMPUTE):
            # Given as a tensor: TensorFlow would trace again for each Python number. numpy() waits
            # for the device, whose time is measured here.
            figures = np.asarray(trainer.train(batches, tf.constant(num_steps)))
            # The device has measured the waiting; seen from here, a call is all computing.
            waited = figures[:, STEP_FIGURES.index("input_wait_seconds")].sum(dtype=float)
            time.move(waited, source=ledger.COMPUTE, to=ledger.INPUT_WAIT)
        return figures, sum(ledger.difference(time.read(), before).values())

    return train_steps
