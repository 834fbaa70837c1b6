"""A trace as Chrome's JSON, which ui.perfetto.dev and chrome://tracing open.

Source: the Trace Event Format of the Chromium project: timestamps and durations in microseconds.
"""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from tracing import files, mllog
from tracing.loaded import Loaded
from tracing.tables import Tables, written_beside

# Above every pid that Linux gives (4,194,304), so that no process of the trace has them.
MLPERF, MACHINE, BLOCK = 5_000_000, 5_000_001, 5_000_002
# Viewers hold everything in memory.
MOST_CALLS, MOST_BLOCK_IO = 100_000, 20_000
_SPAN_ROWS = {name: row for row, name in enumerate(mllog.SPANS, start=1)}
_IN_FULL = (files.TFRECORDS, files.CHECKPOINTS, files.LOGS)


def write(trace: Loaded, path: Path) -> int:
    """Writes the file beside and renames it; returns how many calls it leaves out.

    Raises:
      OSError: there is no room; nothing is left.
    """
    calls, num_left_out = _calls_to_show(trace)
    facts = {
        "command": " ".join(trace.recording.command),
        "backend": trace.recording.backend,
        "begin_monotonic_ns": trace.begin_ns,
        "begin_realtime_ns": trace.recording.begin_ns,
        "calls_left_out": num_left_out,
    }
    parts = (_names, _spans, _points, _counters, _block_io)
    events = itertools.chain(*(part(trace) for part in parts), _calls(calls))
    with written_beside(path) as file:
        file.write('{"displayTimeUnit": "ms", "otherData": ')
        json.dump(facts, file)
        file.write(', "traceEvents": [\n')
        for number, event in enumerate(events):
            file.write((",\n" if number else "") + json.dumps(event, separators=(",", ":")))
        file.write("\n]}\n")
    return num_left_out


def _calls_to_show(trace: Loaded) -> tuple[pd.DataFrame, int]:
    """All on data, checkpoints and logs, then the slowest, as many as viewers can hold."""
    calls = trace.operations
    if len(calls) <= MOST_CALLS:
        return calls, 0
    is_in_full = calls["file_class"].isin(_IN_FULL)
    order = np.lexsort((-calls["latency_ns"].fillna(0), ~is_in_full))
    kept = calls.iloc[np.sort(order[:MOST_CALLS])]
    return kept, len(calls) - MOST_CALLS


def _metadata(name: str, value, *, pid: int, tid: int = 0) -> dict:
    key = "sort_index" if name.endswith("sort_index") else "name"
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": {key: value}}


def _names(trace: Loaded) -> Iterator[dict]:
    for position, (pid, name) in enumerate(
        [(MLPERF, "MLPerf log"), (MACHINE, "machine"), (BLOCK, "block devices")]
    ):
        yield _metadata("process_name", name, pid=pid)
        yield _metadata("process_sort_index", position - 3, pid=pid)
    for name, row in _SPAN_ROWS.items():
        yield _metadata("thread_name", name, pid=MLPERF, tid=row)
        yield _metadata("thread_sort_index", row, pid=MLPERF, tid=row)
    for pid, command in process_names(trace).items():
        yield _metadata("process_name", command, pid=pid)
    threads = trace.table("threads").drop_duplicates(["pid", "tid"], keep="last")
    for row in threads.itertuples():
        yield _metadata("thread_name", row.name, pid=int(row.pid), tid=int(row.tid))


def process_names(trace: Tables) -> dict[int, str]:
    """Process -> its command line, or the program alone for one that ended between samples."""
    executed = trace.table("process_events")
    executed = executed[executed["event"] == "exec"].drop_duplicates("pid", keep="last")
    names = dict(zip(executed["pid"].astype(int), executed["detail"]))
    sampled = trace.table("processes").drop_duplicates("pid", keep="last")
    sampled = sampled[sampled["command"] != ""]
    return names | dict(zip(sampled["pid"].astype(int), sampled["command"]))


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _spans(trace: Loaded) -> Iterator[dict]:
    for span in trace.spans.itertuples():
        yield {
            "ph": "X",
            "name": span.name,
            "cat": "mllog",
            "pid": MLPERF,
            "tid": _SPAN_ROWS[span.name],
            "ts": _us(span.seconds),
            "dur": _us(span.end_seconds - span.seconds),
            "args": {"is_closed": bool(span.is_closed), "metadata": json.loads(span.metadata)},
        }


def _points(trace: Loaded) -> Iterator[dict]:
    events = trace.table("mllog")
    for event in events[events["event_type"] == "POINT_IN_TIME"].itertuples():
        arguments = {"value": json.loads(event.value), "metadata": json.loads(event.metadata)}
        yield {
            "ph": "i", "s": "p", "name": event.key, "cat": "mllog", "pid": MLPERF, "tid": 0,
            "ts": _us(event.seconds), "args": arguments,
        }  # fmt: skip


def _counter(name: str, seconds: float, **values: float) -> dict:
    return {
        "ph": "C",
        "name": name,
        "pid": MACHINE,
        "ts": _us(seconds),
        "args": {key: round(float(value), 3) for key, value in values.items()},
    }


def _counters(trace: Loaded) -> Iterator[dict]:
    for begin_ns, end_ns, shares in mllog.ledger_shares(trace.table("mllog")):
        yield _counter("ledger %", (begin_ns - trace.begin_ns) / 1e9, **shares)
        yield _counter("ledger %", (end_ns - trace.begin_ns) / 1e9, **dict.fromkeys(shares, 0))
    for seconds, user, system, iowait in cpu_percentages(trace):
        yield _counter("CPU %", seconds, user=user, system=system, iowait=iowait)
    for row in trace.table("memory").itertuples():
        used = row.total_bytes - row.available_bytes
        yield _counter("memory MB", row.seconds, used=used / 1e6, cache=row.page_cache_bytes / 1e6)
    for row in trace.table("gpus").itertuples():
        name = f"GPU {row.gpu}"
        yield _counter(f"{name} busy %", row.seconds, busy=_or_zero(row.busy_percent))
        yield _counter(f"{name} MB", row.seconds, used=_or_zero(row.memory_used_bytes) / 1e6)


def _or_zero(value) -> float:
    return 0.0 if pd.isna(value) else float(value)


def cpu_percentages(trace: Tables) -> Iterator[tuple[float, float, float, float]]:
    """(seconds, user, system, iowait) between samples, in percent of all processors."""
    columns = ["user_ms", "system_ms", "iowait_ms", "idle_ms", "steal_ms"]
    sums = trace.table("cpus").groupby("seconds")[columns].sum()
    spent = sums.diff().iloc[1:]
    for seconds, row in spent.iterrows():
        if total := row.sum():
            yield (float(seconds), *(100 * row[name] / total for name in columns[:3]))


def _block_io(trace: Loaded) -> Iterator[dict]:
    slowest = trace.table("block_io").nlargest(MOST_BLOCK_IO, "latency_ns")
    for number, row in enumerate(slowest.sort_values("seconds").itertuples()):
        same = {"cat": "block", "id": number, "pid": BLOCK, "tid": 0}
        same |= {"name": f"{row.operation} {row.device}"}
        arguments = {"sector": row.sector, "bytes": row.size_bytes, "command": row.command}
        yield {**same, "ph": "b", "ts": _us(row.seconds), "args": arguments}
        yield {**same, "ph": "e", "ts": _us(row.seconds + row.latency_ns / 1e9)}


def _calls(calls: pd.DataFrame) -> Iterator[dict]:
    columns = ["pid", "tid", "operation", "file_class", "path", "offset_bytes", "size_bytes"]
    columns += ["latency_ns", "error", "seconds"]
    for values in calls[columns].itertuples(index=False):
        arguments = {"path": values.path}
        if not pd.isna(values.offset_bytes):
            arguments["offset"] = int(values.offset_bytes)
        if values.size_bytes:
            arguments["bytes"] = int(values.size_bytes)
        if isinstance(values.error, str):
            arguments["error"] = values.error
        yield {
            "ph": "X",
            "name": values.operation,
            "cat": values.file_class,
            "pid": int(values.pid),
            "tid": int(values.tid),
            "ts": _us(values.seconds),
            "dur": 0.0 if pd.isna(values.latency_ns) else values.latency_ns / 1000,
            "args": arguments,
        }
