"""The roofline of a step: what operations do, by their graph; every second has an address."""

import pytest
import tensorflow as tf

from benchmarks import roofline
from benchmarks.roofline import Operation
from mlperf_bert.mlperf.rules import BERT_LARGE
from mlperf_bert.model import fusion
from mlperf_bert.model.config import BertConfig

SMALL = BertConfig(**BERT_LARGE | {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 300})


def node(graph_of) -> Operation:
    """What roofline says of the operation whose result `graph_of` returns."""
    with tf.Graph().as_default() as graph:
        result = graph_of()
        return roofline.operations(graph, SMALL)[result.op.name]


def of(*shape: int, dtype=tf.bfloat16) -> tf.Tensor:
    return tf.compat.v1.placeholder(dtype, shape)


def test_a_product_with_its_bias():
    found = node(lambda: tf.nn.bias_add(tf.matmul(of(10, 64), of(64, 128)), of(128)))
    assert found.part == "products: feed-forward"
    assert found.flop == 2 * 10 * 64 * 128
    assert found.num_bytes == 2 * (10 * 64 + 64 * 128 + 128 + 10 * 128)


@pytest.mark.parametrize(
    ("graph_of", "part", "flop", "num_bytes"),
    [
        (
            lambda: tf.matmul(of(10, 64), of(10, 300), transpose_a=True),
            "products: heads and losses",
            2 * 10 * 64 * 300,
            2 * (640 + 3000 + 64 * 300),
        ),
        (
            lambda: tf.matmul(of(2, 4, 512, 16), of(2, 4, 512, 16), transpose_b=True),
            "products: scores and context",
            2 * 2 * 4 * 512 * 512 * 16,
            2 * (2 * 2 * 4 * 512 * 16 + 2 * 4 * 512 * 512),
        ),
        (
            lambda: tf.matmul(of(10, 64), of(64, 64)),
            "products: dense layers of attention and heads",
            2 * 10 * 64 * 64,
            2 * (640 + 64 * 64 + 640),
        ),
        (lambda: tf.cast(of(10, 64), tf.float32), "casts", 0, 640 * (2 + 4)),
        (lambda: tf.nn.l2_loss(of(10, 64)), "LAMB and clipping", 0, 2 * 641),
        (
            lambda: tf.function(fusion._sum_of_rows, autograph=False)(of(10, 64)),
            "gradients of biases",
            0,
            2 * 640 + 4 * 64,
        ),
        (lambda: tf.nn.softmax(of(2, 4, 8, 512)), "attention: softmax and mask", 0, 4 * 2**15),
        (lambda: of(2, 4, 8, 512) + 1, "attention: softmax and mask", 0, 4 * 2**15 + 2),
        (lambda: tf.exp(of(10, 300)), "heads and losses", 0, 2 * 2 * 3000),
        (lambda: tf.exp(of(300, 64)), "embeddings", 0, 2 * 2 * 300 * 64),
        (lambda: tf.exp(of(10, 64)), roofline.OTHERS, 0, 2 * 2 * 640),
        # Nobody knows the bytes of what has no shape.
        (lambda: tf.exp(tf.compat.v1.placeholder(tf.float32, [None])), roofline.OTHERS, 0, 0),
    ],
)
def test_what_an_operation_does(graph_of, part, flop, num_bytes):
    found = node(graph_of)
    assert (found.part, found.flop, found.num_bytes) == (part, flop, num_bytes)


def test_lamb_is_seven_arrays():
    def update() -> tf.Tensor:
        @tf.function(autograph=False)
        def change(gradient: tf.Tensor) -> tf.Tensor:
            tf.print(gradient)  # makes the call a stateful one, as one that changes weights is
            return gradient

        with tf.name_scope("LAMB"):
            return change(of(10, 64, dtype=tf.float32))

    with tf.Graph().as_default() as graph:
        update()
        found = roofline.operations(graph, SMALL)
    assert found["LAMB/StatefulPartitionedCall"].num_bytes == 7 * 4 * 640


def test_every_second_has_an_address():
    """At 100 FLOP and 10 bytes a second, by hand."""
    parts = [
        Operation(part="products: a", flop=300, num_bytes=10, seconds=4.0),  # 3 s against 1
        Operation(part="products: a", flop=100, num_bytes=40, seconds=5.0),  # 1 s against 4
        Operation(part="casts", flop=0, num_bytes=20, seconds=1.0),  # from the cache
    ]
    lines = roofline.table(parts, 12.0, peak=100.0, bandwidth=10.0)
    cells = {row[1]: row[2:-1] for row in ([c.strip() for c in x.split("|")] for x in lines[2:])}
    assert list(cells) == ["products: a", roofline.OUTSIDE, "casts", "all"]
    assert cells["products: a"][:5] == ["9.000", "75.0%", "3.000", "4.000", "2.000"]
    assert cells["casts"][:5] == ["1.000", "8.3%", "0.000", "2.000", "-1.000"]
    assert cells[roofline.OUTSIDE][:5] == ["2.000", "16.7%", "0.000", "0.000", "2.000"]
    assert cells["all"][:5] == ["12.000", "100.0%", "3.000", "6.000", "3.000"]
