"""Converts a TF1 checkpoint to TF2, or a TF2 checkpoint to TF1."""

from mlperf_bert import signals
from mlperf_bert.tensorflow_import import tensorflow

if __name__ == "__main__":
    signals.ends_at_once()  # first: the imports take seconds
    tensorflow()  # before other modules import it

from absl import flags, logging

from mlperf_bert import command_line
from mlperf_bert.convert import tf1_tf2
from mlperf_bert.model.config import BertConfig

FLAGS = flags.FLAGS

flags.DEFINE_string("bert_config_file", None, "Architecture: a bert_config.json.", required=True)
flags.DEFINE_string(
    "checkpoint_to_convert", None, "Checkpoint, such as .../model.ckpt-28252.", required=True
)
flags.DEFINE_string(
    "converted_checkpoint_path", None, "Path of the result; no step is added.", required=True
)
flags.DEFINE_enum(
    "converted_model",
    "pretrainer",
    tf1_tf2.CONVERTED_MODELS,
    "TF2 result: the encoder with both heads, or the encoder alone, which may lack them.",
)
command_line.paths("bert_config_file", "checkpoint_to_convert", "converted_checkpoint_path")
command_line.no_wildcards("checkpoint_to_convert", "converted_checkpoint_path")


def main():
    """Writes the converted checkpoint."""
    logging.set_verbosity(logging.ERROR)
    report = tf1_tf2.convert(
        FLAGS.checkpoint_to_convert,
        FLAGS.converted_checkpoint_path,
        config=BertConfig.from_json_file(FLAGS.bert_config_file),
        converted_model=FLAGS.converted_model,
    )
    print(report)


if __name__ == "__main__":
    command_line.run(main)
