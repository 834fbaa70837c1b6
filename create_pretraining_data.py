"""Makes TFRecords of masked training examples from text with one sentence a line."""

import sys

from absl import app, flags

from mlperf_bert.data.examples import write_examples
from mlperf_bert.data.instances import InstanceConfig

FLAGS = flags.FLAGS

flags.DEFINE_string("input_file", None, "Text files; globs and commas are allowed.", required=True)
flags.DEFINE_string(
    "output_file", None, "TFRecord, or several with commas, filled in turn.", required=True
)
flags.DEFINE_string("vocab_file", None, "WordPiece vocabulary.", required=True)
flags.DEFINE_bool("do_lower_case", True, "Lower-case the text, as the uncased vocabulary wants.")
flags.DEFINE_bool("preserve_unused_tokens", False, "Keep [unused7] in the text as one token.")
flags.DEFINE_integer("max_seq_length", 128, "Tokens per example.")
flags.DEFINE_integer("max_predictions_per_seq", 20, "Masked tokens per example at most.")
flags.DEFINE_integer("random_seed", 12345, "Seed; the benchmark's data have 12345.")
flags.DEFINE_integer("dupe_factor", 10, "Copies of the text, each masked differently.")
flags.DEFINE_float("masked_lm_prob", 0.15, "Share of masked tokens.")
flags.DEFINE_float("short_seq_prob", 0.1, "Share of documents cut to shorter examples.")


def main(_):
    names = (
        "max_seq_length max_predictions_per_seq random_seed dupe_factor masked_lm_prob "
        "short_seq_prob"
    )
    try:
        num_examples = write_examples(
            input_file=FLAGS.input_file,
            output_file=FLAGS.output_file,
            vocab_file=FLAGS.vocab_file,
            do_lower_case=FLAGS.do_lower_case,
            preserve_unused_tokens=FLAGS.preserve_unused_tokens,
            config=InstanceConfig(**{name: FLAGS[name].value for name in names.split()}),
        )
    except (ValueError, OSError) as error:
        sys.exit(f"create_pretraining_data.py: {error}")
    print(f"{num_examples} examples in {FLAGS.output_file}")


if __name__ == "__main__":
    app.run(main)
