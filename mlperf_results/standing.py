"""Ranks runs among all published BERT results.

    python -m mlperf_results.standing RUN_OR_ORG_DIR...

takes directories of runs, of campaigns and of submissions (any vendor's), and logs; it prints the
place of each and the published results of rounds 1.0 to 5.0 that are most like it. Division,
hardware, model and data may differ: open runs, miniatures and runs of another sequence length are
shown, but never ranked.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from mlperf_bert.files import paths
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.mlperf import convergence
from mlperf_bert.mlperf.log_reader import CAMPAIGN_RECORD, read_run
from mlperf_bert.mlperf.rules import MAX_SEQ_LENGTH, NUM_RUNS_PER_RESULT, RULESETS
from mlperf_bert.options import expanded_arguments
from mlperf_bert.submission.plan import result_files
from mlperf_bert.submission.system import recorded_devices
from mlperf_bert.submission.verdict import System, read_system, with_convergence
from mlperf_results import published
from mlperf_results.own import entry_of
from mlperf_results.published import UNKNOWN, Entry, comparable
from mlperf_results.runs import WAS_RESUMED, runs_in

NUM_NEIGHBOURS = 8


def read_own(name: str) -> list[Entry]:
    """Returns the rows on a run, a log, a campaign or a submitter's folder."""
    path = paths.require_local(name)
    is_campaign = (path / CAMPAIGN_RECORD).exists()
    org_dirs = [path]
    if is_campaign:
        org_dirs = sorted(results.parent for results in path.glob("submission/*/results"))
        org_dirs = [path for path in org_dirs if path.name[0] != "."]  # left by a killed writer
    rows = [
        entry_of(_judge(folder.parent), org=org_dir.resolve().name)
        for org_dir in org_dirs
        for folder in sorted((org_dir / "results").glob("*/bert"))
        if result_files(folder)
    ]
    if rows:
        return rows
    if is_campaign:
        raise ValueError(f"{path}: this campaign has no result yet; give runs/N in it")
    if (path / "results").is_dir():
        raise ValueError(f"{path}: no results/SYSTEM/bert/result_*.txt; put the logs there")
    return [_of_run(path)]


def _judge(folder: Path) -> System:
    system = read_system(folder)
    # The RCP checker needs the ten runs of a result.
    if len(system.runs) != NUM_RUNS_PER_RESULT:
        return system
    return with_convergence(system, RULESETS[-1])


def _of_run(path: Path) -> Entry:
    """Returns the row on a log or a run; run.json of a run of this project has the devices."""
    files, *others = runs_in(str(path))
    folder = files.output_dir
    if others:
        raise ValueError(f"{path}: {len(others) + 1} runs; give one, or the folder above results/")
    # A named log may be whole even if its run was killed before run.json said so.
    if files.is_unfinished and not path.is_file():
        raise ValueError(f"{folder}: this run has not ended; resume it, or wait for its end")
    if len(files.logs) != 1:
        raise ValueError(f"{path}: {WAS_RESUMED}")
    # Processors alone: logs do not say so, and 0 accelerators is not an unknown number.
    _, num_gpus = recorded_devices(folder) if folder else (None, None)
    described = {"number_of_nodes": 1, "accelerators_per_node": 0} if num_gpus == 0 else {}
    run = read_run(files.logs[0])
    return entry_of(System(name=str(path), runs=(run,), description=described))


def standing_of(own: Entry, entries: Sequence[Entry]) -> list[str]:
    """Returns the lines on a system of one's own among published results."""
    # Submitters hand in the same logs under another name, or in another round.
    twin = next((e.name for e in entries if sorted(e.run_minutes) == sorted(own.run_minutes)), None)
    twin = twin if own.run_minutes else None
    # If its own logs were published, that result would be its nearest neighbour.
    others = [entry for entry in comparable(entries) if entry.name != twin]
    caveat = f"not comparable: {', '.join(own.departures)}" if own.departures else ""
    lines = [f"{own.name}: {caveat or 'comparable with closed results'}"]
    lines += [f"  {label}: {value} ({note})" for label, value, note in _figures(own, others)]
    lines += [f"  {note}" for note in (own.notes or "").splitlines()]
    if twin:
        lines.append(f"  published as {twin}")
    if own.rcp is not None:
        lines.append(f"  official RCP checker: {own.rcp}")
    lines.append("  most like it, and what is unlike as far as logs and descriptions say:")
    # Software becomes faster with each round: of equally near results the latest is best.
    latest_first = others[::-1]
    for other in sorted(latest_first, key=lambda e: _distance(own, e))[:NUM_NEIGHBOURS]:
        unlike = "; ".join([f"{_number(other.minutes, '.4g')} min", *_unlike(own, other)])
        lines.append(f"    {other.name}: {unlike}")
    return lines


def _figures(own: Entry, others: Sequence[Entry]) -> list[tuple[str, str, str]]:
    """Returns each figure: label, value, and its place or why it has none."""
    runs = "1 run, no result" if own.runs == 1 else f"{own.runs} runs"
    if own.rcp_scaling_factor:
        runs += f", scaled by {own.rcp_scaling_factor:.4f}"
    rank = "not ranked"
    if not own.departures and own.accelerators is not None and own.minutes is not None:
        times = [e.minutes for e in others if e.accelerators == own.accelerators and e.minutes]
        before = sum(time < own.minutes for time in times)
        rank = f"place {before + 1} of {len(times) + 1} on {own.accelerators} accelerators"
    batch = own.global_batch_size
    convergence_words = "batch size not logged"
    if batch:
        bound = convergence.bound_of(batch)
        words = "no reference for such a run" if own.departures else str(bound)
        convergence_words = f"batch {batch:,}; {words}"
    each = own.samples_per_second_per_accelerator
    return [
        ("Time to train", _number(own.minutes, ".4g", " min"), f"{runs}; {rank}"),
        ("Samples to converge", _number(own.samples_mean, ",.0f"), convergence_words),
        ("Samples/s per accelerator", _number(each, ",.4g"), _rate_words(own, others)),
    ]


def _rate_words(own: Entry, others: Sequence[Entry]) -> str:
    rate = own.samples_per_second_per_accelerator
    if own.samples_per_second_median is None:
        return "no run reached the target, or the logs do not say its samples"
    if rate is None:
        total = _number(own.samples_per_second_median, ",.4g", " /s in all")
        return f"{total}; no accelerator, or their number is unknown"
    if own.departures:
        return "not ranked"
    rates = [(e.family, e.samples_per_second_per_accelerator or 0) for e in others]
    known = [(family, each) for family, each in rates if each]
    before = sum(each > rate for _, each in known)
    text = f"place {before + 1} of {len(known) + 1} published results"
    of_family = [each for family, each in known if family == own.family]
    if of_family:
        text += f"; median of {own.family}: {statistics.median(of_family):,.4g}"
    return text


def _number(value: float | None, spec: str, unit: str = "") -> str:
    return "unknown" if value is None else f"{value:{spec}}{unit}"


def _distance(own: Entry, other: Entry) -> float:
    """Returns the distance of two systems: twice the accelerators, or other ones, count 1."""
    # Hardware counts most, then the batch, which decides the samples, then the framework.
    distance = _doublings(own.accelerators, other.accelerators)
    distance += _doublings(own.global_batch_size, other.global_batch_size) / 2
    distance += own.family != other.family
    return distance + _framework_differs(own, other) / 4


def _doublings(first: float | None, second: float | None) -> float:
    if first is None or second is None or first == second:
        return 0
    return abs(math.log2(first / second)) if first and second else 10  # 0: processors alone


def _framework_differs(own: Entry, other: Entry) -> bool:
    return bool(own.frameworks and other.frameworks) and not (
        set(own.frameworks) & set(other.frameworks)
    )


def _unlike(own: Entry, other: Entry) -> list[str]:
    """Returns how a published system differs from one's own, in what is known of both."""
    differs = own.family not in (UNKNOWN, other.family)
    differences = [f"{other.family}, not {own.family}"] if differs else []
    for name, mine, theirs in (
        ("accelerators", own.accelerators, other.accelerators),
        ("batch", own.global_batch_size, other.global_batch_size),
        ("tokens", own.max_sequence_length, MAX_SEQ_LENGTH),  # the rules fix it
    ):
        if mine is not None and theirs is not None and mine != theirs:
            differences.append(f"{name} {theirs:,}, not {mine:,}")
    if _framework_differs(own, other):
        differences.append(f"{'/'.join(other.frameworks)}, not {'/'.join(own.frameworks)}")
    if own.division != other.division:
        differences.append(f"division {other.division}, not {own.division}")
    if own.num_weights and "miniature" in own.departures:
        differences.append("BERT-large, not a miniature")
    if other.rcp_scaling_factor:
        differences.append(f"its time is scaled by {other.rcp_scaling_factor:.4f}")
    if own.runs != other.runs:
        differences.append(f"{other.runs} runs, not {own.runs}")
    return differences


@ends_in_one_line("standing")
def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the standing; returns 1 with one line if something cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m mlperf_results.standing")
    parser.add_argument("runs", nargs="+", metavar="RUN_OR_ORG_DIR")
    options = parser.parse_args(expanded_arguments(arguments))
    entries = published.load()
    rows = [own for name in options.runs for own in read_own(name)]
    for own in rows:
        print("\n".join(standing_of(own, entries)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
