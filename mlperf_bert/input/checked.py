"""Input that is looked at before batches are drawn, and whose bad record is named if that fails.

TensorFlow's error names neither file nor record. So the files are read again then, by the checks of
the pipeline itself (pipeline.py) and by those that say what is wrong (data/validity.py).
"""

import contextlib
import functools
import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from mlperf_bert.data import tfrecord, validity
from mlperf_bert.data.validity import ExampleLimits
from mlperf_bert.files import paths
from mlperf_bert.input import packing, pipeline
from mlperf_bert.messages import Progress
from mlperf_bert.mlperf import ledger
from mlperf_bert.mlperf.ledger import Ledger

# TensorFlow's reader crashes on a length that exceeds memory but has the right checksum, which does
# not happen by accident. Lengths are checked beforehand where that takes less than a second.
_MAX_BYTES_CHECKED_FIRST = 256 * 2**20
# TensorFlow quotes the bytes that it cannot parse, and then cannot decode its own message.
_PARSE_ERRORS = (tf.errors.InvalidArgumentError, UnicodeDecodeError)
_UNPACKED = f"leave out --pack_sequences, or {validity.MAKE_AGAIN}"
_GRAPH_WORDS = ("Graph execution error:", "Detected at node", "\t [[", "Original stack trace")
_NODE_NAMES = re.compile(r"\{\{.*?\}\}|\[Op:.*?\]( name:.*)?|\[\[.*?\]\]")


@contextlib.contextmanager
def input_of(
    files: Sequence[str],
    limits: ExampleLimits,
    *,
    eval_files: Sequence[str] = (),
    packs: bool = False,
    time: Ledger | None = None,
) -> Iterator[int]:
    """Looks at the files before batches are drawn; names the bad record if that fails later.

    The first look reads one first record of each kind, and the lengths of records where that takes
    less than a second. TensorFlow's errors name no record: to find it the files are read again.

    Args:
      files: from which batches are drawn.
      limits: of their examples.
      eval_files: further ones, whose examples are counted.
      packs: whether the examples of `files` are packed.
      time: where the first look counts as waiting for input.

    Yields: the number of examples in `eval_files`.

    Raises:
      ValueError: a record is bad.
      OSError: TensorFlow cannot read the input, but no record is bad.
    """
    with (time or Ledger()).counting(ledger.INPUT_WAIT):
        # One of each kind: to look into all of them would take time of the run; --check does.
        for path in [files[0], *eval_files[:1]]:
            validity.require_valid_record(tfrecord.first_frame(path), limits)
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
            f"says: {_reason(error)}"
        ) from error


def _require_valid_files(
    files: Sequence[str], limits: ExampleLimits, packed: Collection[str]
) -> None:
    """Raises BadRecord for the first record that the pipeline does not accept.

    Args:
      files: from which batches were drawn.
      limits: of their examples.
      packed: those of the files whose examples are packed.
    """
    with Progress(total=len(files), unit="files", description="find the bad record") as progress:
        for path in files:
            _require_valid_file(path, limits, packs=path in packed)
            progress.advance(1)


@functools.cache
def _pipeline_check(
    limits: ExampleLimits, packs: bool
) -> Callable[[Sequence[tfrecord.Frame]], Exception | None]:
    """What returns the error that the pipeline would raise for some records; None for good ones."""
    parse = pipeline.parser(limits)

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.string)])
    def check(examples):
        features = parse(examples)
        if packs:
            packing.require_packable(features, *packing.sizes(features))

    def error_of(frames: Sequence[tfrecord.Frame]) -> Exception | None:
        try:
            check(tf.constant([frame.record for frame in frames]))
        except _PARSE_ERRORS as error:
            return error
        return None

    return error_of


def _require_valid_file(path: str, limits: ExampleLimits, *, packs: bool) -> None:
    error_of = _pipeline_check(limits, packs)
    frames = tfrecord.read_frames(path)
    # Groups first: nearly all of them are good, and one call a record would take far longer.
    while group := list(itertools.islice(frames, pipeline.EXAMPLES_PARSED_AT_ONCE)):
        if error_of(group):
            for frame in group:
                if error := error_of([frame]):
                    also = [_require_packable] if packs else []
                    validity.require_valid_record(frame, limits, *also)
                    raise frame.bad(f"cannot be parsed: {_reason(error)}") from error


def _require_packable(example: Mapping[str, np.ndarray]) -> None:
    """Checks that real tokens and real predictions come first, which packing builds on.

    Raises:
      ValueError: they do not; to be put after "record N".
    """
    num_tokens = example["input_mask"].sum()
    for name in ("input_mask", "masked_lm_weights"):
        is_real = example[name] > 0
        if is_real[is_real.sum() :].any():
            raise ValueError(
                f"has a 0 in {name} before something else; packing needs what is real first: "
                f"{_UNPACKED}"
            )
    if not num_tokens:
        raise ValueError(f"has no token, input_mask is 0; packing needs one: {_UNPACKED}")
    positions = example["masked_lm_positions"][example["masked_lm_weights"] > 0]
    if (wrong := positions[positions >= num_tokens]).size:
        raise ValueError(
            f"holds {wrong[0]} in masked_lm_positions, but has only {num_tokens} tokens; packing "
            f"needs predictions of real tokens: {_UNPACKED}"
        )


def _reason(error: Exception) -> str:
    """TensorFlow's message in one line, without the names of graph nodes."""
    lines = [line for line in str(error).splitlines() if not line.startswith(_GRAPH_WORDS)]
    return _NODE_NAMES.sub("", " ".join(lines)).strip()[:300]
