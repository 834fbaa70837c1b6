"""A trace as one HTML page that needs nothing from outside: no script, font or file."""

import html
import shlex

from tracing import charts, files
from tracing.loaded import Loaded

_STYLE = """
:root { --ink: #1c2733; --muted: #5b6b7b; --line: #e3e8ee; --paper: #fff; --ground: #f4f6f9; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
       font: 16px/1.5 system-ui, "DejaVu Sans", sans-serif; }
header, main { max-width: 72rem; margin: 0 auto; padding: 1.25rem 1rem; }
header { padding-bottom: 0; }
h1 { font-size: 1.4rem; line-height: 1.3; margin: 0; overflow-wrap: anywhere; }
header p { color: var(--muted); margin: .25rem 0 0; }
h2 { font-size: 1rem; margin: 0 0 .5rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .75rem;
         margin-bottom: .75rem; }
.box { background: var(--paper); border: 1px solid var(--line); border-radius: .6rem;
       padding: .8rem 1rem; margin-bottom: .75rem; min-width: 0; }
.cards .box { margin: 0; }
.cards b { display: block; font-size: 1.35rem; line-height: 1.3; overflow-wrap: anywhere; }
small, .label { color: var(--muted); font-size: .85rem; }
.wide { overflow-x: auto; }
svg { display: block; width: 100%; min-width: 40rem; height: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid var(--line);
         white-space: nowrap; }
th { color: var(--muted); font-weight: 600; font-size: .85rem; }
tr:last-child td { border-bottom: 0; }
td:first-child, th:first-child { text-align: left; }
ul { margin: 0; padding-left: 1.2rem; } li { overflow-wrap: anywhere; }
"""
_MOST_TABLE_ROWS = 25


def page(trace: Loaded, summary: dict) -> str:
    """Returns the page; `summary` is that of `figures.summary`."""
    title = shlex.join(summary["command"]) or "a running program"
    ended = _how_it_ended(summary)
    subtitle = f"{summary['seconds']:.1f} s, traced with {summary['backend']}; {ended}"
    read, drawn = charts.num_tfrecord_files(trace)
    offsets = "Read offsets over time" + (f", {drawn} of {read} files" if drawn < read else "")
    body = [
        _cards(summary),
        _chart("Reads and writes over time, by class of file", charts.transfers_over_time(trace),
               "This backend records no single calls; the counters below stand in."),
        _chart("Reads and writes by the processes' counters", charts.counters_over_time(trace)),
        _chart("Request sizes and latencies", charts.histograms(trace)),
        _chart(offsets, charts.offsets_over_time(trace)),
        _chart("Processors and memory", charts.processors_and_memory(trace)),
        _chart("GPUs", charts.gpus(trace)),
        _chart("Block I/O of the machine", charts.block_io(trace)),
        _chart("Processes", charts.processes_over_time(trace)),
        _table("Classes of files", _class_rows(summary)),
        _table("Files with the most bytes", _file_rows(summary)),
        _table("Checkpoints", _checkpoint_rows(summary)),
        _table("Phases", _phase_rows(summary)),
        _box("What was recorded, and what was not", _notes(summary)),
    ]  # fmt: skip
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>Trace: {_e(title)}</title>'
        f"<style>{_STYLE}</style></head><body><header><h1>{_e(title)}</h1>"
        f"<p>{_e(subtitle)}</p></header><main>{''.join(body)}</main></body></html>\n"
    )


def _e(text) -> str:
    return html.escape(str(text))


def _how_it_ended(summary: dict) -> str:
    early = f" after {summary['ended_by']}" if summary["ended_by"] else ""
    if summary["exit_code"] is None:
        return f"the trace ended{early}, the program goes on or was gone"
    return f"exit code {summary['exit_code']}{early}"


def _box(title: str, content: str) -> str:
    return f'<div class="box"><h2>{_e(title)}</h2>{content}</div>' if content else ""


def _chart(title: str, svg: str | None, instead: str = "") -> str:
    if svg is None:
        return _box(title, f'<p class="label">{_e(instead)}</p>') if instead else ""
    return _box(title, f'<div class="wide">{svg}</div>')


def _cards(summary: dict) -> str:
    usage, losses = summary["usage"], summary["losses"]
    missing = losses["lost_events"] + losses["lost_lines"] + losses["damaged_lines"]
    cores = usage["cpu_seconds"] / summary["seconds"] if summary["seconds"] else 0
    of_calls = [("Reads and writes", "-", "single calls were not recorded")]
    if classes := summary["file_classes"]:
        records, saved = classes[files.TFRECORDS], classes[files.CHECKPOINTS]
        calls = sum(entry["num_reads"] + entry["num_writes"] for entry in classes.values())
        of_calls = [
            ("TFRecords read", _bytes(records["read_bytes"]), f"{records['num_reads']:,} calls"),
            ("Checkpoints written", _bytes(saved["written_bytes"]),
             f"{len(summary['checkpoints'])} of them"),
            ("Read and write calls", f"{calls:,}", f"{missing:,} events lost"),
        ]  # fmt: skip
    cards = [
        *of_calls,
        ("Processor time", f"{usage['cpu_seconds']:,.1f} s", f"{cores:.2f} processors busy"),
        ("Peak memory", _bytes(usage["peak_resident_bytes"]), "resident, all processes"),
        ("Clocks", f"± {summary['clocks']['error_bound_ns'] / 1000:.1f} µs",
         f"drift {summary['clocks']['drift_ns'] / 1000 + 0:.1f} µs over the trace"),
    ]  # fmt: skip
    boxes = (
        f'<div class="box"><span class="label">{_e(label)}</span><b>{_e(value)}</b>'
        f"<small>{_e(note)}</small></div>"
        for label, value, note in cards
    )
    return f'<div class="cards">{"".join(boxes)}</div>'


def _bytes(number) -> str:
    if number is None:
        return "-"
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= unit:
            return f"{number / unit:,.2f} {name}"
    return f"{number:,.0f} B"


def _table(title: str, rows: list[list[str]]) -> str:
    if len(rows) < 2:
        return ""
    head = "".join(f"<th>{_e(cell)}</th>" for cell in rows[0])
    shown = rows[1 : _MOST_TABLE_ROWS + 1]
    body = "".join("<tr>" + "".join(f"<td>{_e(c)}</td>" for c in row) + "</tr>" for row in shown)
    left = len(rows) - 1 - len(shown)
    more = f'<p class="label">and {left:,} more in summary.json</p>' if left else ""
    table = f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'
    return _box(title, table + more)


def _class_rows(summary: dict) -> list[list[str]]:
    rows = [["class", "opens", "reads", "read", "median size", "median", "p99",
             "writes", "written", "median", "p99", "mapped"]]  # fmt: skip
    for name, found in (summary["file_classes"] or {}).items():
        read, write = found["read_latency_us"] or {}, found["write_latency_us"] or {}
        if not found["num_opens"] + found["num_reads"] + found["num_writes"]:
            continue
        size = (found["read_size_bytes"] or {}).get("p50")
        rows.append(
            [name, f"{found['num_opens']:,}", f"{found['num_reads']:,}",
             _bytes(found["read_bytes"]), _bytes(size), _us(read.get("p50")), _us(read.get("p99")),
             f"{found['num_writes']:,}", _bytes(found["written_bytes"]), _us(write.get("p50")),
             _us(write.get("p99")), _bytes(found["mapped_bytes"])]
        )  # fmt: skip
    return rows


def _us(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f} µs"


def _file_rows(summary: dict) -> list[list[str]]:
    rows = [["file", "class", "size", "reads", "read", "passes", "writes", "written"]]
    for found in summary["files"]:
        passes = "-" if found["passes"] is None else f"{found['passes']:.2f}"
        rows.append(
            [_tail(found["path"]), found["file_class"], _bytes(found["size_bytes"]),
             f"{found['num_reads']:,}", _bytes(found["read_bytes"]), passes,
             f"{found['num_writes']:,}", _bytes(found["written_bytes"])]
        )  # fmt: skip
    return rows


def _tail(path: str) -> str:
    return path if len(path) <= 48 else f"…{path[-47:]}"


def _checkpoint_rows(summary: dict) -> list[list[str]]:
    rows = [["checkpoint", "at", "files", "written", "calls", "in write calls", "as MLLOG tells"]]
    for found in summary["checkpoints"]:
        told = "-" if found["span_seconds"] is None else f"{found['span_seconds']:.3f} s"
        rows.append(
            [_tail(found["path"]), f"{found['begin_seconds']:.1f} s", str(found["num_files"]),
             _bytes(found["written_bytes"]), f"{found['num_writes']:,}",
             f"{found['writing_seconds']:.3f} s", told]
        )  # fmt: skip
    return rows


def _phase_rows(summary: dict) -> list[list[str]]:
    rows = [["phase", "begins", "lasts", "TFRecords read", "checkpoints written"]]
    for found in summary["phases"]:
        name = found["name"] + ("" if found["is_closed"] else " (not ended)")
        rows.append(
            [name, f"{found['begin_seconds']:.3f} s", f"{found['seconds']:.3f} s",
             _bytes_of(found["read_bytes"], files.TFRECORDS),
             _bytes_of(found["written_bytes"], files.CHECKPOINTS)]
        )  # fmt: skip
    return rows


def _bytes_of(bytes_by_class: dict[str, int] | None, name: str) -> str:
    return _bytes(None if bytes_by_class is None else bytes_by_class.get(name, 0))


def _notes(summary: dict) -> str:
    losses = summary["losses"]
    lines = [
        *summary["notes"],
        f"lost: {losses['lost_events']:,} events, {losses['lost_lines']:,} lines for want of "
        f"room, {losses['damaged_lines']:,} not understood; "
        f"{losses['calls_cut_short']:,} calls cut short",
        f"the tracers used {summary['tracer_cpu_seconds']:.1f} s of processor time",
    ]
    return "<ul>" + "".join(f"<li>{_e(line)}</li>" for line in lines) + "</ul>"
