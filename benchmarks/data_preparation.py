r"""How fast the data preparation is, compared with the reference's in the same run.

    python -m benchmarks.data_preparation --text=part-00000-of-00500 --vocab_file=vocab.txt \
        --wiki='wiki_??' --punkt=nltk_data/tokenizers/punkt_tab/english \
        --reference=training/retired_benchmarks/bert --reference_python=venv37/bin/python \
        --nltk_data=nltk_data

Without --reference only ours is measured. Whole commands are measured in seconds of processor time
(user and system, all their processes), so that what else the machine does changes little; the two
sides run in turns, and the median counts. The start-up (a run on a line of text, or on two short
articles) is reported separately on both sides, and so is our first run with an empty cache, which
compiles. Then our parts, each alone in this process, and what no program can leave out: drawing
the random words, and copying the written bytes. Needs: the reference's interpreter with TensorFlow
1.15 and nltk 3.4.5; free disk space of 20 times the text.
"""

import argparse
import itertools
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mlperf_bert.data import example_encoder, instances, mersenne
from mlperf_bert.data.jit import kernel
from mlperf_bert.data.tokenization import Tokenizer, read_documents
from mlperf_bert.files import paths

ROOT = Path(__file__).resolve().parent.parent
OPTIONS = ["--max_seq_length=512", "--max_predictions_per_seq=76", "--dupe_factor=10"]


def seconds(command: list, *, cwd: Path | None = None, **environment: str) -> float:
    """Runs a command and returns how long it took; one that fails ends the benchmark."""
    started = time.perf_counter()
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    elapsed = time.perf_counter() - started
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr.decode()[-2000:]}")
    return elapsed


def disk_mb_per_second(folder: Path, num_mb: int) -> float:
    """The speed of dd with fsync."""
    command = ["dd", "if=/dev/zero", f"of={folder / 'zeros'}", "bs=1M", f"count={num_mb}"]
    elapsed = seconds([*command, "conv=fsync"])
    (folder / "zeros").unlink()
    return num_mb * 1.048576 / elapsed


def cpu_seconds(command: list, **options: Any) -> float:
    """Runs a command as `seconds`; returns the processor time of it and its processes."""

    def so_far() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = so_far()
    seconds(command, **options)
    return so_far() - before


def examples(
    python: str, script: Path, text: Path, vocab_file: Path, output: Path, **environment: str
) -> float:
    """Seconds of the processor that a script needs to make the examples of a text."""
    command = [python, script, f"--input_file={text}", f"--output_file={output}"]
    return cpu_seconds([*command, f"--vocab_file={vocab_file}", *OPTIONS], **environment)


def measure_examples(args: argparse.Namespace, work: Path) -> None:
    """Prints how fast examples are made, and the reference's ratio."""
    one_line = work / "one_line"
    one_line.write_text("One line is enough.\n")
    output = work / "output"
    ours = (sys.executable, ROOT / "create_pretraining_data.py")
    cold = examples(*ours, one_line, args.vocab_file, output, NUMBA_CACHE_DIR=str(work / "cache"))
    examples(*ours, one_line, args.vocab_file, output)  # fills the caches
    sides = {"ours": ours}
    if args.reference:
        script = args.reference / "cleanup_scripts" / "create_pretraining_data.py"
        sides["reference"] = (args.reference_python, script)
    taken: dict[str, list[float]] = {side: [] for side in sides}
    starts = {side: examples(*sides[side], one_line, args.vocab_file, output) for side in sides}
    for _ in range(args.turns):
        for side, command in sides.items():
            total = examples(*command, args.text, args.vocab_file, output)
            taken[side].append(total - starts[side])
    text_mb, output_mb = args.text.stat().st_size / 1e6, output.stat().st_size / 1e6
    output.unlink()
    print(f"examples of {text_mb:.1f} MB of text, {output_mb:.0f} MB written, CPU seconds:")
    _print_sides(taken, starts)
    print(f"  ours with compilation: start-up {cold:.2f}")
    print(f"  dd with fsync: {disk_mb_per_second(work, max(1, int(output_mb))):.0f} MB/s")
    measure_parts(args.text, str(args.vocab_file))
    measure_workers(args, work)


def _print_sides(taken: dict[str, list[float]], starts: dict[str, float]) -> None:
    for side, values in taken.items():
        turns = ", ".join(f"{value:.2f}" for value in values)
        print(f"  {side}: {statistics.median(values):.2f} ({turns}), start-up {starts[side]:.2f}")
    if "reference" in taken:
        work = {side: statistics.median(values) for side, values in taken.items()}
        whole = {side: work[side] + starts[side] for side in work}
        without, ratio = (each["reference"] / each["ours"] for each in (work, whole))
        print(f"  ratio {without:.1f}, with start-up {ratio:.1f}")


@kernel
def _draw(state, count):
    total = 0
    for _ in range(count):
        total ^= mersenne.next_word(state)
    return total


def measure_parts(text: Path, vocab_file: str) -> None:
    """Prints the processor time of our parts, each alone in this process, and of the floors."""
    config = instances.InstanceConfig(max_seq_length=512, max_predictions_per_seq=76)
    tokenizer = Tokenizer(vocab_file)
    vocabulary = tokenizer.vocabulary
    state = mersenne.state_from_seed(12345)
    few = [[np.zeros(9, np.int32)] * 3] * 2
    for batch in instances.batches(
        instances.make_instances(few, vocabulary, config), vocabulary, config
    ):
        example_encoder.encode_records(batch)  # compiles, or reads the cache
    _draw(state, 1)
    taken: dict[str, float] = {}

    def part(name: str, function: Callable, *arguments: Any) -> Any:
        started = time.process_time()
        result = function(*arguments)
        taken[name] = taken.get(name, 0.0) + time.process_time() - started
        return result

    documents = part("read and tokenize", read_documents, [str(text)], tokenizer)
    made = part("cut and mask", instances.make_instances, documents, vocabulary, config)
    made_batches = instances.batches(made, vocabulary, config)
    while (batch := part("fill arrays", next, made_batches, None)) is not None:
        encoded = part("encode", example_encoder.encode_records, batch)
        part("floor: a copy of the bytes", bytes, encoded)
    # A shuffle draws 2 ln 2 words for each token, as a draw is rejected in a quarter of all cases;
    # a masked token takes a fraction, a fifth of them two, of two words each, and a tenth a draw.
    num_tokens = int(made.segments[:, [1, 3]].sum())
    num_words = int(1.39 * num_tokens + 2.54 * len(made.mask_tokens))
    part(f"floor: {num_words / 1e6:.0f} million random words", _draw, state, num_words)
    for name, value in taken.items():
        print(f"  {name}: {value:.2f}")


def measure_workers(args: argparse.Namespace, work: Path) -> None:
    """Prints how much several workers gain, in seconds of the clock with start-up."""
    (work / "texts").mkdir()
    for number in range(args.workers):
        (work / "texts" / f"part-{number}").symlink_to(args.text.resolve())
    times = []
    for workers in (1, args.workers):
        folder = work / f"workers-{workers}"
        command = [sys.executable, ROOT / "create_pretraining_data.py", *OPTIONS]
        command += [f"--input_file={work}/texts/part-*", f"--output_dir={folder}"]
        command += [f"--vocab_file={args.vocab_file}", f"--nworker={workers}"]
        times.append(seconds(command))
        shutil.rmtree(folder)
    print(f"  {args.workers} workers on as many parts: {times[0] / times[1]:.2f} times one worker")


def stages(folder: Path, python: str, work: Path, *, punkt: list[str]) -> list[list]:
    """The commands of process_wiki.sh, in order."""
    data = "--data=wiki_??"
    clean = [[python, folder / "clean.py", data, "--input_suffix=.1", "--output_suffix=.2"]]
    if not (folder / "clean.py").exists():  # the reference has a shell script for one file
        files = sorted(work.glob("wiki_??"))
        clean = [["bash", folder / "clean.sh", f"{f.name}.1", f"{f.name}.2"] for f in files]
    segment = [python, folder / "do_sentence_segmentation.py", data, "--nworker=2", *punkt]
    separate = [python, folder / "seperate_test_set.py", data, "--num_test_articles=1"]
    return [
        [python, folder / "cleanup_file.py", data, "--output_suffix=.1", "--nworker=2"],
        *clean,
        segment,
        [*separate, "--test_output=results/eval", "--nworker=2"],
        [python, folder / "do_gather.py", data, "--input_suffix=.4", "--out_dir=results"],
    ]


def clean_up(
    args: argparse.Namespace, side: str, files: list[Path], work: Path
) -> dict[str, float]:
    """Cleans files; returns the seconds of the processor of each stage, by its script's name."""
    folder, python, punkt = ROOT / "cleanup_scripts", sys.executable, []
    if side == "reference":
        folder, python = args.reference / "cleanup_scripts", args.reference_python
    elif args.punkt:
        punkt = [f"--punkt={args.punkt}"]
    environment = {"PYTHON": str(python), "NLTK_DATA": str(args.nltk_data or "")}
    taken: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=work) as place:
        (Path(place) / "results").mkdir()
        for path in files:
            shutil.copyfile(path, Path(place) / path.name)
        commands = stages(folder, python, Path(place), punkt=punkt)
        if side == "ours":  # as process_wiki.sh runs them
            words = (["--", Path(script).name, *flags] for _, script, *flags in commands)
            commands = [[python, folder / "in_one_process.py", *itertools.chain(*words)]]
        for command in commands:
            name = Path(command[1]).stem
            used = cpu_seconds(command, cwd=Path(place), **environment)
            taken[name] = taken.get(name, 0.0) + used
    return taken


def measure_clean_up(args: argparse.Namespace, work: Path) -> None:
    """Prints how long the clean-up takes, and the reference's ratio."""
    two_articles = work / "wiki_00"
    article = "<doc id=1>\nTitle\n\nOne sentence. Another one.\n</doc>\n"
    two_articles.write_text(2 * article)
    files = sorted(args.wiki.parent.glob(args.wiki.name))
    sides = ["ours", "reference"] if args.reference else ["ours"]
    started = {side: clean_up(args, side, [two_articles], work) for side in sides}
    starts = {side: sum(stages.values()) for side, stages in started.items()}
    taken: dict[str, list[float]] = {side: [] for side in sides}
    of_stages: dict[str, dict[str, float]] = {}
    for _ in range(args.turns):
        for side in sides:
            of_stages[side] = clean_up(args, side, files, work)
            taken[side].append(sum(of_stages[side].values()) - starts[side])
    text_mb = sum(path.stat().st_size for path in files) / 1e6
    print(f"clean-up of {len(files)} files, {text_mb:.1f} MB, CPU seconds:")
    _print_sides(taken, starts)
    for side in sides:
        parts = (f"{name} {value:.2f}" for name, value in of_stages[side].items())
        print(f"  stages of {side}, last turn with start-up: {', '.join(parts)}")


def main() -> None:
    """Measures what the arguments name."""
    absolute_path = Path.cwd().joinpath  # commands run elsewhere; a venv needs its links kept
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=absolute_path, help="a part, one sentence a line")
    parser.add_argument("--vocab_file", type=absolute_path, help="vocab.txt")
    parser.add_argument("--workers", type=int, default=2, help="of the parallel measurement")
    parser.add_argument("--turns", type=int, default=3, help="measurements of each side")
    parser.add_argument("--wiki", type=absolute_path, help="glob of extracted files named wiki_??")
    parser.add_argument("--punkt", type=absolute_path, help="punkt data for ours")
    parser.add_argument("--reference", type=absolute_path, help="its bert folder")
    parser.add_argument("--reference_python", type=absolute_path, help="its interpreter")
    parser.add_argument("--nltk_data", type=absolute_path, help="punkt data for the reference")
    args = parser.parse_args(paths.words_with_home())
    if not (args.text and args.vocab_file) and not args.wiki:
        parser.error("give --text and --vocab_file, or --wiki, or all three")
    if bool(args.reference) != bool(args.reference_python):
        parser.error("--reference and --reference_python go together")
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as work:
        if args.text and args.vocab_file:
            measure_examples(args, Path(work))
        if args.wiki:
            measure_clean_up(args, Path(work))


if __name__ == "__main__":
    main()
