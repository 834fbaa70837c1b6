"""What the compilers of accelerators say of BERT-large: the table of benchmarks/NOTES.md.

    python -m benchmarks.compiled --compilers=.venv-compilers/bin/python

BERT-large with LAMB, 512 tokens, bfloat16, dropout 0.1, with the flags of the TPU recipe's preset.
Each step is exported once, into a folder of build/compiled, and each of its rows is a process of
compile_step.py. No accelerator is needed, and nothing runs; a row takes minutes, and up to 15 GB of
memory. Rows go to benchmarks/compiled.jsonl as they come. A row that is in it is not asked for
again until it is deleted there. At the end the table is written into the notes.
"""

import argparse
import dataclasses
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import random_task, reports
from benchmarks.processes import ROOT
from mlperf_bert.data.validity import ExampleShape
from mlperf_bert.files.whole import write_whole
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.mlperf.rules import BERT_LARGE
from mlperf_bert.options import words_with_home
from mlperf_bert.portable import compile_step

ROWS = ROOT / "benchmarks" / "compiled.jsonl"
PAGE = ROOT / "benchmarks" / "NOTES.md"
FOLDER = ROOT / "build" / "compiled"
COMPILE_STEP = ROOT / "mlperf_bert" / "portable" / "compile_step.py"
PRESET = "configs/tpu_v3_128_bs8192.flags"
GIB = 2**30
TITLES = (
    "examples a device", "device", "result", "peak of usable GiB", "kernels", "products, ms",
    "memory, ms", "samples/s at most",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """One export, and the devices that it is compiled for."""

    num_examples: int
    recompute: str = "none"
    steps_per_update: int = 1
    kind: str = "training"
    own_kernels: bool = False
    num_rows: int | None = None
    """Of a packed batch; None: each example has a row."""
    devices: str

    @property
    def on_tpu(self) -> bool:
        """Whether its devices are TPUs."""
        return self.devices.startswith("tpu")

    def about(self, device: str) -> dict:
        """What a row says of the step and the device, such as h100 or h100:8."""
        name, _, count = device.partition(":")
        about = {name: value for name, value in vars(self).items() if name != "devices"}
        about |= {"device": name, "num_devices": int(count or 1)}
        return about | {"num_examples": self.num_examples * about["num_devices"]}

    @property
    def name(self) -> str:
        """Of its folder."""
        about = [value for name, value in vars(self).items() if name != "devices"]
        return "-".join(map(str, about)) + "-tpu" * self.on_tpu

    def flags(self) -> list[str]:
        """Of the export."""
        flags = [f"--recompute={self.recompute}", f"--steps_per_update={self.steps_per_update}"]
        flags += [
            f"--barriers={not self.on_tpu}",
            f"--kernels={'triton' if self.own_kernels else 'xla'}",
        ]
        flags.append(f"--pack_sequences={self.num_rows is not None}")
        if self.kind == "evaluation":
            return [*flags, "--train_batch_size=1", "--nodata_parallel", "--evaluation",
                    f"--eval_batch_size={self.num_examples}"]  # fmt: skip
        several = "--data_parallel" if ":" in self.devices else "--nodata_parallel"
        return [*flags, f"--train_batch_size={self.num_examples}", several]


STEPS = [
    Step(num_examples=8, devices="tpu-v2"),
    Step(num_examples=8, devices="v100,l4"),
    Step(num_examples=14, steps_per_update=8, devices="l4"),
    Step(num_examples=28, steps_per_update=2, devices="a100-40"),
    Step(num_examples=32, devices="tpu-v4"),
    Step(num_examples=32, devices="h100"),
    Step(num_examples=56, devices="a100-80,h100,h100:8,h200,b200"),
    Step(num_examples=56, own_kernels=True, devices="a100-40,a100-80,h100,h100:8,h200,b200"),
    Step(num_examples=64, own_kernels=True, devices="a100-40,a100-80,h100,h200"),
    Step(num_examples=80, own_kernels=True, devices="a100-40"),
    Step(num_examples=160, own_kernels=True, devices="a100-80,h100"),
    Step(num_examples=112, own_kernels=True, num_rows=56, devices="a100-40,a100-80,h100,h200,b200"),
    Step(
        num_examples=64,
        recompute="blocks",
        devices="tpu-v2,tpu-v3,tpu-v3:128,tpu-v4:64,tpu-v5e,tpu-v5e:64,tpu-v5p,tpu-v6e",
    ),
    Step(num_examples=192, recompute="blocks", devices="tpu-v3"),
    Step(num_examples=5, kind="evaluation", devices="tpu-v3"),
    Step(num_examples=80, kind="evaluation", devices="tpu-v3"),
]


def table(rows: Sequence[dict]) -> str:
    """The rows as Markdown, by device, evaluations last."""
    order = list(compile_step.DEVICES)
    by_device = sorted(
        rows,
        key=lambda row: (
            row["kind"] != "training",
            order.index(row["device"]),
            row["num_devices"],
            row["num_examples"],
            -(row["peak_bytes"] or float("inf")),
        ),
    )
    return reports.table(TITLES, map(cells, by_device))


def cells(row: dict) -> list[str]:
    """A row of the table."""
    rows, several, count = row["num_rows"], row["steps_per_update"], row["num_devices"]
    about = {
        f"{row['num_examples'] // count}": True,
        "an evaluation": row["kind"] == "evaluation",
        f"`--recompute={row['recompute']}`": row["recompute"] != "none",
        "`--kernels=triton`": row["own_kernels"],
        f"packed in {rows} rows": rows is not None,
        f"`--steps_per_update={several}`": several > 1,
    }
    peak = f"{row['peak_bytes'] / GIB:.1f}" if row["peak_bytes"] else "more"
    figures = ["", "", "", ""]
    if "num_kernels" in row:
        seconds = (row["products_seconds_bound"], row["memory_seconds_bound"])
        figures = [str(row["num_kernels"]), *(f"{1e3 * each:.0f}" for each in seconds)]
        figures.append(f"{row['samples_per_second_bound']:.0f}")
    return [
        ", ".join(words for words, is_so in about.items() if is_so),
        row["device"] + (f" x {count}" if count > 1 else ""),
        row["result"],
        f"{peak} of {row['usable_bytes'] / GIB:.1f}",
        *figures,
    ]


def exported(step: Step, folder: Path) -> Path:
    """The folder of a step; it is made if it is not there."""
    task, made = folder / "task", folder / step.name
    if not (task / "train.tfrecord").exists():
        task.mkdir(parents=True, exist_ok=True)
        shape = ExampleShape(max_seq_length=512, max_predictions_per_seq=76)
        random_task.write(task, dict(BERT_LARGE), shape, [300] * 128)
    if not made.exists():
        flags = [f"--bert_config_file={task}/bert_config.json", f"--output_dir={made}"]
        flags += [f"--{name}={task}/train.tfrecord" for name in ("input_file", "eval_input_file")]
        flags += ["--num_batches=1", "--num_recorded_steps=0", f"--flagfile={ROOT / PRESET}"]
        command = [sys.executable, "-m", "mlperf_bert.portable.export", *flags, "--nouse_tpu"]
        _run([*command, *step.flags()], codes=[0])
    return made


def compiled(step: Step, device: str, folder: Path, compilers: str) -> dict:
    """A row of compile_step.py."""
    output, program = folder / "row.json", exported(step, folder)
    command = [compilers, str(COMPILE_STEP), str(program)]
    command += [f"--devices={device}", f"--kind={step.kind}", f"--output={output}"]
    command += [f"--num_rows={step.num_rows}"] * (step.num_rows is not None)
    began = time.perf_counter()
    _run(command, codes=[0, 1, 3], output=output)
    made = json.loads(output.read_text())
    output.unlink()
    [row] = made["rows"]
    if row["result"] in ("no compiler", "does not compile"):
        raise ValueError(row["reason"])
    for name in ("step", "file", "xla_flop", "xla_bytes", "device_kind"):
        row.pop(name, None)
    return {
        **row,
        **step.about(device),
        "compile_seconds": round(time.perf_counter() - began),
        "versions": made["versions"],
        "commit": json.loads((program / "signature.json").read_text())["made_with"]["commit"],
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def _run(command: list[str], *, codes: list[int], output: Path | None = None) -> None:
    """Runs a command; a process that ends with another code, or without its output, has failed."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode not in codes or (output and not output.exists()):
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise ValueError(f"{Path(command[1]).name} {command[-1]}: {lines[-1]}")


def replace_table(page: str, new: str) -> str:
    """The page with another table."""
    pattern = rf"\| {re.escape(TITLES[0])} \|.*?\n(?!\|)"
    assert re.search(pattern, page, re.DOTALL)
    return re.sub(pattern, lambda _: new, page, count=1, flags=re.DOTALL)


@ends_in_one_line("compiled")
def main() -> int:
    """Asks for what is missing, and writes the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--compilers", required=True, help="a Python with jax and the compilers")
    given = parser.parse_args(words_with_home())
    if not shutil.which(given.compilers):
        raise ValueError(f"--compilers={given.compilers}: no such program")
    wanted = [(step, device) for step in STEPS for device in step.devices.split(",")]
    for number, (step, device) in enumerate(wanted, start=1):
        if not reports.is_stored(ROWS, step.about(device)):
            row = compiled(step, device, FOLDER, given.compilers)
            reports.store(ROWS, row)
            shown = "; ".join(each for each in cells(row) if each)
            seconds = row["compile_seconds"]
            print(f"{number} of {len(wanted)}, {seconds} s: {shown}", flush=True)
    write_whole(PAGE, replace_table(PAGE.read_text(), table(reports.stored(ROWS))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
