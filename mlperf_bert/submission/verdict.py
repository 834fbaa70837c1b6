"""The official tools' verdict on one system: do its runs make a result, and of how many minutes?"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from mlperf_bert.files.paths import Location
from mlperf_bert.mlperf.results import RunResult, read_run
from mlperf_bert.mlperf.rules import require_ruleset
from mlperf_bert.submission import official
from mlperf_bert.submission.compliance import Verdict, check_log
from mlperf_bert.submission.folder import description_path, result_files
from mlperf_bert.submission.official import ToolVerdict
from mlperf_bert.submission.rcp import UNAIDED, RcpVerdict, check_rcp
from mlperf_bert.submission.scoring import olympic_mean, problems_of_result
from mlperf_bert.submission.system import read_overrides


@dataclass(frozen=True, kw_only=True)
class SystemVerdict:
    """What the official tools say of one system's runs."""

    name: str
    """The name of the system's folder."""
    ruleset: str
    """For instance "5.0.0"."""
    runs: tuple[RunResult, ...]
    """In the order of their numbers, as `compliance`, the verdicts on each log."""
    compliance: tuple[Verdict, ...]
    rcp: RcpVerdict
    """On the number of samples."""
    rcp_unaided: RcpVerdict | None = None
    """What the RCP checker says unless it is told to count by train_samples, for logs whose
    epoch_num counts no samples; None for others."""
    rcp_source: str = ""
    """The reference points that the RCP checker was given."""
    seeds: ToolVerdict
    folder_tools: tuple[ToolVerdict, ...] = ()
    """On the submitter's whole folder; empty if they were not asked for."""
    problems: tuple[str, ...]
    """Why the runs are not a result."""
    olympic_minutes: float | None
    """The score before scaling by the RCP; None if too many runs failed."""
    official_minutes: float | None = None
    """The official summarizer's score, scaled; None if it has none or was not asked."""
    description: Mapping[str, object] = field(default_factory=dict)
    """systems/SYSTEM.json; empty if there is none."""

    @property
    def scaled_minutes(self) -> float | None:
        """The score, scaled if the runs converged faster than the reference."""
        return None if self.olympic_minutes is None else self.olympic_minutes * self.rcp.scaling

    @property
    def tools(self) -> tuple[ToolVerdict, ...]:
        """The verdicts of all tools but the compliance checker and the RCP checker."""
        return (self.seeds, *self.folder_tools)

    @property
    def passed(self) -> bool:
        """Whether everything that applies passed; one log of ten may be not compliant."""
        return (
            sum(not verdict.passed for verdict in self.compliance) <= 1
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
        if self.rcp_unaided:
            lines.append(f"{UNAIDED}: {self.rcp_unaided}")
        lines += [str(tool) for tool in self.tools]
        lines += [f"problem: {problem}" for problem in self.problems]
        if self.olympic_minutes is not None:
            scaled = ""
            if self.rcp.scaling != 1.0:
                scaled = (
                    f"; {self.scaled_minutes:.4f} scaled by {self.rcp.scaling:.4f}, for it "
                    "converged faster than the reference"
                )
            lines.append(
                f"time to train: {self.olympic_minutes:.4f} minutes, olympic mean of "
                f"{len(self.runs)} runs{scaled}"
            )
        if self.official_minutes is not None:
            lines.append(f"official summarizer: {self.official_minutes:.4f} minutes")
        return [*lines, f"{'PASSED' if self.passed else 'NOT PASSED'} under ruleset {self.ruleset}"]


def judge(folder: Location, ruleset: str, *, custom_rcps: Location | None = None) -> SystemVerdict:
    """Ask the official tools about the logs in ORG_DIR/results/SYSTEM; write nothing there.

    Raises:
      ValueError: there are no logs, or one cannot be read, or the ruleset has no BERT.
    """
    require_ruleset(ruleset)
    paths = result_files(folder / "bert")
    if not paths:
        raise ValueError(f"{folder}: no bert/result_*.txt")
    runs = tuple(read_run(path) for path in paths)
    minutes = [run.minutes for run in runs if run.succeeded]
    description = description_path(folder.parent.parent, folder.name)
    rcp, rcp_unaided = check_convergence(folder / "bert", runs, ruleset, custom_rcps=custom_rcps)
    return SystemVerdict(
        name=folder.name,
        ruleset=ruleset,
        runs=runs,
        compliance=tuple(check_log(path, ruleset) for path in paths),
        rcp=rcp,
        rcp_unaided=rcp_unaided,
        rcp_source=custom_rcps.name if custom_rcps else f"official points of {ruleset}",
        seeds=official.check_seeds(paths, ruleset),
        problems=tuple(problems_of_result(runs)),
        olympic_minutes=olympic_mean(minutes, num_failed=len(runs) - len(minutes)),
        description=read_overrides(description) if description.exists() else {},
    )


def check_convergence(
    folder: Location,
    runs: tuple[RunResult, ...],
    ruleset: str,
    *,
    custom_rcps: Location | None = None,
) -> tuple[RcpVerdict, RcpVerdict | None]:
    """Ask the RCP checker about the runs of a folder with logs.

    Returns: `rcp` and `rcp_unaided` of a `SystemVerdict`.
    """
    by_train_samples = _count_by_train_samples(runs)
    verdict = check_rcp(folder, ruleset, by_train_samples=by_train_samples, custom_rcps=custom_rcps)
    unaided = check_rcp(folder, ruleset, custom_rcps=custom_rcps) if by_train_samples else None
    return verdict, unaided


def judge_submission(
    org_dir: Path, system: str, ruleset: str, *, custom_rcps: Location | None = None
) -> SystemVerdict:
    """Ask all official tools about a system, also those that look at the submitter's whole folder.

    The package checker comes before the summarizer: the one writes scaling.json beside the logs,
    the other reads it.

    Raises:
      ValueError: as `judge`.
    """
    verdict = judge(org_dir / "results" / system, ruleset, custom_rcps=custom_rcps)
    by_train_samples = _count_by_train_samples(verdict.runs)
    tools = (
        official.check_package(org_dir, ruleset, by_train_samples=by_train_samples),
        official.check_system_description(description_path(org_dir, system), ruleset),
        official.check_repository(org_dir, ruleset),
    )
    # The summarizer calls a system by the name in its description, not by its folder's.
    official_minutes = official.summarize(org_dir, ruleset).get(
        str(verdict.description.get("system_name"))
    )
    return replace(verdict, folder_tools=tools, official_minutes=official_minutes)


def _count_by_train_samples(runs: tuple[RunResult, ...]) -> bool:
    return all(run.counts_by_train_samples for run in runs)
