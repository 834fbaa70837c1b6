"""A report on a submission, whoever made it: on the terminal, as HTML and as JSON.

    python -m mlperf_bert.submission.report ORG_DIR --ruleset 5.0.0 --output report.html

reads ORG_DIR/results/SYSTEM/bert/result_*.txt and ORG_DIR/systems/SYSTEM.json, and writes
report.html, with its pictures inside, and report.json beside it, with every number.
"""

import argparse
import dataclasses
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pages
from mlperf_bert.files import paths
from mlperf_bert.files.whole import require_apart, write_whole
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.mlperf import convergence
from mlperf_bert.mlperf.log_reader import CAMPAIGN_RECORD, RECORD_NAME, RunResult
from mlperf_bert.mlperf.rules import RULESETS
from mlperf_bert.options import expanded_arguments
from mlperf_bert.submission import report_charts
from mlperf_bert.submission.runs import far_off
from mlperf_bert.submission.verdict import SystemVerdict, judge
from pages import Card

_NOT_IN_JSON = ("rcp_source", "folder_tools", "official_minutes")
"""Fields of verdicts that a report says elsewhere, or does not need."""

_COLUMNS = ("run", "status", "minutes", "samples", "accuracy", "samples/s", "init min", "seed",
            "compliance", "kWh")  # fmt: skip
"""The headings of the table; the last one only if some log says the energy."""


def judge_systems(
    org_dir: Path, ruleset: str, *, custom_rcps: Path | None = None
) -> list[SystemVerdict]:
    """Returns the verdicts on all systems of a submitter."""
    folders = sorted(path.parent for path in (org_dir / "results").glob("*/bert"))
    if not folders:
        raise ValueError(f"{org_dir}: no results/SYSTEM/bert; give the submitter's folder")
    return [judge(folder, ruleset, custom_rcps=custom_rcps) for folder in folders]


def as_text(system: SystemVerdict) -> str:
    """Returns the report for a terminal: the page's table, figures and problems."""
    columns = _columns([system])
    rows = [columns, *([text for text, _ in row] for row in _rows(system))]
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = [f"{system.name}, under ruleset {system.ruleset}"]
    for row in rows:
        lines.append("  " + "  ".join(text.rjust(width) for text, width in zip(row, widths)))
    lines += [f"  {card.label}: {card.value} ({card.note})" for card in _cards(system)]
    lines.append(f"  RCP checker: {system.rcp}")
    lines += [f"  problem: {problem}" for problem in _problems(system)]
    return "\n".join(lines)


def as_json(verdicts: Sequence[SystemVerdict]) -> str:
    """Returns every number of the verdicts; null for one that is not finite."""
    entries = []
    for system in verdicts:
        entry = dataclasses.asdict(system)
        for name in _NOT_IN_JSON:
            del entry[name]
        entry["scaled_minutes"] = system.scaled_minutes
        for run, fields in zip(system.runs, entry["runs"], strict=True):
            fields["samples_per_second"] = run.samples_per_second
        entries.append(entry)
    text = json.dumps(entries, default=str)
    finite = json.loads(text, parse_constant=lambda name: None)  # NaN, Infinity, -Infinity
    return json.dumps(finite, indent=1, allow_nan=False) + "\n"


def page(verdicts: Sequence[SystemVerdict], *, title: str, subtitle: str) -> str:
    """Returns the page on systems, each with its pictures."""
    return pages.render(
        "report.html",
        title=title,
        subtitle=subtitle,
        columns=_columns(verdicts),
        systems=verdicts,
        charts=report_charts,
        figures_of=_cards,
        problems_of=_problems,
        rows_of=_rows,
        facts_of=_facts,
    )


def _columns(verdicts: Sequence[SystemVerdict]) -> tuple[str, ...]:
    with_energy = any(_kwh(run) for system in verdicts for run in system.runs)
    return _COLUMNS if with_energy else _COLUMNS[:-1]


def _cards(system: SystemVerdict) -> list[Card]:
    score, runs, rcp = system.scaled_minutes, system.runs, system.rcp
    accepted = sum(verdict.passed for verdict in system.compliance)
    scaled = f", scaled by {rcp.scaling:.4f}" if rcp.scaling != 1.0 else ""
    minutes = {run.path.name: run.minutes for run in runs if run.succeeded}
    off = "".join(f"; far off: {name}, {minutes[name]:.4g} min" for name in far_off(minutes))
    mean = rcp.submission_mean_samples
    seeds = {run.seeds[0] for run in runs if run.seeds}
    rates = sorted(run.samples_per_second for run in runs if run.samples_per_second)
    # A median, because one run on a busy host does not move it.
    rate = f"{rates[len(rates) // 2]:,.0f} /s" if rates else "unknown"
    return [
        Card("Time to train", "no score" if score is None else f"{score:.5g} min",
             f"olympic mean of {len(runs)} runs{scaled}{off}", good=score is not None),
        Card("Convergence (RCP)", rcp.word.lower(),
             f"{f'{mean:,.0f} samples; ' if mean else ''}{rcp.reason}", good=rcp.passed),
        Card("Compliance", f"{accepted} of {len(runs)} logs",
             f"accepted under {system.ruleset}", good=system.is_compliant),
        Card("Seeds", "unique" if system.seeds.passed else "failed",
             f"{len(seeds)} different ones", good=system.seeds.passed),
        Card("Throughput", rate, "of samples, evaluation included; batch "
             f"{runs[0].global_batch_size or 'unknown'}"),
    ]  # fmt: skip


def _problems(system: SystemVerdict) -> list[str]:
    problems = list(system.problems)
    if not any("seed" in problem for problem in problems):
        problems += system.seeds.reasons
    names: dict[str, list[str]] = {}  # each finding of the compliance checker, and the logs with it
    for verdict in system.compliance:
        # The line's number is left out: the same line has another one in another log.
        messages = [re.sub(r" in line \d+", "", each) for each in verdict.messages]
        for message in () if verdict.passed else dict.fromkeys(messages):
            names.setdefault(message, []).append(verdict.path.name)
    for message, logs in names.items():
        is_in_all = len(logs) == len(system.runs) > 1
        problems.append(f"{'all logs' if is_in_all else ', '.join(logs)}: {message}")
    return problems


def _rows(system: SystemVerdict) -> list[list[tuple[str, bool | None]]]:
    """Each cell's text, with True for good news, False for bad news, None for neither."""
    rows = []
    for run, verdict in zip(system.runs, system.compliance, strict=True):
        accuracy = run.evaluations[-1].accuracy if run.evaluations else None
        rows.append(
            [
                (run.path.stem, None),
                (run.status, run.succeeded),
                (_number(run.minutes, ".4f"), None),
                (_number(run.samples_to_converge, ","), None),
                (_number(accuracy, ".4f"), None),
                (_number(run.samples_per_second, ",.1f"), None),
                (_number(run.init_minutes, ".2f"), None),
                (str(run.seeds[0]) if run.seeds else "-", None),
                ("yes" if verdict.passed else "no", verdict.passed),
                (_number(_kwh(run), ".4g"), None),
            ]
        )
    return rows


def _number(value: float | None, spec: str) -> str:
    return "-" if value is None else f"{value:{spec}}"


def _kwh(run: RunResult) -> float | None:
    joules = run.energy.joules if run.energy else None
    return None if joules is None else joules / 3.6e6


def _facts(facts: Mapping[str, object]) -> list[tuple[str, str]]:
    rows = []
    for name, value in facts.items():
        if value in ("", None):
            continue
        words = str(value)
        if isinstance(value, Mapping):
            words = ", ".join(f"{key} {entry}" for key, entry in value.items())
        rows.append((name.replace("_", " "), words))
    return rows


def _require_free(numbers: Path, read: Sequence[Path | None]) -> None:
    """Refuses to replace the report's inputs, or the record of a run or a campaign."""
    require_apart([(str(numbers), numbers)], filter(None, read), remedy="choose another --output")
    if numbers.name in (CAMPAIGN_RECORD, RECORD_NAME):
        raise ValueError(f"{numbers}: is the name of a record; choose another --output")


@ends_in_one_line("report")
def main(arguments: Sequence[str] | None = None) -> int:
    """Prints and writes the report; returns 1 with one line if something cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m mlperf_bert.submission.report")
    parser.add_argument("org_dir")
    parser.add_argument("--ruleset", default=RULESETS[-1])
    parser.add_argument("--custom_rcps", help="JSON file of other RCPs")
    parser.add_argument("--output", help="HTML file; the JSON goes beside it")
    options = parser.parse_args(expanded_arguments(arguments))
    org_dir = paths.require_local(options.org_dir)
    custom_rcps = options.custom_rcps and paths.require_local(
        options.custom_rcps, flag="custom_rcps"
    )
    output = options.output and paths.require_local(options.output, flag="output")
    if output:
        if output.suffix != ".html":
            raise ValueError(f"--output={options.output}: give the name of a page, as report.html")
        _require_free(output.with_suffix(".json"), [*org_dir.glob("systems/*.json"), custom_rcps])
    convergence.reference_points(options.ruleset, custom_rcps)  # refuses bad input at once
    verdicts = judge_systems(org_dir, options.ruleset, custom_rcps=custom_rcps)
    for system in verdicts:
        print(as_text(system))
    if output:
        points = custom_rcps.name if custom_rcps else "the official ones"
        subtitle = f"Ruleset {options.ruleset}; reference convergence points: {points}"
        title = f"MLPerf Training BERT: {org_dir.resolve().name}"
        text = page(verdicts, title=title, subtitle=subtitle)
        numbers = as_json(verdicts)  # before anything is written
        paths.make_folder(output.parent)
        write_whole(output, text)
        write_whole(output.with_suffix(".json"), numbers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
