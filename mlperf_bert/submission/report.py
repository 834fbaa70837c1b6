"""A report on a submission, whoever made it: on the terminal, as HTML and as JSON.

    python -m mlperf_bert.submission.report ORG_DIR --ruleset 5.0.0 --output report.html

reads ORG_DIR/results/SYSTEM/bert/result_*.txt and ORG_DIR/systems/SYSTEM.json, and writes
report.html, with its pictures inside, and report.json beside it, with every number.
"""

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mlperf_bert.mlperf import convergence, results
from mlperf_bert.mlperf.rules import RULESETS, require_ruleset
from mlperf_bert.submission import official, report_page
from mlperf_bert.submission.compliance import Verdict, check_log
from mlperf_bert.submission.folder import result_files
from mlperf_bert.submission.official import ToolVerdict
from mlperf_bert.submission.rcp import RcpVerdict, check_rcp
from mlperf_bert.submission.system import read_overrides
from mlperf_bert.writing import write_whole


@dataclass(frozen=True)
class SystemReport:
    """One system's result.

    Attributes:
      name: of the system's folder.
      ruleset: under which it was judged.
      runs: what the logs say, in the order of their numbers.
      compliance: the official verdict on each log.
      rcp: the official verdict on the samples to converge.
      seeds: the official verdict on the seeds.
      problems: what keeps them from being a result.
      olympic_minutes: the score before scaling by the RCP; None if there is none.
      description: systems/SYSTEM.json; empty if there is none.
    """

    name: str
    ruleset: str
    runs: tuple[results.RunResult, ...]
    compliance: tuple[Verdict, ...]
    rcp: RcpVerdict
    seeds: ToolVerdict
    problems: tuple[str, ...]
    olympic_minutes: float | None
    description: Mapping[str, object] = field(default_factory=dict)

    @property
    def scaled_minutes(self) -> float | None:
        """The score, scaled if the runs converged faster than the reference."""
        return None if self.olympic_minutes is None else self.olympic_minutes * self.rcp.scaling


def read_system(folder: Path, ruleset: str, *, custom_rcps: Path | None = None) -> SystemReport:
    """Return the report on ORG_DIR/results/SYSTEM.

    Raises:
      ValueError: there are no logs, or one cannot be read.
    """
    require_ruleset(ruleset)
    paths = result_files(folder / "bert")
    if not paths:
        raise ValueError(f"{folder}: no bert/result_*.txt")
    runs = tuple(results.read_run(path) for path in paths)
    minutes = [run.minutes for run in runs if run.succeeded]
    by_train_samples = all(run.counts_by_train_samples for run in runs)
    description = folder.parent.parent / "systems" / f"{folder.name}.json"
    return SystemReport(
        name=folder.name,
        ruleset=ruleset,
        runs=runs,
        compliance=tuple(check_log(path, ruleset) for path in paths),
        rcp=check_rcp(
            folder / "bert", ruleset, by_train_samples=by_train_samples, custom_rcps=custom_rcps
        ),
        seeds=official.check_seeds(paths, ruleset),
        problems=tuple(results.problems_of_result(runs)),
        olympic_minutes=results.olympic_mean(minutes, num_failed=len(runs) - len(minutes)),
        description=read_overrides(description) if description.exists() else {},
    )


def read_submission(
    org_dir: Path, ruleset: str, *, custom_rcps: Path | None = None
) -> list[SystemReport]:
    """Return the reports on all systems of a submitter.

    Raises:
      ValueError: there is no result for BERT.
    """
    folders = sorted(path.parent for path in (org_dir / "results").glob("*/bert"))
    if not folders:
        raise ValueError(f"{org_dir}: no results/SYSTEM/bert; give the submitter's folder")
    return [read_system(folder, ruleset, custom_rcps=custom_rcps) for folder in folders]


def as_text(report: SystemReport) -> str:
    """Return the report for a terminal."""
    lines = [f"{report.name}: {_score(report)}", _row(_HEADINGS)]
    for run, verdict in zip(report.runs, report.compliance, strict=True):
        lines.append(_row([*_cells(run), "yes" if verdict.passed else "NO"]))
    rcp = report.rcp
    lines.append(f"  RCP: {'passed' if rcp.passed else 'FAILED'} ({rcp.reason})")
    if rcp.mean_samples and rcp.min_mean_samples and rcp.submission_mean_samples:
        lines.append(
            f"  samples to converge: olympic mean {rcp.submission_mean_samples:,.0f}; the "
            f"reference's is {rcp.mean_samples:,.0f}, credible from {rcp.min_mean_samples:,.0f} on"
        )
    lines.append(f"  seeds: {'unique' if report.seeds.passed else 'FAILED'}")
    phases = results.mean_phase_minutes(report.runs)
    times = ", ".join(f"{kind} {minutes:.4g}" for kind, minutes in phases.items())
    lines.append(f"  minutes of a run by phase, mean: {times or 'the logs do not say'}")
    for name in ("accelerator_model_name", "host_processor_model_name", "framework"):
        if report.description.get(name):
            lines.append(f"  {name.replace('_', ' ')}: {report.description[name]}")
    lines += [f"  problem: {problem}" for problem in report.problems]
    return "\n".join(lines)


def as_json(reports: Sequence[SystemReport]) -> str:
    """Return every number of the reports; null for one that is not finite."""
    entries = []
    for report in reports:
        entry = {**dataclasses.asdict(report), "scaled_minutes": report.scaled_minutes}
        entry["mean_phase_minutes"] = results.mean_phase_minutes(report.runs)
        for run, fields in zip(report.runs, entry["runs"], strict=True):
            fields["samples_per_second"] = run.samples_per_second
        entries.append(entry)
    return json.dumps(_finite(entries), indent=1, default=str, allow_nan=False) + "\n"


def _finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {name: _finite(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_html(reports: Sequence[SystemReport], *, title: str, subtitle: str = "") -> str:
    """Return a page that needs nothing from outside."""
    return report_page.page(reports, title=title, subtitle=subtitle)


def write(reports: Sequence[SystemReport], output: Path, *, title: str, subtitle: str) -> None:
    """Write the page and, beside it, the numbers; each whole or not at all."""
    contents = {
        output: as_html(reports, title=title, subtitle=subtitle),
        output.with_suffix(".json"): as_json(reports),
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    for path, content in contents.items():
        write_whole(path, content)


_HEADINGS = (
    *("run", "status", "minutes", "samples", "accuracy", "batch", "samples/s", "seed"),
    "compliant",
)
_WIDTHS = (-14, -8, 10, 11, 8, 6, 11, 11, 9)
"""Characters of a column; negative: to the left."""


def _row(cells: Sequence[str]) -> str:
    padded = [
        cell.ljust(-width) if width < 0 else cell.rjust(width)
        for cell, width in zip(cells, _WIDTHS, strict=True)
    ]
    return "  " + " ".join(padded).rstrip()


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


def _score(report: SystemReport) -> str:
    if report.olympic_minutes is None:
        return "no score: too few runs converged"
    text = f"{report.olympic_minutes:.5f} minutes, olympic mean of {len(report.runs)} runs"
    if report.rcp.scaling != 1.0:
        text += f"; {report.scaled_minutes:.5f} scaled by {report.rcp.scaling:.4f}"
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    """Print and write the report; return 1 with one line if something cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m mlperf_bert.submission.report")
    parser.add_argument("org_dir", type=Path)
    parser.add_argument("--ruleset", default=RULESETS[-1])
    parser.add_argument("--custom_rcps", type=Path, help="reference points of one's own, JSON")
    parser.add_argument("--output", type=Path, help="HTML file; the JSON goes beside it")
    given = parser.parse_args(arguments)
    try:
        if given.custom_rcps:
            convergence.reference_points(given.ruleset, given.custom_rcps)
        reports = read_submission(given.org_dir, given.ruleset, custom_rcps=given.custom_rcps)
        for report in reports:
            print(as_text(report))
        if given.output:
            title = f"MLPerf Training BERT: {given.org_dir.resolve().name}"
            points = given.custom_rcps.name if given.custom_rcps else "the official ones"
            subtitle = f"Ruleset {given.ruleset}; reference convergence points: {points}"
            write(reports, given.output, title=title, subtitle=subtitle)
    except (ValueError, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
