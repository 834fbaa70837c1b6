"""The roofline of a step: what operations do, by their graph; every second has an address."""

import pytest
import tensorflow as tf

from benchmarks import parts, roofline
from benchmarks.parts import Operation
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


def test_every_second_has_an_address_and_two_programs_stand_side_by_side():
    """At 10,000 FLOP and 100 GB a second, by hand."""
    speeds = parts.Speeds(flop=1e4, num_bytes=1e11, launch_seconds=0.005)
    before = [
        Operation(part="products", flop=300, num_bytes=10**8, seconds=0.04),  # 30 ms against 1
        Operation(part="products", flop=100, num_bytes=4 * 10**9, seconds=0.05),  # 10 against 40
        Operation(part="casts", num_bytes=2 * 10**9, seconds=0.01),  # from the cache
        Operation(part="small", num_bytes=10**8, seconds=0.015),  # a launch
    ]
    assert parts.table([before], speeds, measured=True)[2:] == [
        "| products | 2 | 4.1 | 0.00 | 41.0 | 40.0 | 70.0 | 90.0 | 20.0 |",
        "| small | 1 | 0.1 | 0.00 | 1.0 | 0.0 | 5.0 | 15.0 | 10.0 |",
        "| casts | 1 | 2.0 | 0.00 | 20.0 | 0.0 | 20.0 | 10.0 | -10.0 |",
        "| all | 4 | 6.2 | 0.00 | 62.0 | 40.0 | 95.0 | 115.0 | 20.0 |",
    ]
    after = [Operation(part="casts", num_bytes=10**9), Operation(part="new", flop=60)]
    assert parts.table([before, after], speeds, measured=False) == [
        "| part | operations | GB | TFLOP | ms by bytes | ms by products | bound, ms |",
        "|---|---|---|---|---|---|---|",
        "| products | 2 → 0 | 4.1 → 0.0 | 0.00 → 0.00 | 41.0 → 0.0 | 40.0 → 0.0 | 70.0 → 0.0 |",
        "| casts | 1 → 1 | 2.0 → 1.0 | 0.00 → 0.00 | 20.0 → 10.0 | 0.0 → 0.0 | 20.0 → 10.0 |",
        "| new | 0 → 1 | 0.0 → 0.0 | 0.00 → 0.00 | 0.0 → 0.0 | 0.0 → 6.0 | 0.0 → 6.0 |",
        "| small | 1 → 0 | 0.1 → 0.0 | 0.00 → 0.00 | 1.0 → 0.0 | 0.0 → 0.0 | 5.0 → 0.0 |",
        "| all | 4 → 2 | 6.2 → 1.0 | 0.00 → 0.00 | 62.0 → 10.0 | 40.0 → 6.0 | 95.0 → 16.0 |",
    ]
