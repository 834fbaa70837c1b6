"""What XLA compiles: nothing, the passes between the matrix products, or the whole step."""

import dataclasses

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Compilation:
    """What XLA compiles, and why."""

    passes: bool
    """The element-wise passes of the model (model/fusion.py), and LAMB for each shape."""
    step: bool
    """Forward and backward pass as one program, clipping and LAMB as another."""
    reason: str

    def __str__(self) -> str:
        compiled = "the whole step" if self.step else "the passes between the matrix products"
        what = compiled if self.step or self.passes else "nothing"
        return f"XLA compiles {what}: {self.reason}"


NOTHING = Compilation(passes=False, step=False, reason="--jit_compile=false")


def choose(
    jit_compile: str, *, strategy: tf.distribute.Strategy, packs_sequences: bool
) -> Compilation:
    """Decides by --jit_compile; `auto` takes what is faster on the device.

    The measurements are in benchmarks/NOTES.md.
    """
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return Compilation(False, False, "everything for a TPU is compiled anyway")
    if jit_compile == "false":
        return NOTHING
    if jit_compile == "true":
        return Compilation(True, True, "--jit_compile=true")
    if not any("GPU" in device for device in strategy.extended.worker_devices):
        return Compilation(True, False, "matrix products on a CPU are faster outside XLA")
    if packs_sequences:
        return Compilation(True, False, "packed batches have too many shapes")
    return Compilation(True, True, "a GPU starts fewer kernels")
