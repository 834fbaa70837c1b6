"""Looks at input before batches are drawn, and names the bad record if drawing fails.

TensorFlow's error names neither file nor record. So the files are then read again, with the checks
of the pipeline itself (pipeline.py) and with those that say what is wrong (data/validity.py).
"""

import contextlib
import functools
import itertools
import sys
from collections.abc import Callable, Collection, Iterator, Sequence

import tensorflow as tf

from mlperf_bert.data import tfrecord, validity
from mlperf_bert.data.validity import ExampleLimits
from mlperf_bert.files import errors, paths
from mlperf_bert.input import packing, pipeline
from mlperf_bert.messages import Progress
from mlperf_bert.mlperf import ledger
from mlperf_bert.mlperf.ledger import Ledger

# TensorFlow's reader crashes on a length that exceeds memory and has the right checksum, which no
# accident makes. Lengths are checked beforehand where that takes less than a second.
_MAX_BYTES_CHECKED_FIRST = 256 * 2**20
_MOST_WITHOUT_WEIGHT = 1000
# TensorFlow quotes the bytes that it cannot parse, and then cannot decode its own message.
_PARSE_ERRORS = (tf.errors.InvalidArgumentError, UnicodeDecodeError)


@contextlib.contextmanager
def checked_input(
    files: Sequence[str],
    limits: ExampleLimits,
    *,
    eval_files: Sequence[str] = (),
    packs: bool = False,
    time: Ledger | None = None,
) -> Iterator[int]:
    """Looks at the files before batches are drawn; names the bad record if that fails later.

    The first look reads one first record of each kind, and the lengths of records where that takes
    less than a second.

    Args:
      files: batches are drawn from them.
      limits: of their examples.
      eval_files: files whose examples are counted.
      packs: whether the examples of `files` are packed.
      time: counts the first look as waiting for input.

    Yields: the number of examples in `eval_files`.

    Raises:
      ValueError: a record is bad.
      OSError: TensorFlow cannot read the input, but no record is bad.
    """
    with (time or Ledger()).counting(ledger.INPUT_WAIT):
        # One file of each kind: looking into all files takes time of the run; --check does that.
        for path in [files[0], *eval_files[:1]]:
            validity.require_valid_record(tfrecord.first_frame(path), limits)
            if hint := hint_of_weights(path):
                print(f"hint: {hint}", file=sys.stderr)
        if paths.are_local(files) and sum(map(paths.size_bytes, files)) <= _MAX_BYTES_CHECKED_FIRST:
            for path in files:
                tfrecord.count_records(path)
        num_examples = sum(map(tfrecord.count_records, eval_files))
    try:
        yield num_examples
    except (tf.errors.DataLossError, *_PARSE_ERRORS) as error:
        packed = files if packs else ()
        _require_valid_files([*files, *eval_files], limits, packed)
        raise OSError(
            "the input could not be read, but no bad record is found in the files; TensorFlow "
            f"says: {errors.reason(error)}"
        ) from error


def hint_of_weights(path: str) -> str | None:
    """What to do with a file whose first examples have no prediction with a weight, else None."""
    number = 0
    for number, frame in enumerate(tfrecord.read_frames(path), 1):
        try:
            weights = validity.decode(frame.record).get("masked_lm_weights")
        except ValueError:  # a bad record is named when the pipeline reads it
            return None
        if weights is None or weights.any():
            return None
        if number == _MOST_WITHOUT_WEIGHT:
            break
    return (
        f"{path}: its first {number:,} examples have no masked_lm_weights above 0: nothing masked "
        f"counts, and the masked-LM accuracy is 0; {validity.MAKE_AGAIN}"
    )


def _require_valid_files(
    files: Sequence[str], limits: ExampleLimits, packed: Collection[str]
) -> None:
    """Raises BadRecord for the first record that the pipeline, or that of `packed`, refuses."""
    with Progress(total=len(files), unit="files", description="find the bad record") as progress:
        for path in files:
            check, frames = _pipeline_check(limits, path in packed), tfrecord.read_frames(path)
            # In groups: nearly all of them are good, and one call a record would take far longer.
            while group := list(itertools.islice(frames, pipeline.EXAMPLES_PARSED_AT_ONCE)):
                _require_valid(group, limits, check)
            progress.advance(1)


@functools.cache
def _pipeline_check(limits: ExampleLimits, packs: bool) -> Callable[[tf.Tensor], object]:
    """Returns the pipeline's check of serialized examples [B], which may refuse them."""

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.string)])
    def check(examples):
        features = pipeline.parse(examples, limits)
        if packs:
            packing.require_packable(features)

    return check


def _require_valid(
    frames: Sequence[tfrecord.Frame], limits: ExampleLimits, check: Callable[[tf.Tensor], object]
) -> None:
    """Raises BadRecord for the first of some records that does not pass the check."""
    try:
        check(tf.constant([frame.record for frame in frames]))
    except _PARSE_ERRORS as error:
        if len(frames) > 1:
            for frame in frames:
                _require_valid([frame], limits, check)
            return
        validity.require_valid_record(frames[0], limits)
        # The record is valid, so packing or TensorFlow refuses it; the error has their words.
        raise frames[0].bad(f"cannot be used: {errors.reason(error)}") from error
