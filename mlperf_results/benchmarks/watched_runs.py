"""Does the convergence watch find damaged runs, and leave healthy ones alone?

    python -m mlperf_results.benchmarks.watched_runs --output_dir=build/watched

The task is that of the miniature campaign (demo/miniature.py). Ten runs of it are the band; thirty
others are healthy; each kind of damage is trained with three seeds. Every run is a process of
run_pretraining.py, a command that was stopped goes on, and an hour on two cores is what it takes.
The table says at which evaluation the watch (mlperf_results/watch.py) warned a run
first.
"""

import argparse
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from demo import miniature
from demo.__main__ import REPOSITORY
from mlperf_bert.data import example_encoder, tfrecord, validity
from mlperf_bert.files.whole import write_whole
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.mlperf.logs import has_ended
from mlperf_bert.options import words_with_home

Example = dict[str, np.ndarray]
NUM_REPEATED = 64
NUM_REFERENCE, NUM_HEALTHY, NUM_OF_EACH_DAMAGE = 10, 30, 3


def labels_of_other_positions(example: Example) -> Example:
    """Every label stands at the position of the one before it."""
    count = int(example["masked_lm_weights"].sum())
    labels = example["masked_lm_ids"].copy()
    labels[:count] = np.roll(labels[:count], 1)
    return example | {"masked_lm_ids": labels}


def nothing_masked(example: Example) -> Example:
    """The text shows what is to be predicted."""
    count = int(example["masked_lm_weights"].sum())
    shown = example["input_ids"].copy()
    shown[example["masked_lm_positions"][:count]] = example["masked_lm_ids"][:count]
    return example | {"input_ids": shown}


def mask_everywhere(mask_id: int) -> Callable[[Example], Example]:
    """Every third token is masked, in place of about one in seven; the labels stay as few."""

    def masked(example: Example) -> Example:
        hidden = example["input_ids"].copy()
        length = int(example["input_mask"].sum())
        hidden[1 : length - 1 : 3] = mask_id
        return example | {"input_ids": hidden}

    return masked


def rewrite(source: Path, target: Path, change: Callable[[Example], Example], most: int) -> None:
    """Writes the first `most` examples of a file, changed."""
    if target.exists():
        return
    framed: list[bytes] = []
    for frame in tfrecord.read_frames(source):
        if len(framed) == most:
            break
        framed.append(tfrecord.frame(example_encoder.encode(change(validity.decode(frame.record)))))
    target.write_bytes(b"".join(framed))


def damages(task: Path, folder: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Every kind of damage, with the flags of a run that has it.

    An empty value leaves a flag out. The files that are needed are made.
    """
    mask_id = (task / "vocab.txt").read_text(encoding="utf-8").split("\n").index("[MASK]")
    parts = sorted((task / "train").glob("*.tfrecord"))
    folder.mkdir(parents=True, exist_ok=True)
    repeated, shifted = folder / "repeated.tfrecord", folder / "shifted.tfrecord"
    rewrite(parts[0], repeated, lambda example: example, NUM_REPEATED)
    rewrite(parts[0], shifted, labels_of_other_positions, 10**9)
    kind = f"{NUM_REPEATED} examples, again and again"
    yield kind, {"input_file": str(repeated)}
    yield "no weights loaded", {"init_checkpoint": ""}
    rate = str(10 * miniature.LEARNING_RATE)
    yield "ten times the learning rate", {"learning_rate": rate}
    yield "labels of other positions", {"input_file": str(shifted)}
    for kind, change in (
        ("evaluation shows what is masked", nothing_masked),
        ("evaluation masks a third", mask_everywhere(mask_id)),
    ):
        other = folder / f"{kind.replace(' ', '_')}.tfrecord"
        rewrite(task / "eval.tfrecord", other, change, 10**9)
        yield kind, {"eval_input_file": str(other)}


def trained(output_dir: Path, seed: int, flags: list[str]) -> list[str]:
    """Trains, unless it has; returns the lines that it said."""
    said = output_dir.with_name(f"{output_dir.name}.said")
    if not has_ended(output_dir) or not said.exists():
        words = [f"--output_dir={output_dir}", f"--seed={seed}", "--submission_org=demo",
                 "--submission_platform=this-machine"]  # fmt: skip
        command = [sys.executable, str(REPOSITORY / "run_pretraining.py"), *flags, *words]
        shutil.rmtree(output_dir, ignore_errors=True)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        # A run that diverges ends with 1, and has its log.
        if not has_ended(output_dir):
            raise ValueError(f"{output_dir}: {done.stderr.strip().splitlines()[-1]}")
        write_whole(said, done.stderr + done.stdout)
        print(f"{output_dir}: {done.stdout.strip()}", flush=True)
    return said.read_text(encoding="utf-8").splitlines()


def row(kind: str, runs: Sequence[Sequence[str]]) -> str:
    """A line of the table, of what runs said."""
    evaluations = []  # at which of them each run was warned first, from 1
    for said in runs:
        number = 0
        for line in said:
            number += "masked-LM accuracy" in line and line.startswith("after ")
            if line.startswith("  WARNING"):
                evaluations.append(str(number))
                break
    at = ", ".join(evaluations) or "none"
    return f"| {kind} | {len(runs)} | {len(evaluations)} | {at} |"


@ends_in_one_line("watched_runs")
def main() -> int:
    """Trains what is missing, and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output_dir", type=Path, default=Path("build/watched"))
    given = parser.parse_args(words_with_home())
    folder = given.output_dir.absolute()
    task, band = folder / "task", folder / "band"
    rows = ["| run | runs | warned | at evaluation |", "|---|---|---|---|"]
    miniature.prepare(task)
    flags = miniature.run_flags(task)
    for number in range(NUM_REFERENCE):
        trained(band / "runs" / str(number), 100 + number, flags)
    observed = f"--observer=mlperf_results.watch:observer --reference={shlex.quote(str(band))}"
    for kind, changed in damages(task, folder / "damaged_input"):
        place = folder / "damaged" / kind.replace(" ", "_")
        kept = [flag for flag in flags if flag.split("=")[0].removeprefix("--") not in changed]
        kept += [f"--{name}={value}" for name, value in changed.items() if value]
        runs = [
            trained(place / str(number), 200 + number, [*kept, f"{observed} --stop_if_hopeless"])
            for number in range(NUM_OF_EACH_DAMAGE)
        ]
        rows.append(row(kind, runs))
    healthy = [
        trained(folder / "healthy" / str(number), 300 + number, [*flags, observed])
        for number in range(NUM_HEALTHY)
    ]
    rows.append(row("healthy", healthy))
    print("\n".join(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
