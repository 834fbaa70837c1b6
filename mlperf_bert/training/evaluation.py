"""Evaluation over a whole shard: every example counts exactly once."""

from collections.abc import Callable

import tensorflow as tf

from mlperf_bert.model import metrics, pretrainer


class Evaluator(tf.Module):
    """The compiled evaluation step of a model."""

    def __init__(self, *, model: tf.Module, strategy: tf.distribute.Strategy):
        super().__init__(name="evaluator")
        self.model = model
        self.strategy = strategy

    @tf.function
    def evaluate_batch(self, features, example_weights) -> tf.Tensor:
        """Totals of one global batch: float32 [6], in the order of `metrics.TOTALS`."""
        per_replica = self.strategy.run(self._totals, args=(features, example_weights))
        return self.strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None)

    def _totals(self, features, example_weights) -> tf.Tensor:
        token_logits, sentence_logits = pretrainer.forward(self.model, features, training=False)
        return metrics.batch_totals(token_logits, sentence_logits, features, example_weights)

    def evaluate(
        self, dataset: tf.data.Dataset, *, on_batch: Callable[[], None] = lambda: None
    ) -> metrics.Evaluation:
        """Runs over `input_pipeline.evaluation_batches`; `on_batch` is called after each."""
        if self.strategy.num_replicas_in_sync > 1:
            dataset = self.strategy.experimental_distribute_dataset(dataset)
        totals = []
        for features, example_weights in dataset:
            totals.append(self.evaluate_batch(features, example_weights))
            on_batch()
        return metrics.Evaluation.from_totals([total.numpy().tolist() for total in totals])

    def warm_up(self, features: dict[str, tf.Tensor], example_weights: tf.Tensor) -> None:
        """Compiles the step on a synthetic batch."""
        dataset = tf.data.Dataset.from_tensors((features, example_weights))
        self.evaluate(dataset)
