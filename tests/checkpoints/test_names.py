"""The table of names against the official list of BERT-large's weights. No TensorFlow, seconds."""

import re
from importlib.resources import files

from mlperf_bert.checkpoints import names


def test_bert_large_has_exactly_the_weights_that_the_compliance_checker_lists():
    rules = files("mlperf_logging.compliance_checker") / "training_2.1.0" / "closed_bert.yaml"
    official = re.findall(r'"((?:bert|cls)/[\w/]+)"', rules.read_text(encoding="utf-8"))
    ours = [weight.tf1_name for weight in names.weights(24)]
    assert len(ours) == 398
    assert sorted(ours) == sorted(official)


def test_every_weight_has_a_name_of_its_own():
    table = names.weights(2)
    assert len({weight.our_name for weight in table}) == len(table) == 5 + 2 * 16 + 9
    assert names.our_name("bert_encoder_v2_3/word_embeddings/embeddings:0") == (
        "word_embeddings/embeddings"
    )
    assert names.our_name("bert/cls/predictions/output_bias/bias:0") == (
        "cls/predictions/output_bias/bias"
    )
