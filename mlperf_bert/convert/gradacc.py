"""Gradient accumulators in a TF1 checkpoint, which the reference's --steps_per_update asks for."""

import tensorflow as tf

from mlperf_bert.checkpoints.reading import StoredCheckpoint
from mlperf_bert.convert import saving

ACCUMULATOR = "GradientAccumulator"


def add_accumulators(old: str, new: str) -> int:
    """Copies a TF1 checkpoint and adds zeros, NAME/GradientAccumulator, for every tensor NAME.

    Every tensor: slots and step too, as the reference does. Our own training ignores accumulators
    in its initial checkpoint. Holds twice the checkpoint in memory.

    Returns: how many accumulators were added.

    Raises:
      ValueError: no such checkpoint, damaged, not TF1, with accumulators, or `new` exists.
    """
    saving.require_absent(new)
    stored = StoredCheckpoint(old)
    if stored.is_object_based:
        raise ValueError(
            f"{old} is a TF2 checkpoint, and accumulators are for TF1 ones; "
            "convert it with tf2_encoder_checkpoint_converter.py first"
        )
    if present := [name for name in sorted(stored.shapes) if name.endswith(f"/{ACCUMULATOR}")]:
        raise ValueError(f"{old} already has accumulators, such as {present[0]}; use it as it is")
    tensors = {name: tf.constant(stored.tensor(name)) for name in stored.shapes}
    zeros = {f"{name}/{ACCUMULATOR}": tf.zeros_like(tensor) for name, tensor in tensors.items()}
    with saving.written_whole(new) as beside:
        saving.write_name_based(beside, tensors | zeros)
    return len(zeros)
