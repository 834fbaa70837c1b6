"""The two pre-training losses, as sums, so that any number of replicas can share a denominator.

Shapes: B=batch, P=predictions, V=vocabulary.
"""

import tensorflow as tf

# Keeps the masked mean finite on a batch without predictions. Source: the reference's loss.
EPSILON = 1e-5


def masked_lm_losses(logits: tf.Tensor, label_ids: tf.Tensor) -> tf.Tensor:
    """Cross-entropy of every prediction, padding included: [B, P, V], [B, P] -> [B, P], in nats."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(label_ids, tf.cast(logits, tf.float32))


def next_sentence_losses(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Cross-entropy of every example: [B, 2], [B, 1] -> [B], in nats; 1 = a random segment."""
    labels = tf.reshape(labels, [-1])
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.cast(logits, tf.float32))
