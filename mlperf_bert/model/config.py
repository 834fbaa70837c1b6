"""The architecture, as in `bert_config.json`."""

import dataclasses

from mlperf_bert.files import errors, json_text

_LARGEST_SIZE = 2**31 - 1  # TensorFlow's limit for an axis
# Google's own files hold these too; BERT's code has never read them.
_WITHOUT_EFFECT = frozenset(
    "directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers "
    "pooler_size_per_head pooler_type".split()
)
PRECISIONS = ("float32", "bfloat16", "tf32")
RECOMPUTE_NONE, RECOMPUTE_ATTENTION, RECOMPUTE_BLOCKS = ("none", "attention", "blocks")
RECOMPUTE_CHOICES = (RECOMPUTE_NONE, RECOMPUTE_ATTENTION, RECOMPUTE_BLOCKS)
"""What the backward pass computes again (encoder.py); each keeps less than the one before."""
ACTIVATIONS = ("gelu", "gelu_exact", "relu", "tanh", "linear")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertConfig:
    """Sizes and rates of a BERT model; the fields are the keys of `bert_config.json`.

    Source: Devlin et al., arXiv 1810.04805; the file published with the benchmark.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    hidden_act: str
    hidden_dropout_prob: float
    attention_probs_dropout_prob: float
    max_position_embeddings: int
    type_vocab_size: int
    initializer_range: float

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type is int and (type(value) is not int or not 1 <= value <= _LARGEST_SIZE):
                raise ValueError(
                    f"{field.name} must be a positive integer below 2^31, got {value!r:.80}"
                )
            if field.type is float and (type(value) not in (int, float) or not 0 <= value < 1):
                raise ValueError(f"{field.name} must be a number from 0 to 1, got {value!r:.80}")
        if self.hidden_act not in ACTIVATIONS:
            raise ValueError(
                f"hidden_act must be one of {ACTIVATIONS}, got {self.hidden_act!r:.80}"
            )
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} must be a multiple of "
                f"num_attention_heads={self.num_attention_heads}"
            )

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @classmethod
    def from_json_file(cls, path: str) -> "BertConfig":
        """Reads `bert_config.json`."""
        values = json_text.read_object(path)
        values = {name: value for name, value in values.items() if name not in _WITHOUT_EFFECT}
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := sorted(values.keys() - known):
            raise ValueError(
                f"{path}: unknown keys {unknown!r:.300}; remove them or fix their spelling"
            )
        if missing := sorted(known - values.keys()):
            raise ValueError(f"{path}: missing keys {missing}; add them")
        with errors.named(path):
            return cls(**values)
