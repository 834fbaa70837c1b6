"""What a TF1 checkpoint holds beside slots, and an encoder as a user of tf-models builds it."""

import numpy as np
from official.nlp.modeling import networks

from mlperf_bert.checkpoints.reading import StoredCheckpoint


def read_weights(prefix: str) -> dict[str, np.ndarray]:
    """The weights of a TF1 name-based checkpoint, by TF1 name."""
    stored = StoredCheckpoint(prefix)
    wanted = [name for name in sorted(stored.shapes) if name.startswith(("bert/", "cls/"))]
    is_slot = {name: name.rpartition("/")[0] in stored.shapes for name in wanted}
    return {name: stored.tensor(name) for name in wanted if not is_slot[name]}


def assert_same_bits(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape), name
        assert found[name].tobytes() == value.tobytes(), name


def encoder_of_tf_models(config, network=networks.BertEncoder) -> networks.BertEncoder:
    """An encoder of random weights."""
    inner = "inner_dim" if network is networks.BertEncoderV2 else "intermediate_size"
    encoder = network(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        max_sequence_length=config.max_position_embeddings,
        type_vocab_size=config.type_vocab_size,
        **{inner: config.intermediate_size},
    )
    encoder(encoder.inputs)
    return encoder
