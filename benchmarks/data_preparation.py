r"""How fast the data preparation is, compared with the reference's in the same run.

    python -m benchmarks.data_preparation --text=part-00000-of-00500 --vocab_file=vocab.txt \
        --wiki='wiki_??' --punkt=nltk_data/tokenizers/punkt_tab/english \
        --reference=training/retired_benchmarks/bert --reference_python=venv37/bin/python \
        --nltk_data=nltk_data

Without --reference only ours is measured. Whole commands are timed. The start-up (a run on one
line of text) is subtracted on both sides and reported separately, and so is our first run with an
empty cache, which compiles. Needs: the reference's interpreter with TensorFlow 1.15 and nltk
3.4.5; free disk space of 20 times the text.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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


def examples(
    python: str, script: Path, text: Path, vocab_file: Path, output: Path, **environment: str
) -> float:
    """Seconds that a script needs to make the examples of a text."""
    command = [python, script, f"--input_file={text}", f"--output_file={output}"]
    return seconds([*command, f"--vocab_file={vocab_file}", *OPTIONS], **environment)


def measure_examples(args: argparse.Namespace, work: Path) -> None:
    """Prints how fast examples are made, and the reference's ratio."""
    one_line = work / "one_line"
    one_line.write_text("One line is enough.\n")
    script, output = ROOT / "create_pretraining_data.py", work / "output"
    of_one_line = (sys.executable, script, one_line, args.vocab_file, output)
    cold = examples(*of_one_line, NUMBA_CACHE_DIR=str(work / "cache"))
    examples(*of_one_line)  # fills the caches
    start = examples(*of_one_line)
    ours = examples(sys.executable, script, args.text, args.vocab_file, output) - start
    text_mb, output_mb = args.text.stat().st_size / 1e6, output.stat().st_size / 1e6
    print(f"ours, {text_mb:.1f} MB of text: {ours:.2f} s, {text_mb / ours:.2f} MB/s of text")
    print(f"  written: {output_mb / ours:.0f} MB/s; dd with fsync: ", end="")
    print(f"{disk_mb_per_second(work, max(1, int(output_mb))):.0f} MB/s")
    print(f"  start-up {start:.2f} s, with compilation {cold:.2f} s (not included)")
    output.unlink()
    measure_workers(args, work, start)
    if args.reference:
        script = args.reference / "cleanup_scripts" / "create_pretraining_data.py"
        start = examples(args.reference_python, script, one_line, args.vocab_file, output)
        theirs = examples(args.reference_python, script, args.text, args.vocab_file, output) - start
        print(f"reference: {theirs:.2f} s (start-up {start:.2f} s); ratio {theirs / ours:.1f}")
        output.unlink()


def measure_workers(args: argparse.Namespace, work: Path, start: float) -> None:
    """Prints how much several workers gain; `start` is the start-up in seconds."""
    (work / "texts").mkdir()
    for number in range(args.workers):
        (work / "texts" / f"part-{number}").symlink_to(args.text.resolve())
    times = []
    for workers in (1, args.workers):
        folder = work / f"workers-{workers}"
        command = [sys.executable, ROOT / "create_pretraining_data.py", *OPTIONS]
        command += [f"--input_file={work}/texts/part-*", f"--output_dir={folder}"]
        command += [f"--vocab_file={args.vocab_file}", f"--nworker={workers}"]
        times.append(seconds(command) - start)
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
    separate = [python, folder / "seperate_test_set.py", data, "--num_test_articles=10"]
    return [
        [python, folder / "cleanup_file.py", data, "--output_suffix=.1", "--nworker=2"],
        *clean,
        segment,
        [*separate, "--test_output=results/eval", "--nworker=2"],
        [python, folder / "do_gather.py", data, "--input_suffix=.4", "--out_dir=results"],
    ]


def measure_clean_up(args: argparse.Namespace, work: Path) -> None:
    """Prints how long the clean-up takes, and the reference's ratio."""
    sides = {"ours": (ROOT / "cleanup_scripts", sys.executable, [f"--punkt={args.punkt}"])}
    if args.reference:
        sides["reference"] = (args.reference / "cleanup_scripts", args.reference_python, [])
    totals = {}
    for side, (folder, python, punkt) in sides.items():
        place = work / side
        (place / "results").mkdir(parents=True)
        for path in sorted(args.wiki.parent.glob(args.wiki.name)):
            shutil.copyfile(path, place / path.name)
        environment = {"PYTHON": python, "NLTK_DATA": str(args.nltk_data or "")}
        totals[side] = sum(
            seconds(command, cwd=place, **environment)
            for command in stages(folder, python, place, punkt=punkt if args.punkt else [])
        )
        print(f"clean-up of {args.wiki.name}, {side}: {totals[side]:.2f} s with start-up")
    if args.reference:
        print(f"  ratio {totals['reference'] / totals['ours']:.1f}")


def main() -> None:
    """Measures what the arguments name."""
    absolute_path = Path.cwd().joinpath  # commands run elsewhere; a venv needs its links kept
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=absolute_path, help="a part, one sentence a line")
    parser.add_argument("--vocab_file", type=absolute_path, help="vocab.txt")
    parser.add_argument("--workers", type=int, default=2, help="of the parallel measurement")
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
