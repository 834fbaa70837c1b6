"""Train the miniature task twenty times and write its reference convergence points (RCP).

    python -m demo.reference_points --output_file=demo/rcps_miniature.json

The official points come from twenty runs of the reference on the real task; none exists for the
miniature. These do the same for it: every run draws its own seed, and the samples that each needed
are written. The file that lies in demo/ was recorded so. An interrupted call goes on where it
stopped.
"""

import argparse
import json
import os
import platform
import sys
from pathlib import Path

from demo import miniature
from mlperf_bert.files.whole import write_whole
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.options import words_with_home
from mlperf_bert.submission.campaign import Campaign, train_in_turn

NUM_RUNS = 20


def train(folder: Path) -> list[int]:
    """Train the runs that are not there yet; return the samples that each needed.

    Raises:
      ValueError: a run failed, or did not reach the target.
    """
    flags = tuple(miniature.run_flags(folder / "task"))
    twenty = Campaign(org="demo", system="this-machine", status="onprem", folder=folder,
                      num_runs=NUM_RUNS, flags=flags)  # fmt: skip
    [runs] = train_in_turn([twenty])
    for run in runs:
        if run.samples_to_converge is None:
            raise ValueError(f"{run.path}: the target was not reached; the task is too short")
    return [run.samples_to_converge for run in runs]


def points(samples: list[int], *, when: str) -> dict:
    """Return the content of an RCP file of mlperf-logging."""
    return {
        f"bert_miniature_{miniature.GLOBAL_BATCH_SIZE}": {
            "Benchmark": "bert",
            "Creator": f"{len(samples)} runs of python -m demo.reference_points",
            "When": when,
            "Platform": f"{os.cpu_count()} CPU cores, {platform.machine()}",
            "BS": miniature.GLOBAL_BATCH_SIZE,
            "Hyperparams": {
                "opt_base_learning_rate": miniature.LEARNING_RATE,
                "opt_epsilon": 1e-6,
                "opt_learning_rate_training_steps": miniature.NUM_TRAIN_STEPS,
                "num_warmup_steps": miniature.NUM_WARMUP_STEPS,
                "start_warmup_step": 0,
                "opt_lamb_beta_1": 0.9,
                "opt_lamb_beta_2": 0.999,
                "opt_lamb_weight_decay_rate": 0.01,
                "gradient_accumulation_steps": 1,
            },
            "Epochs to converge": samples,
        }
    }


@ends_in_one_line("demo.reference_points")
def main() -> int:
    """Train, then write the file beside and rename it; return 1 with one line on failure."""
    parser = argparse.ArgumentParser(prog="python -m demo.reference_points")
    parser.add_argument("--work_dir", type=Path, default=Path("build/reference_points"))
    parser.add_argument("--output_file", type=Path, required=True)
    parser.add_argument("--when", default="", help="for the record, such as a date")
    given = parser.parse_args(words_with_home())
    folder = given.work_dir.resolve()
    miniature.prepare(folder / "task")
    samples = train(folder)
    write_whole(given.output_file, json.dumps(points(samples, when=given.when), indent=1) + "\n")
    print(f"{given.output_file}: {samples}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
