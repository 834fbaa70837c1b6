"""Programs of StableHLO from their text, and the exporter of a step."""

import subprocess
import sys
from pathlib import Path

from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from tests.helpers import starts

TRAIN = ["--learning_rate=0.001", "--num_warmup_steps=2", "--seed=5", "--num_train_steps=40"]
TRAIN += ["--max_seq_length=32", "--max_predictions_per_seq=6"]


def serialized(text: str, *more: bool) -> bytes:
    """A program as the exporter writes it; `more` as jaxlib takes it."""
    with mlir.make_ir_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(text)
        return stablehlo.serialize_portable_artifact(module, stablehlo.get_current_version(), *more)


def export(
    task: Path, folder: Path, *flags: str, check: bool = True
) -> subprocess.CompletedProcess:
    """Exports the step of a run on a generated task; a later flag replaces an earlier one."""
    given = [f"--bert_config_file={task}/bert_config.json", f"--output_dir={folder}"]
    given += [f"--input_file={task}/train.tfrecord", *TRAIN, *flags]
    return starts.run([sys.executable, "mlperf_bert/portable/export.py", *given], check=check)
