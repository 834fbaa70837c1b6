r"""How fast a training step is, against tf-models', PyTorch's and the reference's in one run.

    python -m benchmarks.training_throughput --input_file=part-00000.tfrecord \
        --tf_models_python=venv_tfm/bin/python --hugging_face_python=venv_hf/bin/python \
        --ipex_python=venv_ipex/bin/python \
        --reference=training/retired_benchmarks/bert --reference_python=venv37/bin/python \
        --output=benchmarks/training_throughput

BERT-base, 512 tokens, dropout 0.1, the same examples and batch for all. All use LAMB but where a
name says AdamW (less work), and compute the masked-LM head at the predicted places only.
Contestants take turns, `--rounds` times; each is a process that is alone on the machine, warms up,
and then is timed for `--steps` steps; without padding five times as many, because their number of
tokens varies (of these and of PyTorch's, every turn takes other examples: compare them by tokens a
second). A contestant prints STEP after every step and, where it knows its examples, how many tokens
without padding they had. Every turn is appended to OUTPUT.jsonl, and those that are in it count:
the same command goes on where it was stopped, and a measurement can be split over several calls
(`--only`; `--rounds=0` draws). OUTPUT.md and OUTPUT.png show all turns in it. Without --input_file
the examples are random words with the lengths of the published data (random_task.py has the
source). A contestant without an interpreter is left out; one that fails, or takes longer than
`--turn_seconds`, has no further turns, and what it has started ends with it. An interpreter may be
a script that sets variables, such as LD_PRELOAD of an allocator, and ends with `exec .../bin/python
"$@"`.

Model FLOP are the multiplications and additions of the matrix products of real tokens, forward and
backward (three times forward), without padding. The peak is that of a product of 2048x3072x3072 on
this machine in TensorFlow, in the same precision.
"""

from mlperf_bert.tensorflow_import import tensorflow

if __name__ == "__main__":
    tensorflow()  # before other modules import it

import argparse
import collections
import json
import os
import re
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from benchmarks import processes, random_task, reports
from benchmarks.accelerator import MODELS
from mlperf_bert.data import tfrecord
from mlperf_bert.input import pipeline
from mlperf_bert.input.pipeline import ExampleShape
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.mlperf.rules import BERT_LARGE
from mlperf_bert.model.config import BertConfig
from mlperf_bert.options import expanded_arguments, whole_number
from mlperf_bert.portable import flop

FOLDER = processes.ROOT / "benchmarks" / "contestants"
SHAPE = ExampleShape(max_seq_length=512, max_predictions_per_seq=76)
NUM_EXAMPLES = 1500
BERT_BASE = BERT_LARGE | MODELS["base"]
# Interpreters that the project does not have: what they need.
INTERPRETERS = {
    "tf_models": "tensorflow, official, tensorflow_datasets",
    "hugging_face": "torch, transformers",
    "ipex": "torch, transformers, intel_extension_for_pytorch",
    "tpp": "torch, transformers, tpp_pytorch_extension",
    "zentorch": "torch, transformers, zentorch",
    "reference": "tensorflow",
}
_FLOAT32, _BFLOAT16 = {"precision": "float32"}, {"precision": "bfloat16"}
_PADDED = {"pack_sequences": False, "has_padding": True}
_PACKED = {"pack_sequences": True, "has_padding": False}
_AUTO = {"jit_compile": "auto"} | _PADDED
_WHOLE = {"jit_compile": "true"} | _PADDED
# Name -> script, interpreter (None: this project's), options; "compiled" is --jit_compile=auto.
CONTESTANTS: dict[str, tuple[str, str | None, dict]] = {
    "reference, TensorFlow 2.4": ("reference", "reference", _FLOAT32),
    "tf-models, float32": ("tf_models", "tf_models", _FLOAT32),
    "tf-models, mixed_bfloat16": ("tf_models", "tf_models", _BFLOAT16),
    "PyTorch, bfloat16, torch.compile, AdamW": ("pytorch", "hugging_face", _BFLOAT16),
    "zentorch, bfloat16, torch.compile, AdamW": ("pytorch", "zentorch", _BFLOAT16),
    "IPEX, bfloat16": ("pytorch", "ipex", _BFLOAT16),
    "TPP, bfloat16, no padding": ("pytorch", "tpp", _BFLOAT16 | {"has_padding": False}),
    "ours, float32": ("ours", None, _FLOAT32 | {"jit_compile": "false"} | _PADDED),
    "ours, float32, compiled": ("ours", None, _FLOAT32 | _AUTO),
    "ours, float32, whole step compiled": ("ours", None, _FLOAT32 | _WHOLE),
    "ours, bfloat16, whole step compiled": ("ours", None, _BFLOAT16 | _WHOLE),
    "ours, bfloat16, compiled": ("ours", None, _BFLOAT16 | _AUTO),
    "ours, bfloat16, compiled, packed": ("ours", None, _BFLOAT16 | _AUTO | _PACKED),
}


def write_task(folder: Path, input_file: Path | None) -> dict[str, np.ndarray]:
    """Writes configuration and examples, as TFRecord and as arrays; returns the arrays."""
    if input_file and not input_file.is_file():
        sys.exit(f"--input_file={input_file}: no such file")
    record_file = folder / "train.tfrecord"
    random_task.write(folder, BERT_BASE, SHAPE, random_task.published_lengths(NUM_EXAMPLES))
    if input_file:
        dataset = tf.data.TFRecordDataset([str(input_file)]).take(NUM_EXAMPLES)
        record_file.write_bytes(b"".join(tfrecord.frame(record.numpy()) for record in dataset))
    num_examples = tfrecord.count_records(record_file)
    limits = SHAPE.for_model(BertConfig(**BERT_BASE))
    batches = pipeline.evaluation_batches([str(record_file)], limits, batch_size=num_examples)
    features, _ = next(iter(batches))
    arrays = {name: values.numpy().astype(np.int64) for name, values in features.items()}
    np.savez(folder / "examples.npz", **arrays)
    return arrays


def model_flop_per_sample(lengths: np.ndarray, num_predictions: np.ndarray) -> float:
    """Mean over examples, without padding."""
    config = BertConfig(**BERT_BASE)
    sizes = zip(lengths.tolist(), num_predictions.astype(int).tolist())
    return statistics.mean(
        flop.of_training_step(config, num_rows=1, num_tokens=tokens, num_predictions=predictions)
        for tokens, predictions in sizes
    )


def peak_flop_per_second(dtype: str) -> float:
    """The best of many matrix products: other guests of a machine disturb some of them."""
    left = tf.cast(tf.random.normal([2048, 3072]), dtype)
    right = tf.cast(tf.random.normal([3072, 3072]), dtype)
    multiply, seconds = tf.function(tf.matmul), []
    for _ in range(60):
        began = time.perf_counter()
        multiply(left, right)
        seconds.append(time.perf_counter() - began)
    return 2 * 2048 * 3072 * 3072 / min(seconds)


def measure(
    command: list[str], folder: Path, *, num_warm_up: int, num_steps: int, limit_seconds: float
) -> dict[str, list]:
    """The seconds of each timed step, and its tokens without padding where the contestant says.

    Raises:
      RuntimeError: the contestant ended or was stopped before, with its last words.
    """
    errors = folder / "errors.txt"
    stamps, tokens, began = [], [], time.perf_counter()
    with (
        errors.open("w") as file,
        processes.started(command, limit_seconds=limit_seconds, cwd=folder, stderr=file) as process,
    ):
        for line in process.stdout or ():
            if line.startswith("STEP"):
                stamps.append(time.perf_counter())
                tokens += map(int, line.split()[1:])
            if len(stamps) == num_warm_up + num_steps:
                seconds = np.diff(stamps[num_warm_up - 1 :]).tolist()
                return {"seconds": seconds, "tokens": tokens[num_warm_up:]}
        code = process.wait()
    if time.perf_counter() - began >= limit_seconds:
        raise RuntimeError(f"stopped after {limit_seconds:g} s; raise --turn_seconds")
    said = errors.read_text().strip() or "it said nothing"
    raise RuntimeError(f"ended with exit code {code}: {said.splitlines()[-1].strip()}")


def run_rounds(args: argparse.Namespace, folder: Path, results: Path) -> list[str]:
    """Lets the contestants take turns and stores every step; returns the names that failed."""
    failed: list[str] = []
    turns = reports.stored(results)
    if any(turn["batch_size"] != args.batch_size for turn in turns):
        sys.exit(f"{results}: has turns of another --batch_size; name another --output")
    num_turns = collections.Counter(turn["name"] for turn in turns)
    task = {
        "bert_config_file": str(folder / "bert_config.json"),
        "record_file": str(folder / "train.tfrecord"),
        "array_file": str(folder / "examples.npz"),
        "batch_size": args.batch_size,
        "reference": str(args.reference),
    }
    for number in range(args.rounds):
        for name, (script, interpreter, options) in CONTESTANTS.items():
            python = vars(args)[f"{interpreter}_python"] if interpreter else sys.executable
            ended = name in failed or num_turns[name] > number
            if ended or not python or not re.search(args.only, name):
                continue
            turn = json.dumps(task | options | {"turn": number, "interpreter": interpreter})
            try:
                with tempfile.TemporaryDirectory(dir=folder) as work:
                    measured = measure(
                        [str(python), str(FOLDER / f"{script}.py"), turn],
                        Path(work),
                        num_warm_up=args.warm_up_steps,
                        num_steps=args.steps * (1 if options.get("has_padding", True) else 5),
                        limit_seconds=args.turn_seconds,
                    )
            except (RuntimeError, OSError) as error:
                failed.append(name)
                print(f"round {number + 1}: {name}: {error}", file=sys.stderr, flush=True)
                continue
            reports.store(results, {"name": name, "batch_size": args.batch_size, **measured})
            rate = args.batch_size / statistics.mean(measured["seconds"])
            print(f"round {number + 1}: {name}: {rate:.2f} samples/s", flush=True)
    return failed


def processor() -> str:
    """The name of the processor, and its unit for matrix products in bfloat16."""
    facts = Path("/proc/cpuinfo").read_text()
    name = re.search(r"^model name\s*: (.*)", facts, re.MULTILINE)
    units = [unit for unit in ("amx_bf16", "avx512_bf16") if re.search(rf"\b{unit}\b", facts)]
    cores = len(os.sched_getaffinity(0))
    return f"{cores} x {name[1] if name else os.uname().machine} ({units[0] if units else 'no'})"


def rates_by_name(turns: Sequence[dict]) -> dict[str, tuple[list[float], list[float]]]:
    """Samples and tokens a second of each turn, by contestant; only of those that have turns.

    The tokens are those of the turns whose examples are known.
    """
    rates = {}
    for name in CONTESTANTS:
        if own := [turn for turn in turns if turn["name"] == name]:
            samples = [turn["batch_size"] / statistics.mean(turn["seconds"]) for turn in own]
            known = [turn for turn in own if turn.get("tokens")]
            rates[name] = samples, [sum(turn["tokens"]) / sum(turn["seconds"]) for turn in known]
    return rates


def spread(rates: Sequence[float], digits: int) -> list[str]:
    """Two cells: mean, slowest to fastest turn; empty where nothing is known."""
    if not rates:
        return ["", ""]
    low, mean, high = (f"{f(rates):.{digits}f}" for f in (min, statistics.mean, max))
    return [mean, f"{low} to {high}"]


def report(results: Path, output: Path, flop_per_sample: float) -> None:
    """Writes the table and the picture of all measured steps."""
    rates = rates_by_name(reports.stored(results))
    if not rates:
        sys.exit(f"{results}: has turns of older names only; name another --output")
    first = next(iter(rates))
    peaks = {dtype: peak_flop_per_second(dtype) for dtype in ("float32", "bfloat16")}
    means = {name: statistics.mean(samples) for name, (samples, _) in rates.items()}
    slowest_first = sorted(means, key=means.__getitem__)
    each = "slowest to fastest turn"
    titles = ["", "samples/s, mean of the turns", each, f"times {first}", "model GFLOP/s"]
    titles += ["of the peak", "tokens/s without padding", each]
    rows = []
    for name in slowest_first:
        flops, (samples, tokens) = means[name] * flop_per_sample, rates[name]
        row = [name, *spread(samples, 2), f"{means[name] / means[first]:.2f}"]
        row += [f"{flops / 1e9:.0f}", f"{flops / peaks[CONTESTANTS[name][2]['precision']]:.0%}"]
        rows.append([*row, *spread(tokens, 0)])
    shown = ", ".join(f"{dtype} {peak / 1e9:.0f} GFLOP/s" for dtype, peak in peaks.items())
    text = (
        f"{reports.table(titles, rows)}\n{processor()}; peak of a matrix product: {shown}; "
        f"{flop_per_sample / 1e9:.0f} GFLOP a sample.\n"
    )
    output.with_suffix(".md").write_text(text)
    print(text, end="")
    reports.bars(
        output.with_suffix(".png"),
        {"": [(name, rates[name][0]) for name in slowest_first]},
        f"samples per second, mean of the turns; lines: {each}",
        spec="%.2f",
    )


@ends_in_one_line("training_throughput")
def main() -> None:
    """Runs the contestants and writes the report."""
    absolute_path = Path.cwd().joinpath  # contestants run elsewhere; a venv needs its links kept
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input_file", type=absolute_path, help="TFRecords of 512 tokens")
    parser.add_argument("--output", type=absolute_path, required=True, help="without suffix")
    parser.add_argument("--batch_size", type=whole_number, default=4, help="examples per step")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each, with those in OUTPUT")
    parser.add_argument("--steps", type=whole_number, default=3, help="timed steps of a turn")
    parser.add_argument(
        "--warm_up_steps", type=whole_number, default=2, help="steps before the timed ones"
    )
    parser.add_argument("--turn_seconds", type=float, default=600, help="limit of a turn")
    parser.add_argument("--only", default="", help="only names that this regular expression finds")
    parser.add_argument("--reference", type=absolute_path, help="its bert folder")
    for name, packages in INTERPRETERS.items():
        parser.add_argument(f"--{name}_python", type=absolute_path, help=f"has {packages}")
    args = parser.parse_args(expanded_arguments())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` is run
    if bool(args.reference) != bool(args.reference_python):
        parser.error("--reference and --reference_python go together")
    try:
        re.compile(args.only)
    except re.error as error:
        parser.error(f"--only={args.only}: is not a regular expression: {error}")
    results = args.output.with_suffix(".jsonl")
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as work:
        arrays = write_task(Path(work), args.input_file)
        lengths = arrays["input_mask"].sum(axis=1)
        print(f"{len(lengths)} examples, {lengths.mean():.0f} tokens on average", flush=True)
        failed = run_rounds(args, Path(work), results)
        if not results.exists():
            why = f"failed: {'; '.join(failed)}" if failed else "give --rounds"
            sys.exit(f"{results}: nothing was measured; {why}")
        num_predictions = arrays["masked_lm_weights"].sum(axis=1)
        report(results, args.output, model_flop_per_sample(lengths, num_predictions))
        if failed:
            sys.exit(f"failed: {'; '.join(failed)}")


if __name__ == "__main__":
    sys.exit(main())
