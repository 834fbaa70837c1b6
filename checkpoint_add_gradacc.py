"""Adds zero gradient accumulators to a TF1 checkpoint, for the reference's --steps_per_update."""

from mlperf_bert import signals
from mlperf_bert.tensorflow_import import tensorflow

if __name__ == "__main__":
    signals.ends_at_once()  # first: the imports take seconds
    tensorflow()  # before other modules import it

import dataclasses

from mlperf_bert import command_line
from mlperf_bert.convert import tf1_tf2
from mlperf_bert.options import required_path


@dataclasses.dataclass(frozen=True)
class Checkpoints:
    """Two checkpoints."""

    old: str = required_path("Checkpoint to read.", may_have_wildcards=False)
    new: str = required_path("Checkpoint to write.", may_have_wildcards=False)


def main():
    """Reads one checkpoint and writes the other."""
    checkpoints = command_line.read(Checkpoints)
    num_accumulators = tf1_tf2.add_accumulators(checkpoints.old, checkpoints.new)
    print(f"{num_accumulators} accumulators added: {checkpoints.new}")


if __name__ == "__main__":
    command_line.run(main, Checkpoints)
