"""The floating-point operations of BERT's matrix products, by formula."""

from mlperf_bert.model.config import BertConfig


def of_forward_pass(
    config: BertConfig, *, num_rows: int, num_tokens: int, num_predictions: int
) -> int:
    """Multiplications and additions of one forward pass, all tokens counted, padding too.

    Args:
      num_tokens: of a row.
      num_predictions: of a row.

    All blocks count whole, as is usual; our last block computes only what the heads read.
    Source: Kaplan et al., arXiv 2001.08361, section 2.1, and the masked-LM head.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    per_token = 2 * (4 * hidden * hidden + 2 * hidden * inner) + 4 * hidden * num_tokens
    blocks = config.num_hidden_layers * per_token * num_tokens
    head = 2 * num_predictions * hidden * (hidden + config.vocab_size)
    return num_rows * (blocks + head)


def of_training_step(config: BertConfig, **sizes: int) -> int:
    """FLOP of both passes; the backward pass has two products for each of the forward pass."""
    return 3 * of_forward_pass(config, **sizes)
