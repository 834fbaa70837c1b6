"""Writes a checkpoint as a directory that transformers loads: BertForPreTraining and tokenizer."""

from mlperf_bert import signals
from mlperf_bert.tensorflow_import import tensorflow

if __name__ == "__main__":
    signals.ends_at_once()  # first: the imports take seconds
    tensorflow()  # before other modules import it

import dataclasses

from mlperf_bert import command_line
from mlperf_bert.convert import exporting
from mlperf_bert.model.config import BertConfig
from mlperf_bert.options import required_path


@dataclasses.dataclass(frozen=True)
class Export:
    """What is exported, and where to."""

    bert_config_file: str = required_path("Architecture: a bert_config.json.")
    checkpoint: str = required_path("Checkpoint to export, TF1 or TF2.", may_have_wildcards=False)
    vocab_file: str = required_path("Its vocab.txt.")
    output_dir: str = required_path("Directory to make.")


def main():
    """Writes the directory."""
    wanted = command_line.read(Export)
    num_weights = exporting.export(
        wanted.checkpoint,
        wanted.output_dir,
        config=BertConfig.from_json_file(wanted.bert_config_file),
        vocab_file=wanted.vocab_file,
        beside=wanted.bert_config_file,
    )
    print(f"{num_weights} weights exported: {wanted.output_dir}")


if __name__ == "__main__":
    command_line.run(main, Export)
