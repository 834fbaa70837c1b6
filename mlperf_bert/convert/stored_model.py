"""The weights of a model in Hugging Face's layout, as safetensors in one file or several.

Only safetensors: a pickle, such as pytorch_model.bin, can run any program as it is loaded.
"""

import collections
import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import safetensors
import tensorflow as tf

from mlperf_bert.checkpoints import names, reading
from mlperf_bert.convert import layout
from mlperf_bert.files import paths, whole

# Copies that some versions store: here they are one weight with the original.
_TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
_COUNTERS = {"bert.embeddings.position_ids", "bert.embeddings.token_type_ids"}  # no weights
_TYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# Parts that a BertForMaskedLM lacks.
_HEADS = {head: names.HEADS[head] for head in ("pooler", "next-sentence head")}
_MOST_PROBLEMS = 3


class StoredModel:
    """The tensors of a model's safetensors, under their names in BertForPreTraining."""

    def __init__(self, folder: Path, model: str):
        """Opens model.safetensors, or the files that its index names.

        Raises:
          ValueError: there are none, a file is missing or damaged, or a tensor has two names.
        """
        self.model = model
        self._files: dict[str, tuple[safetensors.safe_open, str]] = {}
        self._types: collections.Counter[str] = collections.Counter()
        for name in _files_of_weights(folder, model):
            paths.require_regular_file(folder / name)  # safetensors would wait for a FIFO
            whole.require_unpacked(folder / name)
            with self._damage_named(name):
                file = safetensors.safe_open(folder / name, framework="np")
                stored_names = list(file.keys())
            for stored_name in stored_names:
                if (their_name := _today(stored_name)) in self._files:
                    raise ValueError(f"{model}: holds {their_name} twice, such as {stored_name}")
                self._files[their_name] = file, stored_name
        for counter in _COUNTERS & self._files.keys():
            del self._files[counter]
        self._untie()

    @property
    def names(self) -> set[str]:
        """Names of all tensors, without counters and without copies of tied ones."""
        return set(self._files)

    @property
    def num_read(self) -> int:
        """How many weights have been read."""
        return self._types.total()

    def converted(self) -> list[tuple[str, int]]:
        """Types other than float32 of the weights that have been read, and how many had them."""
        return sorted((name, n) for name, n in self._types.items() if name != "float32")

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Raises ValueError if a tensor is missing, or of another shape or type."""
        if name not in self._files:
            raise ValueError(f"{name} is missing")
        file, stored_name = self._files[name]
        part = file.get_slice(stored_name)
        if (stored_shape := tuple(part.get_shape())) != shape:
            raise ValueError(f"{name} has shape {stored_shape}, expected {shape}")
        if (dtype := part.get_dtype()) not in _TYPES:
            raise ValueError(f"{name} is {dtype}, expected one of {', '.join(_TYPES)}")

    def read(self, name: str) -> np.ndarray:
        """A tensor as float32; raises ValueError if it is damaged or a value is not finite."""
        value = self._value(name)
        self._types[value.dtype.name] += 1
        value = value.astype(np.float32)
        if not np.isfinite(value).all():
            raise ValueError(
                f"{self.model}: {name} holds NaN or infinity; its training has diverged or the "
                "file is damaged: give another model"
            )
        return value

    def _value(self, name: str) -> np.ndarray:
        file, stored_name = self._files[name]
        with self._damage_named(stored_name):
            return file.get_tensor(stored_name)

    def _untie(self) -> None:
        """Drops copies of tied weights; a copy whose original is missing takes its place."""
        for copy, original in _TIED.items():
            if copy not in self._files:
                continue
            if original in self._files and not np.array_equal(
                self._value(copy), self._value(original)
            ):
                raise ValueError(
                    f"{self.model}: {copy} differs from {original}, and here they are one weight; "
                    "give a model with tied weights"
                )
            place = self._files.pop(copy)
            self._files.setdefault(original, place)

    @contextlib.contextmanager
    def _damage_named(self, name: str) -> Iterator[None]:
        try:
            yield
        except safetensors.SafetensorError as error:
            raise ValueError(
                f"{self.model}/{name}: cannot be read ({error}); fetch it again"
            ) from error


def _today(name: str) -> str:
    """A stored tensor's name as today's BertForPreTraining has it.

    Google's models on the hub, such as bert-base-uncased, have gamma and beta in their safetensors.
    Source: huggingface/candle, issue 1887.
    """
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
    return re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)


def _files_of_weights(folder: Path, model: str) -> list[str]:
    if (folder / layout.WEIGHTS).exists():
        return [layout.WEIGHTS]
    if not (folder / layout.INDEX).exists():
        raise ValueError(
            f"{model}: no {layout.WEIGHTS}; other weights, such as pytorch_model.bin, are not "
            "read: where you trust them, convert them with transformers, "
            "BertForPreTraining.from_pretrained(OLD).save_pretrained(NEW, safe_serialization=True)"
        )
    places = layout.read_json(folder, layout.INDEX, model).get("weight_map")
    files = sorted(set(map(str, places.values()))) if isinstance(places, dict) else []
    # Only names: a path could lead out of the folder.
    if not files or any(Path(name).name != name for name in files):
        raise ValueError(f"{model}/{layout.INDEX}: no weight_map of file names; fetch it again")
    if missing := [name for name in files if not (folder / name).exists()]:
        raise ValueError(f"{model}: {', '.join(missing)} missing; fetch the whole model")
    return files


def load(variables: list[tf.Variable], stored: StoredModel) -> list[str]:
    """Sets every variable that the model has; returns the names of the heads that it lacks.

    Raises:
      ValueError: a weight is missing, too many, or has another shape or type, and none is set; or
        one is damaged.
    """
    table = reading.weights_of(variables)
    lacking = {
        head: beginning
        for head, beginning in _HEADS.items()
        if not any(
            layout.name_of_weight(weight.tf1_name) in stored.names
            for weight in table
            if weight.tf1_name.startswith(beginning)
        )
    }
    wanted = {
        layout.name_of_weight(weight.tf1_name): weight
        for weight in table
        if not weight.tf1_name.startswith(tuple(lacking.values()))
    }
    problems = [f"{name} is not a weight of it" for name in sorted(stored.names - wanted.keys())]
    for name, weight in wanted.items():
        shape = weight.tf1_shape(tuple(table[weight].shape))
        try:
            stored.check(name, shape[::-1] if layout.is_transposed(weight.tf1_name) else shape)
        except ValueError as error:
            problems.append(str(error))
    if problems:
        more = len(problems) - _MOST_PROBLEMS
        listed = "; ".join(problems[:_MOST_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")
        raise ValueError(
            f"{stored.model}: not a BertForPreTraining or BertForMaskedLM of its "
            f"{layout.CONFIG}: {listed}; give the files that belong together"
        )
    for name, weight in wanted.items():
        variable, value = table[weight], stored.read(name)
        value = value.T if layout.is_transposed(weight.tf1_name) else value
        variable.assign(weight.from_tf1(value, tuple(variable.shape)))
    return list(lacking)
