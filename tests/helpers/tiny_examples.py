"""Examples of 16 tokens, and the configuration of a model for them."""

import numpy as np

TINY = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 8,
    "initializer_range": 0.02,
    "intermediate_size": 16,
    "max_position_embeddings": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "type_vocab_size": 2,
    "vocab_size": 64,
}


def example(rng, *, sequence=16, predictions=4) -> dict:
    positions = np.sort(rng.choice(np.arange(1, sequence), predictions, replace=False))
    return {
        "input_ids": rng.integers(0, 64, sequence),
        "input_mask": np.ones(sequence, np.int64),
        "segment_ids": np.zeros(sequence, np.int64),
        "masked_lm_positions": positions,
        "masked_lm_ids": rng.integers(0, 64, predictions),
        "masked_lm_weights": np.ones(predictions, np.float32),
        "next_sentence_labels": rng.integers(0, 2, 1),
    }
