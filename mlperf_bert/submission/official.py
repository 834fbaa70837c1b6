"""The official tools of mlperf-logging, run so that none reports a false success.

Most of them end with 0 whatever they find, and all append to their log file: an old SUCCESS in it
would pass for a new one. So each call gets a fresh file, and the verdict is read from the text.
"""

import json
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mlperf_logging.package_checker.seed_checker import SeedChecker

from mlperf_bert.files import json_text
from mlperf_bert.mlperf.rules import require_ruleset

_PACKAGE_PASSED = "PACKAGE CHECKER FOUND NO ERRORS, SUCCESS !"
_REPOSITORY_PASSED = "ALL CHECKS PASSED."
_SYSTEM_PASSED = "System description checker passed for"
_RULESETS_WITHOUT_REPOSITORY_CHECKER = ("1.0.0", "1.1.0")
_BY_TRAIN_SAMPLES = "--bert_train_samples"


@dataclass(frozen=True)
class ToolVerdict:
    """One official tool's verdict on a submission."""

    tool: str
    passed: bool | None
    """None if the tool does not apply."""
    reasons: tuple[str, ...] = ()
    """What it found wrong, or why it does not apply, one each."""

    def __str__(self) -> str:
        word = {True: "passed", False: "FAILED", None: "not applicable"}[self.passed]
        return f"{self.tool}: {word}" + "".join(f"\n    {reason}" for reason in self.reasons)


@dataclass(frozen=True)
class RcpVerdict:
    """What the official RCP checker says of one result."""

    passed: bool | None
    """Whether the result converged no faster than is credible; None if this is unknown."""
    reason: str
    """The checker's last line, without its advice how to bypass the check."""
    mean_samples: float | None
    """The reference's mean at this batch size; None, as `min_mean_samples`, without a point."""
    min_mean_samples: float | None
    submission_mean_samples: float | None
    """Olympic mean of the runs; None if too many failed."""
    scaling: float
    """Multiplies the minutes of a result that converged faster than the reference."""
    batch_size: float | None = None
    """The batch size of the point: a batch smaller than all points is judged by the smallest."""

    @property
    def word(self) -> str:
        """The verdict in a word, or two."""
        return {True: "passed", False: "FAILED", None: "no verdict"}[self.passed]

    def __str__(self) -> str:
        words = f"{self.word}, {self.reason}"
        if self.submission_mean_samples is None or self.min_mean_samples is None:
            return words
        return (
            f"{words}; samples to converge, as it counts: {self.submission_mean_samples:,.0f}, "
            f"credible from {self.min_mean_samples:,.0f} on"
        )


def ask(tool: str, *arguments: str, ruleset: str) -> tuple[bool, str]:
    """Runs `python -m mlperf_logging.TOOL ARGUMENTS` with a fresh log file.

    Returns: whether it ended with 0, and its log file, or its standard error if it crashed.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "answer.log"
        options = ["-m", f"mlperf_logging.{tool}", "--log_output", str(output)]
        finished = _python(*options, *arguments, ruleset=ruleset)
        report = output.read_text(encoding="utf-8") if output.exists() else ""
    # A crash leaves a log as after a failed check, without the reason.
    crashed = "Traceback (most recent call last)" in finished.stderr and finished.returncode
    report = finished.stderr if crashed or not report else report
    return finished.returncode == 0, report


def _python(*arguments: str, ruleset: str) -> subprocess.CompletedProcess:
    require_ruleset(ruleset)
    # The compliance checker prints sets: without this their order changes at each call.
    words = ["env", "PYTHONHASHSEED=0", sys.executable, *arguments]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def check_rcp(
    results_dir: Path,
    ruleset: str,
    *,
    by_train_samples: bool = False,
    custom_rcps: Path | None = None,
) -> RcpVerdict:
    """Runs the official RCP checker on the ten logs in `results_dir`.

    Args:
      results_dir: holds result_0.txt and so on.
      ruleset: one with BERT.
      by_train_samples: take samples from train_samples, for logs whose epoch_num has none.
      custom_rcps: JSON file of RCPs to use instead of the official ones.
    """
    options = ["--rcp_usage", "training", "--rcp_version", ruleset]
    options += [_BY_TRAIN_SAMPLES] if by_train_samples else []
    options += ["--custom_rcps", str(custom_rcps)] if custom_rcps else []
    has_ended, report = ask("rcp_checker", *options, str(results_dir), ruleset=ruleset)
    reason, _, _ = last_line(report).partition(", consider adding")  # its way around the check
    reason = reason.partition(" - ")[2] or reason
    if by_train_samples:  # without this the checker fails such logs
        reason += f", counted by train_samples (its option {_BY_TRAIN_SAMPLES})"
    return RcpVerdict(
        passed=has_ended and "RCP test PASSED" in report,
        reason=reason,
        mean_samples=_number(r"'RCP Mean': (?:np\.float64\()?([\d.]+)", report),
        min_mean_samples=_number(r"'Min Epochs': (?:np\.float64\()?([\d.]+)", report),
        submission_mean_samples=_number(r"Submission mean epochs: ([\d.]+)", report),
        scaling=_number(r"normalized by factor of .* = ([\d.]+)", report) or 1.0,
        batch_size=_number(r"'BS': ([\d.]+)", report),
    )


def _number(pattern: str, text: str) -> float | None:
    match = re.search(pattern, text)
    return float(match.group(1)) if match else None


def check_package(org_dir: Path, ruleset: str, *, by_train_samples: bool = False) -> ToolVerdict:
    """Asks the package checker about a submitter's folder.

    It also scales the results of runs that converged faster than the reference: it writes or
    removes scaling.json beside the logs, which the summarizer reads.
    """
    options = ["--rcp-bert-train-samples"] if by_train_samples else []
    words = (*options, str(org_dir), "training", ruleset)
    has_ended, report = ask("package_checker", *words, ruleset=ruleset)
    reasons = _errors(report)
    systems = (org_dir / "systems").glob("*.json")
    divisions = {str(json_text.read_object(path).get("division")) for path in systems}
    # The checker checks nothing in a division whose name it does not know.
    if other := sorted(divisions - {"closed", "open"}):
        reasons.append(
            f"systems/*.json: division {other[0]!r} is neither closed nor open, so that it left "
            "out the checks of seeds and convergence"
        )
    if "Skipping benchmark" in report:
        reasons.append("it skipped the benchmark, so that its success means nothing")
    passed = has_ended and _PACKAGE_PASSED in report
    if "closed" in divisions and "RCP Test Passed" not in report and not reasons:
        reasons.append("it did not reach the convergence check")
    if not passed and not reasons:
        reasons.append(last_line(report))
    return ToolVerdict("package checker", passed and not reasons, tuple(reasons))


def check_seeds(result_files: Sequence[Path], ruleset: str) -> ToolVerdict:
    """Asks the seed checker, which the package checker skips unless the division is closed."""
    names = [str(path) for path in result_files]
    # The checker warns of logs with several seeds, which the rules allow.
    with warnings.catch_warnings(action="ignore"):
        # Private; mlperf-logging is pinned.
        findings = SeedChecker(ruleset)._assert_unique_seed_per_run(names)
    return ToolVerdict("seed checker", not findings, tuple(findings))


def check_system_description(path: Path, ruleset: str) -> ToolVerdict:
    """Asks the checker of system descriptions."""
    _, report = ask("system_desc_checker", str(path), "training", ruleset, ruleset=ruleset)
    return _by_phrase("system description checker", report, _SYSTEM_PASSED)


def check_repository(org_dir: Path, ruleset: str) -> ToolVerdict:
    """Asks the repository checker about names and sizes of files."""
    # The checker would end in an error about its own arguments.
    if ruleset in _RULESETS_WITHOUT_REPOSITORY_CHECKER:
        return ToolVerdict("repository checker", None, (f"it does not know ruleset {ruleset}",))
    _, report = ask("repo_checker", str(org_dir), "training", ruleset, ruleset=ruleset)
    return _by_phrase("repository checker", report, _REPOSITORY_PASSED)


def _by_phrase(tool: str, report: str, success: str) -> ToolVerdict:
    # These tools end with 0 whatever they find.
    passed = success in report
    reasons = () if passed else tuple(_errors(report) or [last_line(report)])
    return ToolVerdict(tool, passed, reasons)


def summarize(org_dir: Path, ruleset: str) -> dict[str, float | None]:
    """Returns each system's score in minutes as the official summarizer computes it.

    It multiplies by the scaling.json that it finds: ask the package checker of the same ruleset
    before.

    Returns: name of the system as its description says -> minutes; None for no score.
    """
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "summary.csv"
        # The tool prints a table for people; the numbers are in a file beside the CSV.
        options = ["-m", "mlperf_logging.result_summarizer", str(org_dir), "training", ruleset]
        finished = _python(*options, "--csv", str(table), ruleset=ruleset)
        numbers = table.with_suffix(".json")
        if finished.returncode or not numbers.exists():
            raise ValueError(f"the official summarizer failed: {last_line(finished.stderr)}")
        rows = json.loads(numbers.read_text(encoding="utf-8"))
    return {row["system"]: row.get("bert") for row in rows}


def _errors(report: str) -> list[str]:
    return [
        line.partition(" - ")[2].strip()
        for line in report.splitlines()
        if line.startswith("ERROR - ")
    ]


def last_line(text: str) -> str:
    """Returns the last line of what a tool printed, which in a crash names the error."""
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it gave no reason"
