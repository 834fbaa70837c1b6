"""The weights of a model in Hugging Face's layout, as safetensors.

Only safetensors: a pickle, such as pytorch_model.bin, can run any program as it is loaded.
"""

import re
from pathlib import Path

import numpy as np
import safetensors.numpy
import tensorflow as tf

from mlperf_bert.checkpoints import names, reading
from mlperf_bert.convert import layout
from mlperf_bert.files import errors, paths, whole

# Some versions store these copies; here the copy and the original are one weight.
_TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
_COUNTERS = {"bert.embeddings.position_ids", "bert.embeddings.token_type_ids"}  # no weights
_TYPES = ("float32", "float16", "bfloat16")
# Parts that a BertForMaskedLM lacks.
_HEADS = {head: names.HEADS[head] for head in ("pooler", "next-sentence head")}
_MOST_PROBLEMS = 3


def read(file: Path) -> dict[str, np.ndarray]:
    """Current name in BertForPreTraining -> tensor, without counters and copies of tied weights.

    Google's models on the hub, such as bert-base-uncased, have gamma and beta in their safetensors.
    Source: huggingface/candle, issue 1887.
    """
    if not file.exists():
        raise ValueError(
            f"{file.parent}: no {file.name}; other weights, such as pytorch_model.bin or parts, "
            "are not read: where you trust them, convert them with transformers, BertForPreTraining"
            '.from_pretrained(OLD).save_pretrained(NEW, max_shard_size="99GB")'
        )
    paths.require_regular_file(file)  # safetensors would wait for a FIFO
    whole.require_unpacked(file)
    with errors.named(file, damaged="fetch it again"):
        stored = safetensors.numpy.load_file(file)
    tensors: dict[str, np.ndarray] = {}
    for name, value in stored.items():
        current = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
        current = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", current)
        current = _TIED.get(current, current)
        if current in _COUNTERS:
            continue
        if current in tensors and not np.array_equal(tensors[current], value):
            raise ValueError(
                f"{file}: holds {current} twice, as {name} too with other values, and here they "
                "are one weight; give a model with tied weights"
            )
        tensors[current] = value
    return tensors


def load(variables: list[tf.Variable], tensors: dict[str, np.ndarray], folder: Path) -> list[str]:
    """Sets every variable that the model has; returns the names of the heads that it lacks."""
    table = reading.weights_of(variables)
    wanted = {layout.name_of_weight(weight.tf1_name): weight for weight in table}
    lacking = []
    for head, beginning in _HEADS.items():
        of_head = {n for n, weight in wanted.items() if weight.tf1_name.startswith(beginning)}
        if not of_head & tensors.keys():
            lacking.append(head)
            wanted = {n: weight for n, weight in wanted.items() if n not in of_head}
    problems = [f"{name} is not a weight of it" for name in sorted(tensors.keys() - wanted.keys())]
    values: dict[str, np.ndarray] = {}
    for name, weight in wanted.items():
        shape = weight.tf1_shape(tuple(table[weight].shape))
        shape = shape[::-1] if layout.is_transposed(weight.tf1_name) else shape
        if (value := tensors.get(name)) is None:
            problems.append(f"{name} is missing")
        elif value.shape != shape:
            problems.append(f"{name} has shape {value.shape}, expected {shape}")
        elif value.dtype.name not in _TYPES:
            problems.append(f"{name} is {value.dtype.name}, expected one of {', '.join(_TYPES)}")
        elif not np.isfinite(values.setdefault(name, value.astype(np.float32))).all():
            problems.append(f"{name} holds NaN or infinity")
    if problems:
        more = len(problems) - _MOST_PROBLEMS
        listed = "; ".join(problems[:_MOST_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")
        raise ValueError(
            f"{folder}: not a whole BertForPreTraining or BertForMaskedLM of its {layout.CONFIG}: "
            f"{listed}; give the files that belong together"
        )
    for name, weight in wanted.items():
        variable = table[weight]
        value = values[name].T if layout.is_transposed(weight.tf1_name) else values[name]
        variable.assign(weight.from_tf1(value, tuple(variable.shape)))
    return lacking
