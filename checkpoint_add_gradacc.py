"""Adds zero gradient accumulators to a TF1 checkpoint, for the reference's --steps_per_update."""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported

from absl import app, flags

from mlperf_bert.checkpoints import gradacc

FLAGS = flags.FLAGS

flags.DEFINE_string("old", None, "Checkpoint to read.", required=True)
flags.DEFINE_string("new", None, "Checkpoint to write.", required=True)


def main(_):
    try:
        num_accumulators = gradacc.add_accumulators(FLAGS.old, FLAGS.new)
    except (ValueError, OSError) as error:
        sys.exit(f"checkpoint_add_gradacc.py: {error}")
    print(f"{num_accumulators} accumulators added: {FLAGS.new}")


if __name__ == "__main__":
    app.run(main)
