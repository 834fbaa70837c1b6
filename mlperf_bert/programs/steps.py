"""The steps of training and evaluation, and the inner loop: what runs on the devices.

Shapes, of one replica: R=rows (= its batch without packing), S=sequence, P=predictions of a row,
E=examples of a row, V=vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from time import monotonic, sleep
from typing import Any

import numpy as np
import tensorflow as tf

from mlperf_bert.mlperf import ledger
from mlperf_bert.mlperf.ledger import Ledger
from mlperf_bert.model import metrics, pretrainer
from mlperf_bert.optimization.optimizers import GradientAggregationOptimizer
from mlperf_bert.programs.config import FIGURES, NO_COMPILATION, Compilation


def one_cpu(strategy: tf.distribute.Strategy) -> bool:
    """Whether the strategy computes on one CPU, where batches need not be distributed."""
    one_device = isinstance(strategy, tf.distribute.OneDeviceStrategy)
    return one_device and "CPU" in strategy.extended.worker_devices[0]


class Trainer(tf.Module):
    """Model, optimizer and step counter, with the compiled inner loop over them.

    With normalization "global", losses are normalised over the global batch (the masked-LM sum of
    all replicas is divided by the number of predictions of all replicas) and the sum of the
    gradients is clipped: the number of replicas does not change the result. The reference lets each
    replica normalise its own loss and clip its own gradients, and then sums them on GPUs
    ("replica_sum") or averages them on TPUs ("replica_mean").
    """

    def __init__(
        self,
        *,
        model: tf.Module,
        optimizer: GradientAggregationOptimizer,
        strategy: tf.distribute.Strategy,
        batch_size: int,
        normalization: str = "global",
        compiled: Compilation = NO_COMPILATION,
    ):
        """Wraps the parts; `batch_size` is that of one micro-batch, over all replicas."""
        super().__init__(name="trainer")
        self.model = model
        self.optimizer = optimizer
        self.strategy = strategy
        self.batch_size = batch_size
        self.normalization = normalization
        self.variables_to_train = optimizer.variables_to_train
        # Compiled, these are two programs, not one: the all-reduce between them is TensorFlow's.
        self._compute = self.losses_and_gradients
        self._change_weights = self._reduce_and_step
        if compiled.step:
            self._compute = tf.function(self._compute, jit_compile=True, autograph=False)
            # One replica has nothing to reduce, so that XLA can take the whole update.
            if strategy.num_replicas_in_sync == 1:  # all-reduce stays outside XLA
                self._change_weights = tf.function(
                    self._change_weights, jit_compile=True, autograph=False
                )
        with strategy.scope():
            self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="global_step")

    @property
    def state(self) -> dict[str, object]:
        """What a checkpoint holds, but for the position in the input."""
        # These names, and the order of lists among them, are the keys of a checkpoint: if they
        # change, runs cannot go on from the checkpoints that they have.
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
        batch, and how long it waited for the batch, in the order of `FIGURES`.

        TensorFlow draws the next batch while a step computes. So a step waits from the end of the
        step before it, or from the call, until its batch is there: in that time a CPU computes
        nothing. A GPU or TPU may then still be busy with what it was given before: for these it is
        the longest that they can have waited. Of several processes it is this one's wait.
        """
        # Figures stay on the device until the loop ends: one transfer a call, not one a step.
        history = tf.TensorArray(tf.float32, size=num_steps, element_shape=[len(FIGURES)])
        idle_since = tf.timestamp()  # seconds, float64
        for index in tf.range(num_steps):
            batch = next(iterator)
            wait = tf.maximum(_time_after(batch) - idle_since, 0.0)
            figures = self._step(batch)
            idle_since = _time_after(figures)
            figures = tf.concat([figures, [tf.cast(wait, tf.float32)]], 0)
            history = history.write(index, figures)
        return history.stack()

    @tf.function
    def _step(self, batch) -> tf.Tensor:
        """One micro-batch on all replicas, and the update that it may complete.

        Returns float32 [figures - 1].

        It is a function so that what waits for its result waits for the new weights too.
        """
        per_replica = self.strategy.run(self._micro_step, args=(batch,))
        figures = self.strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None)
        # The count is that of micro-batches; the optimizer's own is that of updates.
        self.step.assign_add(1)
        # A call of its own, without communication: all replicas have added up the same gradients.
        if self.optimizer.steps_per_update > 1:  # noqa: SIM102 - only the inner one is traced
            if tf.equal(self.step % self.optimizer.steps_per_update, 0):
                self.strategy.run(self.update)
        return figures

    @tf.autograph.experimental.do_not_convert
    def _micro_step(self, features: dict[str, tf.Tensor]) -> tf.Tensor:
        """One micro-batch of one replica; float32 [figures - 1], to be summed over replicas."""
        dropout_seed = pretrainer.dropout_seed(self.model)  # int32 [2] or None
        context = tf.distribute.get_replica_context()
        num_replicas = self.strategy.num_replicas_in_sync
        is_global = self.normalization == "global"
        # Before the forward pass, so that a global mean needs no second pass over the losses.
        num_predictions = tf.reduce_sum(features["masked_lm_weights"])  # scalar
        # Examples, not rows, of which a packed batch has fewer.
        num_examples = self.batch_size / num_replicas
        if is_global:
            num_predictions = context.all_reduce("SUM", num_predictions)
            num_examples = self.batch_size
        loss_values, gradients = self._compute(
            features, dropout_seed, num_predictions, num_examples
        )
        # The optimizer waits for all gradients. Otherwise TensorFlow computes the terms that need
        # none, such as the decay of every weight, as soon as the step begins, and keeps them in
        # memory until its end.
        with tf.control_dependencies([tf.group(*gradients)]):
            self._change_weights(gradients)
        mask = features["input_mask"]  # [R, S]
        num_real_tokens, num_rows = tf.reduce_sum(mask), tf.shape(mask)[0]
        counts = tf.cast(tf.stack([num_real_tokens, num_rows]), tf.float32)
        # Shares of a global mean add up to it; the means of replicas are averaged.
        return tf.concat([loss_values if is_global else loss_values / num_replicas, counts], 0)

    @tf.function(autograph=False)
    def dropout_seeds(self, num_replicas: int) -> tf.Tensor:
        """Draws the seeds of one step for so many replicas, as `train` draws that of one."""
        # Within a strategy a generator draws other numbers than outside.
        return self.strategy.run(lambda: pretrainer.dropout_seed(self.model, num_replicas))

    def losses_and_gradients(
        self, features: dict[str, tf.Tensor], dropout_seed, num_predictions, num_examples
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Losses [3] of one replica, divided by the given counts, and their gradients.

        Packed batches have `next_sentence_weights`, 0 where a row has fewer than E examples.
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
        return tf.stack([loss, masked_lm, next_sentence]), gradients

    def _reduce_and_step(self, gradients: list[tf.Tensor]) -> None:
        """Reduces the gradients over the replicas, and passes them to the optimizer."""
        operation = "MEAN" if self.normalization == "replica_mean" else "SUM"
        all_reduce = tf.distribute.get_replica_context().all_reduce
        self.step_of_reduced(all_reduce(operation, self.clipped_by_replica(gradients)))

    def clipped_by_replica(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """What a replica gives to the all-reduce: "global" clips only what comes out of it."""
        return gradients if self.normalization == "global" else self.optimizer.clip(gradients)

    def step_of_reduced(self, gradients: list[tf.Tensor]) -> None:
        """Passes the reduced gradients to the optimizer; the step is not counted."""
        clips = self.normalization == "global"
        self.optimizer.step(gradients, clips=clips)

    @tf.autograph.experimental.do_not_convert
    def update(self) -> None:
        """Changes the weights by what aggregation has added up."""
        self.optimizer.update()

    def warm_up(self, batches: tf.data.Dataset, *, keeps_weights: bool = True) -> None:
        """Compiles the inner loop on synthetic batches, then restores all variables.

        Takes replica batches, one of every shape that the run will use. Weights that are loaded
        afterwards need not be kept; a copy takes as much memory as the weights.
        """
        # Generators always: dropout begins at the state that the seed made, compiled or not.
        kept = [generator.state for generator in pretrainer.random_generators(self.model)]
        if keeps_weights:
            kept += self.model.variables
        values = [variable.numpy() for variable in kept]
        num_replicas = self.strategy.num_replicas_in_sync
        steps_per_update = self.optimizer.steps_per_update
        # Trained weights would be wrong by these steps: everything that they change is restored.
        # Every shape on every replica, in whole updates.
        num_steps = -(-int(batches.cardinality()) // steps_per_update) * steps_per_update
        each = batches.flat_map(lambda b: tf.data.Dataset.from_tensors(b).repeat(num_replicas))
        self.train(self.batches(lambda _: each.repeat()), tf.constant(num_steps))
        for variable, value in zip(kept, values):
            variable.assign(value)
        self.optimizer.reset()
        self.step.assign(0)

    def batches(self, make_dataset: Callable[[tf.distribute.InputContext], tf.data.Dataset]):
        """An iterator over global batches, distributed to the replicas and prefetched.

        `make_dataset` makes the replica batches of one process.
        """
        if one_cpu(self.strategy):
            return iter(make_dataset(tf.distribute.InputContext()))  # its position can be saved
        return iter(self.strategy.distribute_datasets_from_function(make_dataset))

    def profiled(self, directory: str) -> AbstractContextManager:
        """Profiles what happens within, for TensorBoard."""
        return tf.profiler.experimental.Profile(directory)

    def put_state(self) -> None:
        """Nothing: the state is where the variables are."""

    def fetch_state(self) -> None:
        """Nothing: the state is where the variables are."""

    def gathered(self, values: Sequence[float]) -> np.ndarray:
        """What every replica says, the chief's first one first: [replicas, values].

        All processes must call it at the same step, with as many values.
        """
        if one_cpu(self.strategy):
            return np.array([values])
        # As float32 a week of seconds is right to 0.03 s.
        return self._gathered(tf.constant(values, tf.float32)).numpy()

    @tf.function(autograph=False)
    def _gathered(self, values: tf.Tensor) -> tf.Tensor:
        # A sum in which every replica has zeros for the others: the operation that gradients take.
        def own() -> tf.Tensor:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            is_own = tf.equal(tf.range(self.strategy.num_replicas_in_sync), replica)
            return tf.where(is_own[:, None], values, 0.0)

        per_replica = self.strategy.run(own)
        return self.strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None)


@tf.autograph.experimental.do_not_convert
def _time_after(values) -> tf.Tensor:
    """The time at which the values are there, on the host; float64 scalar, seconds since 1970."""
    with tf.control_dependencies(tf.nest.flatten(values, expand_composites=True)):
        return tf.timestamp()


class Asleep:
    """A trainer that fetches every batch and then sleeps; all else is that of the one it wraps.

    It shows what storage would have to do for a fast device: input, checkpoints and logs are real.
    Nothing is learnt, so such a run is never evaluated, and ends as aborted in the open division.
    """

    def __init__(self, trainer: Trainer, step_seconds: float):
        self._trainer, self._step_seconds = trainer, step_seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)

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
        return tf.pad(tf.constant(waits)[:, None], [[0, 0], [len(FIGURES) - 1, 0]])

    def warm_up(self, batches: tf.data.Dataset, *, keeps_weights: bool = True) -> None:
        """Nothing is compiled."""


class Evaluator(tf.Module):
    """The compiled evaluation step of a model."""

    def __init__(self, *, model: tf.Module, strategy: tf.distribute.Strategy):
        super().__init__(name="evaluator")
        self.model = model
        self.strategy = strategy

    @tf.function(autograph=False)
    def evaluate_batch(self, features, example_weights) -> tf.Tensor:
        """Totals of one global batch: float32 [6], in the order of `metrics.Totals`."""
        per_replica = self.strategy.run(self.totals, args=(features, example_weights))
        return self.strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None)

    def totals(self, features, example_weights) -> tf.Tensor:
        """Totals of one batch of one replica, as `evaluate_batch`."""
        token_logits, sentence_logits = pretrainer.forward(self.model, features, training=False)
        return metrics.batch_totals(token_logits, sentence_logits, features, example_weights)

    def evaluate(self, dataset: tf.data.Dataset, time: Ledger | None = None) -> metrics.Evaluation:
        """Evaluates all batches of `pipeline.evaluation_batches`; `time` takes the seconds."""
        time = time or Ledger()
        shared = dataset
        if not one_cpu(self.strategy):
            shared = self.strategy.distribute_datasets_from_function(
                lambda context: _share(dataset, context)
            )
        with time.counting(ledger.EVALUATION_COMPUTE):
            # Reading a total waits for the device: that comes after all batches, once.
            totals = [self.evaluate_batch(*batch) for batch in time.waiting(shared)]
            return metrics.Evaluation.from_totals([total.numpy().tolist() for total in totals])


def _share(batches: tf.data.Dataset, context: tf.distribute.InputContext) -> tf.data.Dataset:
    """The replica batches of one process, in the order of the global batches."""
    size = context.get_per_replica_batch_size(batches.element_spec[1].shape[0])
    replica_batches = batches.rebatch(size, drop_remainder=True)
    return replica_batches.shard(context.num_input_pipelines, context.input_pipeline_id)


def counted_steps(
    trainer: Trainer, batches: Iterator, time: Ledger
) -> Callable[[int], tuple[np.ndarray, float]]:
    """What the loop calls to train so many steps; the ledger takes computing and waiting."""

    def train_steps(num_steps: int) -> tuple[np.ndarray, float]:
        before = time.read()
        with time.counting(ledger.COMPUTE):
            # A tensor: a Python number would be traced again for each value. numpy() waits for the
            # device, whose time this is.
            figures = np.asarray(trainer.train(batches, tf.constant(num_steps)))
            # The device has measured this: from here a call is one stretch of computing.
            waited = figures[:, FIGURES.index("input_wait_seconds")].sum(dtype=float)
            time.move(waited, source=ledger.COMPUTE, to=ledger.INPUT_WAIT)
        return figures, sum(ledger.difference(time.read(), before).values())

    return train_steps
