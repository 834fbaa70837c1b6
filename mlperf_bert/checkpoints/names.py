"""The weights of a model: their names in a TF1 checkpoint and in ours, their shapes, their bytes.

TF1 checkpoints name weights by scope ("bert/encoder/layer_0/attention/self/query/kernel"). Ours
have the names of tf-models' layers and, in attention, one axis per head.
"""

import dataclasses
import math
import re

import numpy as np

from mlperf_bert.model.config import BertConfig

FLOAT_BYTES = 4

# Rows: TF1 name, name of our variable (without the model's own scope and ":0"), its dimensions:
# H hidden, N heads, D head size, I intermediate, V vocabulary, T types of segments, L longest
# sequence, 2 classes.
# The rows of a layer stand below bert/encoder/layer_N and transformer/layer_N.
_LAYER = [
    ("attention/self/query/kernel", "self_attention/query/kernel", "HND"),
    ("attention/self/query/bias", "self_attention/query/bias", "ND"),
    ("attention/self/key/kernel", "self_attention/key/kernel", "HND"),
    ("attention/self/key/bias", "self_attention/key/bias", "ND"),
    ("attention/self/value/kernel", "self_attention/value/kernel", "HND"),
    ("attention/self/value/bias", "self_attention/value/bias", "ND"),
    ("attention/output/dense/kernel", "self_attention/attention_output/kernel", "NDH"),
    ("attention/output/dense/bias", "self_attention/attention_output/bias", "H"),
    ("attention/output/LayerNorm/gamma", "self_attention_layer_norm/gamma", "H"),
    ("attention/output/LayerNorm/beta", "self_attention_layer_norm/beta", "H"),
    ("intermediate/dense/kernel", "intermediate/kernel", "HI"),
    ("intermediate/dense/bias", "intermediate/bias", "I"),
    ("output/dense/kernel", "output/kernel", "IH"),
    ("output/dense/bias", "output/bias", "H"),
    ("output/LayerNorm/gamma", "output_layer_norm/gamma", "H"),
    ("output/LayerNorm/beta", "output_layer_norm/beta", "H"),
]
_EMBEDDINGS = [
    ("bert/embeddings/word_embeddings", "word_embeddings/embeddings", "VH"),
    ("bert/embeddings/token_type_embeddings", "type_embeddings/embeddings", "TH"),
    ("bert/embeddings/position_embeddings", "position_embedding/embeddings", "LH"),
    ("bert/embeddings/LayerNorm/gamma", "embeddings/layer_norm/gamma", "H"),
    ("bert/embeddings/LayerNorm/beta", "embeddings/layer_norm/beta", "H"),
]
_TRANSFORM = "cls/predictions/transform"
_HEADS = [
    ("bert/pooler/dense/kernel", "next_sentence/pooler_dense/kernel", "HH"),
    ("bert/pooler/dense/bias", "next_sentence/pooler_dense/bias", "H"),
    (f"{_TRANSFORM}/dense/kernel", f"{_TRANSFORM}/dense/kernel", "HH"),
    (f"{_TRANSFORM}/dense/bias", f"{_TRANSFORM}/dense/bias", "H"),
    (f"{_TRANSFORM}/LayerNorm/gamma", f"{_TRANSFORM}/LayerNorm/gamma", "H"),
    (f"{_TRANSFORM}/LayerNorm/beta", f"{_TRANSFORM}/LayerNorm/beta", "H"),
    ("cls/predictions/output_bias", "cls/predictions/output_bias/bias", "V"),
    ("cls/seq_relationship/output_weights", "next_sentence/logits/kernel", "H2"),
    ("cls/seq_relationship/output_bias", "next_sentence/logits/bias", "2"),
]

MASKED_LM_HEAD = "masked-LM head"
# Heads of pre-training, and how the TF1 names of their weights begin.
HEADS = {
    "pooler": "bert/pooler/",
    MASKED_LM_HEAD: "cls/predictions/",
    "next-sentence head": "cls/seq_relationship/",
}

# tf-models' own converter and its first pretrainer keep these weights elsewhere: the pooler in the
# encoder, the next-sentence layer in a network of its own. Our name comes first: in a model that
# has both, the encoder's pooler is not trained.
_PUBLISHED_NAMES = {
    "next_sentence/pooler_dense/kernel": "pooler_transform/kernel",
    "next_sentence/pooler_dense/bias": "pooler_transform/bias",
    "next_sentence/logits/kernel": "predictions/transform/logits/kernel",
    "next_sentence/logits/bias": "predictions/transform/logits/bias",
}

# Keras puts the names of the pretrainer and of the encoder before a variable's, and numbers them
# when a process builds more than one.
_SCOPE = re.compile(r"^(bert(_\w+)?/)+")


@dataclasses.dataclass(frozen=True)
class Weight:
    """One weight under both names."""

    tf1_name: str
    our_name: str
    dimensions: str
    """The dimensions of our variable, a letter each."""

    @property
    def tf2_names(self) -> list[str]:
        """The names that the weight may have in a TF2 checkpoint, the most trusted one first."""
        published = _PUBLISHED_NAMES.get(self.our_name)
        return [self.our_name, published] if published else [self.our_name]

    def our_shape(self, config: BertConfig) -> tuple[int, ...]:
        """The shape of our variable in a model."""
        sizes = {
            "H": config.hidden_size,
            "N": config.num_attention_heads,
            "D": config.head_size,
            "I": config.intermediate_size,
            "V": config.vocab_size,
            "T": config.type_vocab_size,
            "L": config.max_position_embeddings,
            "2": 2,
        }
        return tuple(sizes[letter] for letter in self.dimensions)

    def to_tf1(self, value: np.ndarray) -> np.ndarray:
        """Our array in the TF1 shape."""
        return value.T if self._is_transposed else value.reshape(self.tf1_shape(value.shape))

    def from_tf1(self, value: np.ndarray, our_shape: tuple[int, ...]) -> np.ndarray:
        """An array of `tf1_shape` in our shape."""
        return value.T if self._is_transposed else value.reshape(our_shape)

    def tf1_shape(self, our_shape: tuple[int, ...]) -> tuple[int, ...]:
        """The TF1 shape of a variable of ours, with heads and head size in one axis."""
        if self._is_transposed:
            return tuple(reversed(our_shape))
        if (at := self.dimensions.find("ND")) >= 0:
            return (*our_shape[:at], our_shape[at] * our_shape[at + 1], *our_shape[at + 2 :])
        return tuple(our_shape)

    @property
    def _is_transposed(self) -> bool:
        return self.dimensions == "H2"  # only the next-sentence layer is stored transposed


def weights(num_hidden_layers: int) -> list[Weight]:
    """All trained weights of a model with `num_hidden_layers` layers: 5 + 16 per layer + 9."""
    layers = [
        (f"bert/encoder/layer_{n}/{tf1_name}", f"transformer/layer_{n}/{our_name}", *rest)
        for n in range(num_hidden_layers)
        for tf1_name, our_name, *rest in _LAYER
    ]
    return [Weight(*row) for row in [*_EMBEDDINGS, *layers, *_HEADS]]


def checkpoint_bytes(bert_config: BertConfig, *, steps_per_update: int) -> int:
    """Returns the size of one checkpoint of a run: weights, two slots, accumulators."""
    every = weights(bert_config.num_hidden_layers)
    num_weights = sum(math.prod(each.our_shape(bert_config)) for each in every)
    copies = 3 + (steps_per_update > 1)
    return copies * num_weights * FLOAT_BYTES


def our_name(variable_name: str) -> str:
    """A variable's name without the scope of model and encoder, and without ":0"."""
    return _SCOPE.sub("", variable_name.removesuffix(":0"))
