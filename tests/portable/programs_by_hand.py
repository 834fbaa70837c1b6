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
    """The flags of a run on a generated task."""
    files = [f"--bert_config_file={task}/bert_config.json", f"--input_file={task}/train.tfrecord"]
    return [*files, *TRAIN]
