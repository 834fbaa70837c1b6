"""Makes an initial checkpoint and a bert_config.json of a BERT in Hugging Face's layout."""

from mlperf_bert import signals
from mlperf_bert.tensorflow_import import tensorflow

if __name__ == "__main__":
    signals.ends_at_once()  # first: the imports take seconds
    tensorflow()  # before other modules import it

from absl import flags, logging

from mlperf_bert import command_line
from mlperf_bert.command_line import in_range
from mlperf_bert.convert import importing
from mlperf_bert.options import MAX_SEED

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "model", None, "Folder, or NAME or NAME@REVISION on Hugging Face's hub.", required=True
)
flags.DEFINE_string("output_dir", None, "Directory to make.", required=True)
flags.DEFINE_integer("seed", 0, "Seed of the heads that the model lacks.")
command_line.paths("model", "output_dir")
command_line.no_wildcards("output_dir")
in_range("seed", at_least=0, at_most=MAX_SEED)


def main():
    """Writes the directory."""
    logging.set_verbosity(logging.ERROR)
    print(*importing.import_model(FLAGS.model, FLAGS.output_dir, seed=FLAGS.seed), sep="\n")


if __name__ == "__main__":
    command_line.run(main)
