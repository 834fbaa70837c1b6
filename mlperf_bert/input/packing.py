"""Packs several short examples into one row of tokens.

More than half of the published examples' tokens are padding. A packed batch has the same number of
examples as an unpacked one, in fewer rows. Every example comes exactly once, a bounded time earlier
or later than without packing. The model computes each as if it were alone: it has its own
positions, its own first token, its own predictions, and attends only to itself.

Examples are packed window by window, a window being at least 1,024 examples and 8 batches:
1. `_fill_rows` puts the examples of the window into rows, the longest first.
2. `_deal` deals the rows to the batches of the window, like cards. Each batch gets the same number
   of examples, and one of at most 8 numbers of rows: every number is a shape to compile.
3. `assemble` copies the tokens of a batch into its rows.

A worked example, with rows of 10 tokens and a window of two batches of 4 examples:

    example      0  1  2  3  4  5  6  7
    tokens       9  3  4  6  2  7  5  8
    _fill_rows   0  2  3  3  1  2  4  1     the rows are 9, 8+2, 7+3, 6+4 and 5
    _deal        batch 0: rows 8+2, 6+4     4 examples in 2 rows
                 batch 1: rows 7+3, 9, 5    4 examples in 3 rows

Packers that filled each batch from a buffer made learning slower. This one does not, as
far as measured (benchmarks/NOTES.md).

Shapes: B=examples of a batch, R=rows of a batch, S=sequence, P=predictions of an example,
E=examples of a row, W=examples of a window, M=batches of a window.
Source: Krell et al., arXiv 2107.02027. Their algorithms plan from a histogram of all lengths; this
one packs the examples of a window.
"""

from collections.abc import Callable

import tensorflow as tf

from mlperf_bert.data.validity import MAKE_AGAIN, ExampleShape

MAX_EXAMPLES_PER_ROW = 4
_MIN_WINDOW_EXAMPLES = 1024
_MIN_WINDOW_BATCHES = 8
_MAX_ROW_COUNTS = 8
# Rows are never quite full: a plan without gaps would often need one more row.
_AIMED_SHARE_OF_REAL_TOKENS = 0.985
_UNPACKABLE = (
    "packing needs the padding of tokens and of predictions at the end, and no prediction of a "
    f"padding token; leave out --pack_sequences, or {MAKE_AGAIN}"
)


def pack(
    examples: tf.data.Dataset,
    *,
    parse: Callable[..., dict[str, tf.Tensor]],
    batch_size: int,
    shape: ExampleShape,
) -> tf.data.Dataset:
    """Packs batches of an endless stream of serialized examples.

    Args:
      examples: strings.
      parse: makes checked features of strings [B], and unchecked ones if `checks` is False.
      batch_size: examples of a batch.
      shape: of an example.
    """

    def measure(serialized):
        # Features are dropped: windows are held in memory, and serialized examples take less of it.
        return serialized, *require_packable(parse(serialized))

    def plan_window(serialized, lengths, predictions):
        order, rows = plan(
            lengths,
            predictions,
            batch_size=batch_size,
            max_seq_length=shape.max_seq_length,
            max_predictions=predictions_per_row(shape.max_predictions_per_seq),
        )
        return tf.gather(serialized, order), rows

    windows = examples.batch(window_size(batch_size), drop_remainder=True)
    # Two buffers between three stages: one window is measured while another is planned.
    planned = windows.map(measure).prefetch(1).map(plan_window).prefetch(1).unbatch()
    return planned.map(  # `measure` has checked the values
        lambda serialized, rows: assemble(parse(serialized, checks=False), rows), tf.data.AUTOTUNE
    )


def predictions_per_row(max_predictions_per_seq: int) -> int:
    """Room for the predictions of a row: those of one full example, and one more per example.

    An example predicts 15% of its tokens, rounded, and at least one. So the examples of a row can
    have a few more predictions than one example of the same length.
    """
    return max_predictions_per_seq + MAX_EXAMPLES_PER_ROW


def row_counts(batch_size: int) -> range:
    """The numbers of rows that a batch of this size may have, in ascending order."""
    fewest, unit = -(-batch_size // MAX_EXAMPLES_PER_ROW), -(-batch_size // _MAX_ROW_COUNTS)
    return range(batch_size, fewest - 1, -unit)[::-1]


def window_size(batch_size: int) -> int:
    """The number of examples of a window: whole batches, and enough for a good fit of lengths.

    Up to four windows of serialized examples are in memory at once.
    """
    return batch_size * max(_MIN_WINDOW_BATCHES, -(-_MIN_WINDOW_EXAMPLES // batch_size))


def require_packable(features: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Checks that real tokens, and predictions of them, come first; returns the `sizes`.

    Raises:
      InvalidArgumentError: in an example they do not, when the graph runs.
    """
    lengths, num_predictions = sizes(features)
    is_prediction = features["masked_lm_weights"] > 0
    last_position = tf.reduce_max(
        tf.where(is_prediction, features["masked_lm_positions"], 0), axis=1
    )
    checks = [last_position < lengths]  # so an example has at least one token
    for ones, counts in (
        (features["input_mask"], lengths),
        (tf.cast(is_prediction, tf.int32), num_predictions),
    ):
        # The positions of k ones have their least possible sum, k(k-1)/2, if the ones come first.
        # This reads the matrix once and makes no other of its size.
        positions = tf.linalg.matvec(ones, tf.range(ones.shape[1]))
        checks.append(positions == counts * (counts - 1) // 2)
    tf.debugging.Assert(tf.reduce_all(checks), [_UNPACKABLE])
    return lengths, num_predictions


def sizes(features: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Real tokens and predictions of each example: int32 [B] twice."""
    lengths = tf.reduce_sum(features["input_mask"], axis=1)
    return lengths, tf.math.count_nonzero(features["masked_lm_weights"], axis=1, dtype=tf.int32)


def plan(
    lengths: tf.Tensor,
    predictions: tf.Tensor,
    *,
    batch_size: int,
    max_seq_length: int,
    max_predictions: int,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Packs a window of examples and deals its rows to batches.

    Args:
      lengths: int32 [W], tokens of the examples, W a multiple of B.
      predictions: int32 [W].
      max_predictions: room for the predictions of a row.

    Returns: int32 [M, B] twice: the examples of each batch, those of a row next to each other, and
      the row of each example, ascending from 0 without gaps.
    """
    num_examples = lengths.shape[0]
    # The time grows with the square of the examples, so a large window is filled in parts.
    part = batch_size if batch_size >= _MIN_WINDOW_EXAMPLES else num_examples
    rows = tf.map_fn(
        lambda examples: _fill_rows(
            *examples,
            # A row lies in one batch.
            most=min(MAX_EXAMPLES_PER_ROW, batch_size),
            max_seq_length=max_seq_length,
            max_predictions=max_predictions,
        ),
        (tf.reshape(lengths, [-1, part]), tf.reshape(predictions, [-1, part])),
        fn_output_signature=tf.int32,
    )
    rows += part * tf.range(num_examples // part)[:, tf.newaxis]
    batches, rows = _deal(tf.reshape(rows, [num_examples]), batch_size)
    # By batch, then by row: rows of a batch are below 2W (see `_deal`).
    order = tf.argsort(batches * 2 * num_examples + rows, stable=True)
    rows = tf.reshape(tf.gather(rows, order), [-1, batch_size])
    # Numbers of rows become 0, 1, 2 without gaps: one more wherever the row changes.
    begins = tf.cast(rows[:, 1:] != rows[:, :-1], tf.int32)
    return tf.reshape(order, [-1, batch_size]), tf.pad(tf.cumsum(begins, axis=1), [[0, 0], [1, 0]])


def _fill_rows(
    lengths: tf.Tensor,
    predictions: tf.Tensor,
    *,
    most: int,
    max_seq_length: int,
    max_predictions: int,
) -> tf.Tensor:
    """Puts every example into a row; returns the row of each, int32, from 0.

    First the number of rows is planned: enough for all tokens, with small gaps, and one for each
    example longer than half a row. Then:
    1. The longest example that is left begins a row.
    2. The row should get an equal share of the examples: the number of those left divided by the
       number of planned rows left.
    3. Until the row has its share, its free tokens are divided equally among the missing examples.
       The row gets the longest example that is no longer than such a part.
    4. Then, or if no example is that short, it gets the longest one that fits. If none does, the
       next row begins.
    """
    num_examples = lengths.shape[0]
    longest_first = tf.argsort(lengths, direction="DESCENDING", stable=True)
    lengths, predictions = tf.gather(lengths, longest_first), tf.gather(predictions, longest_first)
    # With few rows planned the last examples find no room; with many, rows stay half empty.
    filled = tf.cast(tf.reduce_sum(lengths), tf.float32) / (
        max_seq_length * _AIMED_SHARE_OF_REAL_TOKENS
    )
    alone = tf.math.count_nonzero(lengths > max_seq_length // 2, dtype=tf.int32)
    aim = tf.maximum(tf.cast(tf.math.ceil(filled), tf.int32), alone)

    # Gives one example a row. State: how many examples have one, and which (-1: none yet); of the
    # row that is being filled its number, examples, share, free tokens and free predictions.
    def add(number, rows, row, count, share, tokens, masks):
        free = rows < 0
        fits = free & (lengths <= tokens) & (predictions <= masks) & (count < most)
        # Nothing that is left fits: the longest of it begins the next row.
        begins = ~tf.reduce_any(fits)
        row += tf.cast(begins, tf.int32)
        share = tf.where(begins, (num_examples - number) // tf.maximum(aim - row, 1), share)
        share = tf.minimum(share, most)
        # Small enough for the row to get its share; the longest of these leaves the smallest gap.
        leaves_room = fits & (lengths <= tokens // tf.maximum(share - count, 1))
        fits = tf.where(tf.reduce_any(leaves_room), leaves_room, fits)
        # The first one: the examples are sorted, the longest first.
        chosen = tf.argmax(tf.where(begins, free, fits), output_type=tf.int32)
        return (
            number + 1,
            tf.tensor_scatter_nd_update(rows, [[chosen]], [row]),
            row,
            tf.where(begins, 1, count + 1),
            share,
            tf.where(begins, max_seq_length, tokens) - lengths[chosen],
            tf.where(begins, max_predictions, masks) - predictions[chosen],
        )

    # Nothing fits into row -1, so that the first example begins row 0.
    start = (0, tf.fill([num_examples], -1), -1, 0, 0, 0, 0)
    _, rows, *_ = tf.while_loop(lambda number, *_: number < num_examples, add, start)
    return tf.scatter_nd(longest_first[:, tf.newaxis], rows, [num_examples])


def _deal(rows: tf.Tensor, batch_size: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Deals the rows of a window to its batches, so that each has an allowed number of rows.

    A row of k examples saves k - 1 rows. The sum of these savings is divided equally among the
    batches, in multiples of the difference between two allowed numbers of rows. This is the number
    of rows that a batch needs to save.
    1. Rows of several examples are dealt, those with the most examples first, each to the batch
       that still needs to save the most. Between equal batches a fixed random order decides. A row
       that saves an odd number goes to a batch that needs an odd number, if there is one, because
       rows that save exactly one may be few.
    2. A row that no batch needs, or has room for, is split into single examples.
    3. Single examples fill the remaining places, in order.

    Args:
      rows: int32 [W], the row of each example, below W.

    Returns: int32 [W] twice: the batch of each example, and its row, below 2W.
    """
    num_examples = rows.shape[0]
    num_batches = num_examples // batch_size
    indices = tf.range(num_examples)
    counts = tf.math.unsorted_segment_sum(tf.ones_like(rows), rows, num_examples)
    oldest = tf.math.unsorted_segment_min(indices, rows, num_examples)
    # Most examples first; between equal ones, that with the oldest example.
    turns = tf.argsort(tf.where(counts > 0, oldest, num_examples) - counts * num_examples)

    # Always the same lots: a resumed run packs as it did before.
    draw = tf.random.experimental.stateless_shuffle(tf.range(num_batches), seed=[0, 0])

    def deal(turn, needs, places, batch_of_row):
        row = turns[turn]
        count, saved = counts[row], counts[row] - 1
        # Savings of one row are few: without them the last odd need could not be met exactly.
        is_odd = (saved % 2 == 1) & (needs % 2 == 1)
        may_take = (needs > 0) & (places >= count)
        # One number for three orders: odd needs first, then the greatest (below batch_size), then
        # the lot (below num_batches). A batch that may not take the row has its lot alone.
        wishes = tf.where(may_take, needs + tf.where(is_odd, batch_size, 0), 0)
        batch = tf.argmax(wishes * num_batches + draw, output_type=tf.int32)
        batch = tf.where(may_take[batch], batch, -1)
        taken = tf.one_hot(batch, num_batches, dtype=tf.int32)
        batch_of_row = tf.tensor_scatter_nd_update(batch_of_row, [[row]], [batch])
        return turn + 1, needs - taken * saved, places - taken * count, batch_of_row

    allowed = row_counts(batch_size)
    saved = num_examples - tf.math.count_nonzero(counts, dtype=tf.int32)
    # Shares of a whole number of units that differ by one at the most, as of a line cut evenly.
    borders = -(-(saved // allowed.step) * tf.range(num_batches + 1) // num_batches)
    needs = tf.minimum(allowed.step * (borders[1:] - borders[:-1]), batch_size - allowed[0])
    start = (0, needs, tf.fill([num_batches], batch_size))
    num_shared = tf.math.count_nonzero(counts > 1, dtype=tf.int32)
    _, _, places, batch_of_row = tf.while_loop(
        lambda turn, *_: turn < num_shared, deal, (*start, tf.fill([num_examples], -1))
    )
    batches = tf.gather(batch_of_row, rows)
    is_alone = batches < 0
    fill = tf.repeat(tf.range(num_batches), places)
    batches = tf.tensor_scatter_nd_update(batches, tf.where(is_alone), fill)
    return batches, tf.where(is_alone, num_examples + indices, rows)


def assemble(features: dict[str, tf.Tensor], rows: tf.Tensor) -> dict[str, tf.Tensor]:
    """Copies the examples of a batch into rows.

    Args:
      features: a batch of B examples whose real tokens and predictions come first, as they do in
        the TFRecords.
      rows: int32 [B], ascending from 0 without gaps: the row of each example.

    Returns: a dict, int32 unless said otherwise: `input_ids`, `input_mask`, `segment_ids`,
      `position_ids` and `block_ids` (1..E, 0 = padding) [R, S]; `masked_lm_positions` (in the row),
      `masked_lm_ids`, `masked_lm_weights` (float32) [R, P + E]; `cls_positions`,
      `next_sentence_labels`, `next_sentence_weights` (float32, 0 = no example) [R, E].
    """
    batch_size, max_seq_length = features["input_ids"].shape
    room = predictions_per_row(features["masked_lm_ids"].shape[1])
    # Few numbers of rows are allowed: XLA compiles a program for each shape.
    allowed = tf.constant([*row_counts(batch_size)])
    num_rows = allowed[tf.searchsorted(allowed, tf.reduce_max(rows, keepdims=True) + 1)[0]]
    lengths, num_predictions = sizes(features)
    ones = tf.ones_like(rows)
    # Where an example begins in its row, in tokens, and its number among those of the row.
    first_token, number_in_row = _sum_before(lengths, rows), _sum_before(ones, rows)

    def lay(values: tf.Tensor, counts: tf.Tensor, width: int) -> tf.Tensor:
        """The first `counts` values of each example, [B, L] -> [R, width], zero elsewhere."""
        real = tf.RaggedTensor.from_tensor(values, lengths=counts).values
        # The examples of a row lie next to each other, so their values do.
        of_rows = tf.RaggedTensor.from_value_rowids(
            real, tf.repeat(rows, counts), num_rows, validate=False
        )
        return of_rows.to_tensor(shape=[None, width])

    def of_tokens(values: tf.Tensor) -> tf.Tensor:
        return lay(tf.broadcast_to(values, [batch_size, max_seq_length]), lengths, max_seq_length)

    def of_predictions(values: tf.Tensor) -> tf.Tensor:
        return lay(values, num_predictions, room)

    def of_examples(values: tf.Tensor) -> tf.Tensor:
        return lay(values, ones, MAX_EXAMPLES_PER_ROW)

    # 0 is padding, so that the examples of a row count from 1; attention compares these ids.
    block_ids = of_tokens(number_in_row[:, tf.newaxis] + 1)
    return {
        "input_ids": of_tokens(features["input_ids"]),
        "input_mask": tf.cast(block_ids > 0, tf.int32),
        "segment_ids": of_tokens(features["segment_ids"]),
        "position_ids": of_tokens(tf.range(max_seq_length)),
        "block_ids": block_ids,
        "masked_lm_positions": of_predictions(
            features["masked_lm_positions"] + first_token[:, tf.newaxis]
        ),
        "masked_lm_ids": of_predictions(features["masked_lm_ids"]),
        "masked_lm_weights": of_predictions(features["masked_lm_weights"]),
        "cls_positions": of_examples(first_token[:, tf.newaxis]),
        "next_sentence_labels": of_examples(features["next_sentence_labels"]),
        "next_sentence_weights": of_examples(tf.ones([batch_size, 1])),
    }


def _sum_before(values: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """The sum over the examples before each example in its row: [B], [B] -> [B]."""
    # The sum over all examples before, minus the sum before the row's first example: the least of
    # the row, because these sums only grow. The rows ascend, as segment_min requires.
    before = tf.cumsum(values, exclusive=True)
    return before - tf.gather(tf.math.segment_min(before, rows), rows)
