"""The roofline of a compiled step: parts, bytes and products of a small program, by hand."""

import sys

import pytest

from benchmarks import compiled_roofline
from benchmarks.parts import Speeds, by_part
from tests.helpers import programs

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


def parts(*, flop: float, num_bytes: float) -> dict[str, tuple[int, int, int, float]]:
    """Of each part its kernels, bytes, FLOP, and the ms that it needs at these speeds a second."""
    speeds = Speeds(flop=flop, num_bytes=num_bytes, launch_seconds=compiled_roofline.LAUNCH_SECONDS)
    rows = by_part(compiled_roofline.kernels_of(TEXT, ENTRY, CONFIG, speeds), speeds)
    return {
        name: (round(row[0]), round(row[1] * 1e9), round(row[2] * 1e12), row[5])
        for name, row in rows.items()
    }


def test_every_kernel_has_an_address():
    """At 1,000 FLOP and 1,000 bytes a second; values of rows are 192 bytes."""
    found = parts(flop=1000, num_bytes=1000)
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
    found = parts(flop=1e12, num_bytes=1e8)  # 200 bytes in 2 microseconds
    assert found["bounded by their launch"][0] == 1  # the comparison
    found = parts(flop=1e12, num_bytes=1e12)
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


def test_the_speeds_of_other_devices_are_asked_for():
    command = [sys.executable, "-m", "benchmarks.compiled_roofline", "step", "--device=l4"]
    done = programs.run(*command)
    expected = "compiled_roofline: --device=l4: give its --tflop and --terabytes a second"
    assert done.returncode == 1 and done.stderr.splitlines() == [expected]
