"""The folder that a submitter hands in, and the official tools' verdict on it.

    ORG/systems/SYSTEM.json
    ORG/results/SYSTEM/bert/result_0.txt ... result_9.txt
    ORG/benchmarks/bert/implementations/mlperf_bert/...
    ORG/benchmarks/bert/SYSTEM/SYSTEM_mlperf_bert.json README.md setup.sh init_datasets.sh
                               run_and_time.sh

Source: submission rules, "Directory structure, Training"; the official package checker.
"""

import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mlperf_bert.mlperf.results import RunResult, olympic_mean, problems_of_result, read_run
from mlperf_bert.submission import official
from mlperf_bert.submission.compliance import Verdict, check_log
from mlperf_bert.submission.official import ToolVerdict
from mlperf_bert.submission.rcp import RcpVerdict, check_rcp
from mlperf_bert.submission.system import read_overrides

IMPLEMENTATION = "mlperf_bert"

# The repository checker wants no name that starts with a dot, and no file of 50 MB.
_SOURCES = ("*.py", "*.sh", "*.md", "*.toml", "requirements*.lock", "LICENSE", "Dockerfile")
_SOURCE_FOLDERS = ("mlperf_bert", "cleanup_scripts", "configs", "cloud", "tracing")
_SCRIPTS = ("setup.sh", "init_datasets.sh", "run_and_time.sh")


@dataclass(frozen=True)
class SubmissionVerdict:
    """What the official tools say of one system's result, and what it is worth.

    Attributes:
      ruleset: for instance "5.0.0".
      runs: what the logs say.
      compliance: the verdict on each log.
      rcp: the verdict on the number of samples.
      rcp_source: which reference points it was asked about.
      tools: the verdicts of the other tools.
      problems: what keeps the runs from being one result.
      olympic_minutes: mean without the fastest and the slowest; None if too many failed.
      official_minutes: what the official summarizer says, scaled; None for no score.
    """

    ruleset: str
    runs: tuple[RunResult, ...]
    compliance: tuple[Verdict, ...]
    rcp: RcpVerdict
    rcp_source: str
    tools: tuple[ToolVerdict, ...]
    problems: tuple[str, ...]
    olympic_minutes: float | None
    official_minutes: float | None

    @property
    def passed(self) -> bool:
        """Whether everything that applies passed; one log of ten may be not compliant."""
        refused = sum(not verdict.passed for verdict in self.compliance)
        return (
            refused <= 1
            and self.rcp.passed
            and all(tool.passed is not False for tool in self.tools)
            and not self.problems
            and self.olympic_minutes is not None
        )

    def lines(self) -> list[str]:
        """Return the verdict for a terminal, a line for each tool."""
        refused = [verdict for verdict in self.compliance if not verdict.passed]
        lines = [f"compliance checker: {len(self.compliance) - len(refused)} of "
                 f"{len(self.compliance)} logs accepted"]  # fmt: skip
        lines += [f"    {verdict.path.name}: {'; '.join(verdict.messages)}" for verdict in refused]
        word = "passed" if self.rcp.passed else "FAILED"
        lines.append(f"RCP checker ({self.rcp_source}): {word}, {self.rcp.reason}")
        lines += [str(tool) for tool in self.tools]
        lines += [f"problem: {problem}" for problem in self.problems]
        if self.olympic_minutes is not None:
            scaled = ""
            if self.rcp.scaling != 1.0:
                scaled = (
                    f"; {self.olympic_minutes * self.rcp.scaling:.4f} scaled by "
                    f"{self.rcp.scaling:.4f}, for it converged faster than the reference"
                )
            lines.append(
                f"time to train: {self.olympic_minutes:.4f} minutes, olympic mean of "
                f"{len(self.runs)} runs{scaled}"
            )
        if self.official_minutes is not None:
            lines.append(f"official summarizer: {self.official_minutes:.4f} minutes")
        lines.append(f"{'PASSED' if self.passed else 'NOT PASSED'} under ruleset {self.ruleset}")
        return lines


def write_folder(
    org_dir: Path,
    *,
    system: str,
    description: Mapping[str, object],
    logs: Sequence[Path],
    flags: Sequence[str],
    sources: Path,
) -> None:
    """Write the folder again, whole or not at all.

    Args:
      org_dir: the submitter's folder; replaced.
      system: name of the system, which names files and folders.
      description: of the system.
      logs: of the runs, in order.
      flags: of run_pretraining.py, for run_and_time.sh.
      sources: the checkout that was run.
    """
    partial = org_dir.with_name(f"{org_dir.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    results = partial / "results" / system / "bert"
    results.mkdir(parents=True)
    for number, log in enumerate(logs):
        shutil.copyfile(log, results / f"result_{number}.txt")
    _write_json(partial / "systems" / f"{system}.json", description)
    benchmark = partial / "benchmarks" / "bert"
    _copy_sources(sources, benchmark / "implementations" / IMPLEMENTATION)
    _write_run_folder(benchmark / system, system, description, flags)
    if org_dir.exists():
        shutil.rmtree(org_dir)
    partial.replace(org_dir)


def judge(
    org_dir: Path, *, system: str, ruleset: str, custom_rcps: Path | None = None
) -> SubmissionVerdict:
    """Ask all official tools about one system.

    The package checker comes before the summarizer: the one writes scaling.json, the other reads
    it.

    Raises:
      ValueError: a log that cannot be read, or a ruleset without BERT.
    """
    results = org_dir / "results" / system / "bert"
    logs = result_files(results)
    runs = tuple(read_run(path) for path in logs)
    by_train_samples = all(run.counts_by_train_samples for run in runs)
    minutes = [run.minutes for run in runs if run.succeeded]
    description = org_dir / "systems" / f"{system}.json"
    return SubmissionVerdict(
        ruleset=ruleset,
        runs=runs,
        compliance=tuple(check_log(path, ruleset) for path in logs),
        rcp=check_rcp(results, ruleset, by_train_samples=by_train_samples, custom_rcps=custom_rcps),
        rcp_source=str(custom_rcps.name) if custom_rcps else f"official points of {ruleset}",
        tools=(
            official.check_seeds(logs, ruleset),
            official.check_package(org_dir, ruleset, by_train_samples=by_train_samples),
            official.check_system_description(description, ruleset),
            official.check_repository(org_dir, ruleset),
        ),
        problems=tuple(problems_of_result(runs)),
        olympic_minutes=olympic_mean(minutes, num_failed=len(runs) - len(minutes)),
        official_minutes=official.summarize(org_dir, ruleset).get(_system_name(description)),
    )


def _system_name(description: Path) -> str:
    """What the summarizer calls a system: the name that its description has, not the file's."""
    return str(read_overrides(description).get("system_name"))


def result_files(folder: Path) -> list[Path]:
    """Return result_0.txt, result_1.txt, ... of a folder, by number."""

    def number_of(path: Path) -> int:
        digits = path.stem.removeprefix("result_")
        return int(digits) if digits.isdigit() else -1

    return sorted(folder.glob("result_*.txt"), key=number_of)


def _copy_sources(sources: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    for pattern in _SOURCES:
        for path in sorted(sources.glob(pattern)):
            shutil.copyfile(path, folder / path.name)
    ignored = shutil.ignore_patterns("__pycache__", ".*")
    for name in _SOURCE_FOLDERS:
        if (sources / name).is_dir():
            shutil.copytree(sources / name, folder / name, ignore=ignored)


def _write_run_folder(
    folder: Path, system: str, description: Mapping[str, object], flags: Sequence[str]
) -> None:
    folder.mkdir(parents=True)
    _write_json(
        folder / f"{system}_{IMPLEMENTATION}.json",
        {"implementation": IMPLEMENTATION, "framework": description["framework"]}
        | {"system_name": system, "flags": list(flags)},
    )
    implementation = f"../implementations/{IMPLEMENTATION}"
    train = shlex.join(["python", "run_pretraining.py", *flags])
    bodies = {
        "setup.sh": "make setup",
        "init_datasets.sh": "echo 'Follow steps 1 to 3 of README.md: text, TFRecords, eval shard.'",
        "run_and_time.sh": f'{train} --output_dir="${{OUTPUT_DIR:?a new directory}}"',
    }
    for name in _SCRIPTS:
        path = folder / name
        path.write_text(
            "#!/usr/bin/env bash\nset -euo pipefail\n"
            f'cd "$(dirname "$0")/{implementation}"\n{bodies[name]}\n',
            encoding="utf-8",
        )
        path.chmod(0o755)
    (folder / "README.md").write_text(
        f"# BERT on {system}\n\n{description['framework']}, {description['operating_system']}.\n"
        "One run: `./setup.sh`, `./init_datasets.sh`, then `OUTPUT_DIR=out ./run_and_time.sh`;\n"
        "its log is `out/bert.log`.\n",
        encoding="utf-8",
    )


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
