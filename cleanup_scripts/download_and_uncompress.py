"""Fetches the published files and checks every byte against the published MD5s.

    download_and_uncompress.sh [config tf1 text]      what a run needs; the default
    download_and_uncompress.sh [tf2] [dump] [punkt]   what is fetched only when it is named

The files come from MLCommons' storage, or from --base_url. Files that lie in --out_dir are only
checked, and what the official downloader has left, there or in the current folder, is taken. Text
is unpacked into OUT_DIR/results, and unpacked.json there records each file with its size and MD5.
"""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mlperf_bert import signals

if __name__ == "__main__":
    signals.ends_at_once()  # first: process 1 of a container would ignore the signals

from mlperf_bert.data import download, punkt, unpacking
from mlperf_bert.data.published import GROUPS, MD5S_OF_TEXT, TEXT, Place
from mlperf_bert.files import paths
from mlperf_bert.messages import ends_in_one_line

PUNKT = "punkt"
DEFAULT = ("config", "tf1", "text")
SCRIPT = "download_and_uncompress.sh"


@ends_in_one_line(SCRIPT)
def main() -> None:
    """Fetches, checks and unpacks what is asked for."""
    parser = argparse.ArgumentParser(
        prog=SCRIPT,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    choices = [*GROUPS, PUNKT]
    parser.add_argument(
        "what", nargs="*", help=f"of {' '.join(choices)}; default: {' '.join(DEFAULT)}"
    )
    parser.add_argument("--base_url", help="a mirror: every file under this URL")
    parser.add_argument(
        "--check_only", action="store_true", help="fetch nothing: check and unpack what is there"
    )
    parser.add_argument("--out_dir", default="./wiki", help="where to")
    args = parser.parse_args(paths.words_with_home())
    if unknown := sorted(set(args.what) - set(choices)):
        parser.error(f"{unknown[0]}: choose of {' '.join(choices)}")
    if args.base_url is not None and args.check_only:
        parser.error("--check_only fetches nothing: leave out --base_url")
    try:
        paths.require_local(args.out_dir, flag="out_dir")
    except ValueError as error:
        parser.error(str(error))
    signals.raise_on_ctrl_c()
    problems, refusing = _bring(args)
    if problems:
        lines = "\n  ".join(problems)
        sys.exit(f"{SCRIPT}: {len(problems)} not right:\n  {lines}{_way_out(args, refusing)}")


def _bring(args: argparse.Namespace) -> tuple[list[str], list[Place]]:
    """Returns what is not right, and the places that did not give a file."""
    folder = Path(args.out_dir)
    problems: list[str] = []
    refusing: list[Place] = []
    for name in dict.fromkeys(args.what or DEFAULT):
        try:
            if name == PUNKT:
                tables = punkt.find_punkt() if args.check_only else punkt.find_or_fetch_punkt()
                punkt.warn_if_not_published(tables)
                print(f"{tables}: nltk's punkt_tab")
                continue
            wrong = download.fetch_group(
                GROUPS[name], folder, base_url=args.base_url, check_only=args.check_only
            )
            problems += [str(error) for _, error in wrong]
            refusing += [file.place for file, e in wrong if isinstance(e, download.NotServed)]
            if name == "dump" and not wrong:
                unpacking.uncompress_dump(folder)
            if name == "text" and not wrong:
                md5s = unpacking.md5s_of_text(folder / MD5S_OF_TEXT.path)
                unpacking.unpack_text(folder / TEXT.path, folder / "results", md5s)
        except ValueError as error:
            problems.append(str(error))
        except OSError as error:
            where, why = error.filename or folder, error.strerror or error
            problems.append(f"{where}: {why}; make room or fix its permissions")
    return problems, refusing


def _way_out(args: argparse.Namespace, refusing: Iterable[Place]) -> str:
    """What to do if a server does not give the files."""
    if not refusing:
        return ""
    if args.base_url:
        return "\ncheck --base_url and what lies there; without it MLCommons' storage is asked"
    commands = "".join(f"\n  {place.official_command}" for place in dict.fromkeys(refusing))
    return (
        "\nif this stays so, start the official downloader in this folder, then repeat this "
        f"command, which takes what the downloader has left:{commands}"
    )


if __name__ == "__main__":
    sys.exit(main())
