"""The official compliance checker's verdict on a log, for any number of rulesets.

    python -m mlperf_bert.submission.compliance build/demo/results/result_0.txt --ruleset 5.0.0

prints one line per ruleset and ends with 1 if any of them refuses the log.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mlperf_bert.files import paths
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.mlperf.rules import RULESETS
from mlperf_bert.options import expanded_arguments
from mlperf_bert.submission import official


@dataclass(frozen=True)
class Verdict:
    """What the official checker says of one log under one ruleset."""

    path: Path
    ruleset: str
    """The ruleset of the check, such as "5.0.0"."""
    passed: bool
    messages: tuple[str, ...]
    """What the checker found, one finding each; empty if the log passed without warning."""

    def __str__(self) -> str:
        verdict = "SUCCESS" if self.passed else "FAILED"
        findings = "".join(f"\n    {message}" for message in self.messages)
        return f"{self.ruleset} {verdict} {self.path}{findings}"


def check_log(path: Path, ruleset: str) -> Verdict:
    """Runs the official compliance checker on a log under one ruleset."""
    if not path.is_file():
        raise ValueError(f"{path}: no such log; give the path of a result_N.txt")
    arguments = ["--usage", "training", "--ruleset", ruleset, str(path)]
    has_ended, report = official.ask("compliance_checker", *arguments, ruleset=ruleset)
    passed = has_ended and "SUCCESS" in report
    messages = _findings(report)
    # A log that the checker cannot parse makes it crash.
    if not passed and not messages:
        messages = (official.last_line(report),)
    return Verdict(path, ruleset, passed, messages)


def _findings(report: str) -> tuple[str, ...]:
    """Returns the first lines of the findings in the checker's output, which are dashed apart."""
    findings: list[str] = []
    for record in re.split(r"^(?=INFO - |WARNING - |ERROR - )", report, flags=re.MULTILINE):
        level, _, text = record.partition(" - ")
        for finding in re.split(r"\n-{30}\n", text.strip()) if level == "WARNING" else ():
            # The quoted line of the log and the quoted state are left out.
            headline, *others = finding.strip().splitlines()
            reasons = [line for line in others if line.startswith("failed test:")]
            findings.append(" ".join([headline, *reasons]))
    return tuple(findings)


@ends_in_one_line("compliance")
def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the verdicts; returns 0 if every ruleset accepts every log, else 1."""
    parser = argparse.ArgumentParser(prog="python -m mlperf_bert.submission.compliance")
    parser.add_argument("logs", nargs="+", metavar="result_N.txt")
    parser.add_argument(
        "--ruleset",
        action="append",
        dest="rulesets",
        help="may be given several times; default: all from 1.0.0 to 5.0.0",
    )
    options = parser.parse_args(expanded_arguments(arguments))
    verdicts = [
        check_log(log, ruleset)
        for log in map(paths.require_local, options.logs)
        for ruleset in options.rulesets or RULESETS
    ]
    for verdict in verdicts:
        print(verdict)
    return 0 if all(verdict.passed for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
