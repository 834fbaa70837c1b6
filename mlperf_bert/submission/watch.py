"""Will a run converge, and when: where its accuracies stand among those of other runs.

    python -m mlperf_bert.submission.watch result_0.txt [result_1.txt ...] [--follow]

reads logs, of any vendor, also while they grow. run_pretraining.py says the same of its own run at
every evaluation (observer.py). reference_runs.py states the method; --table prints how often it is
right.

Exit codes: 0 all runs are inside of the band, 3 one is outside, 1 bad input.
"""

import argparse
import functools
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from mlperf_bert.files import paths
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.mlperf.results import RunResult
from mlperf_bert.mlperf.rules import MAX_SEQ_LENGTH
from mlperf_bert.submission import published, reference_runs, watch_table
from mlperf_bert.submission.entry import NUM_WEIGHTS_OF_BERT_LARGE
from mlperf_bert.submission.observer import causes, in_words
from mlperf_bert.submission.reference_runs import Reference, outlooks
from mlperf_bert.submission.run_logs import require_free, runs_so_far, work_of

EXIT_OUTSIDE = 3
SECONDS_BETWEEN_LOOKS = 10


@functools.cache
def _published(global_batch_size: int) -> Reference:
    return reference_runs.published_reference(global_batch_size, published.load())


def reference_of_log(run: RunResult) -> Reference:
    """The published runs like that of a log; the same object for all logs of a batch size.

    Raises:
      ValueError: no published run is like it, or its log does not say what is needed.
    """
    if not run.global_batch_size or run.global_batch_size < 1:
        raise ValueError(
            f"{run.path}: the log does not say its global_batch_size; give runs like it as "
            "--reference"
        )
    is_other = run.max_sequence_length not in (None, MAX_SEQ_LENGTH)
    if is_other or (run.num_weights or NUM_WEIGHTS_OF_BERT_LARGE) < NUM_WEIGHTS_OF_BERT_LARGE:
        raise ValueError(
            f"{run.path}: not BERT-large with {MAX_SEQ_LENGTH} tokens, as published runs are; give "
            "runs like it as --reference"
        )
    try:
        return _published(int(run.global_batch_size))
    except ValueError as error:
        raise ValueError(f"{run.path}: {error}") from error


def lines(run: RunResult, reference: Reference) -> list[tuple[str, bool]]:
    """What there is to say of each evaluation of a log, and whether it is outside.

    Raises:
      ValueError: the log does not say after how many samples its evaluations were.
    """
    seen_at = outlooks(run, reference)
    if len(seen_at) < len(run.evaluations):
        raise ValueError(
            f"{run.path}: its epoch_num does not count samples: nothing says when an evaluation was"
        )
    told = []
    for seen, evaluation in zip(seen_at, run.evaluations):
        seconds = 60 * evaluation.minutes
        rate = seen.samples / seconds if seconds > 0 else None
        words = in_words(seen, reference, others="others", samples_per_second=rate)
        if seen.is_outside:
            why = causes(seen, reference, hyperparameters=run.hyperparameters)
            words = f"WARNING: {words}: {why}"
        line = f"after {seen.samples:,.0f} samples: {seen.accuracy:.4f}; {words}"
        told.append((line, seen.is_outside))
    return told


def watch(places: Sequence[str], given: Reference | None, *, follow: bool) -> bool:
    """Prints what there is to say of runs; whether one was outside at any evaluation.

    Raises:
      ValueError, OSError: a log cannot be read, or there is nothing to compare it with.
    """
    told: dict[Path, int] = {}
    awaited: set[Path] = set()
    while True:
        is_outside = False
        runs = [run for place in places for run in runs_so_far(place, may_be_empty=follow)]
        for run in runs:
            # Before run_start a log does not name all weights, nor its batch perhaps.
            if follow and run.started_ms is None:
                if run.path not in awaited:
                    print(f"{run.path}: has not begun; waiting for its run_start", flush=True)
                    awaited.add(run.path)
                continue
            reference = given or reference_of_log(run)
            reference.require_same_work(work_of(run), str(run.path))
            of_run = lines(run, reference)
            new = of_run[told.get(run.path, 0) :]
            if new or run.path not in told:
                state = run.status if of_run else f"{run.status}, no evaluation yet"
                others = f"the others are {len(reference)} {reference.words}"
                print(f"{run.path}: {state}; {others}", flush=True)
            for line, _ in new:
                print(f"  {line}", flush=True)
            told[run.path] = len(of_run)
            is_outside |= any(outside for _, outside in of_run)
        if not follow or all(run.status != "running" for run in runs):
            return is_outside
        time.sleep(SECONDS_BETWEEN_LOOKS)


@ends_in_one_line("watch")
def main(arguments: Sequence[str] | None = None) -> int:
    """Watches logs, or prints how often watching is right."""
    parser = argparse.ArgumentParser(
        prog="python -m mlperf_bert.submission.watch", description="Will these runs converge?"
    )
    parser.add_argument("runs", nargs="*", metavar="RUN", help="a log, or a folder of runs")
    parser.add_argument("--follow", action="store_true", help="go on until the runs have ended")
    parser.add_argument("--reference", help="runs of one's own, in place of published")
    parser.add_argument("--save", help="write the runs of --reference to this file, NAME.json")
    parser.add_argument("--table", action="store_true", help="how often watching is right")
    given = parser.parse_args(paths.words_with_home(arguments))
    if given.table:
        if given.runs or given.reference or given.save:
            parser.error("--table is about the published runs: give it alone")
        print(watch_table.table(published.load()))
        return 0
    if given.save and not given.reference:
        parser.error("--save writes the runs of --reference: give it too")
    if not given.runs and not given.save:
        parser.error("give the log of a run, or --table")
    with paths.reads() as inputs:
        reference = given.reference and reference_runs.own_reference(given.reference)
    if given.save:
        require_free({"--save": given.save}, [*inputs, *given.runs])
        reference_runs.save(reference, given.save)
        print(f"{len(reference)} {reference.words} are in {given.save}")
    return EXIT_OUTSIDE if watch(given.runs, reference, follow=given.follow) else 0


if __name__ == "__main__":
    sys.exit(main())
