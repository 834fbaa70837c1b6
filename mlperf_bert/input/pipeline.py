"""TFRecords to batches.

Shapes: B=batch, S=sequence, P=predictions. A batch is a dict of the seven features: int32 [B, S],
int32 [B, P], float32 [B, P] for `masked_lm_weights`, int32 [B, 1] for `next_sentence_labels`.
"""

import functools
import posixpath
import re
from collections.abc import Callable

import tensorflow as tf

from mlperf_bert.data import validity
from mlperf_bert.data.validity import ExampleLimits, ExampleShape
from mlperf_bert.files import paths
from mlperf_bert.input import packing

# Examples held for shuffling while training. Source: the reference.
SHUFFLE_BUFFER_EXAMPLES = 1000
BATCHES_AHEAD = 4
# Parsing and checking few examples takes as long as many: small batches are parsed together, but
# not so many that much is read ahead.
EXAMPLES_PARSED_AT_ONCE = 64
PARSED_AT_A_TIME = 4

# Evaluation examples and records, as they lie in the folders of parts.
_NO_PART = re.compile(r"eval_(10k|intermediate)|eval\.(txt|md5)|.*\.json")


def expand_input(
    patterns: str, *, flag: str, on_doubt: Callable[[str], object] = lambda doubt: None
) -> list[str]:
    """The files behind globs or names separated by commas, sorted.

    TensorFlow looks for them, because it also reads them: they may lie in a bucket.

    Args:
      patterns: the flag's value.
      flag: its name.
      on_doubt: is called where one file is named twice.
    """
    files: dict[str, paths.Status] = {}
    every: list[str] = []
    for pattern in filter(None, map(str.strip, patterns.split(","))):
        with paths.failures_named(pattern):
            names = tf.io.gfile.glob(pattern)
        looked_up = zip(names, paths.in_parallel(paths.look_up, names))
        matches = {name: status for name, status in looked_up if not status.is_folder}
        if not matches:
            raise ValueError(
                f"--{flag}: no file matches {pattern!r}; make TFRecords with "
                "create_pretraining_data.py, or quote the glob so that the shell leaves it alone"
            )
        others = [name for name in matches if _NO_PART.fullmatch(posixpath.basename(name))]
        listed = ", ".join(map(posixpath.basename, others[:3]))
        if others and len(matches) > 1:  # files beside the parts match a glob such as tfrecords/*
            raise ValueError(
                f"--{flag}: {pattern} matches {listed} too, which must not become "
                "training data; give a glob of the parts alone, such as tfrecords/part-*"
            )
        files |= matches
        every += matches
    if not files:
        raise ValueError(f"--{flag} names no file; give a path, a glob or several with commas")
    for name, status in files.items():
        if not status.is_file or not status.size_bytes:
            kind = "empty" if status.is_file else "not a regular file"
            raise ValueError(f"--{flag}: {name} is {kind}; give TFRecord files")
    if twice := paths.named_twice(every):
        on_doubt(
            f"--{flag}: {twice}; a name counts once, but what a link leads to is read twice: name "
            "each file once"
        )
    # Sorted, and each once: the order and number of the files decide what a seed means.
    return sorted(files)


@tf.autograph.experimental.do_not_convert
def training_batches(
    files: list[str],
    limits: ExampleLimits,
    *,
    batch_size: int,
    seed: int | None,
    deterministic: bool = True,
    num_workers: int = 1,
    worker: int = 0,
    first_example: int = 0,
    pack_sequences: bool = False,
    num_parallel_files: int = 8,
) -> tf.data.Dataset:
    """Endless training batches.

    With a `seed` the files are shuffled every epoch, `num_parallel_files` are read in turn, and a
    buffer of 1,000 examples is shuffled; the order is a function of the seed. Without a seed (None)
    the files are read one after the other in sorted order. With `deterministic` off, the next file
    is the one that is ready first: faster on slow storage, but the order does not depend on the
    seed alone.

    Each of `num_workers` processes reads its own examples, and every example is read by exactly one
    of them: `worker` takes every `num_workers`-th file, or, if there are fewer files than workers,
    every `num_workers`-th example of each file. Unshuffled, it is always every `num_workers`-th
    example, so that the global batches are those of a single process. The first `first_example`
    examples of this worker are skipped, to resume a run. With `pack_sequences` short examples share
    rows (packing.py), and `packing.assemble` describes a batch.

    Every value is checked as it is parsed; `checked.checked_input` explains TensorFlow's errors.
    """
    if seed is None:
        # After `repeat`: so the workers together continue into the next epoch as one process would.
        dataset = tf.data.TFRecordDataset(files).repeat().shard(num_workers, worker)
    else:
        # With fewer files than workers some would read nothing; then each reads every file and
        # keeps its share of the examples.
        by_file = len(files) >= num_workers
        share = None if by_file else (num_workers, worker)
        own_files = files[worker::num_workers] if by_file else files
        dataset = _shuffle(own_files, share, seed, num_parallel_files, deterministic)
    parsed = functools.partial(parse, limits=limits)
    if pack_sequences:
        # A packed batch holds as many examples as any other, but which ones is known only once the
        # windows before it are packed: batches are skipped, not examples.
        dataset = packing.pack(dataset, parse=parsed, batch_size=batch_size, shape=limits).skip(
            first_example // batch_size
        )
    else:
        dataset = _batch(dataset.skip(first_example), parsed, batch_size)
    return _prefetch(dataset)


def _shuffle(
    files: list[str],
    share: tuple[int, int] | None,
    seed: int,
    num_parallel_files: int,
    in_order: bool,
) -> tf.data.Dataset:
    """Examples in an order of the seed: all of each file, or its share as by `Dataset.shard`."""

    def read(file):
        examples = tf.data.TFRecordDataset(file)
        return examples.shard(*share) if share else examples

    dataset = tf.data.Dataset.from_tensor_slices(files)
    # The order of this and of the two shuffles below is part of what a seed means: a resumed run
    # must draw the same examples.
    dataset = dataset.shuffle(len(files), seed=seed)
    dataset = dataset.interleave(
        read,
        cycle_length=min(num_parallel_files, len(files)),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=in_order,
    )
    # Before `repeat`: an epoch ends before the next begins, and no example comes twice in it.
    return dataset.shuffle(SHUFFLE_BUFFER_EXAMPLES, seed=seed).repeat()


@tf.autograph.experimental.do_not_convert
def evaluation_batches(
    files: list[str], limits: ExampleLimits, *, batch_size: int, max_batches: int | None = None
) -> tf.data.Dataset:
    """Every example once, in file order, with its weight: (features, example_weights [B]).

    A short last batch is filled up with rows of weight 0, so that all batches have one shape.
    Every value is checked as it is parsed; `checked.checked_input` explains TensorFlow's errors.
    """
    dataset = tf.data.TFRecordDataset(files).batch(batch_size)
    if max_batches is not None:
        # Limited before parsing: what is not evaluated is not read.
        dataset = dataset.take(max_batches)
    parsed = dataset.map(
        lambda examples: _fill_up(parse(examples, limits), batch_size), tf.data.AUTOTUNE
    )
    return _prefetch(parsed)


def _prefetch(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Prepares batches ahead, with as many threads as there are processors.

    Autotuning is off: TensorFlow 2.20's tuner can miss the end of an iterator, and then delays the
    end of an evaluation or of the process by up to a minute.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.prefetch(BATCHES_AHEAD).with_options(options)


def synthetic_batch(shape: ExampleShape, *, batch_size: int) -> dict[str, tf.Tensor]:
    """A batch of the right shapes and types, made without reading any data."""
    ones = ("input_mask", "masked_lm_weights")  # the others are 0
    return {
        name: tf.fill([batch_size, length], tf.cast(name in ones, _model_dtype(name)))
        for name, length in shape.lengths().items()
    }


@tf.autograph.experimental.do_not_convert
def synthetic_batches(
    shape: ExampleShape, *, batch_size: int, pack_sequences: bool
) -> tf.data.Dataset:
    """A training batch of every shape that `training_batches` makes, without reading any data."""
    batch = synthetic_batch(shape, batch_size=batch_size)
    if not pack_sequences:
        return tf.data.Dataset.from_tensors(batch)
    # Any number of examples without tokens fits into a row.
    empty = tf.nest.map_structure(tf.zeros_like, batch)
    return tf.data.Dataset.from_tensor_slices([*packing.row_counts(batch_size)]).map(
        lambda num_rows: packing.assemble(empty, tf.range(batch_size) * num_rows // batch_size)
    )


def _batch(examples: tf.data.Dataset, parsed: Callable, batch_size: int) -> tf.data.Dataset:
    """Parsed batches of an endless stream."""
    num_batches = EXAMPLES_PARSED_AT_ONCE // batch_size
    if num_batches < 2:
        batches = examples.batch(batch_size, drop_remainder=True)
        return batches.map(parsed, tf.data.AUTOTUNE)

    def parse_several(examples):
        return {
            name: tf.reshape(value, [num_batches, batch_size, value.shape[1]])
            for name, value in parsed(examples).items()
        }

    # The stream has no end, so that dropping a remainder loses nothing.
    together = examples.batch(num_batches * batch_size, drop_remainder=True)
    return together.map(parse_several, PARSED_AT_A_TIME).unbatch()


def _model_dtype(name: str) -> tf.DType:
    dtype = tf.as_dtype(validity.FEATURE_DTYPES[name])
    return tf.int32 if dtype.is_integer else dtype  # TPUs compute with int32 only


def parse(
    examples: tf.Tensor, limits: ExampleLimits, *, checks: bool = True
) -> dict[str, tf.Tensor]:
    """Strings [B] to features; if it checks, a bad value is an error when the graph runs."""
    kinds = {
        name: tf.io.FixedLenFeature([length], tf.as_dtype(validity.FEATURE_DTYPES[name]))
        for name, length in limits.lengths().items()
    }
    features = tf.io.parse_example(examples, kinds)
    if checks:
        _require_values(features, limits)
    return {name: tf.cast(value, _model_dtype(name)) for name, value in features.items()}


def _require_values(features: dict[str, tf.Tensor], limits: ExampleLimits) -> None:
    """Compares the greatest value of each feature, as `validity.as_unsigned` describes."""
    # Read as unsigned, a negative number is too great: one comparison tests both ends.
    allowed, greatest_values = [], []
    for name, limit in limits.greatest_values().items():
        greatest = validity.as_unsigned(limit)
        values = tf.bitcast(features[name], greatest.dtype)
        allowed.append(greatest)
        greatest_values.append(tf.cast(tf.reduce_max(values), tf.uint64))
    is_valid = tf.reduce_all(tf.stack(greatest_values) <= tf.constant(allowed, tf.uint64))
    tf.debugging.Assert(is_valid, ["a value that is not allowed"])


def _fill_up(features: dict[str, tf.Tensor], batch_size: int):
    num_examples = tf.shape(features["input_ids"])[0]
    missing = batch_size - num_examples
    filled = {
        name: tf.ensure_shape(tf.pad(value, [[0, missing], [0, 0]]), [batch_size, value.shape[1]])
        for name, value in features.items()
    }
    return filled, tf.cast(tf.range(batch_size) < num_examples, tf.float32)
