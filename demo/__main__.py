"""The whole benchmark in miniature, with the commands that the real one uses.

    python -m demo --seed=1 --output_dir=build/demo

Each step prints the command line that it runs. The encyclopedia, the vocabulary, the initial
checkpoint and the picture are made by modules of the demo; everything else is the benchmark itself.
Every run starts afresh: the output directory of an earlier demo is removed.
"""

from mlperf_bert import signals

if __name__ == "__main__":
    signals.ends_at_once()  # first: the imports take seconds

import argparse
import contextlib
import json
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mlperf_bert.files import paths
from mlperf_bert.files.locks import DirectoryLock
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.options import MAX_SEED, expanded_arguments

REPOSITORY = Path(__file__).resolve().parent.parent
MARK_FILE = "made_by_the_demo"

NUM_ARTICLES = 6000
NUM_EVAL_ARTICLES = 600
NUM_EVAL_SAMPLES = 1000
DUPE_FACTOR = 4
NUM_TRAIN_STEPS = 1500
RUNTIMES = ("auto", "tensorflow", "jax")


@dataclass(frozen=True)
class Lengths:
    """The lengths of examples and the share of short ones, flags of create_pretraining_data.py."""

    max_seq_length: int = 64
    max_predictions_per_seq: int = 10
    short_seq_prob: float = 0.1

    @property
    def flags(self) -> str:
        """The flags that give the features their sizes."""
        return (
            f"--max_seq_length={self.max_seq_length} "
            f"--max_predictions_per_seq={self.max_predictions_per_seq}"
        )


LENGTHS = Lengths()


Step = tuple[str, str]
"""What a command is for, and its line for a shell in the repository's root; "python" stands for
the running interpreter."""


def data_steps(folder: Path, seed: int, lengths: Lengths = LENGTHS) -> Iterator[Step]:
    """Yields the steps from nothing to TFRecords and initial checkpoint."""
    to = shlex.quote(str(folder))
    yield (
        f"write an encyclopedia of {NUM_ARTICLES} articles about an invented world",
        f"python -m demo.encyclopedia --seed={seed} --num_articles={NUM_ARTICLES} "
        f"--output_dir={to}/text",
    )
    yield (
        f"clean it, split sentences, set {NUM_EVAL_ARTICLES} articles aside for evaluation",
        f"NUM_TEST_ARTICLES={NUM_EVAL_ARTICLES} BLOCK_SIZE=2.8 RESULTS={to}/cleaned "
        f"PUNKT=demo/punkt cleanup_scripts/process_wiki.sh {to}/text/'wiki_??'",
    )
    yield (
        "learn a WordPiece vocabulary; write a tiny BERT's configuration and initial checkpoint",
        f"python -m demo.model --seed={seed} --input_file={to}/cleaned/'part-*' "
        f"--max_seq_length={lengths.max_seq_length} --output_dir={to}",
    )
    options = (
        f"--vocab_file={to}/vocab.txt --do_lower_case=True {lengths.flags} --masked_lm_prob=0.15 "
        f"--short_seq_prob={lengths.short_seq_prob} --random_seed=12345"
    )
    parts = sorted(path.name for path in (folder / "cleaned").glob("part-*"))  # made by now
    for number, part in enumerate(parts, start=1):
        yield (
            f"mask words: training text {number} of {len(parts)} to TFRecords",
            f"python create_pretraining_data.py --input_file={to}/cleaned/{part} "
            f"--output_file={to}/train/{part}.tfrecord --dupe_factor={DUPE_FACTOR} {options}",
        )
    yield (
        "mask words: evaluation text to TFRecords",
        f"python create_pretraining_data.py --input_file={to}/cleaned/eval.txt "
        f"--output_file={to}/eval_all.tfrecord --dupe_factor=1 {options}",
    )
    yield (
        f"pick {NUM_EVAL_SAMPLES} evaluation examples",
        f"python pick_eval_samples.py --input_tfrecord={to}/eval_all.tfrecord "
        f"--output_tfrecord={to}/eval.tfrecord --num_examples_to_pick={NUM_EVAL_SAMPLES} "
        f"{lengths.flags}",
    )


def training_step(
    folder: Path,
    seed: int,
    lengths: Lengths = LENGTHS,
    runtime: str = "auto",
) -> Step:
    """Returns the step that trains to the target."""
    to = shlex.quote(str(folder))
    return (
        "train with LAMB until masked-LM accuracy 0.720 on the held-out articles",
        "python run_pretraining.py --do_train "
        f"--bert_config_file={to}/checkpoint/bert_config.json "
        f"--init_checkpoint={to}/checkpoint/model.ckpt-0 "
        f"--input_file={to}/train/'*.tfrecord' --eval_input_file={to}/eval.tfrecord "
        f"--output_dir={to}/run {lengths.flags} --train_batch_size=64 "
        "--eval_batch_size=100 --optimizer=lamb --learning_rate=0.01 --num_warmup_steps=100 "
        f"--num_train_steps={NUM_TRAIN_STEPS} --eval_interval_samples=6400 "
        f"--iterations_per_loop=100 --save_checkpoints_steps={NUM_TRAIN_STEPS} "
        f"--seed={seed} --submission_org=demo --submission_platform=this-machine"
        f"{'' if runtime == 'auto' else f' --runtime={runtime}'}",
    )


def verdict_steps(folder: Path) -> list[Step]:
    """Returns the steps of the official checker's verdict and of the picture."""
    to = shlex.quote(str(folder))
    return [
        (
            "ask the official compliance checker, for every round of MLPerf with BERT",
            f"python -m mlperf_bert.submission.compliance {to}/results/result_0.txt",
        ),
        (
            "compare the training data with their record",
            f"python create_pretraining_data.py --output_dir={to}/train --verify",
        ),
        (
            "draw the run",
            f"python -m demo.picture --metrics_file={to}/run/metrics.jsonl "
            f"--output_file={to}/report.png",
        ),
    ]


def run_demo(folder: Path, seed: int, runtime: str = "auto") -> None:
    """Runs all steps in order; `runtime` is a flag of the training."""
    start = time.monotonic()
    make_data(folder, seed, start)
    run_steps([training_step(folder, seed, runtime=runtime)], start)
    results = folder / "results"
    results.mkdir()
    shutil.copyfile(folder / "run" / "bert.log", results / "result_0.txt")
    run_steps(verdict_steps(folder), start)
    print(f"\nDone after {time.monotonic() - start:.0f} s. Look at:")
    for name in ("report.png", "results/result_0.txt", "run/metrics.jsonl", "cleaned/eval.txt"):
        print(f"  {folder / name}")
    status = json.loads((folder / "run" / "run.json").read_text(encoding="utf-8"))["status"]
    if status != "success":
        raise ValueError(f"the training ended with status {status}: it did not reach the target")


def run_steps(steps: Iterable[Step], start: float) -> None:
    """Runs steps, each announced with the seconds since `start` and its command line."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHON": sys.executable}
    for title, command in steps:
        print(f"\n[{time.monotonic() - start:3.0f} s] {title}\n$ {command}", flush=True)
        done = subprocess.run(command, shell=True, cwd=REPOSITORY, env=environment)
        if done.returncode:
            raise ValueError(f"the last step failed with exit code {done.returncode}")


def make_data(folder: Path, seed: int, start: float, lengths: Lengths = LENGTHS) -> None:
    """Runs the steps from nothing to TFRecords and initial checkpoint in an emptied folder."""
    if not 0 <= seed <= MAX_SEED:
        raise ValueError(f"seed {seed}: give a number from 0 to {MAX_SEED}")
    empty_folder(folder)
    (folder / "train").mkdir()
    run_steps(data_steps(folder, seed, lengths), start)


def empty_folder(folder: Path) -> None:
    """Makes a folder, or empties it if the demo made it."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is not a folder: name an empty --output_dir")
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARK_FILE).exists():
            raise ValueError(f"{folder} holds other things: name an empty --output_dir")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK_FILE).touch()


def local_folder(text: str) -> Path:
    """Returns the folder that an option names; argparse says why it may not be in a bucket."""
    try:
        return paths.require_local(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


@ends_in_one_line("demo")
def main() -> int:
    """Runs the demo; returns 1 with one line if a step fails."""
    parser = argparse.ArgumentParser(prog="python -m demo", description="MLPerf BERT, in miniature")
    parser.add_argument("--seed", type=int, help="of text, weights and order; default: random")
    parser.add_argument("--output_dir", type=local_folder, default=Path("build/demo"))
    parser.add_argument("--runtime", choices=RUNTIMES, default="auto", help="of the training")
    arguments = parser.parse_args(expanded_arguments())
    signals.raise_on_ctrl_c()
    seed = secrets.randbits(31) if arguments.seed is None else arguments.seed
    os.chdir(REPOSITORY)
    folder = arguments.output_dir.absolute()
    lock = DirectoryLock(folder.parent, file_name=f".{folder.name}.lock")
    try:
        with contextlib.suppress(PermissionError):  # in a parent folder of others: no lock then
            if not lock.acquire():
                raise ValueError(f"{folder}: another demo works in it; name another --output_dir")
        run_demo(arguments.output_dir, seed, arguments.runtime)
    finally:
        lock.release()
    return 0


if __name__ == "__main__":
    sys.exit(main())
