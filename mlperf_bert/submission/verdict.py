"""Decides whether a system's runs make a result, and its minutes, by asking the official tools."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mlperf_bert.messages import lasting
from mlperf_bert.mlperf.log_reader import RunResult
from mlperf_bert.mlperf.rules import NUM_EVAL_SAMPLES, NUM_RUNS_PER_RESULT
from mlperf_bert.submission import official
from mlperf_bert.submission.compliance import Verdict, check_log
from mlperf_bert.submission.official import RcpVerdict, ToolVerdict, check_rcp
from mlperf_bert.submission.plan import description_path, result_files
from mlperf_bert.submission.runs import in_words, read_runs, why_samples_are_unknown
from mlperf_bert.submission.system import read_description


@dataclass(frozen=True, kw_only=True)
class System:
    """One system's runs, and whether they converged credibly."""

    name: str
    """The name of the system's folder."""
    runs: tuple[RunResult, ...]
    """Each run once, in the order of their numbers."""
    copies: tuple[str, ...] = ()
    """A line about each log that repeats the log of another run."""
    left_out: tuple[str, ...] = ()
    """A line about each log that is unreadable or impossible; it counts as a failed run."""
    description: Mapping[str, object] = field(default_factory=dict)
    """systems/SYSTEM.json; empty if there is none."""
    rcp: RcpVerdict | None = None
    """The verdict on the number of samples; None if the RCP checker was not asked."""

    @property
    def counts_by_train_samples(self) -> bool:
        """Whether the RCP checker must be told to count by train_samples."""
        return all(run.counts_by_train_samples for run in self.runs)


@dataclass(frozen=True, kw_only=True)
class SystemVerdict(System):
    """What the official tools say of one system's runs."""

    ruleset: str
    """The ruleset of the tools, such as "5.0.0"."""
    compliance: tuple[Verdict, ...]
    """The verdict on each run's log."""
    rcp: RcpVerdict
    rcp_source: str = ""
    """The RCPs that the RCP checker was given."""
    seeds: ToolVerdict
    folder_tools: tuple[ToolVerdict, ...] = ()
    """Verdicts on the submitter's whole folder; empty if they were not asked for."""
    problems: tuple[str, ...]
    """Why the runs are not a result."""
    olympic_minutes: float | None
    """The score before scaling by the RCP; None if too many runs failed."""
    official_minutes: float | None = None
    """The official summarizer's score, scaled; None if it has none or was not asked."""

    @property
    def scaled_minutes(self) -> float | None:
        """The score, scaled if the runs converged faster than the reference."""
        return None if self.olympic_minutes is None else self.olympic_minutes * self.rcp.scaling

    @property
    def tools(self) -> tuple[ToolVerdict, ...]:
        """The verdicts of all tools but the compliance checker and the RCP checker."""
        return (self.seeds, *self.folder_tools)

    @property
    def is_compliant(self) -> bool:
        """Whether the compliance checker accepted the logs; the rules forgive one of ten."""
        refused = sum(not verdict.passed for verdict in self.compliance)
        return refused <= len(self.compliance) // NUM_RUNS_PER_RESULT

    @property
    def passed(self) -> bool:
        """Whether everything that applies passed."""
        return (
            self.is_compliant
            and self.rcp.passed is True
            and all(tool.passed is not False for tool in self.tools)  # None: does not apply
            and not self.problems
            and self.olympic_minutes is not None
        )

    def lines(self) -> list[str]:
        """Returns the verdict for a terminal, a line for each tool."""
        refused = [verdict for verdict in self.compliance if not verdict.passed]
        lines = [f"compliance checker: {len(self.compliance) - len(refused)} of "
                 f"{len(self.compliance)} logs accepted"]  # fmt: skip
        lines += [f"    {verdict.path.name}: {'; '.join(verdict.messages)}" for verdict in refused]
        lines.append(f"RCP checker ({self.rcp_source}): {self.rcp.word}, {self.rcp.reason}")
        lines += [str(tool) for tool in self.tools]
        lines += [f"problem: {problem}" for problem in self.problems]
        if self.olympic_minutes is not None:
            scaled = ""
            if self.rcp.scaling != 1.0:
                scaled = (
                    f"; {self.scaled_minutes:.4f} scaled by {self.rcp.scaling:.4f}, because "
                    "it converged faster than the reference"
                )
            lines.append(
                f"time to train: {self.olympic_minutes:.4f} minutes, olympic mean of "
                f"{len(self.runs)} runs{scaled}"
            )
        if self.official_minutes is not None:
            lines.append(f"official summarizer: {self.official_minutes:.4f} minutes")
        return [*lines, f"{'PASSED' if self.passed else 'NOT PASSED'} under ruleset {self.ruleset}"]


def read_system(folder: Path) -> System:
    """Returns what lies in ORG_DIR/results/SYSTEM; no official tool is asked."""
    logs = result_files(folder / "bert")
    if not logs:
        raise ValueError(f"{folder}: no bert/result_*.txt; put the logs of its runs there")
    runs, left_out, copies = read_runs({log.name: log for log in logs})
    if not runs:
        raise ValueError(f"{folder}: no run in it counts; {in_words(left_out)}")
    return System(
        name=folder.name,
        runs=tuple(runs.values()),
        copies=tuple(copies),
        left_out=tuple(left_out),
        description=read_description(folder),
    )


def with_convergence(system: System, ruleset: str, *, custom_rcps: Path | None = None) -> System:
    """Asks the RCP checker about the runs, unless it would count what nobody has trained."""
    # The checker believes every log: planned samples, or one run ten times, would pass.
    why = why_samples_are_unknown(system.runs)
    if not why and system.copies:
        why = f"it would count copies, {in_words(system.copies)}"
    if not why and system.left_out:
        why = f"it would count runs that do not count, {in_words(system.left_out)}"
    if why:
        return replace(system, rcp=RcpVerdict(None, why, None, None, None, 1.0))
    folder, by_train_samples = system.runs[0].path.parent, system.counts_by_train_samples
    verdict = check_rcp(folder, ruleset, by_train_samples=by_train_samples, custom_rcps=custom_rcps)
    return replace(system, rcp=verdict)


@lasting("asking the official tools")
def judge(folder: Path, ruleset: str, *, custom_rcps: Path | None = None) -> SystemVerdict:
    """Asks the official tools about the logs in ORG_DIR/results/SYSTEM; writes nothing there."""
    system = with_convergence(read_system(folder), ruleset, custom_rcps=custom_rcps)
    logs = [run.path for run in system.runs]  # without copies
    minutes = [run.minutes for run in system.runs if run.succeeded]
    return SystemVerdict(
        **vars(system),
        ruleset=ruleset,
        compliance=tuple(check_log(log, ruleset) for log in logs),
        rcp_source=custom_rcps.name if custom_rcps else f"official points of {ruleset}",
        seeds=official.check_seeds(logs, ruleset),
        problems=(
            *problems_of_result(system.runs),
            *filter(None, [in_words(system.copies)]),
            *(f"left out, {line}" for line in [in_words(system.left_out)] if line),
        ),
        olympic_minutes=olympic_mean(
            minutes, num_failed=len(logs) + len(system.left_out) - len(minutes)
        ),
    )


@lasting("asking the official tools")
def judge_submission(
    org_dir: Path, system: str, ruleset: str, *, custom_rcps: Path | None = None
) -> SystemVerdict:
    """Asks all official tools about a system, also tools for the submitter's whole folder.

    The package checker comes first: it writes scaling.json beside the logs, which the summarizer
    reads.
    """
    verdict = judge(org_dir / "results" / system, ruleset, custom_rcps=custom_rcps)
    by_train_samples = verdict.counts_by_train_samples
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


def olympic_mean(minutes: Sequence[float], *, num_failed: int = 0) -> float | None:
    """Returns the mean without the fastest and the slowest; one failed run counts as slowest.

    None if two runs or more failed, or nothing is left.
    """
    if num_failed > 1:
        return None
    ordered = sorted(minutes)
    # A failed run is the slowest: it is left out in place of the slowest finished run.
    counted = ordered[1 : len(ordered) - (1 - num_failed)]
    return sum(counted) / len(counted) if counted else None


def problems_of_result(runs: Sequence[RunResult]) -> list[str]:
    """Returns why these runs are not one result; empty if they are."""
    problems = []
    if why := why_samples_are_unknown(runs):
        problems.append(why)
    if len(runs) != NUM_RUNS_PER_RESULT:
        logs = "log" if len(runs) == 1 else "logs"
        problems.append(f"{len(runs)} {logs}, the rules require {NUM_RUNS_PER_RESULT}")
    batch_sizes = {run.global_batch_size for run in runs}
    if len(batch_sizes) > 1:
        problems.append(f"different global batch sizes: {sorted(map(str, batch_sizes))}")
    closed = [run for run in runs if run.division == "closed"]
    # The open division may evaluate on other examples.
    sizes = {run.num_eval_samples for run in closed if run.num_eval_samples is not None}
    sizes.discard(NUM_EVAL_SAMPLES)
    if sizes:
        problems.append(
            f"evaluated on {', '.join(map(str, sorted(sizes)))} samples, the rules require "
            f"{NUM_EVAL_SAMPLES:,}"
        )
    unseeded = [run.path.name for run in runs if not run.seeds]
    if unseeded:
        problems.append(f"no seed in {', '.join(unseeded)}")
    for name in sorted({name for run in runs for name in run.provenance}):
        if len({run.provenance.get(name) for run in runs}) > 1:
            problems.append(f"the runs differ in {name.replace('_', ' ')}, which their logs name")
    # A log may have several seeds; the first is the run's.
    first_seeds = [run.seeds[0] for run in runs if run.seeds]
    if len(set(first_seeds)) < len(first_seeds):
        problems.append("the same seed in several runs")
    failed = [run.path.name for run in runs if not run.succeeded]
    if len(failed) > 1:
        problems.append(f"{len(failed)} runs did not converge, the rules forgive 1")
    return problems
