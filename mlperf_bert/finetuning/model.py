"""The encoder with the head of a task, by tf-models.

Shapes: B=batch, S=sequence.
"""

import contextlib
from collections.abc import Iterator

import tensorflow as tf
import tf_keras
from official.nlp.modeling import layers, models

from mlperf_bert.checkpoints import names, reading
from mlperf_bert.checkpoints.reading import StoredCheckpoint
from mlperf_bert.finetuning.config import Task
from mlperf_bert.finetuning.squad import SquadTask
from mlperf_bert.finetuning.weights import PretrainedModel
from mlperf_bert.model import pretrainer, tf_models


# As in model/pretrainer.py: AutoGraph would rewrite Python without effect.
@tf.autograph.experimental.do_not_convert
def build(
    task: Task, source: PretrainedModel, *, seed: int, precision: str = "float32"
) -> tf_keras.Model:
    """Builds the model with pre-trained weights and a random head, in the scope of `one_replica`.

    The pooler of a classifier is that of next-sentence prediction, `bert/pooler` in checkpoints.
    Weights are float32; `precision` is that of the encoder's matrix products, as in
    `build_pretrainer`, by Keras's own policy. Pooler and head are float32 even in bfloat16.
    """
    config = source.config
    initializer = tf_keras.initializers.TruncatedNormal(stddev=config.initializer_range)
    with _policy("mixed_bfloat16" if precision == "bfloat16" else "float32"):
        pretrained = pretrainer.build_pretrainer(
            config, seed=seed, precision="tf32" if precision == "tf32" else "float32"
        )
    stored = StoredCheckpoint(source.name)
    variables = reading.held_variables(pretrainer.trained_variables(pretrained), stored)
    reading.load_weights(variables, stored)
    encoder = pretrained.encoder_network
    # In bfloat16 a Dense layer of Keras would add up the gradient of its bias in bfloat16.
    tf_models.compute_in_float32(encoder.pooler_layer)
    if isinstance(task, SquadTask):
        return models.BertSpanLabeler(encoder, initializer=initializer)
    _set_pooler(encoder, pretrained)
    # Our own head, because BertClassifier's applies dropout twice.
    head = layers.ClassificationHead(
        inner_dim=0,
        num_classes=task.num_labels,
        initializer=initializer,
        dropout_rate=0.0,
        name="task",
    )
    return models.BertClassifier(
        encoder,
        num_classes=task.num_labels,
        dropout_rate=config.hidden_dropout_prob,
        cls_head=head,
    )


@contextlib.contextmanager
def _policy(name: str) -> Iterator[None]:
    before = tf_keras.mixed_precision.global_policy()
    tf_keras.mixed_precision.set_global_policy(name)
    try:
        yield
    finally:
        tf_keras.mixed_precision.set_global_policy(before)


def _set_pooler(encoder: tf_keras.Model, pretrained: models.BertPretrainerV2) -> None:
    """Moves the pooler from the head of next-sentence prediction into the encoder."""
    stored = {names.our_name(v.name): v for v in pretrained.trainable_variables}
    table = [w for w in names.weights(0) if w.tf1_name.startswith("bert/pooler/")]
    for weight in table:
        of_head, of_encoder = weight.tf2_names
        stored[of_encoder].assign(stored[of_head])


@tf.autograph.experimental.do_not_convert
def forward(model: tf_keras.Model, features: dict[str, tf.Tensor], *, training: bool) -> tf.Tensor:
    """Runs the model: float32 logits [B, labels], or [B, S, 2] of spans."""
    outputs = model(
        {
            "input_word_ids": features["input_ids"],
            "input_mask": features["input_mask"],
            "input_type_ids": features["segment_ids"],
        },
        training=training,
    )
    if isinstance(outputs, list):
        outputs = tf.stack(outputs, axis=-1)
    return tf.cast(outputs, tf.float32)


def trained_variables(model: tf_keras.Model) -> list[tf.Variable]:
    """All weights, but the pooler only if the head uses it."""
    if isinstance(model, models.BertSpanLabeler):
        return pretrainer.trained_variables(model)
    return model.trainable_variables


def losses(logits: tf.Tensor, features: dict[str, tf.Tensor]) -> tf.Tensor:
    """The loss of every example, [B] float32: cross-entropy in nats, or a score's squared error.

    The loss of a span is the mean of the losses of its start and its end.
    """
    if "start_positions" in features:
        begin, end = tf.unstack(logits, axis=-1)
        return 0.5 * (
            _cross_entropy(begin, features["start_positions"])
            + _cross_entropy(end, features["end_positions"])
        )
    if features["labels"].dtype.is_floating:
        return tf.math.squared_difference(logits[:, 0], features["labels"])
    return _cross_entropy(logits, features["labels"])


def _cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
