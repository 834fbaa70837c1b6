"""The examples of packed batches."""

import numpy as np

from mlperf_bert.input.pipeline import ExampleShape


def unpack(batch: dict[str, np.ndarray], shape: ExampleShape) -> list[dict[str, np.ndarray]]:
    """The examples of a packed batch, as they stood in the TFRecords."""
    found = []
    sizes = shape.lengths()
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
