"""A report on a submission, whoever made it: on the terminal, as HTML and as JSON.

    python -m mlperf_bert.submission.report ORG_DIR --ruleset 5.0.0 --output report.html

reads ORG_DIR/results/SYSTEM/bert/result_*.txt and ORG_DIR/systems/SYSTEM.json, and writes
report.html, with its pictures inside, and report.json beside it, with every number. Each path may
be gs://BUCKET/FOLDER.
"""

import argparse
import dataclasses
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlperf_bert.files import paths
from mlperf_bert.files.whole import write_whole
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.mlperf import convergence, results
from mlperf_bert.mlperf.rules import RULESETS
from mlperf_bert.options import duration
from mlperf_bert.submission import published, report_page, scoring, standing_charts, standing_page
from mlperf_bert.submission.comparison import Standing, recognised, standing_of
from mlperf_bert.submission.entry import Entry, own_entry
from mlperf_bert.submission.rcp import UNAIDED
from mlperf_bert.submission.verdict import SystemVerdict, judge

_PLOTS_AMONG = ("minutes", "convergence")
_NOT_IN_JSON = ("rcp_source", "folder_tools", "official_minutes")
"""What a report says elsewhere, or does not ask for."""


def judge_systems(
    org_dir: paths.Location, ruleset: str, *, custom_rcps: paths.Location | None = None
) -> list[SystemVerdict]:
    """Return the verdicts on all systems of a submitter.

    Raises:
      ValueError: there is no result for BERT, or a log cannot be read.
    """
    folders = sorted(path.parent for path in (org_dir / "results").glob("*/bert"))
    if not folders:
        raise ValueError(f"{org_dir}: no results/SYSTEM/bert; give the submitter's folder")
    return [judge(folder, ruleset, custom_rcps=custom_rcps) for folder in folders]


def as_text(system: SystemVerdict) -> str:
    """Return the report for a terminal."""
    lines = [f"{system.name}: {_score(system)}", _ROW.format(*_HEADINGS)]
    for run, verdict in zip(system.runs, system.compliance, strict=True):
        lines.append(_ROW.format(*_cells(run), "yes" if verdict.passed else "NO"))
    rcp = system.rcp
    lines.append(f"  RCP: {'passed' if rcp.passed else 'FAILED'} ({rcp.reason})")
    if system.rcp_unaided:
        lines.append(f"  {UNAIDED}: {system.rcp_unaided}")
    if rcp.mean_samples and rcp.min_mean_samples and rcp.submission_mean_samples:
        lines.append(
            f"  samples to converge: olympic mean {rcp.submission_mean_samples:,.0f}; the "
            f"reference's is {rcp.mean_samples:,.0f}, credible from {rcp.min_mean_samples:,.0f} on"
        )
    lines.append(f"  seeds: {'unique' if system.seeds.passed else 'FAILED'}")
    phases = scoring.mean_phase_minutes(system.runs)
    times = ", ".join(f"{kind} {minutes:.4g}" for kind, minutes in phases.items())
    lines.append(f"  minutes of a run by phase, mean: {times or 'the logs do not say'}")
    if energy := scoring.mean_energy(system.runs):
        lines.append(f"  energy of a run{', mean' if len(system.runs) > 1 else ''}: {energy}")
    budget_seconds = system.runs[0].hyperparameters.get("time_budget_seconds")
    if isinstance(budget_seconds, int | float) and 0 < budget_seconds < 2**63:
        lines.append(f"  time budget of a run: {duration(budget_seconds)}")
    for name in ("accelerator_model_name", "host_processor_model_name", "framework"):
        if system.description.get(name):
            lines.append(f"  {name.replace('_', ' ')}: {system.description[name]}")
    made = (
        f"{name.replace('_', ' ')} {value}" for name, value in system.runs[0].provenance.items()
    )
    lines += [f"  made from: {text}" for text in made if not text.endswith(" ")]
    lines += [f"  problem: {problem}" for problem in system.problems]
    return "\n".join(lines)


def as_json(verdicts: Sequence[SystemVerdict]) -> str:
    """Return every number of the verdicts; null for one that is not finite."""
    entries = []
    for system in verdicts:
        entry = dataclasses.asdict(system)
        for name in _NOT_IN_JSON:
            del entry[name]
        entry["scaled_minutes"] = system.scaled_minutes
        entry["mean_phase_minutes"] = scoring.mean_phase_minutes(system.runs)
        for run, fields in zip(system.runs, entry["runs"], strict=True):
            fields["samples_per_second"] = run.samples_per_second
            fields["energy_joules"] = run.energy.joules if run.energy else None
        entries.append(entry)
    return json.dumps(_finite(entries), indent=1, default=str, allow_nan=False) + "\n"


def _finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {name: _finite(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write(verdicts: Sequence[SystemVerdict], output: paths.Location, **parts: Any) -> None:
    """Write the page, and the numbers beside it; each file whole or not at all.

    Args:
      verdicts: on the systems.
      output: of the page.
      **parts: of the page, as `report_page.page`.
    """
    page = report_page.page(verdicts, **parts)
    numbers = as_json(verdicts)
    paths.make_folder(output.parent)
    write_whole(output, page)
    write_whole(output.with_suffix(".json"), numbers)


def standings_of(
    verdicts: Sequence[SystemVerdict],
    entries: Sequence[Entry],
    *,
    org: str,
    ruleset: str,
    custom_rcps: Path | None,
) -> list[Standing]:
    """Compare the systems with published ones."""
    found = []
    for system in verdicts:
        own = own_entry(
            system.runs,
            org=org,
            system=system.name,
            description=system.description,
            rcp=system.rcp,
            unaided=system.rcp_unaided,
            folder=system.runs[0].path.parent,
        )
        own = recognised(own, entries)
        found.append(standing_of(own, entries, ruleset=ruleset, custom_rcps=custom_rcps))
    return found


def _among_published(
    standings: Sequence[Standing], entries: Sequence[Entry], page: str, ruleset: str
) -> dict[str, object]:
    """Write the page of the standings; return what a report shows of them."""
    output = paths.location(page)
    paths.make_folder(output.parent)
    write_whole(output, standing_page.page(standings, entries, ruleset=ruleset))
    points = convergence.reference_points(ruleset)
    return {"among": standing_charts.draw(standings, entries, points, parts=_PLOTS_AMONG)}


_HEADINGS = "run status minutes samples accuracy batch samples/s seed compliant".split()
_ROW = "  {:<14} {:<8} {:>10} {:>11} {:>8} {:>6} {:>11} {:>11} {:>9}"


def _cells(run: results.RunResult) -> list[str]:
    return [
        run.path.name,
        run.status,
        f"{run.minutes:.4f}",
        "-" if run.samples_to_converge is None else f"{run.samples_to_converge:,}",
        f"{run.evaluations[-1].accuracy:.4f}" if run.evaluations else "-",
        str(run.global_batch_size or "-"),
        f"{run.samples_per_second:,.0f}" if run.samples_per_second else "-",
        str(run.seeds[0]) if run.seeds else "none",
    ]


def _score(system: SystemVerdict) -> str:
    if system.olympic_minutes is None:
        return "no score: too few runs converged"
    text = f"{system.olympic_minutes:.5f} minutes, olympic mean of {len(system.runs)} runs"
    if system.rcp.scaling != 1.0:
        text += f"; {system.scaled_minutes:.5f} scaled by {system.rcp.scaling:.4f}"
    return text


@ends_in_one_line("report")
def main(arguments: Sequence[str] | None = None) -> int:
    """Print and write the report; return 1 with one line if something cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m mlperf_bert.submission.report")
    parser.add_argument("org_dir")
    parser.add_argument("--ruleset", default=RULESETS[-1])
    parser.add_argument("--custom_rcps", help="JSON file of other reference points")
    parser.add_argument("--output", help="HTML file; the JSON goes beside it")
    parser.add_argument(
        "--standing", help="HTML file: the systems among all published ones; the report links to it"
    )
    given = parser.parse_args(paths.words_with_home(arguments))
    org_dir = paths.location(given.org_dir)
    custom_rcps = given.custom_rcps and paths.location(given.custom_rcps)
    output = given.output and paths.location(given.output)
    if custom_rcps:
        convergence.reference_points(given.ruleset, custom_rcps)
    with paths.failures_named(org_dir):
        verdicts = judge_systems(org_dir, given.ruleset, custom_rcps=custom_rcps)
    for system in verdicts:
        print(as_text(system))
    name = paths.resolve(org_dir).name
    among = {}
    if given.standing:
        entries = published.load()
        standings = standings_of(
            verdicts, entries, org=name, ruleset=given.ruleset, custom_rcps=custom_rcps
        )
        among = _among_published(standings, entries, given.standing, given.ruleset)
        among["standing"] = os.path.relpath(given.standing, Path(given.output or "").parent)
    if output:
        points = custom_rcps.name if custom_rcps else "the official ones"
        subtitle = f"Ruleset {given.ruleset}; reference convergence points: {points}"
        title = f"MLPerf Training BERT: {name}"
        write(verdicts, output, title=title, subtitle=subtitle, **among)
    return 0


if __name__ == "__main__":
    sys.exit(main())
