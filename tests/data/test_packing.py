"""Packed batches hold every example exactly once, whole, in full rows. CPU, twenty seconds."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from mlperf_bert.data import input_pipeline, packing, records
from mlperf_bert.data.input_pipeline import ExampleShape

SHAPE = ExampleShape(max_seq_length=64, max_predictions_per_seq=10)


def write_examples(path, lengths, shape: ExampleShape) -> list[dict]:
    """Examples of the given lengths whose first token is their number."""
    rng, examples = np.random.default_rng(1), []
    for number, length in enumerate(lengths):
        count = min(shape.max_predictions_per_seq, max(1, round(length * 0.15)))
        sizes = records.feature_lengths(shape.max_seq_length, shape.max_predictions_per_seq)
        example = {name: np.zeros(size, np.int64) for name, size in sizes.items()}
        example["input_ids"][:length] = rng.integers(5, 1000, length)
        example["input_ids"][0] = 1000 + number
        example["input_mask"][:length] = 1
        example["segment_ids"][length // 2 : length] = 1
        positions = np.sort(rng.choice(np.arange(1, length), count, replace=False))
        example["masked_lm_positions"][:count] = positions
        example["masked_lm_ids"][:count] = rng.integers(5, 1000, count)
        example["masked_lm_weights"] = np.zeros(sizes["masked_lm_weights"], np.float32)
        example["masked_lm_weights"][:count] = 1
        example["next_sentence_labels"][0] = rng.integers(0, 2)
        examples.append(example)
    framed = [records.frame(records.encode(example)) for example in examples]
    path.write_bytes(b"".join(framed))
    return examples


def unpack(batch: dict[str, np.ndarray], shape: ExampleShape) -> list[dict[str, np.ndarray]]:
    """The examples of a packed batch, as they stood in the TFRecords."""
    found = []
    sizes = records.feature_lengths(shape.max_seq_length, shape.max_predictions_per_seq)
    for row, place in np.argwhere(batch["next_sentence_weights"]):
        where = np.flatnonzero(batch["block_ids"][row] == place + 1)
        first, length = where[0], len(where)
        assert np.array_equal(where, np.arange(first, first + length))
        assert batch["cls_positions"][row, place] == first
        assert np.array_equal(batch["position_ids"][row, where], np.arange(length))
        example = {name: np.zeros(size, np.int64) for name, size in sizes.items()}
        for name in ("input_ids", "input_mask", "segment_ids"):
            example[name][:length] = batch[name][row, where]
        places = batch["masked_lm_positions"][row]
        mine = (batch["masked_lm_weights"][row] > 0) & (places >= first)
        mine &= places < first + length
        count = mine.sum()
        example["masked_lm_positions"][:count] = places[mine] - first
        example["masked_lm_ids"][:count] = batch["masked_lm_ids"][row, mine]
        example["masked_lm_weights"] = (np.arange(sizes["masked_lm_weights"]) < count).astype("f")
        example["next_sentence_labels"][0] = batch["next_sentence_labels"][row, place]
        found.append(example)
    return found


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A file of 3,000 examples: its path, and the examples."""
    path = tmp_path_factory.mktemp("packing") / "examples"
    lengths = np.random.default_rng(2).integers(4, SHAPE.max_seq_length + 1, 3000)
    return str(path), write_examples(path, lengths, SHAPE)


def batches_of(path: str, batch_size: int) -> tf.data.Dataset:
    return input_pipeline.training_batches(
        [path], SHAPE, batch_size=batch_size, seed=None, pack_sequences=True
    )


@pytest.mark.parametrize("batch_size", [4, 96])
def test_every_example_comes_once_and_whole(stored, batch_size):
    path, examples = stored
    num_batches, order = 2 * len(examples) // batch_size, []
    for batch in batches_of(path, batch_size).take(num_batches).as_numpy_iterator():
        found = unpack(batch, SHAPE)
        assert len(found) == batch_size
        assert batch["next_sentence_weights"].sum() == batch_size
        assert len(batch["input_ids"]) in packing.row_counts(batch_size)
        for example in found:
            number = example["input_ids"][0] - 1000
            order.append(number)
            for name, values in example.items():
                assert np.array_equal(values, examples[number][name]), (number, name)
    # The file is read in order again and again: what came, less what still waits in the buffer.
    waiting_at_most = 3 * packing.MIN_BUFFER_EXAMPLES
    counts = np.bincount(order, minlength=len(examples))
    assert counts.sum() == num_batches * batch_size
    surely_out = num_batches * batch_size - waiting_at_most
    passes, rest = divmod(surely_out, len(examples))
    assert (counts[:rest] >= passes + 1).all() and (counts >= passes).all()
    first_pass_only = [n for n, copies in itertools.groupby(sorted(order[: len(examples) // 2]))
                       if len(list(copies)) > 1]  # fmt: skip
    assert not first_pass_only


def test_a_saved_position_goes_on_bitwise(stored, tmp_path):
    path, _ = stored
    iterator = iter(batches_of(path, 8))
    for _ in range(150):
        next(iterator)
    saved = tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / "position"))
    expected = [next(iterator) for _ in range(20)]
    resumed = iter(batches_of(path, 8))
    tf.train.Checkpoint(iterator=resumed).read(saved)
    for batch in expected:
        again = next(resumed)
        for name, values in batch.items():
            assert np.array_equal(again[name], values), name


def published_lengths(rng, count: int) -> np.ndarray:
    """Lengths as in the published data: a quarter full, the others 165 on average, 247 in all.

    Source: Krell et al., arXiv 2107.02027, figure 1 and section 2; the histogram is synthesised.
    """
    others = 5 + rng.gamma(1.25, 140, 3 * count)
    others = others[others < 512][:count].astype(int)
    return np.where(rng.random(count) < 0.235, 512, others)


def sample_lengths(rng, count: int) -> np.ndarray:
    """Lengths as in long articles: half of them full, 390 on average."""
    others = 5 + rng.gamma(2.4, 115, 3 * count)
    others = others[others < 512][:count].astype(int)
    return np.where(rng.random(count) < 0.55, 512, others)


@pytest.mark.parametrize("batch_size", [4, 56, 448])
@pytest.mark.parametrize("make_lengths", [published_lengths, sample_lengths])
def test_nineteen_of_twenty_tokens_are_real(make_lengths, batch_size):
    lengths = make_lengths(np.random.default_rng(3), 12_000)
    predictions = np.clip(np.round(lengths * 0.15), 1, 76).astype(int)
    room = packing.predictions_per_row(76)
    choose = tf.function(
        lambda at_hand, masks: packing.choose(
            at_hand, masks, batch_size=batch_size, max_seq_length=512, max_predictions=room
        )
    )
    unit = packing.row_counts(batch_size)[1] - packing.row_counts(batch_size)[0]
    buffer_size = -(-packing.MIN_BUFFER_EXAMPLES // batch_size) * batch_size
    at_hand = np.arange(buffer_size)
    num_tokens = num_rows = 0
    assert len(packing.row_counts(batch_size)) <= 8
    num_batches = min(200, (len(lengths) - buffer_size) // batch_size)
    for index in range(num_batches):
        first = buffer_size + index * batch_size
        at_hand = np.concatenate([at_hand, np.arange(first, first + batch_size)])
        chosen, rows = choose(
            tf.constant(lengths[at_hand], tf.int32), tf.constant(predictions[at_hand], tf.int32)
        )
        chosen, rows = chosen.numpy(), rows.numpy()
        per_row = np.bincount(rows, lengths[at_hand[chosen]])
        assert 0 in chosen  # the oldest, so none waits for ever
        assert per_row.max() <= 512
        assert np.bincount(rows, predictions[at_hand[chosen]]).max() <= room
        assert np.bincount(rows).max() <= packing.MAX_EXAMPLES_PER_ROW
        num_tokens += per_row.sum()
        num_rows += -(-len(per_row) // unit) * unit
        at_hand = np.delete(at_hand, chosen)
    assert num_tokens / (num_rows * 512) >= 0.95
