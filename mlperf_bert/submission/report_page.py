"""A report as an HTML page: what pages/templates/report.html shows."""

from collections.abc import Mapping, Sequence

import pages
from mlperf_bert.mlperf.results import RunResult
from mlperf_bert.submission import report_charts as charts
from mlperf_bert.submission.compliance import Verdict
from mlperf_bert.submission.rcp import UNAIDED
from mlperf_bert.submission.scoring import mean_energy
from mlperf_bert.submission.standing_charts import Drawn
from mlperf_bert.submission.verdict import SystemVerdict
from pages import Card

_RUN_COLUMNS = ("run", "status", "minutes", "samples", "accuracy", "samples/s", "init min", "seed",
                "compliance")  # fmt: skip
_ENERGY_COLUMN = "kWh"


def page(
    verdicts: Sequence[SystemVerdict],
    *,
    title: str,
    subtitle: str,
    among: Drawn | None = None,
    standing: str = "",
) -> str:
    """Return the page on systems, each with its pictures.

    Args:
      verdicts: on the systems.
      title, subtitle: of the page.
      among: plots of the systems among all published results; None for a page without scripts.
      standing: where the page is that shows more of these; linked to.
    """
    return pages.render(
        "report.html",
        title=title,
        subtitle=subtitle,
        columns=[*_RUN_COLUMNS, *([_ENERGY_COLUMN] if _know_energy(verdicts) else [])],
        systems=[_shown(system, with_energy=_know_energy(verdicts)) for system in verdicts],
        among=among,
        standing=standing,
    )


def _know_energy(verdicts: Sequence[SystemVerdict]) -> bool:
    return any(_kwh(run) for system in verdicts for run in system.runs)


def _kwh(run: RunResult) -> float | None:
    joules = run.energy.joules if run.energy else None
    return None if joules is None else joules / 3.6e6


def _shown(system: SystemVerdict, *, with_energy: bool) -> dict[str, object]:
    runs, rcp = system.runs, system.rcp
    return {
        "name": system.name,
        "figures": _cards(system),
        "problems": _problems(system),
        "remarks": _remarks(system),
        "accuracy_over_samples": charts.accuracy_over_samples(runs, rcp),
        "accuracy_over_time": charts.accuracy_over_time(runs),
        "minutes_by_run": charts.minutes_by_run(runs, system.olympic_minutes),
        "samples_by_run": charts.samples_by_run(runs, rcp),
        "timeline": charts.timeline(runs),
        "ledgers": charts.ledgers(runs),
        "energy": charts.energy_by_run(runs),
        "rows": [
            [*_cells(run, verdict.passed), *([_energy_cell(run)] if with_energy else [])]
            for run, verdict in zip(runs, system.compliance, strict=True)
        ],
        "hyperparameters": _facts(runs[0].hyperparameters),
        "provenance": _facts(runs[0].provenance),
        "description": _facts(system.description),
    }


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
    return [
        Card("Time to train", "no score" if score is None else f"{score:.5g} min",
             f"olympic mean of {len(runs)} runs{scaled}", good=score is not None),
        Card("Convergence (RCP)", "passed" if rcp.passed else "failed",
             f"{f'{mean:,.0f} samples; ' if mean else ''}{rcp.reason}", good=rcp.passed),
        Card("Compliance", f"{accepted} of {len(runs)} logs",
             f"accepted under {system.ruleset}", good=accepted >= len(runs) - 1),
        Card("Seeds", "unique" if system.seeds.passed else "failed",
             f"{len(seeds)} different ones", good=system.seeds.passed),
        Card("Throughput", _throughput(runs), "of samples, evaluation included; batch "
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


def _throughput(runs: Sequence[RunResult]) -> str:
    rates = sorted(run.samples_per_second for run in runs if run.samples_per_second)
    return f"{rates[len(rates) // 2]:,.0f} /s" if rates else "unknown"


def _problems(system: SystemVerdict) -> list[str]:
    found = list(system.problems)
    if not any("seed" in problem for problem in found):
        found += system.seeds.reasons
    return found + _findings_by_message(system.compliance)


def _findings_by_message(compliance: Sequence[Verdict]) -> list[str]:
    """Each finding once, with the logs that have it."""
    names: dict[str, list[str]] = {}
    for verdict in compliance:
        for message in () if verdict.passed else verdict.messages:
            names.setdefault(message, []).append(verdict.path.name)
    return [
        f"{'all logs' if len(logs) == len(compliance) > 1 else ', '.join(logs)}: {message}"
        for message, logs in names.items()
    ]


def _cells(run: RunResult, compliant: bool) -> list[tuple[str, bool | None]]:
    """Each cell's text, and whether it is good or bad news; None for neither."""
    rate, init = run.samples_per_second, run.init_minutes
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
    ]


def _energy_cell(run: RunResult) -> tuple[str, None]:
    kwh = _kwh(run)
    return ("-" if kwh is None else f"{kwh:.4g}", None)


def _facts(facts: Mapping[str, object]) -> list[tuple[str, str]]:
    return [
        (name.replace("_", " "), _plain(value))
        for name, value in facts.items()
        if value not in ("", None)
    ]


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {entry}" for name, entry in value.items())
    return str(value)
