"""Programs of StableHLO from their text, and the exporter of a step."""

import subprocess
import sys
from pathlib import Path

from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from benchmarks import random_task
from mlperf_bert.data.validity import ExampleShape
from mlperf_bert.mlperf import rules
from tests.helpers import starts

TRAIN = ["--learning_rate=0.001", "--num_warmup_steps=2", "--seed=5", "--num_train_steps=40"]
TRAIN += ["--max_seq_length=32", "--max_predictions_per_seq=6"]

# A program as XLA writes it: a product with a cast, a sum, a picked row, a library call, a copy
# that a TPU keeps on its chip, a cast alone, a condition, and an all-reduce with two kernels beside
# it. Of two kernels it says what TensorFlow called their operation.
OPTIMIZED = """HloModule jit_step, is_scheduled=true

%product (p0: f32[4,8], p1: bf16[8,2]) -> bf16[4,2] {
  %p0 = f32[4,8]{1,0} parameter(0)
  %p1 = bf16[8,2]{1,0} parameter(1)
  %cast = bf16[4,8]{1,0} convert(%p0)
  ROOT %dot = bf16[4,2]{1,0} dot(%cast, %p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%picked (q0: f32[100,8], q1: s32[]) -> f32[1,8] {
  %q0 = f32[100,8]{1,0} parameter(0)
  %q1 = s32[] parameter(1)
  ROOT %slice = f32[1,8]{1,0} dynamic-slice(%q0, %q1, %q1), dynamic_slice_sizes={1,8}
}

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%changed (c0: f32[8]) -> f32[8] {
  %c0 = f32[8]{0} parameter(0)
  ROOT %negated = f32[8]{0} negate(%c0)
}

%same (d0: f32[8]) -> f32[8] {
  ROOT %d0 = f32[8]{0} parameter(0)
}

ENTRY %main (x: f32[4,8], w: bf16[8,2], t: f32[100,8], n: s32[]) -> (f32[8]) {
  %x = f32[4,8]{1,0} parameter(0)
  %w = bf16[8,2]{1,0} parameter(1)
  %t = f32[100,8]{1,0} parameter(2)
  %n = s32[] parameter(3)
  %start = f32[4,8]{1,0} all-reduce-start(%x), to_apply=%add
  %fused = bf16[4,2]{1,0} fusion(%x, %w), kind=kOutput, calls=%product, metadata={op_name="gradient/Dot"}
  %row = f32[1,8]{1,0} fusion(%t, %n), kind=kLoop, calls=%picked
  %done = f32[4,8]{1,0} all-reduce-done(%start)
  %total = f32[8]{0} reduce(%done, %n), dimensions={0}, to_apply=%add, metadata={op_name="LAMB/norm/Sum"}
  %call = f32[8]{0} custom-call(%total), custom_call_target="__cudnn$softmax"
  %wide = f32[8,2]{1,0} convert(%w)
  %near = f32[8]{0:T(8)S(1)} copy(%call)
  %reserved = f32[8]{0} custom-call(), custom_call_target="AllocateBuffer"
  %pick = pred[] constant(true)
  %chosen = f32[8]{0} conditional(%pick, %near, %near), true_computation=%changed, false_computation=%same
  ROOT %result = (f32[8]{0}) tuple(%chosen)
}
"""  # noqa: E501


def serialized(text: str, *more: bool) -> bytes:
    """A program as the exporter writes it; `more` as jaxlib takes it."""
    with mlir.make_ir_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(text)
        return stablehlo.serialize_portable_artifact(module, stablehlo.get_current_version(), *more)


def export_with_kernels(task: Path, folder: Path) -> None:
    """Exports a step of two layers of BERT-large's heads with --kernels=triton, of 2 x 128 tokens.

    `task` is a folder that takes its files.
    """
    config = rules.BERT_LARGE | {"num_hidden_layers": 2, "vocab_size": 40}
    config |= {"intermediate_size": 64, "max_position_embeddings": 128}
    shape = ExampleShape(max_seq_length=128, max_predictions_per_seq=6)
    random_task.write(task, config, shape, [100, 128, 60, 90])
    flags = ["--optimizer=lamb", "--precision=bfloat16", "--kernels=triton", "--nodata_parallel"]
    flags += ["--train_batch_size=2", "--num_recorded_steps=1", "--max_seq_length=128"]
    export(task, folder, *flags)


def export(
    task: Path, folder: Path, *flags: str, check: bool = True
) -> subprocess.CompletedProcess:
    """Exports the step of a run on a generated task; a later flag replaces an earlier one."""
    given = [f"--output_dir={folder}", *flags_of(task), *flags]
    return starts.run([sys.executable, "mlperf_bert/portable/export.py", *given], check=check)


def flags_of(task: Path) -> list[str]:
    """Of a run on a generated task."""
    files = [f"--bert_config_file={task}/bert_config.json", f"--input_file={task}/train.tfrecord"]
    return [*files, *TRAIN]
