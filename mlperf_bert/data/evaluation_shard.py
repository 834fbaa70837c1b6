"""The evaluation shard: evenly spaced examples of one file, copied to another."""

import dataclasses
from pathlib import Path

from mlperf_bert.data import parts, tfrecord, validity
from mlperf_bert.files import paths
from mlperf_bert.files.whole import require_apart, require_writable, written_beside
from mlperf_bert.messages import lasting
from mlperf_bert.options import option

# The vocabulary is unknown here; models take ids of 32 bits.
_LARGEST_VOCABULARY = 2**31
_NUM_SEGMENTS = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class PickConfig:
    """Which examples are picked, and how long they must be."""

    input_tfrecord: str = option(None, "TFRecord to pick from.", required=True, path=True)
    output_tfrecord: str = option(None, "TFRecord to write.", required=True, path=True)
    num_examples_to_pick: int = option(10000, "How many examples.", at_least=1)
    max_seq_length: int = option(512, "Tokens per example.", at_least=1)
    max_predictions_per_seq: int = option(76, "Masked tokens per example at most.", at_least=1)


@lasting("picking examples")
def pick(config: PickConfig) -> int:
    """Copies evenly spaced records of one file to another, byte for byte; returns how many it had.

    Asking for more examples than there are repeats some, as the reference does.
    """
    input_path, output_path = config.input_tfrecord, config.output_tfrecord
    paths.require_local(input_path, flag="input_tfrecord")
    paths.require_local(output_path, flag="output_tfrecord")
    require_apart([(f"--output_tfrecord={output_path}", output_path)], [input_path])
    num_examples_to_pick = config.num_examples_to_pick
    allowed = validity.ExampleLimits(
        max_seq_length=config.max_seq_length,
        max_predictions_per_seq=config.max_predictions_per_seq,
        vocab_size=_LARGEST_VOCABULARY,
        type_vocab_size=_NUM_SEGMENTS,
    )
    require_writable(output_path)
    num_examples = tfrecord.count_records(input_path)
    if not num_examples:
        raise ValueError(f"{input_path}: holds no examples to pick from; make it again")
    # Quirk: record i of the output is record int(i * ratio). The ratio is a float, rounded once, so
    # this differs from i * num_examples // num_examples_to_pick.
    ratio = num_examples / num_examples_to_pick
    with written_beside(output_path) as file:
        position = 0
        for frame in tfrecord.read_frames(input_path):
            if int(position * ratio) > frame.index:
                continue
            validity.require_valid_record(frame, allowed)
            while position < num_examples_to_pick and int(position * ratio) == frame.index:
                file.write(frame.framed)
                position += 1
    source, picked = Path(input_path), Path(output_path)
    made_from = [each.parameters for each in parts.of_files([input_path])[source.parent]]
    data_set = parts.DataSet(
        parameters={**next(iter(made_from), {}), "picked": num_examples_to_pick},
        inputs={source.name: parts.describe(source, examples=num_examples)},
        files={picked.name: parts.describe(picked, examples=num_examples_to_pick)},
    )
    parts.write(picked.parent, picked.name, data_set)
    return num_examples
