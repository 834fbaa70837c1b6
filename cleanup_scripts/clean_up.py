"""Runs stages of the clean-up, named as their scripts: clean_up.py STAGE FLAGS -- STAGE ...

The scripts with the reference's names are beside this one and start it. Several stages run one
after the other in one process, because with few files the imports take as long as the work. The
first stage that fails ends the process as it would end its own.
"""

import argparse
import itertools
import os
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mlperf_bert import signals

if __name__ == "__main__":
    signals.ends_at_once()  # first: process 1 of a container would ignore the signals

from mlperf_bert.data import articles, gathering, punkt, segmentation, stages, wiki
from mlperf_bert.files import paths
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.options import expand_home, expanded_arguments

RAW = "glob of the raw files"
SUFFIXES = ("suffix of the input files", "suffix of the output files")
CORES = os.cpu_count() or 1
MAY_BE_EMPTY = ("--input_suffix",)
"""Without a suffix the raw files themselves are read."""


def parsed(parser: argparse.ArgumentParser, **flags: tuple[object, str]) -> argparse.Namespace:
    """The values of flags; each has its default, or its type if it must be given, and its help."""
    for name, (default, meaning) in flags.items():
        kind = default if isinstance(default, type) else type(default)
        if kind is bool:
            parser.add_argument(f"--{name}", action="store_true", help=meaning)
            continue
        need = {"required": True} if default is kind else {"default": default}
        parser.add_argument(f"--{name}", type=kind, help=meaning, **need)
    args = parser.parse_args(expanded_arguments(may_be_empty=MAY_BE_EMPTY))
    for name, value in vars(args).items():
        for text in value if isinstance(value, list) else [str(value)]:
            paths.require_local(text, flag=name)
    if getattr(args, "nworker", 1) < 1:
        raise ValueError(f"--nworker={args.nworker}: must be a number at least 1")
    return args


def of_files(data: str, *suffixes: str) -> dict[str, tuple[object, str]]:
    """The flags of a stage that makes a file of each file, with their defaults."""
    named = zip(("input_suffix", "output_suffix"), zip(suffixes, SUFFIXES))
    return {"data": (data, RAW), **dict(named), "nworker": (CORES, "processes")}


def with_suffixes(files: Sequence[str], args: argparse.Namespace) -> list[tuple[str, str]]:
    """Input and output of each raw file."""
    return [(name + args.input_suffix, name + args.output_suffix) for name in files]


def cleanup_file(parser: argparse.ArgumentParser) -> None:
    """Clean-up stage .1: drops the <doc> tags and titles of WikiExtractor's output."""
    args = parsed(parser, **of_files("./wiki_??", "", ".1"))
    files = stages.input_files(args.data)
    articles.require_text(files)
    jobs = with_suffixes(files, args)
    stages.run(wiki.write_stage_1, jobs, num_workers=args.nworker, description="drop tags")


def clean(parser: argparse.ArgumentParser) -> None:
    """Clean-up stage .2: applies the text rules to many files, or to one: clean.py INPUT OUTPUT."""
    parser.add_argument("one_file", nargs="*", metavar="INPUT OUTPUT", help="just this file")
    args = parsed(parser, **of_files("./wiki_??", ".1", ".2"))
    if len(args.one_file) not in (0, 2):
        parser.error("give INPUT and OUTPUT, or --data")
    jobs = [tuple(args.one_file)]
    if not args.one_file:
        jobs = with_suffixes(stages.input_files(args.data), args)
    stages.run(wiki.write_stage_2, jobs, num_workers=args.nworker, description="apply rules")


def do_sentence_segmentation(parser: argparse.ArgumentParser) -> None:
    """Clean-up stage .3: one sentence a line."""
    args = parsed(
        parser,
        **of_files("./*/*.compact", ".2", ".3"),
        punkt=("", "folder of Punkt's tables; default: nltk's punkt_tab"),
    )
    files = stages.input_files(args.data)
    tables = punkt.find_or_fetch(args.punkt)
    if other := punkt.not_published(tables):
        listed = f"not the published tables ({', '.join(other)})"
        print(f"note: {tables}: {listed}, so not the official data", file=sys.stderr)
    articles.require_text(files)
    jobs = [(*names, tables) for names in with_suffixes(files, args)]
    split = segmentation.write_stage_3
    stages.run(split, jobs, num_workers=args.nworker, description="split sentences")


def seperate_test_set(parser: argparse.ArgumentParser) -> None:
    """Clean-up stage .4: takes the evaluation articles out; writes them and their MD5s."""
    args = parsed(
        parser,
        **of_files("./*/*.compact", ".3", ".4"),
        seed=(12345, "seed of the choice"),
        num_test_articles=(10000, "articles to take"),
        test_output=("./results/eval", "without .txt and .md5"),
    )
    files = stages.input_files(args.data)
    jobs = [
        # The index of a file among all files decides which articles are taken.
        (
            *names,
            gathering.num_test_articles_of(index, len(files), args.num_test_articles),
            args.seed + gathering.SEED_STEP * index,
        )
        for index, names in enumerate(with_suffixes(files, args))
    ]
    taken = stages.run(
        gathering.write_stage_4,
        jobs,
        num_workers=args.nworker,
        description="separate test set",
        also_written=[args.test_output + suffix for suffix in (".txt", ".md5")],
    )
    test_articles = itertools.chain.from_iterable(taken)
    gathering.write_test_set(list(test_articles), args.test_output)


def do_gather(parser: argparse.ArgumentParser) -> None:
    """Gathers the cleaned files into parts of about the same size."""
    args = parsed(
        parser,
        data=("~/book-corpus-feb-stn/*/*.txt", RAW),
        input_suffix=(".3", "suffix of the cleaned files"),
        out_dir=("~/book-corpus-large-gather/", "where to"),
        num_outputs=(500, "the number in the names"),
        block_size=(32.0, "MB of raw text in a part"),
        nworker=(1, "processes; changes the numbering"),
        check=(False, "look at --out_dir, write nothing"),
    )
    files = stages.input_files(args.data)
    folder = Path(expand_home(args.out_dir))  # the default has not passed through a shell
    parts = gathering.plan(files, block_size_mb=args.block_size, num_workers=args.nworker)
    named = {
        gathering.part_name(number, args.num_outputs): [name + args.input_suffix for name in names]
        for number, names in parts.items()
    }
    stages.require_no_others(folder, "part-*", named, variable="RESULTS")
    jobs = [(str(folder / part), names) for part, names in named.items()]
    if args.check:
        # The test set belongs there: process_wiki.sh writes it before the parts.
        test_set = [str(folder / name) for name in ("eval.txt", "eval.md5")]
        stages.require_apart(jobs, also_read=files, also_written=test_set)
        return
    folder.mkdir(parents=True, exist_ok=True)
    gather = gathering.write_part
    stages.run(gather, jobs, num_workers=args.nworker, description="gather", also_read=files)


def extract_documents(parser: argparse.ArgumentParser) -> None:
    """Documents to text as WikiExtractor writes it: OUT_DIR/NAME/wiki_*.

    Their names end with .parquet, .jsonl or .json, the last two also with .gz or .zst.
    """
    args = parsed(
        parser,
        data=(str, "glob of the documents"),
        text_column=("text", "column or key of the text"),
        out_dir=("text", "where to"),
        nworker=(CORES, "processes"),
    )
    files = stages.input_files(args.data)
    folders = articles.folders_of(files, Path(args.out_dir))
    jobs = [(path, folder, args.text_column) for path, folder in folders.items()]
    extract = articles.write_articles
    stages.run(extract, jobs, num_workers=args.nworker, description="extract documents")


def fetch_punkt(parser: argparse.ArgumentParser) -> None:
    """Brings the sentence splitter's tables, nltk's punkt_tab, by nltk where they are missing."""
    parsed(parser)
    tables = punkt.find_or_fetch()
    if other := punkt.not_published(tables):
        raise ValueError(f"{tables}: {', '.join(other)} not as published; remove it and repeat")
    print(f"{tables}: as published")


STAGES = {
    "punkt": fetch_punkt,
    "extract_documents.py": extract_documents,
    "cleanup_file.py": cleanup_file,
    "clean.py": clean,
    "do_sentence_segmentation.py": do_sentence_segmentation,
    "seperate_test_set.py": seperate_test_set,
    "do_gather.py": do_gather,
}


def main(script: str = "") -> int:
    """Runs the stage of a script, or the stages that the command line names."""
    signals.raise_on_ctrl_c()
    groups = itertools.groupby(sys.argv[1:], "--".__eq__)
    commands = [list(words) for is_end, words in groups if not is_end]
    if script:
        commands = [[Path(script).name, *sys.argv[1:]]]
    for command in commands:
        sys.argv = command  # its first word names the stage in messages
        if (stage := STAGES.get(name := command[0])) is None:
            sys.exit(f"clean_up.py: {name}: choose of {', '.join(STAGES)}")
        parser = argparse.ArgumentParser(
            prog=name,
            description=(stage.__doc__ or "").replace("\n    ", "\n"),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if code := ends_in_one_line(name)(stage)(parser):
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
