r"""The step of BERT-large on one accelerator, beside PyTorch's.

With TensorFlow, on any machine, export the programs (2 MB each; no weights):

    python -m benchmarks.accelerator export --output=build/steps

Copy this repository and that folder to the machine with the accelerator, which needs jax, and for
the comparison PyTorch and transformers, but no TensorFlow, and measure:

    python -m benchmarks.accelerator measure --steps=build/steps --output=build/accelerator

bfloat16, 512 tokens, examples of published lengths (random_task.py has the source), LAMB, dropout
0.1; PyTorch (contestants/pytorch.py) has autocast, scaled_dot_product_attention and fused AdamW,
with torch.compile and without. Everything is measured in one sitting; the peak is that of a plain
product of matrices. Each contestant is a process of its own. OUTPUT.jsonl has the raw figures,
OUTPUT.md the table, OUTPUT.png the picture. A contestant that runs out of memory, or takes longer
than ten minutes, gets a row that says so.

Model FLOP count all 512 tokens of a row, padding too; samples per second count examples.
on_a_card.py measures steps with kernels of our own, and whole trainings.
"""

import argparse
import itertools
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import reports
from benchmarks.processes import ROOT, finished, in_a_process
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.options import whole_number, words_with_home

# What differs from BERT-large; the tiny model is for a try without an accelerator.
_SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers")
MODELS: dict[str, dict[str, int]] = {
    "large": {},
    "base": dict(zip(_SIZES, (768, 3072, 12, 12))),
    "tiny": dict(zip(_SIZES, (128, 512, 2, 2))),
}
NUM_EXAMPLES = 2000
WITH_KERNELS = {"xla": "", "triton": "_kernels"}


def write_task(folder: Path, model: str) -> None:
    """Writes a model's configuration and records."""
    from benchmarks import random_task  # needs this project's packages, which `measure` does not
    from mlperf_bert.data.validity import ExampleShape
    from mlperf_bert.mlperf.rules import BERT_LARGE

    folder.mkdir(parents=True, exist_ok=True)
    shape = ExampleShape(max_seq_length=512, max_predictions_per_seq=76)
    lengths = random_task.published_lengths(NUM_EXAMPLES)
    random_task.write(folder, BERT_LARGE | MODELS[model], shape, lengths)


def name_of_step(model: str, batch_size: int, packs: bool, kernels: str) -> str:
    """Of its folder and in all figures."""
    return f"{model}_{batch_size}{'_packed' * packs}{WITH_KERNELS[kernels]}"


def flags_of_step(task: Path, batch_size: int, *, packs: bool, kernels: str) -> list[str]:
    """Of a step of BERT with LAMB, 512 tokens, bfloat16, on the task of a folder."""
    return [
        f"--bert_config_file={task}/bert_config.json", f"--input_file={task}/train.tfrecord",
        "--max_seq_length=512", "--max_predictions_per_seq=76", "--optimizer=lamb", "--seed=1",
        f"--train_batch_size={batch_size}", f"--pack_sequences={packs}",
        "--precision=bfloat16", f"--kernels={kernels}",
    ]  # fmt: skip


def export_step(flags: list[str]) -> None:
    """Exports a step, with eight batches and no losses."""
    command = [sys.executable, "-m", "mlperf_bert.portable.export", "--num_recorded_steps=0"]
    command += ["--num_batches=8", "--nodata_parallel", *flags]
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        raise ValueError("the export failed, as the line above says")


def export(given: argparse.Namespace) -> None:
    """Exports a program for each batch, packed and not."""
    given.output.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as work:
        task = Path(work, "task")
        write_task(task, given.model)
        for packs, size in itertools.product((False, True), given.batch_sizes):
            flags = flags_of_step(task, size, packs=packs, kernels="xla")
            folder = given.output / name_of_step(given.model, size, packs, "xla")
            export_step([*flags, f"--output_dir={folder}"])


def peak_flop_per_second() -> tuple[str, float]:
    """The device's name, and the best rate of plain products in bfloat16."""
    import jax

    size = 512 if jax.default_backend() == "cpu" else 8192
    left = jax.random.normal(jax.random.key(0), (size, size), jax.numpy.bfloat16)
    right = jax.random.normal(jax.random.key(1), (size, size), jax.numpy.bfloat16)
    multiply = jax.jit(jax.numpy.matmul)
    multiply(left, right).block_until_ready()
    seconds = []
    for _ in range(10):
        began = time.perf_counter()
        for _ in range(5):
            product = multiply(left, right)
        product.block_until_ready()
        seconds.append((time.perf_counter() - began) / 5)
    return jax.devices()[0].device_kind, 2 * size**3 / min(seconds)


def run_step(program: Path, figures: Path, num_steps: int, *flags: str, limit: float = 600) -> dict:
    """The figures of run_step.py on an exported step."""
    command = [sys.executable, f"{program}/run_step.py", str(program), *flags]
    return measured([*command, f"--num_steps={num_steps}", f"--output={figures}"], figures, limit)


def measured(command: list[str], figures: Path, limit: float = 600) -> dict:
    """What a contestant prints, and the figures that it writes or why there are none."""
    found = finished(command, limit)
    if "failed" in found:
        said = "\n".join(found["said"])
        is_full = re.search("out of memory|allocate|resource_exhausted", said, re.IGNORECASE)
        last = (said.strip() or "no message").splitlines()[-1][:200]
        return found | {"failed": "out of memory" if is_full else f"{found['failed']}: {last}"}
    found |= json.loads(figures.read_text())
    return found | {"losses": [each[0] for each in found.pop("results", [])[:20]]}


def task_of_pytorch(folder: Path, figures: Path, num_steps: int, compiles: bool) -> str:
    """What contestants/pytorch.py is given, to train on the batches of an exported step."""
    signature = json.loads((folder / "signature.json").read_text())
    (entry,) = signature["programs"]
    config = figures.with_name("bert_config.json")
    config.write_text(json.dumps(signature["bert_config"]))
    task = {"bert_config_file": str(config), "array_file": f"{folder}/batches.npz"}
    task |= {"interpreter": None, "precision": "bfloat16", "turn": 0, "compile": compiles}
    task["takes_gpu"] = True
    task |= {"batch_size": entry["num_examples"], "flop": entry["flop"]}
    return json.dumps(task | {"num_steps": num_steps, "output": str(figures)})


def measure(given: argparse.Namespace) -> None:
    """Runs every contestant, and writes raw figures, table and picture."""
    folders = sorted(file.parent for file in given.steps.glob("*/signature.json"))
    if not folders:
        sys.exit(f"{given.steps}: no programs; run `python -m benchmarks.accelerator export`")
    # In a process that then leaves the device to the contestants.
    device, peak = in_a_process(peak_flop_per_second)
    raw = given.output.with_suffix(".jsonl")
    raw.unlink(missing_ok=True)

    def store(name: str, row: dict) -> None:
        print(f"{name}: {row.get('failed', 'measured')}", flush=True)
        reports.store(raw, {"device": device, "name": name, **row})

    store("a product of matrices", {"model_tflop_per_second": peak / 1e12})
    with tempfile.TemporaryDirectory() as work:
        figures = Path(work, "figures.json")
        for folder in folders:
            ours = folder, figures, given.num_steps, f"--peak_tflops={peak / 1e12}"
            store(f"ours {folder.name}", run_step(*ours))
            if given.torch_python and not folder.name.endswith("_packed"):
                for compiles, how in ((True, ", torch.compile"), (False, "")):
                    task = task_of_pytorch(folder, figures, given.num_steps, compiles)
                    torch = [given.torch_python, "benchmarks/contestants/pytorch.py", task]
                    store(f"PyTorch {folder.name}{how}", measured(torch, figures))
    show([raw], given.output)


def show(raws: Sequence[Path], output: Path) -> None:
    """Writes the table and the picture of raw figures, of one device or of several."""
    rows = [json.loads(line) for raw in raws for line in raw.read_text().splitlines()]
    text = table(rows)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.with_suffix(".md").write_text(text)
    print(text, end="")
    steps = [row for row in rows if "samples_per_second" in row]
    panels: dict[str, list] = {row["device"]: [] for row in steps}
    for row in sorted(steps, key=lambda row: row["samples_per_second"]):
        panels[row["device"]].append((row["name"], [row["samples_per_second"]]))
    if panels:
        reports.bars(output.with_suffix(".png"), panels, "samples per second", spec="%.3g")


def table(rows: list[dict]) -> str:
    """The table; the share is that of the product of matrices measured before a row."""
    titles = ["device", "", "samples/s", "step, ms", "model TFLOP/s", "of the product"]
    lines, peak = [], float("nan")
    for row in rows:
        rate, cells = row.get("model_tflop_per_second"), ["", "", "", "", ""]
        if "failed" in row:
            cells[0] = row["failed"]
        elif "samples_per_second" not in row:
            peak, cells[2] = rate, f"{rate:.4g}"
        else:
            memory = row.get("peak_memory_bytes")
            cells = [f"{row['samples_per_second']:.4g}", f"{1e3 * row['step_seconds']:.4g}"]
            cells += [f"{rate:.4g}", f"{rate / peak:.0%}"]
            cells.append(f"{memory / 2**30:.1f}" if isinstance(memory, int) else "unknown")
        lines.append([row["device"], row["name"], *cells])
    return reports.table([*titles, "memory, GiB"], lines)


@ends_in_one_line("accelerator")
def main() -> None:
    """Exports, measures or shows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(required=True)
    exports = commands.add_parser("export", help="with TensorFlow: make the programs")
    exports.add_argument("--output", type=lambda path: Path(path).absolute(), required=True)
    exports.add_argument("--model", choices=MODELS, default="large")
    sizes = {"nargs": "+", "type": whole_number, "default": [8, 16, 32, 64]}
    exports.add_argument("--batch_sizes", **sizes, help="examples of a step")
    exports.set_defaults(run=export)
    measures = commands.add_parser("measure", help="with jax: run them")
    measures.add_argument("--steps", type=Path, required=True, help="the output of export")
    measures.add_argument("--output", type=Path, required=True, help="without suffix")
    measures.add_argument("--num_steps", type=whole_number, default=50)
    measures.add_argument("--torch_python", help="an interpreter with torch and transformers")
    measures.set_defaults(run=measure)
    shows = commands.add_parser("show", help="table and picture of raw figures")
    shows.add_argument("raw", nargs="+", type=Path, help="OUTPUT.jsonl of measure")
    shows.add_argument("--output", type=Path, required=True, help="without suffix")
    shows.set_defaults(run=lambda given: show(given.raw, given.output))
    given = parser.parse_args(words_with_home())
    given.run(given)


if __name__ == "__main__":
    sys.exit(main())
