"""The official check against reference convergence points (RCP): did the runs converge too fast?"""

import re
from dataclasses import dataclass

from mlperf_bert.files.paths import Location
from mlperf_bert.submission import official

UNAIDED = "official RCP checker, which counts by epoch_num"
"""Unless it is told to count by train_samples, for logs whose epoch_num counts no samples."""


@dataclass(frozen=True)
class RcpVerdict:
    """What the official checker says of one result."""

    passed: bool
    """Whether the result converged as slowly as is credible, or slower."""
    reason: str
    """The checker's last line, without its advice how to bypass the check."""
    mean_samples: float | None
    """The reference's at this batch size, as `min_mean_samples`; None if there is none."""
    min_mean_samples: float | None
    submission_mean_samples: float | None
    """Olympic mean of the runs; None if too many failed."""
    scaling: float
    """Multiplies the minutes of a result that converged faster than the reference."""

    def __str__(self) -> str:
        words = f"{'passed' if self.passed else 'FAILED'}, {self.reason}"
        if self.submission_mean_samples is None or self.min_mean_samples is None:
            return words
        return (
            f"{words}; samples to converge, as it counts: {self.submission_mean_samples:,.0f}, "
            f"credible from {self.min_mean_samples:,.0f} on"
        )


def check_rcp(
    results_dir: Location,
    ruleset: str,
    *,
    by_train_samples: bool = False,
    custom_rcps: Location | None = None,
) -> RcpVerdict:
    """Run the official RCP checker on the ten logs in `results_dir`.

    Args:
      results_dir: holds result_0.txt and so on.
      ruleset: one with BERT.
      by_train_samples: take the samples from train_samples, for logs whose epoch_num is not.
      custom_rcps: JSON file of reference points to use instead of the official ones.

    Raises:
      ValueError: the ruleset has no BERT.
    """
    options = ["--rcp_usage", "training", "--rcp_version", ruleset]
    options += ["--bert_train_samples"] if by_train_samples else []
    options += ["--custom_rcps", str(custom_rcps)] if custom_rcps else []
    answer = official.ask("rcp_checker", *options, str(results_dir), ruleset=ruleset)
    report = answer.report
    last_line, _, _ = official.last_line(report).partition(", consider adding")
    return RcpVerdict(
        passed=answer.returncode == 0 and "RCP test PASSED" in report,
        reason=last_line.partition(" - ")[2] or last_line,
        mean_samples=_number(r"'RCP Mean': (?:np\.float64\()?([\d.]+)", report),
        min_mean_samples=_number(r"'Min Epochs': (?:np\.float64\()?([\d.]+)", report),
        submission_mean_samples=_number(r"Submission mean epochs: ([\d.]+)", report),
        scaling=_number(r"normalized by factor of .* = ([\d.]+)", report) or 1.0,
    )


def _number(pattern: str, text: str) -> float | None:
    found = re.search(pattern, text)
    return float(found.group(1)) if found else None
