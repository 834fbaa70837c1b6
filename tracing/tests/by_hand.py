"""A trace made by hand: strace's lines, counters and clocks with figures worked out on paper."""

import json
from collections.abc import Iterable
from pathlib import Path

from mlperf_bert.data import tfrecord
from tracing import outputs, tables
from tracing.clocks import Alignment, ClockPair
from tracing.recording import RAW, RawFile, Recording

DATA_BYTES = 40_000
SECOND = 10**9
BEGIN_S = 1_795_000_000
"""CLOCK_REALTIME when the trace begins; CLOCK_MONOTONIC is at 1,000 s then."""


def line(seconds: float, call: str, *, latency_s: float = 0.001, tid: int = 7) -> str:
    """One of strace's lines, `seconds` after the beginning."""
    stamp = BEGIN_S * SECOND + round(seconds * SECOND)
    return f"{tid} {stamp // SECOND}.{stamp % SECOND:09d} {call} <{latency_s:.9f}>\n"


def opened(seconds: float, path: Path, fd: int = 3) -> str:
    """An opening."""
    return line(seconds, f'openat(AT_FDCWD</>, "{path}", O_RDONLY) = {fd}<{path}>')


def pread(seconds: float, path: Path, offset: int, size: int, fd: int = 3, **more) -> str:
    """A read with an offset of its own."""
    return line(seconds, f'pread64({fd}<{path}>, "", {size}, {offset}) = {size}', **more)


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


def pairs(seconds: float, *, monotonic_s: int = 1000, ahead_s: float = 0.0) -> list[ClockPair]:
    """Clocks at the beginning and at the end; `ahead_s` is how wrong the wall clock is."""
    return [
        ClockPair(
            monotonic_ns=monotonic_s * SECOND + at,
            realtime_ns=BEGIN_S * SECOND + round(ahead_s * SECOND) + at,
            boottime_ns=monotonic_s * SECOND + at,
            uncertainty_ns=100,
        )
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


def training(folder: Path, ledger: dict | None = None) -> tuple[Path, list[str]]:
    """Writes data, and the log of a block of 20 samples from 0.5 s to 8 s.

    Args:
      ledger: seconds of the block, if it logs them.

    Returns: the data, and strace's lines of the log's writing.
    """
    data, path = folder / "part-00000", folder / "bert.log"
    data.write_bytes((tfrecord.frame(bytes(3984)) * 10)[:DATA_BYTES])
    events = [("block_start", 0.5, None, {})]
    events += [("block_stop", 8.0, None, {"first_epoch_num": 0, "samples_count": 20})]
    events += [("tracked_stats", 8.0, ledger, {"of": "block"})] if ledger else []
    path.write_text(log(events))
    opening = f'openat(AT_FDCWD</>, "{path}", O_WRONLY|O_CREAT) = 9<{path}>'
    return data, [line(8.1, opening), line(8.2, f'write(9<{path}>, "", 100) = 100')]


def recording(**given) -> Recording:
    """Of a training under strace without a container; what is given is otherwise."""
    known: dict = {
        "command": ["python", "train.py"], "folder": "/", "exit_code": 0, "ended_by": None,
        "backend": "strace", "notes": [], "containers": [],
        "raw_files": [RawFile("strace-0.txt", None)], "num_lost_lines": 0, "tracer_cpu_ms": 0,
        "machine": {"num_cpus": 1},
    }  # fmt: skip
    return Recording(**known | given)


def make(
    folder: Path,
    lines: list[str],
    *,
    seconds: float = 10.0,
    processes: list[dict] = (),
    clocks: list[ClockPair] | None = None,
    machine: dict | None = None,
) -> dict:
    """Writes the whole trace and returns summary.json."""
    (folder / RAW).mkdir(parents=True)
    (folder / RAW / "strace-0.txt").write_text("".join(lines))
    clocks = clocks or pairs(seconds)
    tables.write_table(folder, "processes", processes, Alignment(clocks))
    more = {"machine": machine} if machine else {}
    list(outputs.write_all(folder, recording(pairs=clocks, **more)))
    return json.loads((folder / "summary.json").read_text())
