"""A small finished trace, written without a tracer: every kind of call, and what is awkward.

Names with white space, calls without an offset, failed ones, a copy within the kernel, block I/O
that overlaps, samples without a number.
"""

import json
from pathlib import Path

import pandas as pd

from tracing import calls, files, tables
from tracing.clocks import Alignment, ClockPair

BEGIN_NS, REALTIME_AHEAD_NS = 5_000_000_000, 1_700_000_000 * 10**9
SECONDS = 2
PID, CHILD = 4000, 4100
LONG_NAME = "/data/" + 200 * "n"
SPACED_NAME = "/data/part 0 of é\n"
DATA = [f"/data/part-{number:05d}-of-00003" for number in range(3)]


def alignment() -> Alignment:
    """Of two clocks that never part."""
    return Alignment([_pair(BEGIN_NS), _pair(BEGIN_NS + SECONDS * 10**9)])


def _pair(at_ns: int) -> ClockPair:
    return ClockPair(at_ns, at_ns + REALTIME_AHEAD_NS, at_ns + 77, 50)


def write(folder: Path, *, backend: str = "strace") -> Path:
    """Makes the folder of the trace."""
    folder.mkdir(parents=True)
    pairs = [vars(pair) for pair in alignment().pairs]
    found = {
        "file_ops": _calls(), "clock_pairs": pairs, "spans": _spans(), "mllog": _points(),
        "block_io": _block_io(), "process_events": _process_events(), **_samples(),
    }  # fmt: skip
    for table, rows in found.items():
        tables.write_table(folder, table, sorted(rows, key=_stamp), alignment())
    summary = {"backend": backend, "checkpoints": [], "records": None, "seconds": SECONDS}
    summary |= {"begin_monotonic_ns": BEGIN_NS, "format_version": tables.FORMAT_VERSION}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def _stamp(row: dict) -> int:
    return row["monotonic_ns"]


def _call(at_us: int, operation: str, path: str, *, tid: int = PID, size: int = 0, **rest) -> dict:
    return {
        "monotonic_ns": BEGIN_NS + at_us * 1000, "pid": CHILD if tid == CHILD else PID, "tid": tid,
        "kind": calls.KIND_OF.get(operation, "fault"), "operation": operation, "path": path,
        "file_class": files.classify(path), "size_bytes": size, "latency_ns": 1500, **rest,
    }  # fmt: skip


def _read(at_us: int, path: str, offset: int | None, size: int, *, tid: int = PID) -> dict:
    return _call(
        at_us, "pread64", path, tid=tid, size=size, offset_bytes=offset, requested_bytes=65536
    )


def _calls() -> list[dict]:
    """Two threads read three files twice, a child appends to a log, one file is saved."""
    found = [_call(10 * n, name, "/data/all") for n, name in enumerate(calls.KIND_OF)]
    found += [_call(600, "page_fault", "/usr/lib/libc.so.6", size=4096, offset_bytes=8192)]
    found += [_call(610, "openat", "/data/none", error="ENOENT")]
    found += [_call(620, "pread64", DATA[0], error="EIO", requested_bytes=9, offset_bytes=0)]
    for turn in range(2):
        for number, path in enumerate(DATA):
            for part in range(5):
                at_us = 100_000 + turn * 400_000 + number * 3000 + part * 200
                found.append(_read(at_us, path, part * 65536, 65536, tid=PID + number % 2))
    found += [_read(900_000, SPACED_NAME, 3, 17), _read(900_100, LONG_NAME, 10**6, 1)]
    found += [_read(900_200, DATA[0], 5 * 65536, 0)]  # the end of the file
    for number in range(4):
        at_us = 150_000 + number * 300_000
        found.append(_call(at_us, "write", "/out/bert.log", tid=CHILD, size=120 + number))
    for number in range(8):
        at_us = 1_500_000 + number * 1000
        values = {"size": 250_000, "offset_bytes": number * 250_000, "requested_bytes": 250_000}
        found.append(_call(at_us, "write", "/out/temporary", **values))
    found += [_call(1_510_000, "fsync", "/out/temporary")]
    found += [_call(1_511_000, "rename", "/out/temporary", new_path="/out/model.ckpt-8.index")]
    for kind, path in (("read", DATA[1]), ("write", "/out/copy")):
        found.append({**_call(1_600_000, "sendfile", path, size=65536), "kind": kind})
    found += [_call(1_700_000, "read", "/proc/cpuinfo", size=500, offset_bytes=0)]
    found += [_call(1_700_100, "write", "pipe:[7]", size=90)]
    return found


def _spans() -> list[dict]:
    rows = [("init", 0, 90_000), ("run", 90_000, 1_900_000), ("block", 100_000, 1_000_000),
            ("checkpoint", 1_490_000, 1_512_000)]  # fmt: skip
    ends = [BEGIN_NS + end_us * 1000 for _, _, end_us in rows]
    return [
        {"monotonic_ns": BEGIN_NS + begin_us * 1000, "name": name, "end_monotonic_ns": end_ns,
         "end_realtime_ns": end_ns + REALTIME_AHEAD_NS, "is_closed": True, "metadata": "{}",
         "file": "/out/bert.log"}
        for (name, begin_us, _), end_ns in zip(rows, ends)
    ]  # fmt: skip


LEDGER = {"input_wait_seconds": 0.1, "compute_seconds": 0.3, "accelerator_utilization": 0.75}
"""Of the block that ends 500 ms after the trace's begin."""


def _points() -> list[dict]:
    """A seed, the ledgers of a block and of the run, and another vendor's figures."""
    return [
        point(50, "seed", 7, {}),
        point(500, "tracked_stats", LEDGER, {"of": "block"}),
        point(500, "tracked_stats", LEDGER, {"of": "run"}),
        point(500, "tracked_stats", {"throughput": 3.5}, {"step": 2}),
        point(500, "tracked_stats", 3.5, None),
    ]


def point(at_ms: float, key: str, value: object, metadata: object) -> dict:
    """A row of the table mllog, so long after the trace's begin."""
    return {
        "monotonic_ns": BEGIN_NS + round(at_ms * 1e6), "key": key, "event_type": "POINT_IN_TIME",
        "value": json.dumps(value), "metadata": json.dumps(metadata), "file": "/out/bert.log",
    }  # fmt: skip


def _block_io() -> list[dict]:
    """Three at once, and one after them."""
    return [
        {"monotonic_ns": BEGIN_NS + at_us * 1000, "pid": PID, "command": "python",
         "device": "254:0", "operation": "R", "sector": 8 * at_us, "size_bytes": 4096,
         "latency_ns": 100_000}
        for at_us in (1000, 1010, 1020, 2000)
    ]  # fmt: skip


def _process_events() -> list[dict]:
    row = {"monotonic_ns": BEGIN_NS, "pid": PID, "tid": PID}
    return [
        {**row, "event": "exec", "detail": "/usr/bin/python3"},
        {**row, "pid": CHILD, "tid": CHILD, "event": "process", "parent_pid": PID},
        {**row, "tid": PID + 1, "event": "thread", "parent_pid": PID},
    ]


def _samples() -> dict[str, list[dict]]:
    """A sample each second of everything; the GPU does not say what it draws."""
    found: dict[str, list[dict]] = {}
    for second in range(SECONDS + 1):
        at = {"monotonic_ns": BEGIN_NS + second * 10**9}
        spent = {"user_ms": 300 * second, "system_ms": 50 * second}
        rows = {
            "cpus": {"cpu": 0, **spent, "iowait_ms": 10 * second, "idle_ms": 640 * second},
            "memory": {"total_bytes": 8 * 10**9, "available_bytes": 5 * 10**9},
            "disks": {"device": "vda", "num_reads": second, "read_bytes": 4096 * second},
            "networks": {"device": "lo", "name_space": "net:[1]", "received_bytes": second},
            "gpus": {"gpu": 0, "name": "A100", "busy_percent": 30, "memory_used_bytes": 10**9},
            "processes": {"pid": PID, "command": "python train.py", "num_threads": 2, **spent},
            "threads": {"pid": PID, "tid": PID + 1, "name": "tf_data", **spent},
            "open_files": {"pid": PID, "fd": 5, "path": DATA[0], "offset_bytes": second},
        }
        rows["cpus"]["steal_ms"] = 0
        for table, row in rows.items():
            found.setdefault(table, []).append({**at, **row})
        in_container = {"name_space": "net:[2]", "received_bytes": 1000 * second}
        found["networks"].append({**at, **rows["networks"], **in_container})
    return found


def moved_in(file_ops: pd.DataFrame) -> pd.DataFrame:
    """What a replay moves."""
    is_file = ~file_ops["file_class"].isin(["pipes", "pseudo"])
    found = file_ops[is_file & file_ops["error"].isna() & (file_ops["size_bytes"] > 0)]
    return found[found["kind"].isin(["read", "write"])]
