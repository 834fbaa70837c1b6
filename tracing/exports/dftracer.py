"""A trace as DFTracer writes it (.pfw.gz), for dftracer-utils and DFAnalyzer.

Gzipped JSON lines, an event each, microseconds since 1970; files stand as hashes, each named once
before its first use. Source: dftracer 1.0.8, docs/trace_format.rst, and what dftracer-utils 0.0.14
generates and counts.
"""

import gzip
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from tracing.loaded import Trace
from tracing.tables import written_beside

_COLUMNS = (
    "realtime_ns", "latency_ns", "pid", "tid", "kind", "operation", "path", "new_path",
    "file_class", "offset_bytes", "requested_bytes", "size_bytes", "error",
)  # fmt: skip
_HOST = "localhost"  # all events are of one host, whose name would tell nothing
# DFTracer intercepts the C library, and its readers know the names of that library's functions.
_NAMES = {
    "openat": "open", "openat2": "open", "mkdirat": "mkdir", "unlinkat": "unlink",
    "renameat": "rename", "renameat2": "rename",
}  # fmt: skip
_LEVEL = 6  # gzip's own default; Python's, 9, takes twice the time for 8% less


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


_HOST_HASH = _hash(_HOST)


def write(trace: Trace, output: Path) -> str:
    """Writes the file beside and renames it; returns how many events it holds.

    Raises:
      ValueError: the trace has no single calls.
      OSError: there is no room; nothing is left.
    """
    trace.require_calls()
    num_events = 0
    with written_beside(output, "wb") as file, gzip.open(file, "wt", compresslevel=_LEVEL) as text:
        text.write("[\n")
        for number, event in enumerate(_events(trace)):
            text.write(json.dumps({"id": number, **event}, separators=(",", ":")) + "\n")
            num_events += event["ph"] == "X"
        text.write("]\n")
    return f"{num_events:,} events"


def _name_of_hash(kind: str, text: str) -> dict:
    names = {"hhash": _HOST_HASH, "name": text, "value": _hash(text)}
    return {"name": kind, "cat": "dftracer", "pid": 0, "tid": 0, "ph": "M", "args": names}


def _events(trace: Trace) -> Iterator[dict]:
    yield _name_of_hash("HH", _HOST)
    yield from _spans(trace)
    hashes: dict[str, str] = {}
    for row in trace.rows("file_ops", _COLUMNS):
        call = dict(zip(_COLUMNS, row))
        path = call["path"]
        if path is not None and path not in hashes:
            hashes[path] = _hash(path)
            yield _name_of_hash("FH", path)
        name = _NAMES.get(call["operation"], call["operation"])
        yield _complete(
            name, "POSIX", call["realtime_ns"], call["latency_ns"] or 0,
            pid=call["pid"], tid=call["tid"], **_arguments(call, hashes.get(path)),
        )  # fmt: skip


def _complete(name, category, begin_ns, lasting_ns, *, pid, tid, **arguments) -> dict:
    return {
        "name": name, "cat": category, "pid": pid, "tid": tid, "ts": begin_ns // 1000,
        "dur": (lasting_ns + 500) // 1000, "ph": "X", "args": {"hhash": _HOST_HASH, **arguments},
    }  # fmt: skip


def _arguments(call: dict, path_hash: str | None) -> dict:
    """As DFTracer names them; `ret` is what the call returned, and readers' number of bytes."""
    found = {"class": call["file_class"]}
    if path_hash:
        found["fhash"] = path_hash
    if call["error"]:
        return {**found, "ret": -1, "error": call["error"]}
    if call["kind"] in ("read", "write"):
        found["ret"] = call["size_bytes"]
        named = {"count": call["requested_bytes"], "offset": call["offset_bytes"]}
        found |= {name: value for name, value in named.items() if value is not None}
    if call["new_path"]:
        found["new_path"] = call["new_path"]
    return found


def _spans(trace: Trace) -> Iterator[dict]:
    """The phases of the MLPerf log."""
    for span in trace.table("spans").itertuples():
        lasting_ns = span.end_monotonic_ns - span.monotonic_ns
        yield _complete(span.name, "MLPERF", span.realtime_ns, lasting_ns, pid=0, tid=0)
