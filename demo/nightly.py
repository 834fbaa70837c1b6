"""A machine's acceptance test: ten short trainings, compared with those of its first night.

    python -m demo.nightly --output_dir=FOLDER --fail_if_slower=5%

The first call makes the task (demo/miniature.py) and FOLDER/baseline.json. Later ones, of cron or
of a scheduler's job, make FOLDER/nights/DATE and end with the exit code of
`python -m mlperf_results.compare`: 0 the machine is not slower by so much, 3 it is, 4 more
runs are needed to tell; 1 the runs failed, 75 or 130 interrupted: the same command goes on.
Compared are samples/s, which scatter by a percent or less on a machine that does nothing else. The
samples that a run needs scatter by several.
"""

import argparse
import sys
import time
from pathlib import Path

from demo import miniature
from demo.__main__ import local_folder
from demo.campaign import REFERENCE_POINTS
from mlperf_bert.files import locks
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.options import words_with_home
from mlperf_bert.submission import campaign
from mlperf_results import compare

NUM_RUNS = 10
_LOCK_NAME = ".nightly.lock"
_ENDED_NAME = "ended"


def _run_one_night(folder: Path, num_runs: int, share: float) -> int:
    miniature.prepare(folder / "task")
    # One that was interrupted, or a new one.
    begun = [each for each in (folder / "nights").glob("*") if not (each / _ENDED_NAME).exists()]
    new = folder / "nights" / time.strftime("%Y-%m-%d_%H%M%S", time.gmtime())
    night = min(begun, default=new)
    status = campaign.main(
        [
            "--org=nightly",
            "--system=this-machine",
            f"--output_dir={night}",
            f"--runs={num_runs}",
            f"--custom_rcps={REFERENCE_POINTS}",
            "--",
            *miniature.run_flags(folder / "task"),
        ]
    )
    if status > 1:  # interrupted: the runs have neither succeeded nor failed
        return status
    if night.exists():  # or the next night would go on with runs that cannot become better
        (night / _ENDED_NAME).touch()
    if not (night / "submission").exists():
        raise ValueError(f"{night}: the runs failed, see above; nothing is compared")
    # What the official tools say of a miniature is not the question here.
    baseline = folder / "baseline.json"
    if not baseline.exists():
        return compare.main([str(night), f"--write_baseline={baseline}"])
    words = [f"--baseline={baseline}", f"--fail_if_slower={100 * share:g}%"]
    return compare.main([str(night), *words, f"--figure={compare.SAMPLES_PER_SECOND}"])


def _num_runs(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 2 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r}: give a number from 2 to 1000")
    return int(text)


@ends_in_one_line("nightly")
def main(arguments: list[str] | None = None) -> int:
    """Train, compare; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m demo.nightly")
    parser.add_argument(
        "--output_dir", type=local_folder, required=True, help="the same every night"
    )
    parser.add_argument("--runs", type=_num_runs, default=NUM_RUNS, help="trainings of a night")
    parser.add_argument("--fail_if_slower", type=compare.share_of, default="5%", metavar="5%")
    given = parser.parse_args(words_with_home(arguments))
    folder = given.output_dir.absolute()
    by_another = "another night goes on"
    with locks.held(folder, file_name=_LOCK_NAME, by_another=by_another):
        return _run_one_night(folder, given.runs, given.fail_if_slower)


if __name__ == "__main__":
    sys.exit(main())
