"""The training step and the inner loop: what runs on the devices.

Shapes: B=batch (per replica).
"""

import tensorflow as tf

from mlperf_bert.model import losses, pretrainer
from mlperf_bert.optimization.aggregation import GradientAggregationOptimizer

LOSSES = ("loss", "masked_lm_loss", "next_sentence_loss")


class Trainer(tf.Module):
    """Model, optimizer and step counter, with the compiled inner loop over them.

    Losses are normalised over the global batch: the masked-LM sum of all replicas is divided by the
    number of predictions of all replicas, so the number of replicas does not change the result.
    """

    def __init__(
        self,
        *,
        model: tf.Module,
        optimizer: GradientAggregationOptimizer,
        strategy: tf.distribute.Strategy,
        batch_size: int,
    ):
        """Wraps the parts; `batch_size` is that of one micro-batch, over all replicas."""
        super().__init__(name="trainer")
        self.model = model
        self.optimizer = optimizer
        self.strategy = strategy
        self.batch_size = batch_size
        self.variables_to_train = pretrainer.trained_variables(model)
        with strategy.scope():
            self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="global_step")
            optimizer.build(self.variables_to_train)

    @tf.function
    def train(self, iterator, num_steps: tf.Tensor) -> tf.Tensor:
        """Takes `num_steps` (int32 scalar) micro-batches; one trace serves any number.

        Returns: float32 [num_steps, 3], the losses before each step, in the order of `LOSSES`.
        """
        history = tf.TensorArray(tf.float32, size=num_steps, element_shape=[len(LOSSES)])
        for index in tf.range(num_steps):
            per_replica = self.strategy.run(self._micro_step, args=(next(iterator),))
            history = history.write(
                index, self.strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None)
            )
            self.step.assign_add(1)
            if self.optimizer.steps_per_update > 1:  # noqa: SIM102 - only the inner one is traced
                if tf.equal(self.step % self.optimizer.steps_per_update, 0):
                    self.strategy.run(self._update)
        return history.stack()

    def _micro_step(self, features: dict[str, tf.Tensor]) -> tf.Tensor:
        replicas = tf.distribute.get_replica_context()
        weights = features["masked_lm_weights"]
        num_predictions = replicas.all_reduce("SUM", tf.reduce_sum(weights))
        with tf.GradientTape() as tape:
            token_logits, sentence_logits = pretrainer.forward(self.model, features, training=True)
            token_losses = losses.masked_lm_losses(token_logits, features["masked_lm_ids"])
            sentence_losses = losses.next_sentence_losses(
                sentence_logits, features["next_sentence_labels"]
            )
            masked_lm = tf.reduce_sum(token_losses * weights) / (num_predictions + losses.EPSILON)
            next_sentence = tf.reduce_sum(sentence_losses) / self.batch_size
            loss = masked_lm + next_sentence
        gradients = tape.gradient(loss, self.variables_to_train)
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        self.optimizer.step(replicas.all_reduce("SUM", gradients), self.variables_to_train)
        return tf.stack([loss, masked_lm, next_sentence])

    def _update(self) -> None:
        self.optimizer.update(self.variables_to_train)

    def warm_up(self, features: dict[str, tf.Tensor]) -> None:
        """Compiles the inner loop on a synthetic batch, then puts everything back as it was."""
        generators = pretrainer.random_generators(self.model)
        kept = [*self.model.variables, *(generator.state for generator in generators)]
        values = [variable.numpy() for variable in kept]
        iterator = self.batches(tf.data.Dataset.from_tensors(features).repeat())
        self.train(iterator, tf.constant(self.optimizer.steps_per_update))
        for variable, value in zip(kept, values):
            variable.assign(value)
        self.optimizer.reset()
        self.step.assign(0)

    def batches(self, dataset: tf.data.Dataset):
        """An iterator over global batches, shared out to the replicas."""
        if self.strategy.num_replicas_in_sync == 1:
            return iter(dataset)  # a plain iterator, whose position can be saved
        return iter(self.strategy.experimental_distribute_dataset(dataset))
