"""Writes a checkpoint as a directory that transformers loads: BertForPreTraining and tokenizer."""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported

from absl import app, flags, logging

from mlperf_bert.checkpoints import export
from mlperf_bert.model.config import BertConfig

FLAGS = flags.FLAGS

flags.DEFINE_string("bert_config_file", None, "Architecture: a bert_config.json.", required=True)
flags.DEFINE_string("checkpoint", None, "Checkpoint to export, TF1 or TF2.", required=True)
flags.DEFINE_string("vocab_file", None, "Its vocab.txt.", required=True)
flags.DEFINE_string("output_dir", None, "Directory to make.", required=True)


def main(_):
    logging.set_verbosity(logging.ERROR)
    try:
        num_weights = export.export(
            FLAGS.checkpoint,
            FLAGS.output_dir,
            config=BertConfig.from_json_file(FLAGS.bert_config_file),
            vocab_file=FLAGS.vocab_file,
        )
    except (ValueError, OSError) as error:
        sys.exit(f"export_to_hugging_face.py: {error}")
    print(f"{num_weights} weights exported: {FLAGS.output_dir}")


if __name__ == "__main__":
    app.run(main)
