"""An encoder as a user of tf-models builds it."""

from official.nlp.modeling import networks


def encoder_of_tf_models(config, network=networks.BertEncoder) -> networks.BertEncoder:
    """With random weights."""
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
