r"""How fast the data preparation is, compared with the reference's in the same run.

    python -m benchmarks.data_preparation --text=part-00000-of-00500 --vocab_file=vocab.txt \
        --wiki='wiki_??' --punkt=nltk_data/tokenizers/punkt_tab/english \
        --reference=training/retired_benchmarks/bert --reference_python=venv37/bin/python \
        --nltk_data=nltk_data

Without --reference only ours is measured. Whole commands are measured in seconds of processor time
(user and system, all their processes), so that what else the machine does changes little; the two
sides run in turns, and the median counts. The start-up (a run on a line of text, or on two short
articles) is reported separately on both sides, and so is our first run with an empty cache, which
compiles. The clean-up is process_wiki.sh, with its check of the output's folder and its record,
against the reference's commands; every file that ours makes must be the same there. Needs: the
reference's interpreter with TensorFlow 1.15 and nltk 3.4.5; free disk space of 20 times the text.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from mlperf_bert.data import parts
from mlperf_bert.files.whole import digest
from mlperf_bert.messages import ends_in_one_line, lasting
from mlperf_bert.options import expanded_arguments, whole_number

ROOT = Path(__file__).resolve().parent.parent
OPTIONS = ["--max_seq_length=512", "--max_predictions_per_seq=76", "--dupe_factor=10"]


def seconds(command: list, *, cwd: Path | None = None, **environment: str) -> float:
    """Runs a command; returns the seconds of the processor of all its processes.

    A command that fails ends the benchmark.
    """

    def of_children() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = of_children()
    with lasting(f"measuring {Path(command[1]).name}"):
        done = subprocess.run(
            [str(word) for word in command], cwd=cwd, env={**os.environ, **environment},
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr.decode()[-2000:]}")
    return of_children() - before


def examples(
    python: str, script: Path, text: Path, vocab_file: Path, output: Path, **environment: str
) -> float:
    """Seconds of the processor that a script needs to make the examples of a text."""
    command = [python, script, f"--input_file={text}", f"--output_file={output}"]
    return seconds([*command, f"--vocab_file={vocab_file}", *OPTIONS], **environment)


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


def _print_sides(taken: dict[str, list[float]], starts: dict[str, float]) -> None:
    for side, values in taken.items():
        turns = ", ".join(f"{value:.2f}" for value in values)
        print(f"  {side}: {statistics.median(values):.2f} ({turns}), start-up {starts[side]:.2f}")
    if "reference" in taken:
        work = {side: statistics.median(values) for side, values in taken.items()}
        whole = {side: work[side] + starts[side] for side in work}
        without, ratio = (each["reference"] / each["ours"] for each in (work, whole))
        print(f"  ratio {without:.1f}, with start-up {ratio:.1f}")


def stages(folder: Path, python: Path, names: list[str]) -> list[list]:
    """The reference's commands for the clean-up of files, as its process_wiki.sh gives them."""
    data = "--data=wiki_??"
    separate = [python, folder / "seperate_test_set.py", data, f"--num_test_articles={len(names)}"]
    gather = [python, folder / "do_gather.py", data, "--input_suffix=.4", "--block_size=26.92"]
    return [
        [python, folder / "cleanup_file.py", data, "--output_suffix=.1", "--nworker=2"],
        *(["bash", folder / "clean.sh", f"{name}.1", f"{name}.2"] for name in names),
        [python, folder / "do_sentence_segmentation.py", data, "--nworker=2"],
        [*separate, "--test_output=results/eval", "--nworker=2"],
        [*gather, "--out_dir=results"],
    ]


def clean_up(
    args: argparse.Namespace, side: str, texts: list[str], work: Path
) -> tuple[dict[str, float], dict[str, str]]:
    """Cleans texts; returns CPU seconds by the name of each script, and SHA-256 of each file."""
    taken: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=work) as name:
        folder = Path(name)
        (folder / "results").mkdir()
        names = [f"wiki_{number:02d}" for number in range(len(texts))]
        for name, text in zip(names, texts):
            (folder / name).write_text(text, encoding="utf-8")
        if side == "reference":
            environment = {"NLTK_DATA": str(args.nltk_data or "")}
            scripts = args.reference / "cleanup_scripts"
            commands = stages(scripts, args.reference_python, names)
        else:
            environment = {"PYTHON": sys.executable, "NUM_TEST_ARTICLES": str(len(names))}
            environment |= {"NWORKER": "2"} | ({"PUNKT": str(args.punkt)} if args.punkt else {})
            commands = [["bash", ROOT / "cleanup_scripts" / "process_wiki.sh", "wiki_??"]]
        for command in commands:
            name = Path(command[1]).stem
            taken[name] = taken.get(name, 0.0) + seconds(command, cwd=folder, **environment)
        made = {
            path.relative_to(folder).as_posix(): digest(path, "sha256")
            for path in folder.rglob("*")
            if path.is_file() and path.name != parts.NAME
        }
    return taken, made


def measure_clean_up(args: argparse.Namespace, work: Path) -> None:
    """Prints how long the clean-up takes, and the reference's ratio."""
    article = "<doc id=1>\nTitle\n\nOne sentence. Another one.\n</doc>\n"
    texts = [
        path.read_text(encoding="utf-8") for path in sorted(args.wiki.parent.glob(args.wiki.name))
    ]
    sides = ["ours", "reference"] if args.reference else ["ours"]
    starts = {side: sum(clean_up(args, side, [2 * article], work)[0].values()) for side in sides}
    taken: dict[str, list[float]] = {side: [] for side in sides}
    seconds_of: dict[str, dict[str, float]] = {}
    for _ in range(args.turns):
        made = {}
        for side in sides:
            seconds_of[side], made[side] = clean_up(args, side, texts, work)
            taken[side].append(sum(seconds_of[side].values()) - starts[side])
        if different := [f for f in made["ours"] if made["ours"][f] != made[sides[-1]].get(f)]:
            sys.exit(f"the reference makes {different[0]} otherwise")
    num_bytes = sum(len(text.encode()) for text in texts)
    print(f"clean-up of {len(texts)} files, {num_bytes / 1e6:.1f} MB, CPU seconds:")
    _print_sides(taken, starts)
    if args.reference:
        print(f"  {len(made['ours'])} files of the same SHA-256 on both sides")
        listed = (f"{name} {value:.2f}" for name, value in seconds_of["reference"].items())
        print(f"  the reference's scripts, last turn: {', '.join(listed)}")


@ends_in_one_line("data_preparation")
def main() -> None:
    """Measures what the arguments name."""
    absolute_path = Path.cwd().joinpath  # commands run elsewhere; a venv needs its links kept
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=absolute_path, help="a part, one sentence a line")
    parser.add_argument("--vocab_file", type=absolute_path, help="vocab.txt")
    parser.add_argument("--turns", type=whole_number, default=3, help="measurements of each side")
    parser.add_argument("--wiki", type=absolute_path, help="glob of extracted files named wiki_??")
    parser.add_argument("--punkt", type=absolute_path, help="punkt data for ours")
    parser.add_argument("--reference", type=absolute_path, help="its bert folder")
    parser.add_argument("--reference_python", type=absolute_path, help="its interpreter")
    parser.add_argument("--nltk_data", type=absolute_path, help="punkt data for the reference")
    args = parser.parse_args(expanded_arguments())
    if not (args.text and args.vocab_file) and not args.wiki:
        parser.error("give --text and --vocab_file, or --wiki, or all three")
    if bool(args.reference) != bool(args.reference_python):
        parser.error("--reference and --reference_python go together")
    if args.wiki and not any(args.wiki.parent.glob(args.wiki.name)):
        parser.error(f"--wiki={args.wiki}: no file has such a name")
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as work:
        if args.text and args.vocab_file:
            measure_examples(args, Path(work))
        if args.wiki:
            measure_clean_up(args, Path(work))


if __name__ == "__main__":
    sys.exit(main())
