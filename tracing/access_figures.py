"""The figures of access, for summary.json and the page; access.TERMS defines the words."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from tracing import access
from tracing.loaded import TRANSFERS, Trace, grown

_MOST_STORAGE_PER_CALL_BYTE = 1.25
"""With more, storage was read not only for read calls, and the ratio is unknown."""


def access_figures(trace: Trace) -> dict:
    """What summary.json holds under `access`; every figure is None where its source is missing."""
    return {
        "file_classes": _by_class(trace.reads) if trace.has_calls else None,
        "queue_depth": dict(_queue_depths(trace)),
        "page_cache": _page_cache(trace, *_storage(trace)),
        "passes": list(_passes(trace)) if trace.has_calls else None,
    }


def _reads_with_offsets(reads: pd.DataFrame) -> pd.DataFrame:
    return reads.dropna(subset=["offset_bytes"])


def _by_class(all_reads: pd.DataFrame) -> dict:
    figures = {}
    for name, reads in all_reads.groupby("file_class"):
        located = _reads_with_offsets(reads)
        distinct = _distinct_bytes(located)
        figures[name] = {
            "patterns": _shares(reads),
            "distinct_bytes": distinct,
            "read_amplification": _ratio(located["size_bytes"].sum(), distinct),
        }
    return figures


def _queue_depths(trace: Trace) -> Iterator[tuple[str, dict | None]]:
    """Kind of call -> how many at once; kinds that were not traced are left out."""
    calls, blocks = trace.transfers, trace.table("block_io")
    for verb in TRANSFERS:
        of_verb = blocks["operation"].str.contains(verb[0].upper(), na=False)
        parts = {f"{verb}_calls": calls[calls["kind"] == verb], f"block_{verb}s": blocks[of_verb]}
        for name, part in parts.items():
            latencies = part["latency_ns"].fillna(0).to_numpy(np.int64)
            if len(part):
                yield name, access.queue_depth(part["monotonic_ns"].to_numpy(), latencies)


def _storage(trace: Trace) -> tuple[int | None, str]:
    """Bytes read from storage, and where the number comes from."""
    if len(trace.counters) and trace.storage_counters.empty:
        return None, (
            f"unknown: the processes' counters hold {trace.share_counted:.0%} of the bytes of the "
            "read calls; some processes ended unseen"
        )
    if len(trace.counters):
        last = int(trace.counters["storage_read_bytes"].iloc[-1])
        return last, "counters of the processes, /proc/PID/io"
    return None, "unknown: no counters were readable"


def _page_cache(trace: Trace, storage_bytes: int | None, source: str) -> dict:
    if _is_asynchronous(trace):
        call_bytes, calls_from = None, "unknown: reads by libaio or io_uring are not recorded"
    elif trace.has_calls:
        call_bytes, calls_from = int(trace.reads["size_bytes"].sum()), "read calls on files"
    elif len(trace.counters):
        call_bytes = int(trace.counters["read_call_bytes"].iloc[-1])
        calls_from = "counters of the processes, pipes and sockets included"
    else:
        call_bytes, calls_from = None, "unknown: no counters were readable"
    missed = _ratio(storage_bytes, call_bytes)
    hit_ratio = None if missed is None else round(max(0.0, 1 - missed), 4)
    if missed is not None and missed > _MOST_STORAGE_PER_CALL_BYTE:
        calls_from += "; storage gave more: to mapped files, libaio, io_uring, or reading ahead"
        hit_ratio = None
    return {
        "call_bytes": call_bytes,
        "calls_from": calls_from,
        "storage_bytes": storage_bytes,
        "storage_from": source,
        "hit_ratio": hit_ratio,
    }


def _is_asynchronous(trace: Trace) -> bool:
    """Whether some reads and writes may have been made that no tracer saw."""
    return bool(trace.summary["losses"]["asynchronous_processes"])


def _passes(trace: Trace) -> Iterator[dict]:
    """Each pass over the training's TFRecords: its time, and bytes of calls and storage."""
    reads = trace.training_reads
    if _is_asynchronous(trace):
        return
    distinct = _distinct_bytes(_reads_with_offsets(reads))
    if not distinct:
        return
    ends = reads["size_bytes"].cumsum().to_numpy()
    last_of_pass = np.searchsorted(ends, np.arange(distinct, ends[-1], distinct))
    lasts = np.unique([*last_of_pass, len(ends) - 1])
    edges = np.concatenate([[reads["seconds"].iloc[0]], reads["seconds"].iloc[lasts]])
    call_bytes = np.diff(ends[lasts], prepend=0)
    storage = grown(trace.storage_counters, "storage_read_bytes", list(edges))
    for n in range(len(lasts)):
        yield {
            "begin_seconds": round(float(edges[n]), 3),
            "seconds": round(float(edges[n + 1] - edges[n]), 3),
            "call_bytes": int(call_bytes[n]),
            "storage_bytes": storage[n],
        }


def _distinct_bytes(located: pd.DataFrame) -> int:
    columns = ("file_number", "offset_bytes", "size_bytes")
    return access.distinct_bytes(*(located[name].to_numpy(np.int64) for name in columns))


def _shares(reads: pd.DataFrame) -> dict:
    totals = reads.groupby("pattern")["size_bytes"].agg(num_calls="size", bytes="sum")
    totals = totals.reindex(access.PATTERNS, fill_value=0).astype("int64")
    shares = (totals / totals.sum()).round(4)
    totals["share_of_calls"], totals["share_of_bytes"] = shares["num_calls"], shares["bytes"]
    return totals.to_dict("index")


def _ratio(part, whole, digits: int = 4) -> float | None:
    if part is None or not whole:
        return None
    return round(float(part) / float(whole), digits)
