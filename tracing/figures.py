"""The numbers of a trace: summary.json, and the table of files."""

import contextlib
import re
from collections.abc import Iterator

import numpy as np
import pandas as pd

from tracing import files
from tracing.access_figures import access_figures
from tracing.calls import Losses
from tracing.loaded import COUNTERS, FAULTS, TRANSFERS, Trace, grown
from tracing.recording import Recording
from tracing.tables import FORMAT_VERSION

_MOST_FILES = 200
_MOST_FILES_OPENED = 8
_MOST_RECORDS_PER_FILE = 5000
_PERCENTILES = (50, 95, 99)
_CHECKPOINT_FILE = re.compile(r"^(?P<prefix>.*ckpt-(?P<step>\d+))\.(?:index|data-\d{5}-of-\d{5})$")


def about(recording: Recording, losses: Losses) -> dict:
    """The part of summary.json that needs no tables."""
    begin, end = recording.pairs[0].monotonic_ns, recording.pairs[-1].monotonic_ns
    alignment = recording.alignment()
    return {
        "format_version": FORMAT_VERSION,
        "command": recording.command,
        "folder": recording.folder,
        "exit_code": recording.exit_code,
        "ended_by": recording.ended_by,
        "backend": recording.backend,
        "notes": recording.notes,
        "seconds": round((end - begin) / 1e9, 3),
        "begin_realtime_ns": recording.begin_ns,
        "begin_monotonic_ns": begin,
        "clocks": {
            "num_pairs": len(recording.pairs),
            "drift_ns": alignment.drift_ns,
            "error_bound_ns": alignment.error_bound_ns,
        },
        "losses": dict(vars(losses)),
        "machine": recording.machine,
    }


def figures(trace: Trace, of_files: list[dict]) -> dict:
    """The part of summary.json that is computed of the tables; docs/record.md explains it.

    Args:
      of_files: the rows of the table of files.
    """
    return {
        "usage": _usage(trace),
        "file_classes": {n: _of_class(trace, n) for n in files.CLASSES}
        if trace.has_calls
        else None,
        "records": _records(trace, of_files),
        "files": _files_in_short(of_files),
        "checkpoints": list(checkpoints(trace)),
        "phases": list(_phases(trace)),
        "access": access_figures(trace),
    }


def limits(trace: Trace) -> Iterator[str]:
    """The limits of the figures: what they lack, in whole or in part, one line each."""
    if trace.unsampled != 0:
        number = "" if trace.unsampled is None else f" ({trace.unsampled:,})"
        yield (
            "processor time, page faults and bytes by counters are at least so much: of the "
            f"processes that came and went between two samples{number} they hold those for which "
            "another process waited"
        )
    if trace.spans.empty:
        yield "no phases: no file that the trace saw holds lines of an MLPerf log of this time"


def file_rows(trace: Trace) -> Iterator[dict]:
    """The rows of the table of files: each file with what was done to it."""
    calls = trace.operations
    calls = calls[~calls["file_class"].isin(files.IN_KERNEL)]
    calls = calls[calls["error"].isna() & ~calls["kind"].isin(["rename", "exchange"])]
    kinds, sizes = calls["kind"], calls["size_bytes"]
    counted = {
        "num_opens": kinds.isin(["open", "create"]),
        "num_reads": kinds == "read",
        "read_bytes": sizes.where(kinds == "read", 0),
        "num_writes": kinds == "write",
        "written_bytes": sizes.where(kinds == "write", 0),
        "mapped_bytes": sizes.where(kinds == "map", 0),
    }
    counts = pd.DataFrame(counted, calls.index).groupby(calls["final_path"], sort=False).sum()
    first = calls.drop_duplicates("final_path").set_index("final_path")
    rows = first[["monotonic_ns", "file_class"]].join(counts.astype("int64"))
    for path, row in rows.to_dict("index").items():
        size = _size_on_disk(trace, path)
        passes = round(row["read_bytes"] / size, 4) if size else None
        yield {**row, "path": path, "size_bytes": size, "passes": passes}


def _size_on_disk(trace: Trace, path: str) -> int | None:
    try:
        located = trace.locator.find(path)
        return located.stat().st_size if located.is_file() else None
    except OSError:
        return None


def _files_in_short(rows: list[dict]) -> list[dict]:
    rows = [row for row in rows if row["file_class"] != files.LIBRARIES]
    rows.sort(key=lambda row: -(row["read_bytes"] + row["written_bytes"]))
    return [{n: row[n] for n in row if n != "monotonic_ns"} for row in rows[:_MOST_FILES]]


def _records(trace: Trace, of_files: list[dict]) -> dict | None:
    """The lengths of records, by the first ones of a few files; None if no file is there."""
    paths = [row["path"] for row in of_files if row["file_class"] == files.TFRECORDS]
    step = max(len(paths) // _MOST_FILES_OPENED, 1)
    lengths: list[int] = []
    for path in sorted(paths)[::step]:
        with contextlib.suppress(OSError):
            lengths += files.record_lengths(trace.locator.find(path), _MOST_RECORDS_PER_FILE)
    if not lengths:
        return None
    return {
        "num_sampled": len(lengths),
        "mean_bytes": round(float(np.mean(lengths)), 1),
        "stdev_bytes": round(float(np.std(lengths)), 1),
    }


def _of_class(trace: Trace, name: str) -> dict:
    operations = trace.operations
    operations = operations[operations["file_class"] == name]
    succeeded = operations["error"].isna()
    counts = operations[succeeded]["kind"].value_counts()
    figures: dict = {
        "num_opens": int(counts.get("open", 0) + counts.get("create", 0)),
        "mapped_bytes": int(operations.loc[operations["kind"] == "map", "size_bytes"].sum()),
    }
    for kind in TRANSFERS:
        calls = operations[(operations["kind"] == kind) & succeeded]
        past = "read" if kind == "read" else "written"
        figures[f"num_{kind}s"] = len(calls)
        figures[f"{past}_bytes"] = int(calls["size_bytes"].sum())
        figures[f"{kind}_size_bytes"] = percentiles(calls["size_bytes"], 1)
        figures[f"{kind}_latency_us"] = percentiles(calls["latency_ns"], 1e-3)
    return figures


def percentiles(values: pd.Series, factor: float) -> dict[str, float] | None:
    """Median, p95, p99 and maximum; None for no values."""
    values = values.dropna()
    if values.empty:
        return None
    percentiles = np.percentile(values, _PERCENTILES) * factor
    named = {f"p{p}": round(float(value), 3) for p, value in zip(_PERCENTILES, percentiles)}
    return named | {"max": round(float(values.max() * factor), 3)}


def checkpoints(trace: Trace) -> Iterator[dict]:
    """Each checkpoint in order of time: step, files, bytes, and its seconds by the MLPerf log."""
    writes = trace.transfers[trace.transfers["kind"] == "write"]
    writes = writes.join(writes["final_path"].astype(str).str.extract(_CHECKPOINT_FILE))
    saves = trace.spans[trace.spans["name"] == "checkpoint"]
    for (prefix, step), group in writes.groupby(["prefix", "step"], sort=False):
        begin, end = group["seconds"].min(), group["seconds"].max()
        # The log's stamps are whole milliseconds.
        around = saves[(saves["seconds"] - 0.001 <= begin) & (saves["end_seconds"] + 0.001 >= end)]
        lasting = (around["end_seconds"] - around["seconds"]).round(3)
        yield {
            "path": prefix,
            "step": int(step),
            "num_files": group["final_path"].nunique(),
            "written_bytes": int(group["size_bytes"].sum()),
            "num_writes": len(group),
            "begin_seconds": round(float(begin), 3),
            "writing_seconds": round(float(group["latency_ns"].sum() / 1e9), 6),
            "span_seconds": float(lasting.iloc[0]) if len(lasting) else None,
        }


def _phases(trace: Trace) -> Iterator[dict]:
    for span in trace.spans.itertuples():
        inside = trace.transfers
        inside = inside[inside["seconds"].between(span.seconds, span.end_seconds)]
        edges = [span.seconds, span.end_seconds]
        yield {
            "name": span.name,
            "begin_seconds": round(span.seconds, 3),
            "seconds": round(span.end_seconds - span.seconds, 3),
            "is_closed": bool(span.is_closed),
            "read_bytes": _bytes_by_class(inside, "read") if trace.has_calls else None,
            "written_bytes": _bytes_by_class(inside, "write") if trace.has_calls else None,
            "storage_read_bytes": grown(trace.storage_counters, "storage_read_bytes", edges)[0],
        }


def _bytes_by_class(transfers: pd.DataFrame, kind: str) -> dict[str, int]:
    of_kind = transfers[transfers["kind"] == kind]
    return {name: int(n) for name, n in of_kind.groupby("file_class")["size_bytes"].sum().items()}


def _usage(trace: Trace) -> dict:
    processes = trace.table("processes")
    together = processes.groupby("monotonic_ns").sum(numeric_only=True)
    return {
        "num_processes_sampled": processes.loc[processes["num_threads"] > 0, "pid"].nunique(),
        "cpu_seconds": float(trace.usage["cpu_ms"].max() / 1000) if len(trace.usage) else 0.0,
        "is_at_least": trace.unsampled != 0,
        "peak_resident_bytes": int(together["resident_bytes"].max()) if len(together) else 0,
        **{n: int(trace.usage[n].max()) if len(trace.usage) else 0 for n in FAULTS},
        **{n: int(trace.counters[n].max()) if len(trace.counters) else 0 for n in COUNTERS},
    }
