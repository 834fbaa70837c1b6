"""The parts of tf-models' BERT that have no public name. No other module uses these names.

Shapes: S=longest sequence, H=hidden, T=types of segments, V=vocabulary.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from importlib import metadata
from typing import NamedTuple

import tensorflow as tf
import tf_keras
from official.nlp.modeling import models

_PACKAGE, _KNOWN_VERSION = "tf-models-official", "2.20.0"


class Dense(NamedTuple):
    """The weights of a dense layer; attention's kernels have two axes for heads and sizes."""

    kernel: tf.Variable | tf.Tensor
    bias: tf.Variable | tf.Tensor


class Norm(NamedTuple):
    """The weights of a LayerNorm, [H] each."""

    gamma: tf.Variable | tf.Tensor
    beta: tf.Variable | tf.Tensor


class Block(NamedTuple):
    """The weights of one Transformer block."""

    query: Dense
    key: Dense
    value: Dense
    attention_output: Dense
    attention_norm: Norm
    intermediate: Dense
    output: Dense
    output_norm: Norm


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderLayers:
    """The layers of the encoder, without its unused pooler."""

    words: tf.Variable
    """[V, H]"""
    positions: tf.Variable
    """[S, H]"""
    types: tf.Variable
    """[T, H]"""
    embedding_norm: tf_keras.layers.Layer
    blocks: tuple[Block, ...]


def encoder_layers(model: models.BertPretrainerV2) -> EncoderLayers:
    """The layers of a model; raises ValueError if this tf-models has other names for them."""
    network = model.encoder_network
    with _names_as_known():
        return EncoderLayers(
            words=network.get_embedding_table(),
            positions=network._position_embedding_layer._position_embeddings,
            types=network._type_embedding_layer.embeddings,
            embedding_norm=network._embedding_norm_layer,
            blocks=tuple(_block(layer) for layer in network.transformer_layers),
        )


def _block(layer: tf_keras.layers.Layer) -> Block:
    attention = layer._attention_layer
    return Block(
        query=_dense(attention._query_dense),
        key=_dense(attention._key_dense),
        value=_dense(attention._value_dense),
        attention_output=_dense(attention._output_dense),
        attention_norm=_norm(layer._attention_layer_norm),
        intermediate=_dense(layer._intermediate_dense),
        output=_dense(layer._output_dense),
        output_norm=_norm(layer._output_layer_norm),
    )


def _dense(layer: tf_keras.layers.Layer) -> Dense:
    return Dense(layer.kernel, layer.bias)


def _norm(layer: tf_keras.layers.Layer) -> Norm:
    return Norm(layer.gamma, layer.beta)


def compute_in_float32(layer: tf_keras.layers.Layer) -> None:
    """Gives a layer that is built the policy float32, whatever its model has."""
    layer._set_dtype_policy("float32")


def drop_of_attention_outputs(model: models.BertPretrainerV2, rate: float) -> None:
    """Sets their dropout; tf-models gives it the rate of the probabilities. Raises as above."""
    with _names_as_known():
        for layer in model.encoder_network.transformer_layers:
            layer._attention_dropout.rate = rate


def random_generators(model: models.BertPretrainerV2) -> list[tf.random.Generator]:
    """The generators of the dropout layers, in the model's order; raises as `encoder_layers`."""
    # A checkpoint has their states by number, in this order.
    dropouts = [part for part in model.submodules if isinstance(part, tf_keras.layers.Dropout)]
    if not dropouts:
        raise _other_version("its model has no Dropout layer")
    with _names_as_known():
        return [layer._random_generator._generator for layer in dropouts]


@contextlib.contextmanager
def _names_as_known() -> Iterator[None]:
    try:
        yield
    except AttributeError as error:
        raise _other_version(error) from error


def _other_version(difference: object) -> ValueError:
    return ValueError(
        f"{_PACKAGE} {metadata.version(_PACKAGE)} is built differently from {_KNOWN_VERSION} "
        f"({difference}); install the versions of environment/requirements.lock"
    )
