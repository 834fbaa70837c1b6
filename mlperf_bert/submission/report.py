"""A report on a submission, whoever made it: on the terminal, as HTML and as JSON.

    python -m mlperf_bert.submission.report ORG_DIR --ruleset 5.0.0 --output report.html

reads ORG_DIR/results/SYSTEM/bert/result_*.txt and ORG_DIR/systems/SYSTEM.json, and writes
report.html, with its pictures inside, and report.json beside it, with every number. Each path may
be gs://BUCKET/FOLDER.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence

import pages
from mlperf_bert.files import paths
from mlperf_bert.files.whole import write_whole
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.mlperf import convergence
from mlperf_bert.mlperf.logs import RunResult
from mlperf_bert.mlperf.rules import NUM_RUNS_PER_RESULT, RULESETS
from mlperf_bert.options import duration, words_with_home
from mlperf_bert.submission import report_charts
from mlperf_bert.submission.official import UNAIDED
from mlperf_bert.submission.run_logs import require_free
from mlperf_bert.submission.verdict import SystemVerdict, judge, mean_energy, mean_phase_minutes
from pages import Card

_NOT_IN_JSON = ("rcp_source", "folder_tools", "official_minutes")
"""What a report says elsewhere, or does not ask for."""

_COLUMNS = ("run", "status", "minutes", "samples", "accuracy", "samples/s", "init min", "seed",
            "compliance", "kWh")  # fmt: skip
"""Of the page's table; the last one only if some log says the energy."""


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
        lines.append(_ROW.format(*_row(run), "yes" if verdict.passed else "NO"))
    rcp = system.rcp
    lines.append(f"  RCP: {rcp.word} ({rcp.reason})")
    if system.rcp_unaided:
        lines.append(f"  {UNAIDED}: {system.rcp_unaided}")
    if rcp.mean_samples and rcp.min_mean_samples and rcp.submission_mean_samples:
        lines.append(
            f"  samples to converge: olympic mean {rcp.submission_mean_samples:,.0f}; the "
            f"reference's is {rcp.mean_samples:,.0f}, credible from {rcp.min_mean_samples:,.0f} on"
        )
    lines.append(f"  seeds: {'unique' if system.seeds.passed else 'FAILED'}")
    phases = mean_phase_minutes(system.runs)
    times = ", ".join(f"{kind} {minutes:.4g}" for kind, minutes in phases.items())
    lines.append(f"  minutes of a run by phase, mean: {times or 'the logs do not say'}")
    if energy := mean_energy(system.runs):
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
        entry["mean_phase_minutes"] = mean_phase_minutes(system.runs)
        for run, fields in zip(system.runs, entry["runs"], strict=True):
            fields["samples_per_second"] = run.samples_per_second
            fields["energy_joules"] = run.energy.joules if run.energy else None
        entries.append(entry)
    text = json.dumps(entries, default=str)
    finite = json.loads(text, parse_constant=lambda name: None)  # NaN, Infinity, -Infinity
    return json.dumps(finite, indent=1, allow_nan=False) + "\n"


_HEADINGS = "run status minutes samples accuracy batch samples/s seed compliant".split()
_ROW = "  {:<14} {:<8} {:>10} {:>11} {:>8} {:>6} {:>11} {:>11} {:>9}"


def _row(run: RunResult) -> list[str]:
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


def page(verdicts: Sequence[SystemVerdict], *, title: str, subtitle: str) -> str:
    """Return the page on systems, each with its pictures."""
    with_energy = any(_kwh(run) for system in verdicts for run in system.runs)
    return pages.render(
        "report.html",
        title=title,
        subtitle=subtitle,
        columns=_COLUMNS if with_energy else _COLUMNS[:-1],
        systems=verdicts,
        charts=report_charts,
        figures_of=_cards,
        problems_of=_problems,
        remarks_of=_remarks,
        rows_of=lambda system: [
            _cells(run, verdict.passed)
            for run, verdict in zip(system.runs, system.compliance, strict=True)
        ],
        facts_of=_facts,
    )


def _remarks(system: SystemVerdict) -> list[str]:
    """Return where this report and the official tools disagree."""
    if system.rcp_unaided is None or system.rcp_unaided.passed == system.rcp.passed:
        return []
    return [
        f"These logs are counted by train_samples here: {system.rcp}.",
        f"{UNAIDED[0].upper()}{UNAIDED[1:]}: {system.rcp_unaided}.",
    ]


def _cards(system: SystemVerdict) -> list[Card]:
    score, runs, rcp = system.scaled_minutes, system.runs, system.rcp
    accepted = sum(verdict.passed for verdict in system.compliance)
    scaled = f", scaled by {rcp.scaling:.4f}" if rcp.scaling != 1.0 else ""
    mean = rcp.submission_mean_samples
    seeds = {run.seeds[0] for run in runs if run.seeds}
    rates = sorted(run.samples_per_second for run in runs if run.samples_per_second)
    rate = f"{rates[len(rates) // 2]:,.0f} /s" if rates else "unknown"
    return [
        Card("Time to train", "no score" if score is None else f"{score:.5g} min",
             f"olympic mean of {len(runs)} runs{scaled}", good=score is not None),
        Card("Convergence (RCP)", rcp.word.lower(),
             f"{f'{mean:,.0f} samples; ' if mean else ''}{rcp.reason}", good=rcp.passed),
        Card("Compliance", f"{accepted} of {len(runs)} logs",
             f"accepted under {system.ruleset}",
             good=len(runs) - accepted <= len(runs) // NUM_RUNS_PER_RESULT),  # one of ten may be
        Card("Seeds", "unique" if system.seeds.passed else "failed",
             f"{len(seeds)} different ones", good=system.seeds.passed),
        Card("Throughput", rate, "of samples, evaluation included; batch "
             f"{runs[0].global_batch_size or 'unknown'}"),
        *_energy_card(runs),
    ]  # fmt: skip


def _energy_card(runs: Sequence[RunResult]) -> list[Card]:
    """Nothing of logs that do not say that it is known or unknown."""
    energy = mean_energy(runs)
    if energy is None:
        return []
    if energy.joules is None:
        return [Card("Energy", "unknown", energy.unknown)]
    words = [f"of the {' and '.join(energy.parts)}, mean of a run", *energy.notes]
    words += [f"at least: {energy.at_least}"] if energy.at_least else []
    return [Card("Energy", f"{energy.joules / 3.6e6:.4g} kWh", "; ".join(words))]


def _problems(system: SystemVerdict) -> list[str]:
    found = list(system.problems)
    if not any("seed" in problem for problem in found):
        found += system.seeds.reasons
    names: dict[str, list[str]] = {}  # each finding of the compliance checker, and the logs with it
    for verdict in system.compliance:
        for message in () if verdict.passed else verdict.messages:
            names.setdefault(message, []).append(verdict.path.name)
    for message, logs in names.items():
        is_in_all = len(logs) == len(system.runs) > 1
        found.append(f"{'all logs' if is_in_all else ', '.join(logs)}: {message}")
    return found


def _cells(run: RunResult, compliant: bool) -> list[tuple[str, bool | None]]:
    """Each cell's text, and whether it is good or bad news; None for neither."""
    rate, init, kwh = run.samples_per_second, run.init_minutes, _kwh(run)
    return [
        (run.path.stem, None),
        (run.status, run.succeeded),
        (f"{run.minutes:.4f}", None),
        ("-" if run.samples_to_converge is None else f"{run.samples_to_converge:,}", None),
        (f"{run.evaluations[-1].accuracy:.4f}" if run.evaluations else "-", None),
        (f"{rate:,.1f}" if rate else "-", None),
        ("-" if init is None else f"{init:.2f}", None),
        (str(run.seeds[0]) if run.seeds else "-", None),
        ("yes" if compliant else "no", compliant),
        ("-" if kwh is None else f"{kwh:.4g}", None),
    ]


def _kwh(run: RunResult) -> float | None:
    joules = run.energy.joules if run.energy else None
    return None if joules is None else joules / 3.6e6


def _facts(facts: Mapping[str, object]) -> list[tuple[str, str]]:
    found = []
    for name, value in facts.items():
        if value in ("", None):
            continue
        words = str(value)
        if isinstance(value, Mapping):
            words = ", ".join(f"{key} {entry}" for key, entry in value.items())
        found.append((name.replace("_", " "), words))
    return found


@ends_in_one_line("report")
def main(arguments: Sequence[str] | None = None) -> int:
    """Print and write the report; return 1 with one line if something cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m mlperf_bert.submission.report")
    parser.add_argument("org_dir")
    parser.add_argument("--ruleset", default=RULESETS[-1])
    parser.add_argument("--custom_rcps", help="JSON file of other reference points")
    parser.add_argument("--output", help="HTML file; the JSON goes beside it")
    given = parser.parse_args(words_with_home(arguments))
    org_dir = paths.location(given.org_dir)
    custom_rcps = given.custom_rcps and paths.location(given.custom_rcps)
    output = given.output and paths.location(given.output)
    if output and output.suffix == ".json":
        raise ValueError(
            f"--output={given.output}: the numbers go there; give the name of a page, such as "
            f"{output.stem}.html"
        )
    convergence.reference_points(given.ruleset, custom_rcps)  # so that bad input is refused first
    with paths.failures_named(org_dir), paths.reads() as inputs:
        verdicts = judge_systems(org_dir, given.ruleset, custom_rcps=custom_rcps)
    outputs = {"--output": given.output}
    if output:
        outputs["the numbers of --output"] = output.with_suffix(".json")
    require_free(outputs, [*inputs, given.custom_rcps])
    for system in verdicts:
        print(as_text(system))
    name = paths.resolve(org_dir).name
    if output:
        points = custom_rcps.name if custom_rcps else "the official ones"
        subtitle = f"Ruleset {given.ruleset}; reference convergence points: {points}"
        title = f"MLPerf Training BERT: {name}"
        text = page(verdicts, title=title, subtitle=subtitle)
        numbers = as_json(verdicts)  # before anything is written
        write_whole(paths.with_folder_made(given.output), text)
        write_whole(output.with_suffix(".json"), numbers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
