"""Writes a checkpoint as a directory that transformers loads: BertForPreTraining and tokenizer."""

from mlperf_bert import signals
from mlperf_bert.tensorflow_import import tensorflow

if __name__ == "__main__":
    signals.ends_at_once()  # first: the imports take seconds
    tensorflow()  # before other modules import it

from absl import flags, logging

from mlperf_bert import command_line
from mlperf_bert.convert import exporting
from mlperf_bert.model.config import BertConfig

FLAGS = flags.FLAGS

flags.DEFINE_string("bert_config_file", None, "Architecture: a bert_config.json.", required=True)
flags.DEFINE_string("checkpoint", None, "Checkpoint to export, TF1 or TF2.", required=True)
flags.DEFINE_string("vocab_file", None, "Its vocab.txt.", required=True)
flags.DEFINE_string("output_dir", None, "Directory to make.", required=True)
command_line.paths("bert_config_file", "checkpoint", "vocab_file", "output_dir")
command_line.no_wildcards("checkpoint")


def main():
    """Writes the directory."""
    logging.set_verbosity(logging.ERROR)
    num_weights = exporting.export(
        FLAGS.checkpoint,
        FLAGS.output_dir,
        config=BertConfig.from_json_file(FLAGS.bert_config_file),
        vocab_file=FLAGS.vocab_file,
    )
    print(f"{num_weights} weights exported: {FLAGS.output_dir}")


if __name__ == "__main__":
    command_line.run(main)
