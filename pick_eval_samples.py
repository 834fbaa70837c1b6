"""Picks evenly spaced examples: from eval_intermediate to the evaluation shard eval_10k."""

from mlperf_bert import signals

if __name__ == "__main__":
    signals.ends_at_once()  # first: the imports take seconds

from absl import flags

from mlperf_bert import command_line
from mlperf_bert.command_line import in_range
from mlperf_bert.data import evaluation_shard
from mlperf_bert.files.whole import require_apart

FLAGS = flags.FLAGS

flags.DEFINE_string("input_tfrecord", None, "TFRecord to pick from.", required=True)
flags.DEFINE_string("output_tfrecord", None, "TFRecord to write.", required=True)
flags.DEFINE_integer("num_examples_to_pick", 10000, "How many examples.")
flags.DEFINE_integer("max_seq_length", 512, "Tokens per example.")
flags.DEFINE_integer("max_predictions_per_seq", 76, "Masked tokens per example at most.")
command_line.paths("input_tfrecord", "output_tfrecord")
in_range("num_examples_to_pick", "max_seq_length", "max_predictions_per_seq", at_least=1)


def main():
    """Writes the examples that are picked."""
    named = [(f"--output_tfrecord={FLAGS.output_tfrecord}", FLAGS.output_tfrecord)]
    require_apart(named, [FLAGS.input_tfrecord])
    num_examples = evaluation_shard.pick(
        FLAGS.input_tfrecord,
        FLAGS.output_tfrecord,
        num_examples_to_pick=FLAGS.num_examples_to_pick,
        max_seq_length=FLAGS.max_seq_length,
        max_predictions_per_seq=FLAGS.max_predictions_per_seq,
    )
    repeated = ", some more than once" if FLAGS.num_examples_to_pick > num_examples else ""
    print(f"picked {FLAGS.num_examples_to_pick:,} of {num_examples:,} examples{repeated}")


if __name__ == "__main__":
    command_line.run(main)
