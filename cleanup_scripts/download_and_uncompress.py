"""Fetches the published files and checks every byte against the published table.

    download_and_uncompress.sh [--base_url=URL] [config tf1 tf2 dump text punkt]

The published place is the drive folder that the benchmark's dataset.md links; it asks for a
browser. Serve what you took from there (or a mirror) under one base URL: bert_config.json,
vocab.txt, tf1_ckpt/, tf2_ckpt/, the dump's .bz2, results_text.tar.gz. Files that lie in --out_dir
already are only checked, so without --base_url the command lists what is missing or wrong. Text is
unpacked into OUT_DIR/results, and unpacked.json there records each file with its size and MD5.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mlperf_bert import command_line, paths
from mlperf_bert.data import download, punkt, unpacking

PUNKT = "punkt"
DEFAULT = ("config", "tf1", "tf2", "dump")


def main() -> None:
    """Fetches, checks and unpacks what is asked for."""
    parser = argparse.ArgumentParser(
        prog="download_and_uncompress.sh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    choices = [*download.GROUPS, PUNKT]
    parser.add_argument(
        "what", nargs="*", help=f"of {' '.join(choices)}; default: {' '.join(DEFAULT)}"
    )
    parser.add_argument("--base_url", help="where the files lie")
    parser.add_argument("--out_dir", default="./wiki", help="where to")
    args = parser.parse_args()
    if unknown := sorted(set(args.what) - set(choices)):
        parser.error(f"{unknown[0]}: choose of {' '.join(choices)}")
    if paths.is_remote(args.out_dir) or args.out_dir.startswith("gs:"):
        parser.error(f"--out_dir={args.out_dir}: give a local folder; copy it to a bucket then")
    with command_line.failures_in_one_line("download_and_uncompress.sh"):
        problems = _bring(args.what or DEFAULT, args.base_url, Path(args.out_dir))
    if problems:
        lines = "\n  ".join(problems)
        sys.exit(f"download_and_uncompress.sh: {len(problems)} not right:\n  {lines}")


def _bring(what: list[str], base_url: str | None, folder: Path) -> list[str]:
    problems = []
    for name in what:
        if name == PUNKT:
            problems += _punkt()
            continue
        wrong = download.fetch_group(download.GROUPS[name], base_url, folder)
        problems += wrong
        try:
            if name == "dump" and not wrong:
                unpacking.uncompress_dump(folder)
            if name == "text" and not wrong:
                unpacking.unpack_text(folder / download.TEXT_ARCHIVE, folder / "results")
        except ValueError as error:
            problems.append(str(error))
        except OSError as error:
            problems.append(f"{folder}: {error}; make room or fix its permissions")
    return problems


def _punkt() -> list[str]:
    try:
        folder = punkt.find_or_fetch_punkt()
        punkt.warn_if_not_published(folder)
        print(f"{folder}: nltk's punkt_tab")
    except ValueError as error:
        return [str(error)]
    return []


if __name__ == "__main__":
    main()
