"""Where runs stand among all published BERT results.

    python -m mlperf_results.standing RUN_OR_ORG_DIR... --csv rows.csv

takes directories of runs, of campaigns and of submissions (any vendor's), and logs; it prints the
place of each and the published results of rounds 1.0 to 5.0 that are most like it, and writes all
of them as CSV. `--where accelerators=8 --where accelerator=H100` leaves only such results.
"""

import argparse
import csv
import dataclasses
import io
import json
import sys
from collections.abc import Sequence

from mlperf_bert.files import paths
from mlperf_bert.files.whole import write_whole
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.mlperf.logs import RECORD_NAME, has_ended, read_run
from mlperf_bert.mlperf.rules import NUM_RUNS_PER_RESULT, RULESETS
from mlperf_bert.options import words_with_home
from mlperf_bert.submission.plan import result_files
from mlperf_bert.submission.run_logs import CAMPAIGN_RECORD, require_free, runs_in
from mlperf_bert.submission.system import recorded_devices
from mlperf_bert.submission.verdict import System, read_system, with_convergence
from mlperf_results import published
from mlperf_results.nearest import chosen, recognised, standing_of
from mlperf_results.own import entry_of
from mlperf_results.published import Entry


def read_own(path: str) -> list[Entry]:
    """Return the rows on a run, a log, a campaign or a submitter's folder.

    Raises:
      ValueError: it is none of these, or a log cannot be read.
    """
    place = paths.location(path)
    with paths.failures_named(place):
        is_campaign = (place / CAMPAIGN_RECORD).exists()
        org_dirs = [place]
        if is_campaign:
            org_dirs = sorted(results.parent for results in place.glob("submission/*/results"))
            org_dirs = [path for path in org_dirs if path.name[0] != "."]  # its writer died
        rows = [
            entry_of(_judged(folder.parent), org=paths.resolve(org_dir).name)
            for org_dir in org_dirs
            for folder in sorted((org_dir / "results").glob("*/bert"))
            if result_files(folder)
        ]
        if rows:
            return rows
        if is_campaign:
            raise ValueError(f"{place}: this campaign has no result yet; give runs/N in it")
        if (place / "results").is_dir():
            raise ValueError(f"{place}: no results/SYSTEM/bert/result_*.txt; put the logs there")
        return [_of_run(place)]


def _judged(folder: paths.Location) -> System:
    system = read_system(folder)
    # The RCP checker asks for the ten runs of a result.
    if len(system.runs) != NUM_RUNS_PER_RESULT:
        return system
    return with_convergence(system, RULESETS[-1])


def _of_run(place: paths.Location) -> Entry:
    """Return the row on a log or a run; of one of this project run.json knows the devices."""
    files, *others = runs_in(place)
    folder = files.output_dir
    if others:
        raise ValueError(f"{place}: {len(others) + 1} runs; give one, or the folder above results/")
    # A log that is named may be whole, though its run was killed before run.json said so.
    is_going_on = folder and (folder / RECORD_NAME).exists() and not has_ended(folder)
    if is_going_on and not paths.is_file(place):
        raise ValueError(f"{folder}: this run has not ended; resume it, or wait for its end")
    if len(files.logs) != 1:
        raise ValueError(f"{place}: was resumed, none of its logs has all of its time")
    # Processors alone: a log does not say it, and no accelerators are not an unknown number.
    _, num_gpus = recorded_devices(folder) if folder else (None, None)
    described = {"number_of_nodes": 1, "accelerators_per_node": 0} if num_gpus == 0 else {}
    run = read_run(files.logs[0])
    return entry_of(System(name=str(place), runs=(run,), description=described))


def as_csv(entries: Sequence[Entry]) -> str:
    """Return the rows as CSV: the fields of an entry, lists as JSON."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(column.name for column in dataclasses.fields(Entry))
    for entry in entries:
        cells = dataclasses.astuple(entry)
        table.writerow(json.dumps(cell) if isinstance(cell, tuple) else cell for cell in cells)
    return text.getvalue()


@ends_in_one_line("standing")
def main(arguments: Sequence[str] | None = None) -> int:
    """Print the standing, write the rows; return 1 with one line if something cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m mlperf_results.standing")
    parser.add_argument("runs", nargs="*", metavar="RUN_OR_ORG_DIR")
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="only such published results: accelerators=8..64, accelerator=H100, round=5.0",
    )
    parser.add_argument("--csv", help="file for the rows, one's own first")
    given = parser.parse_args(words_with_home(arguments))
    entries = published.load()
    shown = chosen(entries, given.where)
    if not (given.runs or given.csv):
        raise ValueError("nothing to do: name a run, or give --csv")
    with paths.reads() as inputs:
        standings = [
            standing_of(recognised(own, entries), shown)
            for path in given.runs
            for own in read_own(path)
        ]
    # After reading: what was read must not be replaced.
    require_free({"--csv": given.csv}, inputs)
    for standing in standings:
        print("\n".join(standing.lines()))
    if given.csv:
        write_whole(
            paths.with_folder_made(given.csv), as_csv([*(each.own for each in standings), *shown])
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
