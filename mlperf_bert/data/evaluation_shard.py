"""The evaluation shard: evenly spaced examples of one file, copied to another."""

import os

from mlperf_bert.data import provenance, tfrecord, validity
from mlperf_bert.files import paths
from mlperf_bert.files.whole import require_room, require_writable, written_beside

# The vocabulary is unknown here; models take ids of 32 bits.
_LARGEST_VOCABULARY = 2**31
_NUM_SEGMENTS = 2


def pick(
    input_path: str | os.PathLike,
    output_path: str | os.PathLike,
    *,
    num_examples_to_pick: int,
    max_seq_length: int,
    max_predictions_per_seq: int,
) -> int:
    """Copies evenly spaced records of one file to another, byte for byte; returns how many it had.

    Record i of the output is record int(i * (N / num_examples_to_pick)) of N. The quirk: the
    ratio is a float, rounded once, so this differs from i * N // num_examples_to_pick. Asking
    for more examples than there are repeats some, as the reference does.

    Raises:
      ValueError: no examples, a damaged record, one that is not an example of these lengths, or
        more bytes than the disk has room for.
    """
    allowed = validity.ExampleLimits(
        max_seq_length=max_seq_length,
        max_predictions_per_seq=max_predictions_per_seq,
        vocab_size=_LARGEST_VOCABULARY,
        type_vocab_size=_NUM_SEGMENTS,
    )
    require_writable(output_path)
    num_examples = tfrecord.count_records(input_path)
    if not num_examples:
        raise ValueError(f"{os.fspath(input_path)}: holds no examples to pick from; make it again")
    # Before anything is written: a slip of the finger would fill the disk for hours.
    needed_bytes = paths.size_bytes(input_path) * num_examples_to_pick // num_examples
    require_room(output_path, needed_bytes, remedy="lower --num_examples_to_pick, or make room")
    ratio = num_examples / num_examples_to_pick
    with written_beside(output_path) as file:
        position = 0
        for frame in tfrecord.read_frames(input_path):
            if position == num_examples_to_pick:
                break
            if int(position * ratio) > frame.index:
                continue
            validity.require_valid_record(frame, allowed)
            while position < num_examples_to_pick and int(position * ratio) == frame.index:
                file.write(frame.framed)
                position += 1
    provenance.note(
        paths.location(output_path).parent,
        step="evaluation examples",
        inputs=[input_path],
        outputs=[output_path],
        parameters={"num_examples_to_pick": num_examples_to_pick},
    )
    return num_examples
