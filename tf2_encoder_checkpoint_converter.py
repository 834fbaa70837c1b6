"""Converts a TF1 checkpoint, or the output of a run, to a TF2 checkpoint of its weights."""

from mlperf_bert import signals
from mlperf_bert.tensorflow_import import tensorflow

if __name__ == "__main__":
    signals.ends_at_once()  # first: the imports take seconds
    tensorflow()  # before other modules import it

import dataclasses

from mlperf_bert import command_line
from mlperf_bert.convert import tf1_tf2
from mlperf_bert.model.config import BertConfig
from mlperf_bert.options import option, required_path


@dataclasses.dataclass(frozen=True)
class Conversion:
    """What is converted, and where to."""

    bert_config_file: str = required_path("Architecture: a bert_config.json.")
    checkpoint_to_convert: str = required_path(
        "Checkpoint, such as .../model.ckpt-28252.", may_have_wildcards=False
    )
    converted_checkpoint_path: str = required_path(
        "Path of the result; no step is added.", may_have_wildcards=False
    )
    converted_model: str = option(
        "pretrainer",
        "The encoder with both heads, or the encoder alone, which may lack them.",
        choices=tf1_tf2.CONVERTED_MODELS,
    )


def main():
    """Writes the converted checkpoint."""
    wanted = command_line.read(Conversion)
    report = tf1_tf2.convert(
        wanted.checkpoint_to_convert,
        wanted.converted_checkpoint_path,
        config=BertConfig.from_json_file(wanted.bert_config_file),
        converted_model=wanted.converted_model,
    )
    print(report)


if __name__ == "__main__":
    command_line.run(main, Conversion)
