"""Rooflines of a step, by its graph and as compiled, and the simulation of scaling, by hand."""

import sys

import pytest
import tensorflow as tf

from benchmarks import compiled_roofline, roofline, scaling
from benchmarks.parts import Operation, Speeds, by_part, table
from benchmarks.scaling import Machine
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
    speeds = Speeds(flop=1e4, num_bytes=1e11, launch_seconds=0.005)
    before = [
        Operation(part="products", flop=300, num_bytes=10**8, seconds=0.04),  # 30 ms against 1
        Operation(part="products", flop=100, num_bytes=4 * 10**9, seconds=0.05),  # 10 against 40
        Operation(part="casts", num_bytes=2 * 10**9, seconds=0.01),  # from the cache
        Operation(part="small", num_bytes=10**8, seconds=0.015),  # a launch
    ]
    assert table([before], speeds, measured=True)[2:] == [
        "| products | 2 | 4.1 | 0.00 | 41.0 | 40.0 | 70.0 | 90.0 | 20.0 |",
        "| small | 1 | 0.1 | 0.00 | 1.0 | 0.0 | 5.0 | 15.0 | 10.0 |",
        "| casts | 1 | 2.0 | 0.00 | 20.0 | 0.0 | 20.0 | 10.0 | -10.0 |",
        "| all | 4 | 6.2 | 0.00 | 62.0 | 40.0 | 95.0 | 115.0 | 20.0 |",
    ]
    after = [Operation(part="casts", num_bytes=10**9), Operation(part="new", flop=60)]
    assert table([before, after], speeds, measured=False) == [
        "| part | operations | GB | TFLOP | ms by bytes | ms by products | bound, ms |",
        "|---|---|---|---|---|---|---|",
        "| products | 2 → 0 | 4.1 → 0.0 | 0.00 → 0.00 | 41.0 → 0.0 | 40.0 → 0.0 | 70.0 → 0.0 |",
        "| casts | 1 → 1 | 2.0 → 1.0 | 0.00 → 0.00 | 20.0 → 10.0 | 0.0 → 0.0 | 20.0 → 10.0 |",
        "| new | 0 → 1 | 0.0 → 0.0 | 0.00 → 0.00 | 0.0 → 0.0 | 0.0 → 6.0 | 0.0 → 6.0 |",
        "| small | 1 → 0 | 0.1 → 0.0 | 0.00 → 0.00 | 1.0 → 0.0 | 0.0 → 0.0 | 5.0 → 0.0 |",
        "| all | 4 → 2 | 6.2 → 1.0 | 0.00 → 0.00 | 62.0 → 10.0 | 40.0 → 6.0 | 95.0 → 16.0 |",
    ]


CONFIG = {
    "hidden_size": 6,
    "intermediate_size": 20,
    "num_attention_heads": 2,
    "vocab_size": 11,
}
ENTRY = {
    "num_rows": 2,
    "num_tokens": 8,
    "num_predictions": 5,
    "inputs": [
        {"name": "next_sentence_labels", "role": "batch", "shape": [2, 1]},
        {"name": "words", "role": "weight", "shape": [11, 6]},
        {"name": "kernel", "role": "weight", "shape": [6, 20]},
    ],
}
# Values of rows, [16, 6]; of feed-forward, [16, 20]; scores, [2, 2, 8, 8]. The sum that all share
# has a name of a norm.
TEXT = r"""HloModule step
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %added = f32[] add(%a, %b), metadata={op_name="jit(step)/call_exported/moments/mean"}
}
%multiply (p0: bf16[16,6], p1: bf16[6,20]) -> bf16[16,20] {
  %p0 = bf16[16,6]{1,0} parameter(0)
  %p1 = bf16[6,20]{1,0} parameter(1)
  ROOT %dot = bf16[16,20]{1,0} dot(%p0, %p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
%normalize (p2: bf16[16,6]) -> bf16[16,6] {
  %p2 = bf16[16,6]{1,0} parameter(0)
  %scaled = bf16[16,6]{1,0} negate(%p2), metadata={op_name="jit(step)/call_exported/batchnorm/mul_3"}
  ROOT %cast = bf16[16,6]{1,0} negate(%scaled), metadata={op_name="jit(step)/call_exported/Cast_1"}
}
%sum_rows (p3: bf16[2,8,6]) -> f32[6] {
  %p3 = bf16[2,8,6]{2,1,0} parameter(0)
  %zero = f32[] constant(0)
  ROOT %sum = f32[6]{0} reduce(%p3, %zero), dimensions={0,1}, to_apply=%add, metadata={op_name="jit(step)/call_exported/BiasAddGrad"}
}
ENTRY %main (x: bf16[16,6], w: bf16[6,20]) -> bf16[16,20] {
  %x = bf16[16,6]{1,0} parameter(0)
  %w = bf16[6,20]{1,0} parameter(1)
  %heads = bf16[2,8,2,3]{3,2,1,0} bitcast(%x)
  %rows = bf16[2,8,6]{2,1,0} bitcast(%x)
  %keys = bf16[4,8,3]{2,1,0} bitcast(%x)
  %words = f32[11,6]{1,0} constant(0)
  %feed = bf16[16,20]{1,0} fusion(%x, %w), kind=kCustom, calls=%multiply
  %called = (bf16[4,8,8]{2,1,0}, s8[4]{0}) custom-call(%keys, %keys), custom_call_target="__cublas$gemm", backend_config={"dot_dimension_numbers":{"lhs_contracting_dimensions":["2"],"rhs_contracting_dimensions":["2"]}}
  %scores = bf16[2,2,8,8]{3,2,1,0} get-tuple-element(%called), index=0
  %probabilities = bf16[2,2,8,8]{3,2,1,0} exponential(%scores), metadata={op_name="jit(step)/call_exported/Softmax_2"}
  %gelu = bf16[16,20]{1,0} tanh(%feed), metadata={op_name="jit(step)/call_exported/Gelu/Tanh"}
  %norm = bf16[16,6]{1,0} fusion(%x), kind=kLoop, calls=%normalize, metadata={op_name="jit(step)/call_exported/Cast_1"}
  %bias = f32[6]{0} fusion(%rows), kind=kInput, calls=%sum_rows, metadata={op_name="jit(step)/call_exported/BiasAddGrad"}
  %turned = bf16[2,2,8,3]{3,2,1,0} transpose(%heads), dimensions={0,2,1,3}
  %update = f32[6,20]{1,0} negate(%w), metadata={op_name="jit(step)/call_exported/LAMB/LAMB/update_7/sub_1"}
  %cast_word = bf16[11,6]{1,0} convert(%words), metadata={op_name="jit(step)/call_exported/Cast_9"}
  %looked_up = f32[16,6]{1,0} gather(%words, %bias), metadata={op_name="jit(step)/call_exported/Gather"}
  %attended = (bf16[2,8,2,3]{3,2,1,0}, f32[2,2,8]{2,1,0}) custom-call(%heads, %heads, %heads), custom_call_target="__gpu$xla.gpu.triton", metadata={op_name="jit(step)/call_exported/XlaCustomCallV2_4"}, backend_config={name = "attention_forward", ir = "\22tt.dot\22(%1, %2) : calls=%3 \22tt.dot\22(%4, %5)", grid_x = 4 : i32}
  %odd = pred[16]{0} compare(%bias, %bias), metadata={op_name="jit(step)/call_exported/Equal_5"}
  ROOT %result = bf16[16,20]{1,0} bitcast(%gelu)
}
"""  # noqa: E501


def parts_of(*, flop: float, num_bytes: float) -> dict[str, tuple[int, int, int, float]]:
    """Of each part its kernels, bytes, FLOP, and the ms that it needs at these speeds a second."""
    speeds = Speeds(flop=flop, num_bytes=num_bytes, launch_seconds=compiled_roofline.LAUNCH_SECONDS)
    rows = by_part(compiled_roofline.kernels_of(TEXT, ENTRY, CONFIG, speeds), speeds)
    return {
        name: (round(row[0]), round(row[1] * 1e9), round(row[2] * 1e12), row[5])
        for name, row in rows.items()
    }


def test_every_kernel_has_an_address():
    """At 1,000 FLOP and 1,000 bytes a second; values of rows are 192 bytes."""
    found = parts_of(flop=1000, num_bytes=1000)
    assert {name: row[:3] for name, row in found.items()} == {
        "products: feed-forward": (1, 192 + 240 + 640, 2 * 16 * 6 * 20),
        "products: scores and context": (1, 2 * 192 + 512 + 4, 2 * 4 * 8 * 8 * 3),
        "attention: softmax, dropout and their gradients": (1, 2 * 512, 0),
        "gelu and its bias": (1, 2 * 640, 0),
        "LayerNorm, dropout, residual sum": (1, 2 * 192, 0),
        "biases": (1, 192 + 24, 0),
        "attention: copies and sums": (1, 2 * 192, 0),
        # A change of a weight, and a cast of another.
        "LAMB, norms of gradients, casts of weights": (2, 240 + 480 + 264 + 132, 0),
        "embeddings, lookups": (1, 264 + 24 + 384, 0),
        # Two products for every query and key of two rows: 8 x 8, 6 numbers of all heads each.
        "kernel attention_forward": (1, 4 * 192 + 128, 2 * 2 * 2 * 8 * 8 * 6),
        "other: Equal": (1, 2 * 24 + 16, 0),
    }
    # The product takes 3.84 s, its bytes 1.07; the scores' take 0.90 s, less than their product.
    assert found["products: feed-forward"][3] == pytest.approx(3840)
    assert found["products: scores and context"][3] == pytest.approx(1536)
    assert found["gelu and its bias"][3] == pytest.approx(1280)


def test_what_a_launch_bounds_is_one_row_but_of_a_kernel_with_a_name():
    found = parts_of(flop=1e12, num_bytes=1e8)  # 200 bytes in 2 microseconds
    assert found["bounded by their launch"][0] == 1  # the comparison
    found = parts_of(flop=1e12, num_bytes=1e12)
    assert {name: (row[0], pytest.approx(row[3])) for name, row in found.items()} == {
        "bounded by their launch": (11, 11 * 2e-3),
        "kernel attention_forward": (1, 2e-3),
    }


def test_sizes_that_say_two_things_are_refused():
    config = CONFIG | {"intermediate_size": 6}
    with pytest.raises(
        ValueError,
        match=r"^arrays of 96 elements are inner and hidden, .*export another number of rows$",
    ):
        compiled_roofline.sizes_of(ENTRY, config)


ROUND = Machine(step_seconds=0.2, gradient_bytes=10**9, bytes_per_second=10e9)


def test_a_ring_sends_almost_twice_the_gradients():
    assert ROUND.all_reduce_seconds(1) == 0
    assert ROUND.all_reduce_seconds(2) == pytest.approx(0.1 + 2e-5)
    assert ROUND.all_reduce_seconds(1024) == pytest.approx(0.2 * 1023 / 1024 + 0.02046)


def test_efficiency_between_no_and_full_overlap():
    assert ROUND.efficiency(1, hidden_share=0) == 1
    assert ROUND.efficiency(2, hidden_share=0) == pytest.approx(0.2 / 0.30002)
    assert ROUND.efficiency(2, hidden_share=2 / 3) == 1  # 0.1 s pass within 0.133 s
    assert ROUND.efficiency(1024, hidden_share=2 / 3) < 0.75


def test_the_table_has_both_ways_of_sending():
    lines = scaling.table(ROUND).splitlines()
    assert (
        lines[2] == "| 1 | 100% | 100% |" and lines[3] == "| 2 | 100% | 67% |" and len(lines) == 13
    )


def test_one_core_is_told(monkeypatch, capsys):
    monkeypatch.setattr(scaling.os, "sched_getaffinity", lambda _: {0})
    monkeypatch.setattr(sys, "argv", ["scaling", "--gb_per_second=1"])
    with pytest.raises(SystemExit, match="2"):
        scaling.main()
    assert "two processes are measured, each on its own core" in capsys.readouterr().err
