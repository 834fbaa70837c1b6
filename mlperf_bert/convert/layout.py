"""A model in Hugging Face's layout: files, configuration, names of weights."""

import dataclasses
import re

from mlperf_bert.files import errors
from mlperf_bert.model.config import BertConfig

CONFIG = "config.json"
WEIGHTS = "model.safetensors"

# Their activation -> ours. Our "gelu", as the reference's, is the tanh approximation. Where they
# have two names for one of ours, an export writes the first.
_ACTIVATIONS = {
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu": "gelu_exact",
    "relu": "relu",
    "tanh": "tanh",
    "linear": "linear",
}
# Key of config.json that changes what a BERT computes -> the value that this project has, which is
# also theirs when the key is missing.
_REQUIRED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "layer_norm_eps": 1e-12,
}
# Patterns on a TF1 name, applied in this order, that make it Hugging Face's.
_WEIGHT_NAMES = [
    (r"/layer_(\d+)/", r"/layer/\1/"),
    (r"_embeddings$", r"\g<0>/weight"),
    (r"/(kernel|gamma|output_weights)$", "/weight"),
    (r"/(beta|output_bias)$", "/bias"),
    (r"/", "."),
]


def bert_config(values: dict, path: str) -> BertConfig:
    """Makes our configuration of theirs; keys that do not change the result are ignored."""
    if values.get("model_type") != "bert":
        raise ValueError(
            f"{path}: model_type is {values.get('model_type')!r:.80}, expected 'bert'; give a BERT"
        )
    for name, expected in _REQUIRED.items():
        if (value := values.get(name, expected)) != expected:
            raise ValueError(
                f"{path}: {name} is {value!r:.80}, but the model here has {expected!r}; "
                "give a BERT with that"
            )
    known = [field.name for field in dataclasses.fields(BertConfig)]
    if missing := [name for name in known if name not in values]:
        raise ValueError(f"{path}: missing keys {missing}; add them")
    activation = values["hidden_act"]
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise ValueError(
            f"{path}: hidden_act is {activation!r:.80}, which this project does not compute; give "
            f"a model with one of {', '.join(_ACTIVATIONS)}"
        )
    ours = {name: values[name] for name in known} | {"hidden_act": _ACTIVATIONS[activation]}
    with errors.named(path):
        return BertConfig(**ours)


def their_config(config: BertConfig) -> dict:
    """The keys of their BertConfig: ours, and what they need to compute the same."""
    theirs = {ours: name for name, ours in reversed(_ACTIVATIONS.items())}
    return dataclasses.asdict(config) | {
        "hidden_act": theirs[config.hidden_act],
        "architectures": ["BertForPreTraining"],
        "model_type": "bert",
        "layer_norm_eps": _REQUIRED["layer_norm_eps"],
        "pad_token_id": 0,
    }


def name_of_weight(tf1_name: str) -> str:
    """The name in BertForPreTraining: "bert/pooler/dense/kernel" -> "bert.pooler.dense.weight"."""
    for pattern, replacement in _WEIGHT_NAMES:
        tf1_name = re.sub(pattern, replacement, tf1_name)
    return tf1_name


def is_transposed(tf1_name: str) -> bool:
    """Whether it is a kernel: [out, in] there, [in, out] in TF1."""
    return tf1_name.endswith("/kernel")
