"""Parts of a trace made by hand: strace's lines, counters, clocks and logs."""

import json
from collections.abc import Iterable

from tracing.clocks import ClockPair
from tracing.recording import RawFile, Recording

SECOND = 10**9
BEGIN_S = 1_795_000_000
"""CLOCK_REALTIME when the trace begins; CLOCK_MONOTONIC is at 1,000 s then."""


def line(seconds: float, call: str, *, latency_s: float, tid: int) -> str:
    """One of strace's lines, `seconds` after the beginning."""
    stamp = BEGIN_S * SECOND + round(seconds * SECOND)
    return f"{tid} {stamp // SECOND}.{stamp % SECOND:09d} {call} <{latency_s:.9f}>\n"


def process(seconds: float, pid: int, parent: int, calls: int, storage: int) -> dict:
    """A row of the table of processes."""
    stamp = 1000 * SECOND + round(seconds * SECOND)
    return {
        "monotonic_ns": stamp, "realtime_ns": stamp + (BEGIN_S - 1000) * SECOND,
        "pid": pid, "parent_pid": parent, "command": "python train.py", "num_threads": 1,
        "user_ms": 0, "system_ms": 0, "resident_bytes": 1000, "minor_faults": 0, "major_faults": 0,
        "read_call_bytes": calls, "write_call_bytes": 0,
        "storage_read_bytes": storage, "storage_written_bytes": 0,
    }  # fmt: skip


def pairs(seconds: float) -> list[ClockPair]:
    """Clocks at the beginning and at the end."""
    return [
        ClockPair(1000 * SECOND + at, BEGIN_S * SECOND + at, 1000 * SECOND + at, 100)
        for at in (0, round(seconds * SECOND))
    ]


def log(events: Iterable[tuple]) -> str:
    """An MLPerf log of events (key, seconds, value, metadata)."""
    kinds = {"start": "INTERVAL_START", "stop": "INTERVAL_END"}
    found = [
        {"key": key, "event_type": kinds.get(key.split("_")[-1], "POINT_IN_TIME"), "value": value,
         "metadata": metadata, "time_ms": BEGIN_S * 1000 + round(at * 1000)}
        for key, at, value, metadata in events
    ]  # fmt: skip
    return "".join(f":::MLLOG {json.dumps(event)}\n" for event in found)


def recording(**given) -> Recording:
    """Of a training under strace without a container; what is given is otherwise."""
    known: dict = {
        "command": ["python", "train.py"], "folder": "/", "exit_code": 0, "ended_by": None,
        "backend": "strace", "notes": [], "containers": [],
        "raw_files": [RawFile("strace-0.txt", None)], "num_lost_lines": 0,
        "machine": {"num_cpus": 1},
    }  # fmt: skip
    return Recording(**known | given)
