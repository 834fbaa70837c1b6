"""Several short examples in one row of tokens, chosen on-line from a bounded buffer.

More than half of the published examples' tokens are padding. A packed batch holds exactly as many
examples as any other, in fewer rows; every example comes exactly once, a bounded time later than
it would unpacked. The model sees each as if it were alone: it has its own positions, its own first
token, its own predictions, and attends to nothing but itself.

Shapes: B=examples of a batch, R=rows of a batch, S=sequence, P=predictions of an example,
E=examples of a row, C=examples to choose from.
Source: Krell et al., arXiv 2107.02027. Their algorithms plan from a histogram of all lengths; this
one chooses among what is at hand. Every number of rows is a shape to compile, so a batch may have
only few of them, and its examples are chosen to fill the one aimed at.
"""

import tensorflow as tf

MAX_EXAMPLES_PER_ROW = 4
MIN_BUFFER_EXAMPLES = 1024
_MAX_ROW_COUNTS = 8
# Rows are never quite full: an aim that left no room would often take one row more.
_AIMED_SHARE_OF_REAL_TOKENS = 0.97


def predictions_per_row(max_predictions_per_seq: int) -> int:
    """Room for the predictions of a row: those of its tokens, and one of rounding per example."""
    return max_predictions_per_seq + MAX_EXAMPLES_PER_ROW


def row_counts(batch_size: int) -> list[int]:
    """How many rows a batch of so many examples may have, in ascending order."""
    unit = _row_unit(batch_size)
    return list(
        range(_round_up(-(-batch_size // MAX_EXAMPLES_PER_ROW), unit), batch_size + unit, unit)
    )


def pack(
    examples: tf.data.Dataset,
    parse,
    *,
    batch_size: int,
    max_seq_length: int,
    max_predictions_per_seq: int,
) -> tf.data.Dataset:
    """Packed batches of `batch_size` examples each.

    Args:
      examples: serialized examples, without end.
      parse: makes of strings [B] the batch of features that `input_pipeline` describes.

    Returns: a dataset of dicts, int32 unless said otherwise: `input_ids`, `input_mask`,
      `segment_ids`, `position_ids` and `block_ids` (1..E, 0 = padding) [R, S];
      `masked_lm_positions` (in the row), `masked_lm_ids`, `masked_lm_weights` (float32)
      [R, P + E]; `cls_positions`, `next_sentence_labels`, `next_sentence_weights` (float32,
      0 = no example) [R, E].
    """
    buffer_size = _round_up(MIN_BUFFER_EXAMPLES, batch_size)
    room = predictions_per_row(max_predictions_per_seq)

    def measure(serialized):
        features = parse(serialized)
        return {
            "example": serialized,
            "length": tf.reduce_sum(features["input_mask"], axis=1),
            "predictions": tf.math.count_nonzero(
                features["masked_lm_weights"], axis=1, dtype=tf.int32
            ),
        }

    def exchange(buffer, arrivals):
        at_hand = {name: tf.concat([buffer[name], arrivals[name]], 0) for name in buffer}
        is_full = at_hand["length"][0] > 0  # at first empty places leave instead of examples
        chosen, rows = tf.cond(
            is_full,
            lambda: choose(
                at_hand["length"],
                at_hand["predictions"],
                batch_size=batch_size,
                max_seq_length=max_seq_length,
                max_predictions=room,
            ),
            lambda: (tf.range(batch_size), tf.zeros([batch_size], tf.int32)),
        )
        stays = tf.tensor_scatter_nd_update(
            tf.ones_like(at_hand["length"], tf.bool),
            chosen[:, tf.newaxis],
            tf.zeros([batch_size], tf.bool),
        )
        kept = tf.ensure_shape(tf.where(stays)[:, 0], [buffer_size])
        batch = {
            "is_full": is_full,
            "examples": tf.gather(at_hand["example"], chosen),
            "rows": rows,
        }
        return {name: tf.gather(values, kept) for name, values in at_hand.items()}, batch

    empty = {
        "example": tf.fill([buffer_size], ""),
        "length": tf.zeros([buffer_size], tf.int32),
        "predictions": tf.zeros([buffer_size], tf.int32),
    }
    measured = examples.batch(batch_size, drop_remainder=True).map(measure, tf.data.AUTOTUNE)
    batches = measured.scan(empty, exchange).filter(lambda batch: batch["is_full"])
    return batches.map(
        lambda batch: assemble(parse(batch["examples"]), batch["rows"]), tf.data.AUTOTUNE
    )


def choose(
    lengths: tf.Tensor,
    predictions: tf.Tensor,
    *,
    batch_size: int,
    max_seq_length: int,
    max_predictions: int,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Chooses a batch that fills its rows, as many as suit the examples at hand.

    A row begins with the oldest example, so each leaves after a bounded time, and the longest that
    fit fill it. Where only some numbers of rows are allowed, each row gets its share of the
    examples still to choose, every one the longest that leaves room for the others of its row; an
    example that is to have a row for itself is the longest of all, unless it begins the batch. If
    all are to have rows for themselves, they come in their order.

    Args:
      lengths: int32 [C], tokens of the examples at hand, the oldest first.
      predictions: int32 [C].

    Returns: int32 [B] twice: which were chosen, those of a row side by side, and their row.
    """
    if _row_unit(batch_size) > 1:
        num_rows, most = _aim(lengths, batch_size, max_seq_length), MAX_EXAMPLES_PER_ROW
    else:  # any number will do, so only the next example is ever thought of
        num_rows, most = 0, 2
    indices = tf.range(tf.size(lengths))
    chosen = tf.TensorArray(tf.int32, size=batch_size, element_shape=[])
    rows = tf.TensorArray(tf.int32, size=batch_size, element_shape=[])

    def add(number, free, row, count, share, tokens, masks, chosen, rows):
        fits = free & (lengths <= tokens) & (predictions <= masks)
        left = batch_size - number
        is_complete = (row > 0) & (left < num_rows - row)  # the others want a row each
        begins = (count == MAX_EXAMPLES_PER_ROW) | is_complete | ~tf.reduce_any(fits)
        row += tf.cast(begins, tf.int32)
        here = left // tf.maximum(num_rows - row, 1)
        share = tf.where(begins, tf.minimum(here, most), share)
        leaves_room = fits & (lengths <= tokens // tf.maximum(share - count, 1))
        fits = tf.where(tf.reduce_any(leaves_room), leaves_room, fits)
        may_be = tf.where(begins, free, fits)
        longest = tf.argmax(tf.where(may_be, lengths, -1), output_type=tf.int32)
        oldest = tf.reduce_min(tf.where(free, indices, tf.size(lengths)))
        goes_by_age = (number == 0) | (share > 1) | (num_rows >= batch_size)
        found = tf.where(begins & goes_by_age, oldest, longest)
        return (
            number + 1,
            free & (indices != found),
            row,
            tf.where(begins, 1, count + 1),
            share,
            tf.where(begins, max_seq_length, tokens) - lengths[found],
            tf.where(begins, max_predictions, masks) - predictions[found],
            chosen.write(number, found),
            rows.write(number, row),
        )

    start = (0, tf.ones_like(lengths, tf.bool), -1, 0, 0, 0, 0, chosen, rows)
    *_, chosen, rows = tf.while_loop(lambda number, *_: number < batch_size, add, start)
    return tf.ensure_shape(chosen.stack(), [batch_size]), tf.ensure_shape(
        rows.stack(), [batch_size]
    )


def _aim(lengths: tf.Tensor, batch_size: int, max_seq_length: int) -> tf.Tensor:
    """The allowed number of rows nearest to what the examples at hand would fill on average.

    No row holds two examples that are longer than half of it.
    """
    tokens = tf.reduce_mean(tf.cast(lengths, tf.float32))
    filled = tokens / (max_seq_length * _AIMED_SHARE_OF_REAL_TOKENS)
    alone = tf.reduce_mean(tf.cast(lengths > max_seq_length // 2, tf.float32))
    wanted = tf.maximum(filled, alone) * batch_size
    allowed = tf.constant(row_counts(batch_size))
    return allowed[tf.argmin(tf.abs(tf.cast(allowed, tf.float32) - wanted))]


def assemble(features: dict[str, tf.Tensor], rows: tf.Tensor) -> dict[str, tf.Tensor]:
    """Lays the examples of a batch into rows; see `pack` for what comes out.

    Args:
      features: a batch of B examples whose real tokens and predictions come first, as they do in
        the TFRecords.
      rows: int32 [B], ascending from 0 without gaps: the row of each example.
    """
    batch_size, max_seq_length = features["input_ids"].shape
    room = predictions_per_row(features["masked_lm_ids"].shape[1])
    num_rows = _round_up(tf.reduce_max(rows) + 1, _row_unit(batch_size))
    ones = tf.ones_like(rows)
    lengths = tf.reduce_sum(features["input_mask"], axis=1)
    first_token, place = _sum_before(lengths, rows), _sum_before(ones, rows)

    tokens = _Layout(features["input_mask"] > 0, rows, first_token, num_rows, max_seq_length)
    is_prediction = features["masked_lm_weights"] > 0
    num_predictions = tf.reduce_sum(tf.cast(is_prediction, tf.int32), axis=1)
    first_prediction = _sum_before(num_predictions, rows)
    predictions = _Layout(is_prediction, rows, first_prediction, num_rows, room)
    examples = _Layout(
        tf.ones([batch_size, 1], tf.bool), rows, place, num_rows, MAX_EXAMPLES_PER_ROW
    )
    positions = tf.broadcast_to(tf.range(max_seq_length), tf.shape(features["input_ids"]))
    block_ids = tokens.lay(tf.broadcast_to(place[:, tf.newaxis] + 1, tf.shape(positions)))
    return {
        "input_ids": tokens.lay(features["input_ids"]),
        "input_mask": tf.cast(block_ids > 0, tf.int32),
        "segment_ids": tokens.lay(features["segment_ids"]),
        "position_ids": tokens.lay(positions),
        "block_ids": block_ids,
        "masked_lm_positions": predictions.lay(
            features["masked_lm_positions"] + first_token[:, tf.newaxis]
        ),
        "masked_lm_ids": predictions.lay(features["masked_lm_ids"]),
        "masked_lm_weights": predictions.lay(features["masked_lm_weights"]),
        "cls_positions": examples.lay(first_token[:, tf.newaxis]),
        "next_sentence_labels": examples.lay(features["next_sentence_labels"]),
        "next_sentence_weights": examples.lay(tf.ones([batch_size, 1])),
    }


def synthetic_rows(
    num_rows: tf.Tensor, *, max_seq_length: int, max_predictions_per_seq: int
) -> dict[str, tf.Tensor]:
    """A packed batch of so many rows (int32 scalar), made without touching any data."""
    widths = dict.fromkeys(
        ("input_ids", "input_mask", "segment_ids", "position_ids", "block_ids"), max_seq_length
    )
    predictions = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
    widths |= dict.fromkeys(predictions, predictions_per_row(max_predictions_per_seq))
    examples = ("cls_positions", "next_sentence_labels", "next_sentence_weights")
    widths |= dict.fromkeys(examples, MAX_EXAMPLES_PER_ROW)
    batch = {}
    for name, width in widths.items():
        dtype = tf.float32 if name.endswith("weights") else tf.int32
        batch[name] = tf.ensure_shape(tf.ones([num_rows, width], dtype), [None, width])
    return batch


class _Layout:
    """Where the real elements of [B, L] go in [R, width]."""

    def __init__(self, is_real, rows, first, num_rows, width: int):
        self._sources = tf.where(is_real)
        example = self._sources[:, 0]
        begin = tf.cast(rows * width + first, tf.int64)
        self._targets = (tf.gather(begin, example) + self._sources[:, 1])[:, tf.newaxis]
        self._num_rows, self._width = num_rows, width

    def lay(self, values: tf.Tensor) -> tf.Tensor:
        """[B, L] -> [R, width], zero where nothing is laid."""
        real = tf.gather_nd(values, self._sources)
        flat = tf.scatter_nd(self._targets, real, tf.cast([self._num_rows * self._width], tf.int64))
        return tf.ensure_shape(tf.reshape(flat, [self._num_rows, self._width]), [None, self._width])


def _sum_before(values: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """For each example the sum over those before it in its row: [B], [B] -> [B]."""
    before = tf.cumsum(values, exclusive=True)
    return before - tf.gather(tf.math.segment_min(before, rows), rows)


def _row_unit(batch_size: int) -> int:
    return -(-batch_size // _MAX_ROW_COUNTS)


def _round_up(value, unit: int):
    return -(-value // unit) * unit
