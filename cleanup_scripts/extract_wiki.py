"""Extracts the articles of a Wikipedia dump into text/??/wiki_??, as the reference does.

    extract_wiki.sh enwiki-20200101-pages-articles-multistream.xml.bz2 [--today=2020-01-20]

The dump may be .bz2 or its XML. WikiExtractor, commit 3162bb6c, does the work on Python 3.7 to
3.10: both are looked for, and fetched if they are missing. An interrupted extraction goes on when
the command is repeated. OUT_DIR/extraction.json records what the text was made from.
"""

import argparse
import datetime
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mlperf_bert import signals

if __name__ == "__main__":
    signals.ends_at_once()  # first: process 1 of a container would ignore the signals

from mlperf_bert.data import extraction, wiki_dump
from mlperf_bert.files import paths
from mlperf_bert.messages import ends_in_one_line


@ends_in_one_line("extract_wiki.sh")
def main() -> None:
    """Finds the program and its Python, and extracts."""
    parser = argparse.ArgumentParser(
        prog="extract_wiki.sh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("dump", help="enwiki-...-pages-articles....xml or .xml.bz2")
    parser.add_argument("--out_dir", default="text", help="where to")
    parser.add_argument(
        "--today",
        type=datetime.date.fromisoformat,
        metavar="YYYY-MM-DD",
        help="the date that articles name as today's; default: the date of the start",
    )
    parser.add_argument("--nworker", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument(
        "--wikiextractor",
        type=Path,
        metavar="PATH",
        help="WikiExtractor.py of commit 3162bb6c, or its folder; default: fetched with git",
    )
    args = parser.parse_args(paths.words_with_home())
    try:
        dump, folder = map(paths.require_local, (args.dump, args.out_dir))
    except ValueError as error:
        parser.error(str(error))
    if args.nworker < 1:
        parser.error(f"--nworker={args.nworker}: must be a number at least 1")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "mlperf-bert"
    signals.raise_on_ctrl_c()
    try:
        record = extraction.extract(
            dump=wiki_dump.Dump(dump),
            folder=folder,
            today=args.today,
            program=extraction.find_program(args.wikiextractor, cache),
            python=extraction.find_python(),
            num_processes=args.nworker,
        )
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted; repeat the command to go on") from None
    failed = f", {record.failed_articles:,} failed" if record.failed_articles else ""
    print(
        f"{args.out_dir}: {record.articles:,} articles in {record.files:,} files{failed}, today "
        f"is {record.today}"
    )


if __name__ == "__main__":
    sys.exit(main())
