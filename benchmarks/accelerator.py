"""Steps of BERT-large on one accelerator: their task, how they are run, page and picture.

on_a_card.py measures them, beside PyTorch's (contestants/pytorch.py: autocast,
scaled_dot_product_attention, fused AdamW, torch.compile) and a plain product of matrices, whose
rate is the peak. This command writes a page and a picture of the figures:

    python -m benchmarks.accelerator build/on_a_card/figures.jsonl --output=build/accelerator

bfloat16, 512 tokens, examples of published lengths (random_task.py has the source), LAMB, dropout
0.1. Model FLOP count all 512 tokens of a row, padding too; samples per second count examples.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import reports
from benchmarks.processes import ROOT, finished
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.options import expanded_arguments

# What differs from BERT-large; the tiny model is for a try without an accelerator.
_SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers")
MODELS: dict[str, dict[str, int]] = {
    "large": {},
    "base": dict(zip(_SIZES, (768, 3072, 12, 12))),
    "tiny": dict(zip(_SIZES, (128, 512, 2, 2))),
}
NUM_EXAMPLES = 2000
PRODUCT = "a product of matrices"
WITH_KERNELS = {"xla": "", "triton": "_kernels"}
_BEFORE_THE_TABLE = """# BERT-large on one accelerator

    python -m benchmarks.accelerator FIGURES.jsonl --output=PAGE

This command wrote this page, and draws its picture. Each row is one program on one device. The
model is BERT-large with 512 tokens, in bfloat16. `benchmarks/NOTES.md` has the versions of the
software, and the changes between the programs.

- **ours large_56** is this project's training step on 56 examples. In a "packed" step examples
  share rows: 56 fill 28 rows, and 112 fill 56. A step with "kernels" uses this project's kernels.
- **first program** is the step before the changes, **second program** after the first of them.
- **PyTorch large_56** trains with PyTorch on the same batches.
- **share of product** divides a row's model TFLOP/s by those of the nearest product of matrices
  above it, which ran just before.
- **model TFLOP/s** count padding too, and **memory** is the most that the program took.

"""


def write_task(folder: Path, model: str) -> None:
    """Writes a model's configuration and records."""
    from benchmarks import random_task  # needs this project's packages
    from mlperf_bert.data.validity import ExampleShape
    from mlperf_bert.mlperf.rules import BERT_LARGE

    folder.mkdir(parents=True, exist_ok=True)
    shape = ExampleShape(max_seq_length=512, max_predictions_per_seq=76)
    lengths = random_task.published_lengths(NUM_EXAMPLES)
    random_task.write(folder, BERT_LARGE | MODELS[model], shape, lengths)


def name_of_step(model: str, batch_size: int, packs: bool, kernels: str) -> str:
    """A step's name, of its folder and in all figures."""
    return f"{model}_{batch_size}{'_packed' * packs}{WITH_KERNELS[kernels]}"


def flags_of_step(task: Path, batch_size: int, *, packs: bool, kernels: str) -> list[str]:
    """The flags of a step of BERT with LAMB, 512 tokens, bfloat16, on the task of a folder."""
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


def print_product() -> None:
    """Prints the best rate of plain products of matrices in bfloat16, as JSON."""
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
            result = multiply(left, right)
        result.block_until_ready()
        seconds.append((time.perf_counter() - began) / 5)
    print(json.dumps({"model_tflop_per_second": 2 * size**3 / min(seconds) / 1e12}))


def run_step(program: Path, figures: Path, num_steps: int, limit: float) -> dict:
    """The figures of run_step.py on an exported step."""
    command = [sys.executable, f"{program}/run_step.py", str(program)]
    return measured([*command, f"--num_steps={num_steps}", f"--output={figures}"], figures, limit)


def measured(command: list[str], figures: Path, limit: float) -> dict:
    """What a contestant prints, and the figures that it writes or why there are none."""
    outcome = finished(command, limit)
    if "failed" in outcome:
        said = "\n".join(outcome["said"])
        is_full = re.search("out of memory|allocate|resource_exhausted", said, re.IGNORECASE)
        last = (said.strip() or "no message").splitlines()[-1][:200]
        return outcome | {"failed": "out of memory" if is_full else f"{outcome['failed']}: {last}"}
    outcome |= json.loads(figures.read_text())
    return outcome | {"losses": [each[0] for each in outcome.pop("results", [])[:20]]}


def task_of_pytorch(folder: Path, figures: Path, num_steps: int) -> str:
    """What contestants/pytorch.py is given, to train on the batches of an exported step."""
    signature = json.loads((folder / "signature.json").read_text())
    (entry,) = signature["programs"]
    config = figures.with_name("bert_config.json")
    config.write_text(json.dumps(signature["bert_config"]))
    task = {"bert_config_file": str(config), "array_file": f"{folder}/batches.npz"}
    task |= {"interpreter": None, "precision": "bfloat16", "turn": 0, "takes_gpu": True}
    task |= {"batch_size": entry["num_examples"], "flop": entry["flop"]}
    return json.dumps(task | {"num_steps": num_steps, "output": str(figures)})


def show(raws: Sequence[Path], output: Path) -> None:
    """Writes the page and the picture of raw figures, of one device or of several."""
    rows = [row for raw in raws for row in reports.stored(raw) if name_of(row)]
    text = _BEFORE_THE_TABLE + table(rows)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.with_suffix(".md").write_text(text)
    print(text, end="")
    rates: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if "samples_per_second" in row:
            which = row["device"], name_in_picture(name_of(row) or "")
            rates.setdefault(which, []).append(row["samples_per_second"])
    panels: dict[str, list] = {device: [] for device, _ in rates}
    # What was measured twice is one bar, of the mean.
    means = {which: statistics.mean(measured) for which, measured in rates.items()}
    for device, name in sorted(means, key=lambda which: means[which]):
        panels[device].append((name, [means[device, name]]))
    if panels:
        reports.bars(
            output.with_suffix(".png"), panels, "examples a second, 512 tokens each", spec="%.3g"
        )


def name_in_picture(name: str) -> str:
    """A row's name in words: "ours, 112 examples, packed" for "ours large_112_packed"."""
    words = re.sub(rf" (?:{'|'.join(MODELS)})_(\d+)", r", \1 examples", name)
    return words.replace("_packed", ", packed").replace(WITH_KERNELS["triton"], ", kernels")


def name_of(row: dict) -> str | None:
    """The row's name in table and picture; None: it is of neither, but a training, for example."""
    if "name" in row:  # measured before there were stages
        return row["name"]
    stage, _, name = row["stage"].partition(" ")
    return {"step": f"ours {name}", "PyTorch": row["stage"], "product": PRODUCT}.get(stage)


def table(rows: list[dict]) -> str:
    """The table; the share is that of the product of matrices measured before a row."""
    titles = ["device", "program", "samples/s", "step, ms", "model TFLOP/s", "share of product"]
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
        lines.append([row["device"], name_of(row), *cells])
    return reports.table([*titles, "memory, GiB"], lines)


@ends_in_one_line("accelerator")
def main() -> None:
    """Writes page and picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("raw", nargs="+", type=Path, help="figures.jsonl of on_a_card.py")
    parser.add_argument("--output", type=Path, required=True, help="without suffix")
    arguments = parser.parse_args(expanded_arguments())
    show(arguments.raw, arguments.output)


if __name__ == "__main__":
    sys.exit(main())
