"""Packed batches hold every example exactly once, whole, in full rows. CPU, half a minute."""

import collections
import math

import numpy as np
import pytest
import tensorflow as tf

from mlperf_bert.data import example_encoder, tfrecord
from mlperf_bert.input import packing, pipeline
from mlperf_bert.input.pipeline import ExampleLimits
from tests.data.hostile_records import valid_example
from tests.input.unpacking import unpack

SHAPE = ExampleLimits(
    max_seq_length=64, max_predictions_per_seq=10, vocab_size=5000, type_vocab_size=2
)


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """A file of 130 examples, more than a small window: its path, and the examples."""
    monkeypatch.setattr(packing, "_MIN_WINDOW_EXAMPLES", 96)
    path, random = tmp_path / "examples", np.random.default_rng(2)
    lengths = random.integers(4, SHAPE.max_seq_length + 1, 130)
    examples = [valid_example(random, SHAPE, length) for length in lengths]
    for number, example in enumerate(examples):
        example["input_ids"][0] = 1000 + number  # by which it is known
    framed = [tfrecord.frame(example_encoder.encode(example)) for example in examples]
    path.write_bytes(b"".join(framed))
    return str(path), examples


def batches_of(path: str, batch_size: int, first_example: int = 0) -> tf.data.Dataset:
    given = {"batch_size": batch_size, "seed": None, "first_example": first_example}
    return pipeline.training_batches([path], SHAPE, **given, pack_sequences=True)


@pytest.mark.parametrize("batch_size", [3, pytest.param(4, marks=pytest.mark.all), 24])
def test_every_example_comes_once_and_whole(stored, batch_size):
    path, examples = stored
    num_batches, order = 2 * len(examples) // batch_size, []
    for batch in batches_of(path, batch_size).take(num_batches).as_numpy_iterator():
        found = unpack(batch, SHAPE)
        assert len(found) == batch_size
        assert batch["next_sentence_weights"].sum() == batch_size
        assert len(batch["input_ids"]) in packing.row_counts(batch_size)
        assert batch["masked_lm_ids"].shape[1] == 10 + 4  # one more for each example of a row
        for example in found:
            number = example["input_ids"][0] - 1000
            order.append(number)
            for name, values in example.items():
                assert np.array_equal(values, examples[number][name]), (number, name)
    # The file is read in order again and again, and whole windows of it leave one after the other.
    window = packing.window_size(batch_size)
    windows, rest = divmod(len(order), window)
    read = np.arange((windows + bool(rest)) * window) % len(examples)
    for number in range(windows):
        place = slice(number * window, (number + 1) * window)
        assert sorted(order[place]) == sorted(read[place])
    assert not collections.Counter(order[len(order) - rest :]) - collections.Counter(
        read[windows * window :].tolist()
    )


# The end of a window, and within one.
@pytest.mark.parametrize("num_batches", [pytest.param(24, marks=pytest.mark.all), 30])
def test_a_run_goes_on_bitwise_from_a_saved_position_and_without_one(stored, tmp_path, num_batches):
    """Without a position as many examples are skipped as were trained."""
    path, _ = stored
    iterator = iter(batches_of(path, 8))
    for _ in range(num_batches):
        next(iterator)
    saved = tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / "position"))
    expected = [next(iterator) for _ in range(20)]
    resumed = iter(batches_of(path, 8))
    tf.train.Checkpoint(iterator=resumed).read(saved)
    skipping = iter(batches_of(path, 8, first_example=num_batches * 8))
    for batch in expected:
        for again in (next(resumed), next(skipping)):
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


PLAN = tf.function(packing.plan)  # traced once for each size


def plan(lengths: np.ndarray, batch_size: int, predictions: np.ndarray | None = None):
    """The batches of a window of such examples of at most 512 tokens: (examples, rows) of each."""
    if predictions is None:
        predictions = np.clip(np.round(lengths * 0.15), 1, 76).astype(int)
    room = packing.predictions_per_row(76)
    order, rows = PLAN(
        tf.constant(lengths, tf.int32),
        tf.constant(predictions, tf.int32),
        batch_size=batch_size,
        max_seq_length=512,
        max_predictions=room,
    )
    assert sorted(order.numpy().flat) == list(range(len(lengths)))
    assert order.shape == rows.shape == (len(lengths) // batch_size, batch_size)
    batches = list(zip(order.numpy(), rows.numpy()))
    for chosen, its_rows in batches:
        assert its_rows[0] == 0 and set(np.diff(its_rows)) <= {0, 1}
        assert np.bincount(its_rows, lengths[chosen]).max() <= 512
        assert np.bincount(its_rows, predictions[chosen]).max() <= room
        assert np.bincount(its_rows).max() <= packing.MAX_EXAMPLES_PER_ROW
    return batches


SIZES, MORE_SIZES = (8, 448), (3, 4, 9, 11, 16, 24, 56, 1024)


@pytest.mark.parametrize(
    ("make_lengths", "batch_size", "least"),
    [
        *(
            pytest.param(lengths, n, 0.95, marks=[] if n in SIZES else pytest.mark.all)
            for n in SIZES + MORE_SIZES
            for lengths in (published_lengths, sample_lengths)
        ),
        # Batches that published lengths fill less well.
        *((published_lengths, n, least) for n, least in ((1, 0.45), (2, 0.74), (17, 0.92))),
    ],
)
def test_nineteen_of_twenty_tokens_are_real(make_lengths, batch_size, least):
    allowed = packing.row_counts(batch_size)
    assert len(allowed) <= 8 and allowed[-1] == batch_size
    num_tokens = num_rows = 0
    for seed in range(2):
        lengths = make_lengths(np.random.default_rng(seed), packing.window_size(batch_size))
        num_tokens += lengths.sum()
        for _, rows in plan(lengths, batch_size):
            num_rows += min(count for count in allowed if count > rows[-1])
    assert num_tokens / (num_rows * 512) >= least


def test_predictions_that_fill_a_row_before_its_tokens():
    rng = np.random.default_rng(6)
    lengths, predictions = rng.integers(20, 200, 1024), rng.integers(0, 77, 1024)
    num_rows = sum(rows[-1] + 1 for _, rows in plan(lengths, 8, predictions))
    assert predictions.sum() / packing.predictions_per_row(76) <= num_rows < 1024


def test_the_batches_of_a_window_are_of_mixed_lengths():
    lengths = published_lengths(np.random.default_rng(4), packing.window_size(64))
    means = [lengths[chosen].mean() for chosen, _ in plan(lengths, 64)]
    at_random = lengths.std() / np.sqrt(64)
    assert np.std(means) < 1.5 * at_random
    sorted_by_length = np.sort(lengths).reshape(-1, 64).mean(axis=1)
    assert np.std(sorted_by_length) > 5 * at_random  # what the bound would find


def test_a_prediction_counts_once_whatever_its_weight():
    features = {"input_mask": tf.constant([[1, 1, 1, 0]]),
                "masked_lm_weights": tf.constant([[0.5, 0.25, 0.0]])}  # fmt: skip
    assert [each.numpy().tolist() for each in packing.sizes(features)] == [[3], [2]]


@pytest.mark.parametrize("batch_size", [1, 4, 64])
@pytest.mark.parametrize("length", [60, 300])
def test_examples_of_one_length_are_packed_as_far_as_they_go(length, batch_size):
    lengths = np.full(packing.window_size(batch_size), length)
    per_row = min(packing.MAX_EXAMPLES_PER_ROW, 512 // length, batch_size)
    for _, rows in plan(lengths, batch_size):
        assert rows[-1] + 1 == batch_size // per_row


def test_the_worked_example_in_the_documentation():
    lengths = tf.constant([9, 3, 4, 6, 2, 7, 5, 8])
    room = {"max_seq_length": 10, "max_predictions": 8}
    order, rows = packing.plan(lengths, tf.ones([8], tf.int32), batch_size=4, **room)
    in_rows = list(zip(rows.numpy().tolist(), tf.gather(lengths, order).numpy().tolist()))
    assert in_rows == [([0, 0, 1, 1], [2, 8, 4, 6]), ([0, 0, 1, 2], [3, 7, 9, 5])]


def rows_of(lengths, predictions, most: int, size: int, room: int) -> list[int]:
    """The row of each example, by the rules in the documentation of `_fill_rows`."""
    planned = max(math.ceil(sum(lengths) / (size * packing._AIMED_SHARE_OF_REAL_TOKENS)),
                  sum(length > size // 2 for length in lengths))  # fmt: skip
    left = sorted(range(len(lengths)), key=lambda n: -lengths[n])
    rows, row = [-1] * len(lengths), -1
    share = count = tokens = masks = 0
    while left:
        fit = [n for n in left if lengths[n] <= tokens and predictions[n] <= masks]
        if not fit or count == most:
            row, count, tokens, masks = row + 1, 0, size, room
            share = min(len(left) // max(planned - row, 1), most)
            fit = left
        else:
            part = tokens // max(share - count, 1)
            fit = [n for n in fit if lengths[n] <= part] or fit
        rows[fit[0]], count = row, count + 1
        tokens, masks = tokens - lengths[fit[0]], masks - predictions[fit[0]]
        left.remove(fit[0])
    return rows


@pytest.mark.parametrize("seed", range(4))
def test_rows_are_filled_by_the_rules(seed):
    rng = np.random.default_rng(seed)
    for most, size, room in ((3, 20, 9), (8, 64, 12), (2, 10, 100)):
        lengths = rng.integers(1, size + 1, 24) // rng.integers(1, 4)
        lengths, predictions = np.maximum(lengths, 1), rng.integers(0, 6, 24)
        found = packing._fill_rows(
            tf.constant(lengths, tf.int32),
            tf.constant(predictions, tf.int32),
            most=most, max_seq_length=size, max_predictions=room,
        )  # fmt: skip
        expected = rows_of(lengths.tolist(), predictions.tolist(), most, size, room)
        assert found.numpy().tolist() == expected
