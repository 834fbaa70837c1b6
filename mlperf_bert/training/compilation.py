"""What XLA compiles: nothing, the passes between the matrix products, or the whole step.

And where TensorFlow keeps what was compiled, for later starts.
"""

import contextlib
import dataclasses
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

from mlperf_bert.tensorflow_import import lines_left_out


@dataclasses.dataclass(frozen=True)
class Compilation:
    """What XLA compiles, and why."""

    passes: bool
    """Each element-wise pass of the model (model/fusion.py), and LAMB for each shape."""
    step: bool
    """Forward and backward pass as one program, clipping and LAMB as another."""
    reason: str
    clusters: bool = False
    """TensorFlow compiles clusters of operations by itself: TF_XLA_FLAGS asks for it."""
    by_others: bool = False
    """The whole step is compiled anyway: for a TPU, or by who gets the exported program."""

    @property
    def whole_step(self) -> bool:
        """Whether the step is one program, or two."""
        return self.step or self.by_others

    @property
    def each_pass(self) -> bool:
        """Whether every pass of a step is a program of its own."""
        return self.passes and not self.whole_step

    def __str__(self) -> str:
        what = "clusters of operations" if self.clusters else "nothing"
        if self.step or self.passes:
            what = "the whole step" if self.step else "the passes between the matrix products"
        return f"XLA compiles {what}: {self.reason}"


# TensorFlow first takes an entry for text, and says so for each, before it reads it as it is.
_NOISE = re.compile(rb"Error parsing text-format tensorflow.XlaSerializedCacheEntry")

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
        reason = "everything for a TPU is compiled anyway"
        return Compilation(False, False, reason, by_others=True)
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


def cache_flags(directory: str) -> str:
    """What TF_XLA_FLAGS needs to hold so that compiled programs are kept in a folder and reused.

    Each processor and each version of TensorFlow has a folder of its own in it: what was compiled
    for one may crash on another. TensorFlow reads the variable once, when it looks for its devices.

    Raises:
      ValueError: the path is no local one, or has a quotation mark.
      OSError: the folder cannot be made.
    """
    if "://" in directory or '"' in directory:
        raise ValueError(
            f"--compilation_cache_dir={directory}: give a local folder without quotation marks"
        )
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.exists() else []
    processor = [line for line in lines if re.match(r"(model name|flags|Features)\s*:", line)]
    key = "\n".join([tf.__version__, *sorted(set(processor))])
    folder = Path(directory, hashlib.sha256(key.encode()).hexdigest()[:16]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return f'--tf_xla_persistent_cache_directory="{folder}"'


@contextlib.contextmanager
def reading_cache(directory: str | None) -> Iterator[None]:
    """While programs are compiled or read: hides TensorFlow's noise, and names a damaged folder.

    Raises:
      ValueError: TensorFlow cannot read what is in the folder.
    """
    if directory is None:
        yield
        return
    try:
        with lines_left_out(_NOISE):
            yield
    except (tf.errors.OutOfRangeError, tf.errors.InvalidArgumentError) as error:
        reason = error.message.split(" [Op:")[0]
        raise ValueError(
            f"--compilation_cache_dir={directory}: if one of its files is damaged, remove the "
            f"folder; TensorFlow says: {reason}"
        ) from error
