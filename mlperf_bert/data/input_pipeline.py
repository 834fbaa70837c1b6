"""TFRecords to batches.

Shapes: B=batch, S=sequence, P=predictions. A batch is a dict of the seven features: int32 [B, S],
int32 [B, P], float32 [B, P] for `masked_lm_weights`, int32 [B, 1] for `next_sentence_labels`.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

import tensorflow as tf

from mlperf_bert.data import packing, records

# Files read at once and examples held for shuffling while training. Source: the reference.
NUM_PARALLEL_FILES = 8
SHUFFLE_BUFFER_EXAMPLES = 1000
BATCHES_AHEAD = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExampleShape:
    """How long the features of an example are."""

    max_seq_length: int
    max_predictions_per_seq: int


def expand_input(patterns: str, *, flag: str) -> list[str]:
    """The files behind globs or names separated by commas, sorted.

    Raises:
      ValueError: a pattern matches nothing, or a file is empty; no file's content is read.
    """
    files = []
    for pattern in filter(None, (part.strip() for part in patterns.split(","))):
        matches = [name for name in tf.io.gfile.glob(pattern) if not tf.io.gfile.isdir(name)]
        if not matches:
            raise ValueError(
                f"--{flag}: no file matches {pattern!r}; make TFRecords with "
                "create_pretraining_data.py, or quote the glob so that the shell leaves it alone"
            )
        files.extend(matches)
    if not files:
        raise ValueError(f"--{flag} names no file; give a path, a glob or several with commas")
    for name in files:
        if not tf.io.gfile.stat(name).length:
            raise ValueError(f"--{flag}: {name} is empty; make it anew")
    return sorted(set(files))


def training_batches(
    files: list[str],
    shape: ExampleShape,
    *,
    batch_size: int,
    seed: int | None,
    deterministic: bool = True,
    num_workers: int = 1,
    worker: int = 0,
    first_example: int = 0,
    pack_sequences: bool = False,
) -> tf.data.Dataset:
    """Batches without end.

    With a `seed` the files are shuffled every epoch, eight are read in turn, and a buffer of 1,000
    examples is shuffled; the order is a function of the seed. Without one (None) the files are read
    one after the other in sorted order. With `deterministic` off, whichever file is ready is read
    next: faster on slow storage, and the order is no longer a function of the seed.

    Of `num_workers` processes each reads its own examples, and every example is read by exactly one
    of them: `worker` takes every `num_workers`-th file, or, if there are fewer files than workers,
    every `num_workers`-th example of each file. Unshuffled, it is always every `num_workers`-th
    example, so that the global batches are those of a single process. `first_example` of this
    worker's stream are passed over, to go on where a run was. With `pack_sequences` short examples
    share rows (packing.py), and a batch is what `packing.pack` describes.
    """
    if seed is None:
        dataset = tf.data.TFRecordDataset(files).repeat().shard(num_workers, worker)
    else:
        by_file = len(files) >= num_workers
        own_files = files[worker::num_workers] if by_file else files

        def read(file):
            examples = tf.data.TFRecordDataset(file)
            return examples if by_file else examples.shard(num_workers, worker)

        dataset = tf.data.Dataset.from_tensor_slices(own_files)
        dataset = dataset.shuffle(len(own_files), seed=seed)
        dataset = dataset.interleave(
            read,
            cycle_length=min(NUM_PARALLEL_FILES, len(own_files)),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=deterministic,
        )
        dataset = dataset.shuffle(SHUFFLE_BUFFER_EXAMPLES, seed=seed).repeat()
    if pack_sequences:
        dataset = packing.pack(
            dataset,
            lambda examples: _parse(examples, shape),
            batch_size=batch_size,
            **dataclasses.asdict(shape),
        )
        dataset = dataset.skip(first_example // batch_size)
    else:
        dataset = dataset.skip(first_example).batch(batch_size, drop_remainder=True)
        dataset = dataset.map(lambda examples: _parse(examples, shape), tf.data.AUTOTUNE)
    return _made_ahead(dataset)


def evaluation_batches(
    files: list[str], shape: ExampleShape, *, batch_size: int, max_batches: int | None = None
) -> tf.data.Dataset:
    """Every example once, in file order, with its weight: (features, example_weights [B]).

    A short last batch is filled up with rows of weight 0, so that all batches have one shape.
    """
    dataset = tf.data.TFRecordDataset(files).batch(batch_size)
    if max_batches is not None:
        dataset = dataset.take(max_batches)
    dataset = dataset.map(
        lambda examples: _fill_up(_parse(examples, shape), batch_size), tf.data.AUTOTUNE
    )
    return _made_ahead(dataset)


def _made_ahead(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Prepares batches while others are computed, with as many threads as there are processors.

    Nothing is tuned while it runs: TensorFlow 2.20's tuner can miss that an iterator ends, and then
    holds up the end of an evaluation or of the process until its next turn, up to a minute later.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.prefetch(BATCHES_AHEAD).with_options(options)


def synthetic_batch(shape: ExampleShape, *, batch_size: int) -> dict[str, tf.Tensor]:
    """A batch of the right shapes and types, made without touching any data."""
    lengths = records.feature_lengths(shape.max_seq_length, shape.max_predictions_per_seq)
    batch = {
        name: tf.zeros([batch_size, length], _model_dtype(name)) for name, length in lengths.items()
    }
    return batch | {
        "input_mask": tf.ones_like(batch["input_mask"]),
        "masked_lm_weights": tf.ones_like(batch["masked_lm_weights"]),
    }


def synthetic_batches(
    shape: ExampleShape, *, batch_size: int, pack_sequences: bool
) -> tf.data.Dataset:
    """A training batch of every shape that `training_batches` makes, without touching any data."""
    if not pack_sequences:
        return tf.data.Dataset.from_tensors(synthetic_batch(shape, batch_size=batch_size))
    row_counts = tf.data.Dataset.from_tensor_slices(packing.row_counts(batch_size))
    sizes = dataclasses.asdict(shape)
    return row_counts.map(lambda num_rows: packing.synthetic_rows(num_rows, **sizes))


@contextlib.contextmanager
def damage_named(files: Sequence[str]) -> Iterator[None]:
    """Names the damaged file behind an error of the pipeline, which does not tell it.

    Raises:
      OSError: in place of TensorFlow's own error.
    """
    try:
        yield
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
        damage = records.find_corruption(files)
        if damage is None:
            raise OSError(str(error).splitlines()[0]) from error
        path, offset, reason = damage
        raise OSError(
            f"{path}: damaged at byte {offset} ({reason}); copy or make this file anew"
        ) from error


def _model_dtype(name: str) -> tf.DType:
    dtype = tf.as_dtype(records.FEATURE_DTYPES[name])
    return tf.int32 if dtype.is_integer else dtype  # TPUs compute with int32 only


def _parse(examples: tf.Tensor, shape: ExampleShape) -> dict[str, tf.Tensor]:
    lengths = records.feature_lengths(shape.max_seq_length, shape.max_predictions_per_seq)
    features = tf.io.parse_example(
        examples,
        {
            name: tf.io.FixedLenFeature([length], tf.as_dtype(records.FEATURE_DTYPES[name]))
            for name, length in lengths.items()
        },
    )
    return {name: tf.cast(value, _model_dtype(name)) for name, value in features.items()}


def _fill_up(features: dict[str, tf.Tensor], batch_size: int):
    num_examples = tf.shape(features["input_ids"])[0]
    missing = batch_size - num_examples
    filled = {
        name: tf.ensure_shape(tf.pad(value, [[0, missing], [0, 0]]), [batch_size, value.shape[1]])
        for name, value in features.items()
    }
    return filled, tf.cast(tf.range(batch_size) < num_examples, tf.float32)
