"""Adds zero gradient accumulators to a TF1 checkpoint, for the reference's --steps_per_update."""

from mlperf_bert import signals
from mlperf_bert.tensorflow_import import tensorflow

if __name__ == "__main__":
    signals.ends_at_once()  # first: the imports take seconds
    tensorflow()  # before other modules import it

from absl import flags

from mlperf_bert import command_line
from mlperf_bert.convert import tf1_tf2

FLAGS = flags.FLAGS

flags.DEFINE_string("old", None, "Checkpoint to read.", required=True)
flags.DEFINE_string("new", None, "Checkpoint to write.", required=True)
command_line.paths("old", "new")
command_line.no_wildcards("old", "new")


def main():
    """Reads one checkpoint and writes the other."""
    num_accumulators = tf1_tf2.add_accumulators(FLAGS.old, FLAGS.new)
    print(f"{num_accumulators} accumulators added: {FLAGS.new}")


if __name__ == "__main__":
    command_line.run(main)
