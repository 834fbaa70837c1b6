"""BERT with its two pre-training heads, built from tf-models.

Shapes: B=batch, S=sequence, H=hidden, P=predictions, V=vocabulary.
"""

import tensorflow as tf
import tf_keras
from official.nlp.modeling import layers, models, networks

from mlperf_bert.model.config import BertConfig


def tanh_gelu(x: tf.Tensor) -> tf.Tensor:
    """The reference's gelu: the tanh approximation of Hendrycks & Gimpel, arXiv 1606.08415."""
    return tf_keras.activations.gelu(x, approximate=True)


_ACTIVATIONS = {
    "gelu": tanh_gelu,
    "relu": tf_keras.activations.relu,
    "tanh": tf_keras.activations.tanh,
    "linear": tf_keras.activations.linear,
}

# The encoder's own pooler: next-sentence prediction pools in its head, so this one is never used
# and gets no gradient. Checkpoints keep `bert/pooler` in the head.
_UNUSED_POOLER = "pooler_transform"


def build_pretrainer(config: BertConfig, *, seed: int) -> models.BertPretrainerV2:
    """Builds the model with random weights; call it inside the strategy's scope.

    Inputs of the model: `input_word_ids`, `input_mask`, `input_type_ids` [B, S] and
    `masked_lm_positions` [B, P], int32. Outputs: `mlm_logits` [B, P, V], `next_sentence` [B, 2],
    `sequence_output` [B, S, H], `pooled_output` (unused).

    The dropout of every layer draws from a `tf.random.Generator` of its own (see
    `random_generators`), so that its state can be saved and a run resumed exactly.
    """
    tf_keras.backend.experimental.enable_tf_random_generator()
    tf_keras.utils.set_random_seed(seed % 2**32)
    initializer = tf_keras.initializers.TruncatedNormal(stddev=config.initializer_range)
    activation = _ACTIVATIONS[config.hidden_act]
    encoder = networks.BertEncoderV2(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        inner_dim=config.intermediate_size,
        inner_activation=activation,
        output_dropout=config.hidden_dropout_prob,
        attention_dropout=config.attention_probs_dropout_prob,
        max_sequence_length=config.max_position_embeddings,
        type_vocab_size=config.type_vocab_size,
        initializer=initializer,
    )
    next_sentence = layers.ClassificationHead(
        inner_dim=config.hidden_size,
        num_classes=2,
        activation="tanh",
        dropout_rate=0.0,
        initializer=initializer,
        name="next_sentence",
    )
    model = models.BertPretrainerV2(
        encoder,
        mlm_activation=activation,
        mlm_initializer=initializer,
        classification_heads=[next_sentence],
    )
    model(model.inputs)
    return model


def forward(model: models.BertPretrainerV2, features: dict[str, tf.Tensor], *, training: bool):
    """Runs the model on a batch of features as they stand in the TFRecords.

    Returns: masked-LM logits [B, P, V] and next-sentence logits [B, 2], float32.
    """
    outputs = model(
        {
            "input_word_ids": features["input_ids"],
            "input_mask": features["input_mask"],
            "input_type_ids": features["segment_ids"],
            "masked_lm_positions": features["masked_lm_positions"],
        },
        training=training,
    )
    return outputs["mlm_logits"], outputs["next_sentence"]


def trained_variables(model: models.BertPretrainerV2) -> list[tf.Variable]:
    """The variables that training changes, in the model's order."""
    return [v for v in model.trainable_variables if _UNUSED_POOLER not in v.name]


def random_generators(model: models.BertPretrainerV2) -> list[tf.random.Generator]:
    """The generators behind every dropout layer, in the model's order."""
    holders = (getattr(layer, "_random_generator", None) for layer in model.submodules)
    generators = (getattr(holder, "_generator", None) for holder in holders if holder)
    return [generator for generator in generators if generator is not None]
