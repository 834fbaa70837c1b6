"""A report as one HTML page that needs nothing from outside: no script, font or file."""

import html
from collections.abc import Mapping, Sequence

from mlperf_bert.mlperf.results import RunResult
from mlperf_bert.submission import report_charts as charts
from mlperf_bert.submission.compliance import Verdict

_STYLE = """
:root { --ink: #1c2733; --muted: #5b6b7b; --line: #e3e8ee; --paper: #fff; --ground: #f4f6f9;
        --good: #1b7f4b; --bad: #b3261e; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
       font: 16px/1.5 system-ui, "DejaVu Sans", sans-serif; }
header, main { max-width: 72rem; margin: 0 auto; padding: 1.25rem 1rem; }
header { padding-bottom: 0; }
h1 { font-size: 1.55rem; line-height: 1.25; margin: 0; }
header p { color: var(--muted); margin: .25rem 0 0; }
nav { display: flex; flex-wrap: wrap; gap: .4rem; margin-top: .8rem; }
nav a { background: var(--paper); border: 1px solid var(--line); border-radius: 1rem;
        padding: .1rem .75rem; color: #1f5fa8; text-decoration: none; overflow-wrap: anywhere; }
h2 { font-size: 1.3rem; margin: 1.6rem 0 .7rem; overflow-wrap: anywhere; }
h3 { font-size: 1rem; margin: 0 0 .4rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: .75rem; }
.box { background: var(--paper); border: 1px solid var(--line); border-radius: .6rem;
       padding: .8rem 1rem; margin-bottom: .75rem; min-width: 0; }
.cards .box { margin: 0; }
.cards b { display: block; font-size: 1.45rem; line-height: 1.25; overflow-wrap: anywhere; }
.cards small, .label { color: var(--muted); font-size: .85rem; }
.cards + * { margin-top: .75rem; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: .75rem; }
.good { color: var(--good); } .bad { color: var(--bad); }
figure { margin: 0; } svg { display: block; width: 100%; height: auto; }
.on-narrow { display: none; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .5rem; text-align: right; border-bottom: 1px solid var(--line); }
th { color: var(--muted); font-weight: 600; font-size: .85rem; }
tr:last-child td { border-bottom: 0; }
td:first-child, th:first-child, .facts td { text-align: left; }
.facts td { overflow-wrap: anywhere; vertical-align: top; }
.facts td:first-child { color: var(--muted); width: 17rem; }
ul { margin: 0; padding-left: 1.2rem; } li { overflow-wrap: anywhere; }
@media (max-width: 640px) {
  .on-wide { display: none; } .on-narrow { display: block; }
  .pair { grid-template-columns: minmax(0, 1fr); gap: 0; }
  .box { padding: .7rem .6rem; }
  .cards { grid-template-columns: 1fr 1fr; gap: .5rem; }
  .cards b { font-size: 1.2rem; }
  .runs thead { display: none; }
  .runs tr { display: grid; grid-template-columns: repeat(3, 1fr); padding: .4rem 0;
             border-bottom: 1px solid var(--line); }
  .runs td { border: 0; padding: .1rem 0; text-align: left; }
  .runs td::before { content: attr(data-label); color: var(--muted); display: block;
                     font-size: .75rem; line-height: 1.1; }
  .facts td { display: block; width: auto !important; border: 0; padding: 0; }
  .facts tr { display: block; padding: .35rem 0; border-bottom: 1px solid var(--line); }
}
@media print { body { background: #fff; } .box { break-inside: avoid; } }
"""

_RUN_COLUMNS = ("run", "status", "minutes", "samples", "accuracy", "samples/s", "init min", "seed",
                "compliance")  # fmt: skip


def page(reports: Sequence, *, title: str, subtitle: str) -> str:
    """Return the page of `report.SystemReport`s."""
    links = "".join(f'<a href="#system-{n}">{_e(r.name)}</a>' for n, r in enumerate(reports))
    navigation = f"<nav>{links}</nav>" if len(reports) > 1 else ""
    body = "".join(_section(number, report) for number, report in enumerate(reports))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{_e(title)}</title><style>{_STYLE}</style></head>"
        f"<body><header><h1>{_e(title)}</h1><p>{_e(subtitle)}</p>{navigation}</header>"
        f"<main>{body}</main></body></html>\n"
    )


def _section(number: int, report) -> str:
    samples = charts.accuracy_over_samples(report.runs, report.rcp)
    minutes_by_run = charts.minutes_by_run(report.runs, report.olympic_minutes)
    samples_by_run = charts.samples_by_run(report.runs, report.rcp)
    no_run = _remark("No run reached the target.")
    parts = [
        f'<section id="system-{number}"><h2>{_e(report.name)}</h2>',
        _cards(report),
        _problems(report),
        _box("Accuracy over samples", samples or _remark("These logs count epochs, not samples.")),
        _box("Accuracy over time", charts.accuracy_over_time(report.runs)),
        '<div class="pair">',
        _box("Time to train", minutes_by_run or no_run),
        _box("Samples to converge", samples_by_run or no_run),
        "</div>",
        _box("Where the time goes", charts.timeline(report.runs)),
        _box("Runs", _runs_table(report)),
        _box("Hyper-parameters", _facts(report.runs[0].hyperparameters)),
        _box("System", _facts(report.description) or _remark("Not described.")),
        "</section>",
    ]
    return "".join(parts)


def _cards(report) -> str:
    score = report.scaled_minutes
    accepted = sum(verdict.passed for verdict in report.compliance)
    rcp = report.rcp
    scaled = f", scaled by {rcp.scaling:.4f}" if rcp.scaling != 1.0 else ""
    mean = rcp.submission_mean_samples
    batch = report.runs[0].global_batch_size
    seeds = {run.seeds[0] for run in report.runs if run.seeds}
    return '<div class="cards">' + "".join(
        [
            _card("Time to train", "no score" if score is None else f"{score:.5g} min",
                  f"olympic mean of {len(report.runs)} runs{scaled}", good=score is not None),
            _card("Convergence (RCP)", "passed" if rcp.passed else "failed",
                  f"{f'{mean:,.0f} samples; ' if mean else ''}{rcp.reason}", good=rcp.passed),
            _card("Compliance", f"{accepted} of {len(report.runs)} logs",
                  f"accepted under {report.ruleset}", good=accepted >= len(report.runs) - 1),
            _card("Seeds", "unique" if report.seeds.passed else "failed",
                  f"{len(seeds)} different ones", good=report.seeds.passed),
            _card("Throughput", _throughput(report.runs),
                  f"of samples, evaluation included; batch {batch or 'unknown'}"),
        ]
    ) + "</div>"  # fmt: skip


def _card(label: str, value: str, note: str, *, good: bool | None = None) -> str:
    mark = {None: "", True: ' class="good"', False: ' class="bad"'}[good]
    return (
        f'<div class="box"><span class="label">{_e(label)}</span>'
        f"<b{mark}>{_e(value)}</b><small>{_e(note)}</small></div>"
    )


def _throughput(runs: Sequence[RunResult]) -> str:
    rates = sorted(run.samples_per_second for run in runs if run.samples_per_second)
    return f"{rates[len(rates) // 2]:,.0f} /s" if rates else "unknown"


def _problems(report) -> str:
    found = list(report.problems)
    if not any("seed" in problem for problem in found):
        found += report.seeds.reasons
    found += _findings_by_message(report.compliance)
    if not found:
        return ""
    items = "".join(f"<li>{_e(text)}</li>" for text in found)
    return f'<div class="box"><h3 class="bad">What stands in the way</h3><ul>{items}</ul></div>'


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


def _runs_table(report) -> str:
    head = "".join(f"<th>{name}</th>" for name in _RUN_COLUMNS)
    rows = "".join(
        "<tr>"
        + "".join(
            f'<td data-label="{label}">{cell}</td>'
            for label, cell in zip(_RUN_COLUMNS, _cells(run, verdict.passed), strict=True)
        )
        + "</tr>"
        for run, verdict in zip(report.runs, report.compliance, strict=True)
    )
    return f'<table class="runs"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


def _cells(run: RunResult, compliant: bool) -> list[str]:
    def mark(text: str, good: bool) -> str:
        return f'<span class="{"good" if good else "bad"}">{_e(text)}</span>'

    rate, init = run.samples_per_second, run.init_minutes
    return [
        _e(run.path.stem),
        mark(run.status, run.succeeded),
        f"{run.minutes:.4f}",
        "-" if run.samples_to_converge is None else f"{run.samples_to_converge:,}",
        f"{run.evaluations[-1].accuracy:.4f}" if run.evaluations else "-",
        f"{rate:,.1f}" if rate else "-",
        "-" if init is None else f"{init:.2f}",
        _e(str(run.seeds[0])) if run.seeds else "-",
        mark("yes" if compliant else "no", compliant),
    ]


def _facts(facts: Mapping[str, object]) -> str:
    rows = "".join(
        f"<tr><td>{_e(name.replace('_', ' '))}</td><td>{_e(_plain(value))}</td></tr>"
        for name, value in facts.items()
        if value not in ("", None)
    )
    return f'<table class="facts">{rows}</table>' if rows else ""


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {entry}" for name, entry in value.items())
    return str(value)


def _remark(text: str) -> str:
    return f'<p class="label">{_e(text)}</p>'


def _box(title: str, content: str) -> str:
    return f'<div class="box"><h3>{_e(title)}</h3>{content}</div>'


def _e(text: str) -> str:
    return html.escape(text)
