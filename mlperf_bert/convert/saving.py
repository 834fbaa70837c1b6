"""Checkpoints appear whole or not at all.

Not by mlperf_bert/files/whole.py: a checkpoint is several files, and may lie in a bucket, so that
TensorFlow writes and renames them.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf

from mlperf_bert.checkpoints import reading
from mlperf_bert.files import paths


def new_folder(output_dir: str) -> paths.Location:
    """The folder of --output_dir; raises ValueError if it is there already."""
    target = paths.location(output_dir)
    with paths.failures_named(target):
        if target.exists():
            raise ValueError(f"{output_dir} exists; choose another --output_dir, or remove it")
    return target


def write_json(path: Path, values: dict) -> None:
    """Writes an object with its keys in order."""
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def require_absent(prefix: str) -> None:
    """Raises ValueError if a checkpoint, or part of one, or a folder already has this prefix."""
    with paths.failures_named(prefix):
        if prefix.endswith("/") or tf.io.gfile.isdir(prefix):
            path = f"{prefix.rstrip('/')}/model.ckpt-0"
            raise ValueError(f"{prefix} is a folder; name a checkpoint in it, such as {path}")
        present = tf.io.gfile.glob(f"{prefix}.index") + tf.io.gfile.glob(f"{prefix}.data-*")
    if present:
        raise ValueError(f"{present[0]} exists; choose another path, or remove that checkpoint")


@contextlib.contextmanager
def written_whole(prefix: str) -> Iterator[str]:
    """Yields a prefix in a hidden directory; what is saved there becomes `prefix`.

    The index is renamed last: where it is, the data are. When anything fails, nothing remains;
    what a killed process leaves is removed by the next one.

    Raises:
      ValueError: the directory cannot be written to.
    """
    folder, _, name = prefix.rpartition("/")
    beside = f"{folder}/.{name}.partial" if folder else f".{name}.partial"
    renamed: list[str] = []
    try:
        if tf.io.gfile.exists(beside):
            tf.io.gfile.rmtree(beside)
        paths.make_folder(paths.location(beside))
        yield f"{beside}/checkpoint"
        (index,) = tf.io.gfile.glob(f"{beside}/*.index")
        saved = index.removesuffix(".index")
        for path in [*sorted(tf.io.gfile.glob(f"{saved}.data-*")), index]:
            renamed.append(prefix + path.removeprefix(saved))
            tf.io.gfile.rename(path, renamed[-1])
        renamed.clear()
    except (tf.errors.OpError, OSError) as error:
        raise ValueError(
            f"{prefix}: cannot be written ({paths.reason(error)}); choose another path or make room"
        ) from error
    finally:
        for path in renamed:  # something failed in between
            with contextlib.suppress(tf.errors.OpError):
                tf.io.gfile.remove(path)
        if tf.io.gfile.exists(beside):
            tf.io.gfile.rmtree(beside)


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
