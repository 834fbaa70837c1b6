"""What the compilers of accelerators say of BERT-large: benchmarks/compiled.md.

    python -m benchmarks.compiled --compilers=.venv-compilers/bin/python

BERT-large with LAMB, 512 tokens, bfloat16, dropout 0.1. Each step is exported once, into a folder
of build/compiled, and each of its rows is a process of compile_step.py. No accelerator is needed,
and nothing runs; a row takes minutes, and up to 15 GB of memory. Rows go to
benchmarks/compiled.jsonl as they come. A row that is in it is not asked for again until it is
deleted there. At the end the table of all rows is written.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import accelerator, reports
from benchmarks.processes import ROOT
from mlperf_bert.files.whole import write_whole
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.options import words_with_home
from mlperf_bert.portable import compile_step

ROWS = ROOT / "benchmarks" / "compiled.jsonl"
FOLDER = ROOT / "build" / "compiled"
COMPILE_STEP = ROOT / "mlperf_bert" / "portable" / "compile_step.py"
ROWS_OF_112_PACKED = 56
"""With examples of the published lengths, about two in a row."""

# Flags of an export beside the preset's, and the devices that the step is compiled for.
STEPS = [
    ("--train_batch_size=8", "tpu-v2"),
    ("--train_batch_size=8", "v100,l4"),
    ("--train_batch_size=14 --steps_per_update=8", "l4"),
    ("--train_batch_size=28 --steps_per_update=2", "a100-40"),
    ("--train_batch_size=32", "tpu-v4"),
    ("--train_batch_size=32", "h100"),
    ("--train_batch_size=56", "a100-80,h100,h100:8,h200,b200"),
    ("--train_batch_size=56 --kernels=triton", "a100-40,a100-80,h100,h100:8,h200,b200"),
    ("--train_batch_size=64 --kernels=triton", "a100-40,a100-80,h100,h200"),
    ("--train_batch_size=80 --kernels=triton", "a100-40"),
    ("--train_batch_size=160 --kernels=triton", "a100-80,h100"),
    ("--train_batch_size=112 --kernels=triton --pack_sequences", "a100-40,a100-80,h100,h200,b200"),
    (
        "--train_batch_size=64 --recompute=blocks",
        "tpu-v2,tpu-v3,tpu-v3:128,tpu-v4:64,tpu-v5e,tpu-v5e:64,tpu-v5p,tpu-v6e",
    ),
    ("--train_batch_size=192 --recompute=blocks", "tpu-v3"),
    ("--train_batch_size=1 --evaluation --eval_batch_size=5", "tpu-v3"),
    ("--train_batch_size=1 --evaluation --eval_batch_size=80", "tpu-v3"),
]


def about(step: str, device: str) -> dict:
    """What tells a row from all others; the device is such as h100 or h100:8."""
    name, _, count = device.partition(":")
    return {"step": step, "device": name, "num_devices": int(count or 1)}


def table(rows: Sequence[dict]) -> str:
    """The rows as Markdown, by device."""
    order = list(compile_step.DEVICES)
    by_device = sorted(
        rows, key=lambda row: (order.index(row["device"]), row["num_examples"], row["step"])
    )
    return reports.table([*compile_step.COLUMNS.values()], map(compile_step.cells, by_device))


def exported(step: str, devices: str, folder: Path) -> Path:
    """The folder of a step; it is made if it is not there."""
    own = [*step.split(), f"--barriers={not devices.startswith('tpu')}"]
    own.append(f"--data_parallel={':' in devices}")
    task, made = folder / "task", folder / re.sub(r"\W+", "-", " ".join(own)).strip("-")
    if not (task / "train.tfrecord").exists():  # the last that is written
        accelerator.write_task(task, "large")
    if not made.exists():
        flags = accelerator.flags_of_step(task, 1, packs=False, kernels="xla")
        flags += [f"--eval_input_file={task}/train.tfrecord", f"--output_dir={made}"]
        accelerator.export_step([*flags, *own])  # the last of a flag holds
    return made


def compiled(step: str, device: str, program: Path, compilers: str) -> dict:
    """A row of compile_step.py, of an exported step."""
    output = program.with_suffix(".json")
    command = [compilers, str(COMPILE_STEP), str(program), f"--devices={device}"]
    if "--pack_sequences" in step:
        command.append(f"--num_rows={ROWS_OF_112_PACKED}")
    if "--evaluation" in step:
        command.append("--kind=evaluation")
    began = time.perf_counter()
    command.append(f"--output={output}")
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if not output.exists():
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise ValueError(f"{COMPILE_STEP.name} {program}: {lines[-1]}")
    made = json.loads(output.read_text())
    output.unlink()
    [row] = made["rows"]
    if row["result"] in ("no compiler", "does not compile"):
        raise ValueError(row["reason"])
    return {
        **row,
        **about(step, device),
        "compile_seconds": round(time.perf_counter() - began),
        "versions": made["versions"],
        "commit": json.loads((program / "signature.json").read_text())["made_with"]["commit"],
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


@ends_in_one_line("compiled")
def main() -> int:
    """Asks for what is missing, and writes the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--compilers", required=True, help="a Python with jax and the compilers")
    given = parser.parse_args(words_with_home())
    if not shutil.which(given.compilers):
        raise ValueError(f"--compilers={given.compilers}: no such program")
    wanted = [(step, devices, device) for step, devices in STEPS for device in devices.split(",")]
    for number, (step, devices, device) in enumerate(wanted, start=1):
        if not reports.is_stored(ROWS, about(step, device)):
            row = compiled(step, device, exported(step, devices, FOLDER), given.compilers)
            reports.store(ROWS, row)
            shown = "; ".join(filter(None, compile_step.cells(row)))
            print(f"{number} of {len(wanted)}, {row['compile_seconds']} s: {shown}", flush=True)
    write_whole(ROWS.with_suffix(".md"), table(reports.stored(ROWS)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
