"""The official compliance checker's verdict on a log, for any number of rulesets.

    python -m mlperf_bert.mlperf.compliance build/demo/results/result_0.txt --ruleset 5.0.0

prints one line per ruleset and ends with 1 if any of them refuses the log.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

RULESETS = ("1.0.0", "1.1.0", "2.0.0", "2.1.0", "3.0.0", "3.1.0", "4.0.0", "4.1.0", "5.0.0")
"""Every ruleset from 1.0.0 on that accepts BERT."""


@dataclass(frozen=True)
class Verdict:
    """What the official checker says of one log under one ruleset.

    Attributes:
      path: the log.
      ruleset: for instance "5.0.0".
      passed: whether the log is compliant.
      messages: what the checker found, one finding each; empty if it passed without warning.
    """

    path: Path
    ruleset: str
    passed: bool
    messages: tuple[str, ...]

    def __str__(self) -> str:
        verdict = "SUCCESS" if self.passed else "FAILED"
        findings = "".join(f"\n    {message}" for message in self.messages)
        return f"{self.ruleset} {verdict} {self.path}{findings}"


def check_log(path: str | Path, ruleset: str) -> Verdict:
    """Run the official compliance checker on a log under one ruleset.

    The checker runs as a command of its own, with a fresh file for its output: it appends to
    what it finds, so that an old SUCCESS in the same file would pass for a new one.

    Raises:
      ValueError: there is no such file, or the ruleset does not accept BERT.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: no such log; give the path of a result_N.txt")
    if ruleset not in RULESETS:
        raise ValueError(f"ruleset {ruleset!r} has no BERT; use one of {', '.join(RULESETS)}")
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "compliance.log"
        command = [sys.executable, "-m", "mlperf_logging.compliance_checker"]
        command += ["--usage", "training", "--ruleset", ruleset]
        command += ["--log_output", str(output), str(path)]
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
        report = output.read_text(encoding="utf-8") if output.exists() else ""
    passed = finished.returncode == 0 and "SUCCESS" in report
    messages = _findings(report)
    if not passed and not messages:
        messages = (_last_line(finished.stderr) or "the checker gave no reason",)
    return Verdict(path, ruleset, passed, messages)


def check_rulesets(path: str | Path, rulesets: Sequence[str] = RULESETS) -> list[Verdict]:
    """Return the verdict of every ruleset on a log, in the order given."""
    return [check_log(path, ruleset) for ruleset in rulesets]


def _findings(report: str) -> tuple[str, ...]:
    """Return the first lines of the findings in the checker's output, which are dashed apart."""
    findings: list[str] = []
    for record in re.split(r"^(?=INFO - |WARNING - |ERROR - )", report, flags=re.MULTILINE):
        level, _, text = record.partition(" - ")
        if level == "WARNING":
            findings += [_headline(finding) for finding in re.split(r"\n-{30}\n", text.strip())]
    return tuple(findings)


def _headline(finding: str) -> str:
    """Return what failed without the line of the log and the state that the checker quotes."""
    lines = finding.strip().splitlines()
    reasons = [line for line in lines[1:] if line.startswith("failed test:")]
    return " ".join([lines[0], *reasons])


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the verdicts; return 0 if every ruleset accepts every log, else 1."""
    parser = argparse.ArgumentParser(prog="python -m mlperf_bert.mlperf.compliance")
    parser.add_argument("logs", nargs="+", metavar="result_N.txt", type=Path)
    parser.add_argument(
        "--ruleset",
        action="append",
        dest="rulesets",
        help="may be given several times; default: all from 1.0.0 to 5.0.0",
    )
    given = parser.parse_args(arguments)
    try:
        verdicts = [
            check_log(log, ruleset) for log in given.logs for ruleset in given.rulesets or RULESETS
        ]
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    for verdict in verdicts:
        print(verdict)
    return 0 if all(verdict.passed for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
