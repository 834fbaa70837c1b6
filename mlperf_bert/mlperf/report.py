"""A report on a submission, whoever made it: on the terminal, as HTML and as JSON.

    python -m mlperf_bert.mlperf.report ORG_DIR --ruleset 5.0.0 --output report.html

reads ORG_DIR/results/SYSTEM/bert/result_*.txt and writes report.html, with its pictures inside,
and report.json beside it, with every number.
"""

import argparse
import dataclasses
import html
import io
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no display is needed

from matplotlib import pyplot

from mlperf_bert.mlperf import results
from mlperf_bert.mlperf.compliance import RULESETS, Verdict, check_log
from mlperf_bert.mlperf.rcp import RcpVerdict, check_rcp
from mlperf_bert.mlperf.rules import TARGET_MASKED_LM_ACCURACY

_STYLE = """
body { font: 16px/1.5 sans-serif; margin: 0 auto; max-width: 60rem; padding: 1rem; color: #222; }
table { border-collapse: collapse; } th, td { padding: .2rem .6rem; text-align: right; }
th { border-bottom: 2px solid #888; } td:first-child, th:first-child { text-align: left; }
.wide { overflow-x: auto; } .bad { color: #b3261e; } .good { color: #1b6e3c; }
svg { max-width: 100%; height: auto; }
"""


@dataclass(frozen=True)
class SystemReport:
    """One system's result.

    Attributes:
      name: of the system's folder.
      runs: what the logs say, in the order of their file names.
      compliance: the official verdict on each log.
      rcp: the official verdict on all of them.
      problems: what keeps them from being a result.
      olympic_minutes: the score before scaling by the RCP; None if there is none.
    """

    name: str
    runs: tuple[results.RunResult, ...]
    compliance: tuple[Verdict, ...]
    rcp: RcpVerdict
    problems: tuple[str, ...]
    olympic_minutes: float | None

    @property
    def scaled_minutes(self) -> float | None:
        """The score, scaled if the runs converged faster than the reference."""
        return None if self.olympic_minutes is None else self.olympic_minutes * self.rcp.scaling


def read_system(folder: Path, ruleset: str) -> SystemReport:
    """Return the report on ORG_DIR/results/SYSTEM.

    Raises:
      ValueError: there are no logs, or one cannot be read.
    """
    paths = sorted((folder / "bert").glob("result_*.txt"), key=lambda path: _number_of(path))
    if not paths:
        raise ValueError(f"{folder}: no bert/result_*.txt")
    runs = tuple(results.read_run(path) for path in paths)
    minutes = [run.minutes for run in runs if run.succeeded]
    by_train_samples = all(run.counts_by_train_samples for run in runs)
    return SystemReport(
        name=folder.name,
        runs=runs,
        compliance=tuple(check_log(path, ruleset) for path in paths),
        rcp=check_rcp(folder / "bert", ruleset, by_train_samples=by_train_samples),
        problems=tuple(results.problems_of_result(runs)),
        olympic_minutes=results.olympic_mean(minutes, num_failed=len(runs) - len(minutes)),
    )


def read_submission(org_dir: Path, ruleset: str) -> list[SystemReport]:
    """Return the reports on all systems of a submitter.

    Raises:
      ValueError: there is no result for BERT.
    """
    folders = sorted(path.parent for path in (org_dir / "results").glob("*/bert"))
    if not folders:
        raise ValueError(f"{org_dir}: no results/SYSTEM/bert; give the submitter's folder")
    return [read_system(folder, ruleset) for folder in folders]


def as_text(report: SystemReport) -> str:
    """Return the report for a terminal."""
    lines = [f"{report.name}: {_score(report)}"]
    for run, verdict in zip(report.runs, report.compliance, strict=True):
        compliant = "compliant" if verdict.passed else "NOT compliant"
        cells = " ".join(_cells(run)[1:])
        lines.append(f"  {run.path.name:14} {cells}  {compliant}")
    lines.append(f"  RCP: {'passed' if report.rcp.passed else 'FAILED'} ({report.rcp.reason})")
    lines += [f"  problem: {problem}" for problem in report.problems]
    return "\n".join(lines)


def as_json(reports: Sequence[SystemReport]) -> str:
    """Return every number of the reports."""
    entries = [
        {**dataclasses.asdict(report), "scaled_minutes": report.scaled_minutes}
        for report in reports
    ]
    return json.dumps(entries, indent=1, default=str) + "\n"


def as_html(reports: Sequence[SystemReport], *, title: str) -> str:
    """Return a page that needs nothing from outside."""
    body = "".join(map(_section, reports))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><h1>{html.escape(title)}</h1>{body}</body></html>\n"
    )


def _section(report: SystemReport) -> str:
    head = "".join(
        f"<th>{name}</th>"
        for name in ("run", "status", "minutes", "samples", "accuracy", "batch", "compliance")
    )
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell.strip())}</td>" for cell in _cells(run))
        + _verdict_cell("yes" if verdict.passed else "no", verdict.passed) + "</tr>"
        for run, verdict in zip(report.runs, report.compliance, strict=True)
    )  # fmt: skip
    problems = "".join(f'<li class="bad">{html.escape(text)}</li>' for text in report.problems)
    word = "passed" if report.rcp.passed else "failed"
    return (
        f"<h2>{html.escape(report.name)}</h2><p>{html.escape(_score(report))}</p>"
        f"<p>Reference convergence points: {word}. {html.escape(report.rcp.reason)}</p>"
        f"<ul>{problems}</ul>{_accuracy_svg(report)}"
        f'<div class="wide"><table><tr>{head}</tr>{rows}</table></div>'
    )


def _verdict_cell(text: str, good: bool) -> str:
    return f'<td class="{"good" if good else "bad"}">{text}</td>'


def _accuracy_svg(report: SystemReport) -> str:
    """Draw accuracy over time for every run, with the target."""
    figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    for run in report.runs:
        minutes = [evaluation.minutes for evaluation in run.evaluations]
        accuracies = [evaluation.accuracy for evaluation in run.evaluations]
        axes.plot(minutes, accuracies, ".-", label=run.path.stem)
    axes.axhline(TARGET_MASKED_LM_ACCURACY, color="#b3261e", linestyle="--", label="target 0.720")
    axes.set_xlabel("minutes since run_start")
    axes.set_ylabel("masked-LM accuracy")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", ncols=2)
    picture = io.StringIO()
    figure.savefig(picture, format="svg")
    pyplot.close(figure)
    return picture.getvalue().partition("<svg")[1] + picture.getvalue().partition("<svg")[2]


def _cells(run: results.RunResult) -> list[str]:
    samples = "-" if run.samples_to_converge is None else f"{run.samples_to_converge:,}"
    accuracy = f"{run.evaluations[-1].accuracy:.4f}" if run.evaluations else "-"
    return [
        run.path.name,
        f"{run.status:8}",
        f"{run.minutes:10.4f}",
        f"{samples:>11}",
        f"{accuracy:>7}",
        f"{run.global_batch_size or '-':>6}",
    ]


def _score(report: SystemReport) -> str:
    if report.olympic_minutes is None:
        return "no score: too few runs converged"
    text = f"{report.olympic_minutes:.5f} minutes, olympic mean of {len(report.runs)} runs"
    if report.rcp.scaling != 1.0:
        text += f"; {report.scaled_minutes:.5f} scaled by {report.rcp.scaling:.4f}"
    return text


def _number_of(path: Path) -> int:
    digits = path.stem.removeprefix("result_")
    return int(digits) if digits.isdigit() else -1


def main(arguments: Sequence[str] | None = None) -> int:
    """Print and write the report; return 1 with one line if something cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m mlperf_bert.mlperf.report")
    parser.add_argument("org_dir", type=Path)
    parser.add_argument("--ruleset", default=RULESETS[-1])
    parser.add_argument("--output", type=Path, help="HTML file; the JSON goes beside it")
    given = parser.parse_args(arguments)
    try:
        reports = read_submission(given.org_dir, given.ruleset)
    except ValueError as error:
        print(f"report: {error}", file=sys.stderr)
        return 1
    for report in reports:
        print(as_text(report))
    if given.output:
        title = f"MLPerf Training BERT: {given.org_dir.resolve().name}, ruleset {given.ruleset}"
        given.output.write_text(as_html(reports, title=title), encoding="utf-8")
        given.output.with_suffix(".json").write_text(as_json(reports), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
