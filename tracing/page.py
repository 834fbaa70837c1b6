"""A trace as an HTML page: what templates/trace.html shows."""

import shlex
from collections.abc import Iterator
from operator import itemgetter

from tracing import charts, files, look
from tracing.access import TERMS
from tracing.calls import Losses
from tracing.loaded import Trace
from tracing.look import Card, bytes_text

_COUNT, _SECONDS, _TENTHS, _SHARE = "{:,}", "{:.3f} s", "{:.1f} s", "{:.0%}"
_US = "{:,.0f} µs"
_SHORTEST_UNNAMED_S = 0.1


def _tail(path: str) -> str:
    return path if len(path) <= 48 else f"…{path[-47:]}"


def _of_calls_and_bytes(shares: dict) -> str:
    if not shares["num_calls"]:
        return "-"
    return f"{shares['share_of_calls']:.0%} of calls, {shares['share_of_bytes']:.0%} of bytes"


# Title -> heading -> the value's name in a row, and how it is written.
_TABLES: dict[str, look.Columns] = {
    "Classes of files": {
        "class": ("name", "{}"), "opens": ("num_opens", _COUNT), "reads": ("num_reads", _COUNT),
        "read": ("read_bytes", bytes_text), "median size": ("read_size_bytes.p50", bytes_text),
        "median read": ("read_latency_us.p50", _US), "p99 read": ("read_latency_us.p99", _US),
        "writes": ("num_writes", _COUNT), "written": ("written_bytes", bytes_text),
        "median write": ("write_latency_us.p50", _US), "p99 write": ("write_latency_us.p99", _US),
        "mapped": ("mapped_bytes", bytes_text),
    },
    "How files were read": {
        "class": ("name", "{}"),
        **{name: (f"patterns.{name}", _of_calls_and_bytes)
           for name in ("sequential", "strided", "random", "unknown")},
        "distinct": ("distinct_bytes", bytes_text),
        "amplification": ("read_amplification", "{:.2f}"),
    },
    "Passes over the training data": {
        "pass": ("number", "{}"), "begins": ("begin_seconds", _TENTHS),
        "lasts": ("seconds", _TENTHS), "read by calls": ("call_bytes", bytes_text),
        "read from storage": ("storage_bytes", bytes_text),
        "from the page cache": ("cached", _SHARE),
    },
    "Files with the most bytes": {
        "file": ("path", _tail), "class": ("file_class", "{}"), "size": ("size_bytes", bytes_text),
        "reads": ("num_reads", _COUNT), "read": ("read_bytes", bytes_text),
        "passes": ("passes", "{:.2f}"), "writes": ("num_writes", _COUNT),
        "written": ("written_bytes", bytes_text),
    },
    "Checkpoints": {
        "checkpoint": ("path", _tail), "at": ("begin_seconds", _TENTHS),
        "files": ("num_files", "{}"), "written": ("written_bytes", bytes_text),
        "calls": ("num_writes", _COUNT), "in write calls": ("writing_seconds", _SECONDS),
        "as MLLOG reports": ("span_seconds", _SECONDS),
    },
    "Phases": {
        "phase": ("label", "{}"), "begins": ("begin_seconds", _SECONDS),
        "lasts": ("seconds", _SECONDS),
        "TFRecords read": (f"read_bytes.{files.TFRECORDS}", bytes_text),
        "checkpoints written": (f"written_bytes.{files.CHECKPOINTS}", bytes_text),
    },
}  # fmt: skip


def _rows_of(summary: dict) -> Iterator[list[dict]]:
    """The rows of each table."""
    classes, access = summary["file_classes"] or {}, summary["access"]
    yield [
        {"name": name, **figures}
        for name, figures in classes.items()
        if figures["num_opens"] + figures["num_reads"] + figures["num_writes"]
    ]
    yield [{"name": name, **figures} for name, figures in (access["file_classes"] or {}).items()]
    yield [
        {"number": n, "cached": _hit_rate(p), **p} for n, p in enumerate(access["passes"] or [], 1)
    ]
    yield summary["files"]
    yield summary["checkpoints"]
    phases = [
        {"label": phase["name"] + ("" if phase["is_closed"] else " (not ended)"), **phase}
        for phase in summary["phases"]
    ]
    yield sorted([*phases, *_between(phases, summary["seconds"])], key=itemgetter("begin_seconds"))


def _between(phases: list[dict], end_seconds: float) -> Iterator[dict]:
    """The phases that the log does not name: before, between and after its own.

    The phase "run" does not count, because it contains others.
    """
    reached, before = 0.0, ""
    inner = [phase for phase in phases if phase["name"] != "run"]
    last = {"begin_seconds": end_seconds, "seconds": 0.0, "name": ""}
    for phase in [*inner, last] if inner else []:
        begin, name = phase["begin_seconds"], phase["name"]
        if begin - reached >= _SHORTEST_UNNAMED_S:
            label = f"between {before} and {name}" if before and name else ""
            label = label or (f"before {name}" if name else f"after {before}")
            yield {"label": label, "begin_seconds": reached, "seconds": round(begin - reached, 3)}
        if (end := begin + phase["seconds"]) >= reached:
            reached, before = round(end, 3), name


def _hit_rate(accesses: dict) -> float | None:
    storage = accesses["storage_bytes"]
    return None if storage is None else max(0, 1 - storage / accesses["call_bytes"])


def page(trace: Trace) -> str:
    """Returns the page; the trace's summary is complete."""
    summary, losses = trace.summary, Losses(**trace.summary["losses"])
    tables = zip(_TABLES.items(), _rows_of(summary), strict=True)
    return look.page(
        title=shlex.join(summary["command"]) or "a running program",
        subtitle=f"{summary['seconds']:.1f} s, traced with {summary['backend']}; "
        f"{_how_it_ended(summary)}",
        figures=_cards(summary, losses),
        charts=[
            ("Reads and writes over time", charts.transfers_over_time(trace)),
            ("Request sizes and latencies", charts.histograms(trace)),
            ("Read offsets over time, of the files most read", charts.offsets_over_time(trace)),
            ("Processors, memory and GPUs", charts.machine(trace)),
            ("Block I/O of the machine", charts.block_io(trace)),
        ],
        tables=[(title, look.table(columns, rows)) for (title, columns), rows in tables],
        notes=[*summary["notes"], str(losses)],
        terms=[f"{word}: {meaning}" for word, meaning in TERMS.items()],
    )  # fmt: skip


def _how_it_ended(summary: dict) -> str:
    early = f" after {summary['ended_by']}" if summary["ended_by"] else ""
    if summary["exit_code"] is None:
        return f"the trace ended{early}, the program continues or had ended"
    return f"exit code {summary['exit_code']}{early}"


def _cards(summary: dict, losses: Losses) -> Iterator[Card]:
    usage, clocks, access = summary["usage"], summary["clocks"], summary["access"]
    if classes := summary["file_classes"]:
        records, saved = classes[files.TFRECORDS], classes[files.CHECKPOINTS]
        calls = sum(entry["num_reads"] + entry["num_writes"] for entry in classes.values())
        num_saved = f"{len(summary['checkpoints'])} of them"
        num_reads = f"{records['num_reads']:,} calls"
        least = "at least " if losses.asynchronous_processes else ""
        yield Card("TFRecords read", least + bytes_text(records["read_bytes"]), num_reads)
        yield Card("Checkpoints written", least + bytes_text(saved["written_bytes"]), num_saved)
        yield Card("Read and write calls", f"{calls:,}", str(losses))
    else:
        yield Card("Reads and writes", "-", "single calls were not recorded")
    cached = access["page_cache"]
    is_storage_known = cached["storage_bytes"] is not None
    share, note = "unknown", cached["calls_from" if is_storage_known else "storage_from"]
    if cached["hit_ratio"] is not None:
        share = f"{cached['hit_ratio']:.0%}"
        note = f"{bytes_text(cached['storage_bytes'])} came from storage"
    yield Card("Read from the page cache", share, note)
    least = "at least " if usage["is_at_least"] else ""
    cpu_seconds, seconds = usage["cpu_seconds"], summary["seconds"] or 1
    busy = f"{cpu_seconds / seconds:.2f} processors busy"
    yield Card("Processor time", f"{least}{cpu_seconds:,.1f} s", busy)
    yield Card("Peak memory", bytes_text(usage["peak_resident_bytes"]), "resident, all processes")
    # Adding 0 removes the sign of a rounded -0.0.
    bound, drift = (round(clocks[n] / 1000, 1) + 0 for n in ("error_bound_ns", "drift_ns"))
    yield Card("Clocks", f"± {bound:.1f} µs", f"drift {drift:.1f} µs over the trace")
