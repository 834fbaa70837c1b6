"""BERT with its two pre-training heads, built from tf-models.

Shapes: B=batch, S=sequence, H=hidden, P=predictions, V=vocabulary.
"""

import functools

import tensorflow as tf
import tf_keras
from official.nlp.modeling import layers, models, networks

from mlperf_bert.messages import lasting
from mlperf_bert.model import tf_models
from mlperf_bert.model.config import RECOMPUTE_NONE, BertConfig


def tanh_gelu(x: tf.Tensor) -> tf.Tensor:
    """The reference's gelu: the tanh approximation of Hendrycks & Gimpel, arXiv 1606.08415."""
    return tf_keras.activations.gelu(x, approximate=True)


ACTIVATIONS = {
    "gelu": tanh_gelu,
    "gelu_exact": tf_keras.activations.gelu,  # most models on Hugging Face have it
    "relu": tf_keras.activations.relu,
    "tanh": tf_keras.activations.tanh,
    "linear": tf_keras.activations.linear,
}
"""Activation functions by their names in `bert_config.json`."""

# The encoder's own pooler is never used and gets no gradient: the head of next-sentence prediction
# has the pooler that checkpoints call `bert/pooler`.
_UNUSED_POOLER = "pooler_transform"


def _with_random_weights(config: BertConfig, seed: int) -> models.BertPretrainerV2:
    """The layers of tf-models.

    Inputs: `input_word_ids`, `input_mask`, `input_type_ids` [B, S] and `masked_lm_positions`
    [B, P], int32. Outputs: `mlm_logits` [B, P, V], `next_sentence` [B, 2], `sequence_output`
    [B, S, H], `pooled_output` (unused).
    """
    # With this, tf-models' dropout draws from generators, whose state a checkpoint can hold.
    tf_keras.backend.experimental.enable_tf_random_generator()
    # Python's, numpy's and TensorFlow's generators: weights are drawn in the order in which the
    # layers are made.
    tf_keras.utils.set_random_seed(seed % 2**32)
    initializer = tf_keras.initializers.TruncatedNormal(stddev=config.initializer_range)
    activation = ACTIVATIONS[config.hidden_act]
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
        # The reference drops nothing here.
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
    # The reference drops as much of attention's output as of the block's.
    tf_models.drop_of_attention_outputs(model, config.hidden_dropout_prob)
    # Makes the heads' weights, which Keras leaves until the first call.
    model(model.inputs)
    return model


# Only the inner loop in tf_trainer.py needs AutoGraph. Elsewhere it would rewrite Python without
# effect, which took half of the time before the first step.
@tf.autograph.experimental.do_not_convert
@lasting("drawing the weights of a model")
def build_pretrainer(
    config: BertConfig,
    *,
    seed: int,
    precision: str = "float32",
    compile_passes: bool = False,
    sums_of_vectors: bool = False,
    barriers: bool = False,
    pack_sequences: bool = False,
    recompute: str = RECOMPUTE_NONE,
    kernels: bool = False,
) -> models.BertPretrainerV2:
    """Builds the model with random weights; call it inside the scope of `one_replica`.

    The layers of `_with_random_weights` hold the weights, always float32. By default `forward`
    calls them; with a speed option encoder.py computes with their weights, equal to 1e-5 in
    float32.

    Args:
      config: sizes, activation, rates of dropout.
      seed: of weights and dropout.
      precision: float32; bfloat16 (matrix products and the values passed between layers; softmax,
        LayerNorm and losses stay float32); tf32 (float32 that tensor cores may round).
      compile_passes: XLA compiles the passes between the matrix products.
      sums_of_vectors: for passes that are programs of their own (fusion.py).
      barriers: for passes in one program (fusion.py).
      pack_sequences: examples may share rows (input/packing.py).
      recompute: what the backward pass computes again, with the same bits of dropout: "attention"
        (scores, probabilities, their dropout) or "blocks" (all but the inputs of each block).
      kernels: those of model/kernels, for NVIDIA's GPUs alone, in bfloat16.

    Dropout draws from `tf.random.Generator`s (see `random_generators`), so that their state can be
    saved and a run resumed exactly: one for each layer, or a single one with the speed options.
    """
    # This switch is the process's, and on by default: float32 must turn it off.
    tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")
    model = _with_random_weights(config, seed)
    model.fused = None
    if is_fused(precision, compile_passes, pack_sequences, recompute):
        from mlperf_bert.model import encoder, fusion, kernel_encoder  # for speed options

        passes = fusion.Passes(
            ACTIVATIONS[config.hidden_act],
            compiled=compile_passes,
            sums_of_vectors=sums_of_vectors,
            barriers=barriers,
        )
        dtype = tf.bfloat16 if precision == "bfloat16" else tf.float32
        make = kernel_encoder.KernelEncoder if kernels else encoder.Encoder
        model.fused = make(model, config, passes=passes, compute_dtype=dtype, recompute=recompute)
        model.dropout_generator = tf.random.Generator.from_seed(seed)
    return model


def is_fused(precision: str, compile_passes: bool, pack_sequences: bool, recompute: str) -> bool:
    """Whether encoder.py computes, as for every speed option, and not the layers of tf-models."""
    recomputes = recompute != RECOMPUTE_NONE
    return precision == "bfloat16" or compile_passes or pack_sequences or recomputes


@tf.autograph.experimental.do_not_convert
def forward(
    model: models.BertPretrainerV2,
    features: dict[str, tf.Tensor],
    *,
    training: bool,
    seed: tf.Tensor | None = None,
):
    """Runs the model on a batch of features as in the TFRecords, or packed.

    While training, `seed` comes from `dropout_seed`.

    Returns: masked-LM logits [R, P, V] and next-sentence logits [R * E, 2], float32; see
    encoder.py for the shapes.
    """
    if model.fused:
        return model.fused(features, dropout_seed=seed if training else None)
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


@functools.cache
def one_replica() -> tf.distribute.Strategy:
    """TensorFlow's CPU as a replica: inside, a generator draws other numbers than outside.

    Everything that draws dropout, and everything that it changes, is made in its scope.
    """
    return tf.distribute.OneDeviceStrategy("CPU:0")


def dropout_seed(model: models.BertPretrainerV2, num_devices: int = 1) -> tf.Tensor | None:
    """Draws one step's seeds of dropout, int32 [2 devices]; None if the layers draw their own."""
    shape = [2 * num_devices]
    return model.dropout_generator.uniform_full_int(shape, tf.int32) if model.fused else None


def trained_variables(model: models.BertPretrainerV2) -> list[tf.Variable]:
    """The variables that training changes, in the model's order."""
    return [v for v in model.trainable_variables if _UNUSED_POOLER not in v.name]


def random_generators(model: models.BertPretrainerV2) -> list[tf.random.Generator]:
    """The generators of dropout: one per layer, in the model's order, or the single one."""
    if model.fused:
        return [model.dropout_generator]
    return tf_models.random_generators(model)
