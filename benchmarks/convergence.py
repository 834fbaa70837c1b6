"""Do the speed options need more samples? The demo's training to 0.720, with and without them.

    python -m benchmarks.convergence --seeds=3

Makes the demo's data and checkpoint of each seed, then trains from there: in float32, in bfloat16,
and in bfloat16 compiled and packed. Prints the samples and the seconds that each training needed.
The folder OUTPUT is kept; finished trainings are not run again.
"""

import argparse
import json
import shlex
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import demo.__main__ as the_demo
from benchmarks import reports
from demo.picture import read_metrics
from mlperf_bert.files.whole import write_whole
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.mlperf import rules
from mlperf_bert.options import expanded_arguments, whole_number

VARIANTS = {
    "float32": "",
    "bfloat16": "--precision=bfloat16",
    "bfloat16, compiled, packed": "--precision=bfloat16 --jit_compile=auto --pack_sequences",
}


def train(folder: Path, seed: int, variant: str) -> dict[str, float]:
    """The samples that a training needed to the target, and the seconds of its process."""
    _, command = the_demo.training_step(folder, seed)
    run = folder / "run" / variant.replace(", ", "_")
    needed_file = run / "needed.json"
    if not needed_file.exists():
        began = time.monotonic()
        command += f" {VARIANTS[variant]} --output_dir={shlex.quote(str(run))}"
        the_demo.run_steps([(f"seed {seed}: {variant}", command)], began)
        seconds = time.monotonic() - began
        _, evaluations = read_metrics(run / "metrics.jsonl")
        needed = {"samples": samples_to_target(evaluations), "seconds": seconds}
        write_whole(needed_file, json.dumps(needed))
    return json.loads(needed_file.read_text(encoding="utf-8"))


def samples_to_target(evaluations: Sequence[Mapping[str, float]]) -> float:
    """Interpolates between the last two evaluations where the accuracy reaches the target."""
    before, after = evaluations[-2:]
    low, high = (each["masked_lm_accuracy"] for each in (before, after))
    if high < rules.TARGET_MASKED_LM_ACCURACY:
        raise ValueError(f"accuracy {high} after {after['samples']} samples: below the target")
    share = (rules.TARGET_MASKED_LM_ACCURACY - low) / (high - low)
    return before["samples"] + share * (after["samples"] - before["samples"])


@ends_in_one_line("convergence")
def main() -> None:
    """Prepares the data, trains each variant in turn, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=whole_number, default=3, help="number of seeds")
    parser.add_argument("--output", type=Path, default="build/convergence", help="a folder")
    args = parser.parse_args(expanded_arguments())
    output, start = args.output.resolve(), time.monotonic()
    needed: dict[str, list[dict]] = {variant: [] for variant in VARIANTS}
    for seed in range(1, args.seeds + 1):
        folder = output / f"seed_{seed}"
        if not (folder / "eval.tfrecord").exists():
            the_demo.make_data(folder, seed, start)
        for variant, runs in needed.items():
            runs.append(train(folder, seed, variant))
    rows = []
    for variant, runs in needed.items():
        rows.append([variant])
        for name in ("samples", "seconds"):
            each = [run[name] for run in runs]
            rows[-1] += [", ".join(f"{one:,.0f}" for one in each), f"{statistics.mean(each):,.0f}"]
    titles = ["", "samples to 0.720, each seed", "mean", "seconds, each seed", "mean"]
    print(reports.table(titles, rows), end="")


if __name__ == "__main__":
    sys.exit(main())
