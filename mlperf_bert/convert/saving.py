"""Checkpoints and folders that appear whole or not at all, on a disk."""

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf

from mlperf_bert.checkpoints import reading
from mlperf_bert.files import paths


def new_folder(output_dir: str) -> Path:
    """The folder of --output_dir; raises ValueError if it is there already, or in a bucket."""
    target = paths.require_local(output_dir, flag="output_dir")
    if target.exists():
        raise ValueError(f"{output_dir} exists; choose another --output_dir, or remove it")
    return target


def write_json(path: Path, values: dict) -> None:
    """Writes an object with its keys in order."""
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def require_absent(prefix: str) -> None:
    """Raises ValueError if a checkpoint, part of one, or a folder has this prefix, or a bucket."""
    target = paths.require_local(prefix)
    if prefix.endswith("/") or target.is_dir():
        raise ValueError(
            f"{prefix} is a folder; name a checkpoint in it, such as {target}/model.ckpt-0"
        )
    present = [
        file for kind in ("index", "data-*") for file in target.parent.glob(f"{target.name}.{kind}")
    ]
    if present:
        raise ValueError(f"{present[0]} exists; choose another path, or remove that checkpoint")


@contextlib.contextmanager
def written_whole(prefix: str) -> Iterator[str]:
    """Yields a prefix in a hidden directory; what is saved there becomes `prefix`.

    When anything fails, nothing remains; what a killed process leaves is removed by the next one.
    """
    target = Path(prefix)
    beside = target.with_name(f".{target.name}.partial")
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        with paths.failures_named(prefix):
            yield f"{beside}/checkpoint"
        (index,) = beside.glob("*.index")
        # The index comes last: where it is, the data are.
        for file in (*beside.glob(f"{index.stem}.data-*"), index):
            file.rename(target.with_name(target.name + file.name.removeprefix(index.stem)))
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def write_name_based(prefix: str, tensors: dict[str, tf.Tensor]) -> None:
    """Writes a name-based checkpoint as TF1's Saver does: `prefix`.index and one data file."""
    ordered = sorted(tensors)
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=ordered,
        shape_and_slices=[""] * len(ordered),
        tensors=[tf.constant(tensors[name]) for name in ordered],
    )


def weights_by_tf1_name(model_variables: list[tf.Variable]) -> dict[str, np.ndarray]:
    """The model's weights as a TF1 checkpoint holds them."""
    return {
        weight.tf1_name: weight.to_tf1(variable.numpy())
        for weight, variable in reading.weights_of(model_variables).items()
    }
