"""What XLA compiles: nothing, the passes between the matrix products, or the whole step."""

import dataclasses
import re

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Compilation:
    """What XLA compiles, and why."""

    passes: bool
    """The element-wise passes of the model (model/fusion.py), and LAMB for each shape."""
    step: bool
    """Forward and backward pass as one program, clipping and LAMB as another."""
    reason: str
    clusters: bool = False
    """TensorFlow compiles clusters of operations by itself: TF_XLA_FLAGS asks for it."""

    def __str__(self) -> str:
        what = "clusters of operations" if self.clusters else "nothing"
        if self.step or self.passes:
            what = "the whole step" if self.step else "the passes between the matrix products"
        return f"XLA compiles {what}: {self.reason}"


NOTHING = Compilation(passes=False, step=False, reason="--jit_compile=false")


def choose(
    jit_compile: str,
    *,
    strategy: tf.distribute.Strategy,
    packs_sequences: bool,
    tf_xla_flags: str = "",
) -> Compilation:
    """Decides by --jit_compile; `auto` takes what is faster on the device.

    With --jit_compile=false, TF_XLA_FLAGS=--tf_xla_auto_jit=2, which train_model.sh sets as the
    reference does, still has an effect on GPUs.

    The measurements are in benchmarks/NOTES.md.
    """
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return Compilation(False, False, "everything for a TPU is compiled anyway")
    has_gpus = any("GPU" in device for device in strategy.extended.worker_devices)
    if jit_compile == "false" and has_gpus and re.search(r"tf_xla_auto_jit=(?![0-])", tf_xla_flags):
        return Compilation(False, False, f"TF_XLA_FLAGS={tf_xla_flags}", clusters=True)
    if jit_compile == "false":
        return NOTHING
    if jit_compile == "true":
        return Compilation(True, True, "--jit_compile=true")
    if not has_gpus:
        return Compilation(True, False, "matrix products on a CPU are faster outside XLA")
    if packs_sequences:
        return Compilation(True, False, "packed batches have too many shapes")
    return Compilation(True, True, "a GPU starts fewer kernels")
