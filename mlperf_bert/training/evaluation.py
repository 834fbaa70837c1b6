"""Evaluation over a whole shard: every example counts exactly once."""

import tensorflow as tf

from mlperf_bert.mlperf import ledger
from mlperf_bert.mlperf.ledger import Ledger
from mlperf_bert.model import metrics, pretrainer
from mlperf_bert.training.strategy import one_cpu


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

    def evaluate(self, dataset: tf.data.Dataset, spent: Ledger | None = None) -> metrics.Evaluation:
        """Evaluates all batches of `pipeline.evaluation_batches`; `spent` takes the seconds."""
        spent = spent or Ledger()
        shared = dataset
        if not one_cpu(self.strategy):
            shared = self.strategy.distribute_datasets_from_function(
                lambda context: _share(dataset, context)
            )
        with spent.spent(ledger.EVALUATION_COMPUTE):
            totals = [self.evaluate_batch(*batch) for batch in spent.waiting(shared)]
            return metrics.Evaluation.from_totals([total.numpy().tolist() for total in totals])


def _share(batches: tf.data.Dataset, context: tf.distribute.InputContext) -> tf.data.Dataset:
    """The replica batches of one process, in the order of the global batches."""
    size = context.get_per_replica_batch_size(batches.element_spec[1].shape[0])
    replica_batches = batches.rebatch(size, drop_remainder=True)
    return replica_batches.shard(context.num_input_pipelines, context.input_pipeline_id)
