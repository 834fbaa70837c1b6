"""Does the convergence watch find damaged runs, and leave healthy ones alone?

    python -m benchmarks.watched_runs --output_dir=build/watched

The task is that of the miniature campaign (demo/miniature.py). Ten runs of it are the band; thirty
others are healthy; each kind of damage is trained with three seeds. Every run is a process of
run_pretraining.py, a command that was stopped goes on, and an hour on two cores is what it takes.
Then the watch (mlperf_bert/submission/watch.py) reads every log, evaluation by evaluation, and the
table says at which one it warned, and whether the damage was among the causes that it named.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from demo import miniature
from demo.__main__ import REPOSITORY
from mlperf_bert.data import example_codec, tfrecord
from mlperf_bert.files import paths
from mlperf_bert.mlperf.results import has_ended

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
    framed = []
    for frame in tfrecord.read_frames(source):
        if len(framed) == most:
            break
        framed.append(
            tfrecord.frame(example_codec.encode(change(example_codec.decode(frame.record))))
        )
    target.write_bytes(b"".join(framed))


def damages(task: Path, folder: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Kinds of damage, and the flags with which a run has each."""
    mask_id = (task / "vocab.txt").read_text(encoding="utf-8").split("\n").index("[MASK]")
    parts = sorted((task / "train").glob("*.tfrecord"))
    folder.mkdir(parents=True, exist_ok=True)
    repeated, shifted = folder / "repeated.tfrecord", folder / "shifted.tfrecord"
    rewrite(parts[0], repeated, lambda example: example, NUM_REPEATED)
    rewrite(parts[0], shifted, labels_of_other_positions, 10**9)
    yield f"{NUM_REPEATED} examples, again and again", {"input_file": str(repeated)}
    yield "no weights loaded", {"init_checkpoint": ""}
    yield "ten times the learning rate", {"learning_rate": str(10 * miniature.LEARNING_RATE)}
    yield "labels of other positions", {"input_file": str(shifted)}
    for name, change in (
        ("evaluation shows what is masked", nothing_masked),
        ("evaluation masks a third", mask_everywhere(mask_id)),
    ):
        other = folder / f"{name.replace(' ', '_')}.tfrecord"
        rewrite(task / "eval.tfrecord", other, change, 10**9)
        yield name, {"eval_input_file": str(other)}


def flags_with(flags: list[str], changed: Mapping[str, str]) -> list[str]:
    """The flags of a run, with others; an empty value leaves a flag out."""
    kept = [flag for flag in flags if flag.split("=")[0].removeprefix("--") not in changed]
    return kept + [f"--{name}={value}" for name, value in changed.items() if value]


def trained(output_dir: Path, seed: int, flags: list[str]) -> None:
    """Trains, unless it has."""
    if has_ended(output_dir):
        return
    words = [f"--output_dir={output_dir}", f"--seed={seed}", "--submission_org=demo",
             "--submission_platform=this-machine"]  # fmt: skip
    command = [sys.executable, str(REPOSITORY / "run_pretraining.py"), *flags, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # A run that diverges ends with 1, and has its log.
    if not has_ended(output_dir):
        raise ValueError(f"{output_dir}: {done.stderr.strip().splitlines()[-1]}")
    print(f"{output_dir}: {done.stdout.strip().splitlines()[-1:]}", flush=True)


def main() -> None:
    """Trains what is missing, and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output_dir", type=Path, default=Path("build/watched"))
    given = parser.parse_args(paths.words_with_home())
    folder = given.output_dir.absolute()
    task = folder / "task"
    try:
        miniature.prepare(task)
        flags = miniature.run_flags(task)
        for number in range(NUM_REFERENCE):
            trained(folder / "band" / "runs" / str(number), 100 + number, flags)
        for kind, changed in damages(task, folder / "damaged_input"):
            for number in range(NUM_OF_EACH_DAMAGE):
                place = folder / "damaged" / kind.replace(" ", "_") / str(number)
                trained(place, 200 + number, flags_with(flags, changed))
        for number in range(NUM_HEALTHY):
            trained(folder / "healthy" / str(number), 300 + number, flags)
    except (ValueError, OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"watched_runs: {error}")


if __name__ == "__main__":
    main()
