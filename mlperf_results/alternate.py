r"""Two variants of a run in turn, to be compared: A B B A A B B A.

    python -m mlperf_results.alternate --variants old.flags new.flags --org=ORG \
        --system=8xH200 --output_dir=ab -- (flags of one run)

They are campaigns of the harness in ab/old and ab/new, with the flags after -- and then those of
their files. On a machine that slows down steadily no variant has the better half: of two
neighbouring pairs one begins with A and one with B. No submission is written; at the end stands
what `compare ab` says.

Exit codes: 0 all runs are made, 1 something did not work (said in one line), 75 interrupted: the
same command goes on, 130 Ctrl-C between runs.
"""

import argparse
import contextlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mlperf_bert.files import paths
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.options import words_with_home
from mlperf_bert.submission import campaign
from mlperf_bert.submission.plan import require_name
from mlperf_bert.submission.run_logs import ALTERNATING_RECORD
from mlperf_results import compare
from mlperf_results.sides import read_side


def variants_of(both: campaign.Campaign, flag_files: Sequence[str]) -> list[campaign.Campaign]:
    """Return the campaigns of two variants, in folders that are called as their files of flags.

    The flags are read now: a file that is changed later is not those of the runs before, and paths
    in a container are not the host's.

    Raises:
      ValueError: a file cannot be read, or both have one name.
    """
    names = [Path(name).stem for name in flag_files]
    if len({*names}) < len(names):
        raise ValueError(f"both files are called {names[0]}; rename one")
    variants = []
    for name, path in zip(names, flag_files, strict=True):
        require_name("variants", name)
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: no file of flags ({error})") from error
        # As absl reads a file of flags: blank lines, # and // are comments.
        own = [line.strip() for line in lines if line.strip().startswith("-")]
        if others := [line for line in map(str.strip, lines) if line and line[0] not in "-#/"]:
            raise ValueError(f"{path}: {others[0]!r:.80} is not a flag: --NAME=VALUE")
        variants.append(replace(both, folder=both.folder / name, flags=(*both.flags, *own)))
    return variants


def run_alternating(both: campaign.Campaign, flag_files: Sequence[str]) -> compare.Comparison:
    """Train two variants in turn, and compare them.

    Raises:
      ValueError, Interrupted: as `campaign.run_campaign`.
    """
    variants = variants_of(both, flag_files)
    campaign.require_startable(both)  # their flags and folders alone differ
    names = [variant.folder.name for variant in variants]
    record = campaign.recorded(both.folder, ALTERNATING_RECORD, {"variants": names})
    if record.get("variants") != names:
        raise ValueError(
            f"{both.folder} holds other variants, {record.get('variants')}; give the same files in "
            "the same order, or another --output_dir"
        )
    # Both folders are held from the first run on: another campaign in one would spoil the pairs.
    with contextlib.ExitStack() as stack:
        for variant in variants:
            stack.enter_context(campaign.claimed(variant))
        campaign.train_in_turn(variants)
    a, b = (read_side(str(variant.folder)) for variant in variants)
    return compare.compare(a, b)


@ends_in_one_line("alternate")
def main(arguments: Sequence[str] | None = None) -> int:
    """Run both, and print how B differs from A."""
    parser = argparse.ArgumentParser(
        prog="python -m mlperf_results.alternate",
        usage="%(prog)s --variants A B --org=ORG --system=SYSTEM --output_dir=DIR [options] "
        "-- FLAGS_OF_ONE_RUN",
    )
    parser.add_argument(
        "--variants", nargs=2, required=True, metavar=("A", "B"), help="files of flags of each"
    )
    campaign.add_arguments(parser)
    given = parser.parse_args(words_with_home(arguments))
    with paths.failures_named(paths.location(given.output_dir)):
        compared = run_alternating(campaign.campaign_of(given), given.variants)
    print("", *compared.lines(), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
