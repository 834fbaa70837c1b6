"""The pre-training losses and the totals of an evaluation, as sums that are divided at the end.

So a result does not depend on the batch size, and any number of replicas share a denominator.
Shapes: B=batch, P=predictions, V=vocabulary.
"""

import dataclasses
from typing import NamedTuple

import tensorflow as tf


class Totals(NamedTuple):
    """Sums over one batch, or over many: scalars, losses in nats."""

    masked_lm_correct: tf.Tensor | float
    masked_lm_loss: tf.Tensor | float
    num_predictions: tf.Tensor | float
    next_sentence_correct: tf.Tensor | float
    next_sentence_loss: tf.Tensor | float
    num_examples: tf.Tensor | float


def batch_totals(
    masked_lm_logits: tf.Tensor,
    next_sentence_logits: tf.Tensor,
    features: dict[str, tf.Tensor],
    example_weights: tf.Tensor,
) -> tf.Tensor:
    """Sums over one batch.

    Args:
      masked_lm_logits: [B, P, V].
      next_sentence_logits: [B, 2].
      features: the labels, as in the TFRecords.
      example_weights: [B] float32, 1 for an example, 0 for a row of padding.

    Returns: float32 [6], in the order of `Totals`.
    """
    # 0 for the padding of predictions, and for the rows that fill up the last batch.
    weights = features["masked_lm_weights"] * example_weights[:, tf.newaxis]
    label_ids, next_labels = features["masked_lm_ids"], features["next_sentence_labels"]
    token_losses = masked_lm_losses(masked_lm_logits, label_ids)
    sentence_losses = next_sentence_losses(next_sentence_logits, next_labels)
    token_hits = tf.argmax(masked_lm_logits, axis=-1, output_type=tf.int32) == label_ids
    sentence_hits = tf.argmax(next_sentence_logits, axis=-1, output_type=tf.int32) == tf.reshape(
        next_labels, [-1]
    )
    return tf.stack(
        Totals(
            masked_lm_correct=tf.reduce_sum(tf.cast(token_hits, tf.float32) * weights),
            masked_lm_loss=tf.reduce_sum(token_losses * weights),
            num_predictions=tf.reduce_sum(weights),
            next_sentence_correct=tf.reduce_sum(
                tf.cast(sentence_hits, tf.float32) * example_weights
            ),
            next_sentence_loss=tf.reduce_sum(sentence_losses * example_weights),
            num_examples=tf.reduce_sum(example_weights),
        )
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The results of one evaluation, over all evaluation examples."""

    masked_lm_accuracy: float
    masked_lm_loss: float
    next_sentence_accuracy: float
    next_sentence_loss: float
    loss: float
    """Mean over batches of the training loss, as the reference reports it."""
    num_examples: int

    @classmethod
    def from_totals(cls, totals: list[list[float]]) -> "Evaluation":
        """Adds up the totals of all batches, [batches, 6] in the order of `Totals`."""
        # Python's floats, of 64 bits: float32 counts whole numbers up to 16.8 million only.
        batches = [Totals(*batch) for batch in totals]
        all_batches = Totals(*(sum(column) for column in zip(*totals)))
        num_predictions, num_examples = all_batches.num_predictions, all_batches.num_examples
        # Each batch counts alike, a short one too: only this figure depends on the batch size.
        losses_of_batches = [
            batch.masked_lm_loss / (batch.num_predictions + EPSILON)
            + batch.next_sentence_loss / batch.num_examples
            for batch in batches
        ]
        return cls(
            masked_lm_accuracy=all_batches.masked_lm_correct / (num_predictions or 1.0),
            masked_lm_loss=all_batches.masked_lm_loss / (num_predictions or 1.0),
            next_sentence_accuracy=all_batches.next_sentence_correct / num_examples,
            next_sentence_loss=all_batches.next_sentence_loss / num_examples,
            loss=sum(losses_of_batches) / len(batches),
            num_examples=round(num_examples),
        )


# Keeps the masked mean finite on a batch without predictions. Source: the reference's loss.
EPSILON = 1e-5


def masked_lm_losses(logits: tf.Tensor, label_ids: tf.Tensor) -> tf.Tensor:
    """Cross-entropy of every prediction, padding included: [B, P, V], [B, P] -> [B, P], in nats."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(label_ids, tf.cast(logits, tf.float32))


def next_sentence_losses(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Cross-entropy of every example: [B, 2], [B, 1] -> [B], in nats; 1 = a random segment."""
    labels = tf.reshape(labels, [-1])
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.cast(logits, tf.float32))
