"""A trace as a Chakra execution trace of MLCommons: storage, batches, evaluations, checkpoints.

tracing/docs/chakra.md shows MAPPING, and what the dependencies mean.
"""

import collections
import heapq
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import pandas as pd

from tracing import files, mllog
from tracing.bpftrace import ADD_TO_PAGE_CACHE, PAGE_BYTES
from tracing.exports import chakra_format as chakra
from tracing.exports.finished import Finished
from tracing.tables import written_beside

MAPPING: Mapping[str, tuple[str, str]] = {
    "open, openat, openat2, creat": ("STORAGE", "FS_OP_OPEN"),
    "close": ("STORAGE", "FS_OP_CLOSE"),
    "read, readv": ("STORAGE", "FS_OP_READ"),
    "pread64, preadv, preadv2": ("STORAGE", "FS_OP_PREAD"),
    "write, writev": ("STORAGE", "FS_OP_WRITE"),
    "pwrite64, pwritev, pwritev2": ("STORAGE", "FS_OP_PWRITE"),
    "fsync": ("STORAGE", "FS_OP_FSYNC"),
    "fdatasync": ("STORAGE", "FS_OP_FDATASYNC"),
    "sendfile, copy_file_range": ("STORAGE", "FS_OP_READ and FS_OP_WRITE"),
    ADD_TO_PAGE_CACHE: ("STORAGE", "PAGE_OP_ADD_TO_CACHE"),
    "block_io R": ("STORAGE", "BLOCK_OP_READ, BLOCK_EVENT_DISPATCH"),
    "block_io W": ("STORAGE", "BLOCK_OP_WRITE, BLOCK_EVENT_DISPATCH"),
    "block_io F": ("STORAGE", "BLOCK_OP_FLUSH, BLOCK_EVENT_DISPATCH"),
    "each step of a block of the log": ("BATCH", "training"),
    "an evaluation of the log": ("BATCH", "evaluation"),
    "a checkpoint of the log": ("CHECKPOINT", ""),
}
"""Our operation or event -> type of the node, and what the node says of it."""

_COLUMNS = (
    "monotonic_ns", "latency_ns", "pid", "tid", "kind", "operation", "fd", "path", "file_class",
    "offset_bytes", "size_bytes", "error",
)  # fmt: skip
_KINDS = ("open", "create", "close", "read", "write", "sync", "fault")
_FS_OPS = {
    operation: detail
    for names, (_, detail) in MAPPING.items()
    for operation in names.split(", ")
    if detail in chakra.ENUMS["FsOp.Op"].split()
}
_COPIES = ("sendfile", "copy_file_range")
_SECTOR_BYTES = 512


class Event(NamedTuple):
    """Something that becomes a node; no two compare equal."""

    begin_ns: int
    order: int
    """Among those that begin at once, so that a dependency stands above what depends on it."""
    number: int
    end_ns: int
    write: Callable[["Event", dict], str]
    """Writes the node with its times; returns of what sort it is."""
    values: Any


def write(trace: Finished, output: Path, *, seconds: tuple[float, float] = (0, math.inf)) -> str:
    """Writes the file beside and renames it; returns what it holds.

    Args:
      seconds: only what begins between these two, since the trace's begin.

    Raises:
      ValueError: the trace has no single calls.
      OSError: there is no room; nothing is left.
    """
    trace.require_calls()
    log = _Log(trace)
    with written_beside(output, "wb") as file:
        return _Nodes(log, file, seconds).write()


class _Log:
    """What the trace's MLPerf log says of the training."""

    def __init__(self, trace: Finished):
        self.trace = trace
        self.spans, self.events = trace.table("spans"), trace.table("mllog")
        accumulated = mllog.value_of(self.events, "gradient_accumulation_steps") or 1
        self.step_examples = (mllog.value_of(self.events, "global_batch_size") or 0) // accumulated
        self.batches = list(self._batches())

    def _batches(self) -> Iterator[tuple[int, int, dict]]:
        """(begin, end, attributes) of every step, as if those of a block took the same time."""
        shares = {
            end: {f"{name.replace(' ', '_')}_percent": share for name, share in found.items()}
            for _, end, found in mllog.ledger_shares(self.events)
        }
        for block in self.spans[self.spans["name"] == "block"].itertuples():
            stop = mllog.stop_of(block, self.events)
            samples = 0 if stop is None else mllog.trained_samples(json.loads(stop.metadata))
            num_steps = round(samples / self.step_examples) if self.step_examples else 0
            begin_ns, end_ns = block.monotonic_ns, block.end_monotonic_ns
            begin_ns += mllog.saving_seconds(block, self.events, self.spans) * 1e9
            # The ledger stands right behind the end of its block.
            later = [end for end in shares if 0 <= end - end_ns < 1e9]
            of_block = shares[min(later)] if later else {}
            attr = {"phase": "training", "examples": self.step_examples, **of_block}
            for n in range(num_steps):
                begin, end = (begin_ns + (end_ns - begin_ns) * k / num_steps for k in (n, n + 1))
                yield int(begin), int(end), attr


class _Nodes:
    """Writes the nodes in order of time."""

    def __init__(self, log: _Log, file: IO[bytes], seconds: tuple[float, float]):
        self._log, self._trace = log, log.trace
        self._first, self._last = (log.trace.begin_ns + each * 1e9 for each in seconds)
        self._blocks = log.trace.table("block_io")
        self._writer = chakra.Writer(
            file, made_by="tracing.export", trace=log.trace.folder.name,
            backend=log.trace.summary["backend"], has_block_events=not self._blocks.empty,
            has_batches=bool(log.batches), begin_monotonic_ns=log.trace.begin_ns,
        )  # fmt: skip
        # Thread -> number, begin and end of its last call; process -> its threads.
        self._last_of: dict[int, tuple[int, int, int]] = {}
        self._threads_of: dict[int, set[int]] = collections.defaultdict(set)
        self._opened: dict[tuple[int, str], int] = {}
        # A heap of (end, number) of reads of records that no batch has taken.
        self._ready: list[tuple[int, int]] = []
        # What the next batch, evaluation or checkpoint follows: nothing, or the one before it.
        self._before: list[int] = []
        self._checkpoint = 0, 0

    def write(self) -> str:
        """Writes all; returns how much of what, and what is missing."""
        counts = collections.Counter[str]()
        for event in heapq.merge(self._marks(), self._calls(), self._requests()):
            if not self._first <= event.begin_ns < self._last:
                continue
            begin, end = (max(ns - self._trace.begin_ns, 0) // 1000 for ns in (event[0], event[3]))
            times = {"start_time_micros": begin, "duration_micros": max(end - begin, 0)}
            counts[event.write(event, times)] += 1
        held = ", ".join(f"{number:,} {name}" for name, number in sorted(counts.items()))
        held = held or "nothing begins in this time"
        held += "; no block I/O, which only bpftrace records" * self._blocks.empty
        return held + "; no batches: the trace has no MLPerf log of a training" * (
            not self._log.batches
        )

    def _marks(self) -> Iterator[Event]:
        found = [
            Event(begin, 3, n, end, self._write_batch, attr)
            for n, (begin, end, attr) in enumerate(self._log.batches)
        ]
        for n, span in enumerate(self._log.spans.itertuples()):
            times = span.monotonic_ns, span.end_monotonic_ns
            if span.name == "eval":
                attr = {"phase": "evaluation"}
                found.append(Event(times[0], 4, n, times[1], self._write_batch, attr))
            elif span.name == "checkpoint":
                found.append(Event(times[0], 0, n, times[1], self._write_checkpoint, None))
        return iter(sorted(found))

    def _calls(self) -> Iterator[Event]:
        calls = self._trace.calls_of(_KINDS, _COLUMNS)
        calls = calls[calls["error"].isna()]
        calls = calls[~calls["file_class"].isin([files.PIPES, files.PSEUDO])]
        calls = calls[calls["operation"].isin([*_FS_OPS, *_COPIES, ADD_TO_PAGE_CACHE])]
        for n, call in enumerate(calls.itertuples(index=False)):
            end = call.monotonic_ns + (int(call.latency_ns) if pd.notna(call.latency_ns) else 0)
            is_page = call.operation == ADD_TO_PAGE_CACHE
            write = self._write_page if is_page else self._write_call
            yield Event(call.monotonic_ns, 2 if is_page else 1, n, end, write, call)

    def _requests(self) -> Iterator[Event]:
        for n, block in enumerate(self._blocks.itertuples(index=False)):
            if _block_op(block.operation):
                end = block.monotonic_ns + int(block.latency_ns or 0)
                number = n + len(self._blocks)  # no page has it
                yield Event(block.monotonic_ns, 2, -number, end, self._write_request, block)

    def _write_checkpoint(self, event: Event, times: dict) -> str:
        number = self._writer.node("CHECKPOINT", "checkpoint", ctrl_deps=self._before, **times)
        self._checkpoint = number, event.end_ns
        return "checkpoints"

    def _write_batch(self, event: Event, times: dict) -> str:
        deps = []
        while self._ready and self._ready[0][0] <= event.begin_ns:
            deps.append(heapq.heappop(self._ready)[1])
        number = self._writer.node(
            "BATCH", event.values["phase"], attr=event.values, data_deps=sorted(deps),
            ctrl_deps=self._before, **times,
        )  # fmt: skip
        self._before = [number]
        return "batches"

    def _write_call(self, event: Event, times: dict) -> str:
        call = event.values
        op = _FS_OPS.get(call.operation) or f"FS_OP_{call.kind.upper()}"
        detail = {"op": op, "pathname": call.path, "size_bytes": int(call.size_bytes)}
        known = {"fd": call.fd, "offset": call.offset_bytes}
        detail |= {name: int(value) for name, value in known.items() if pd.notna(value)}
        opened = call.pid, call.path
        deps = {self._last_of.get(call.tid, (0,))[0]}
        if op != "FS_OP_OPEN":
            deps.add(self._opened.get(opened, 0))
        if call.file_class == files.CHECKPOINTS and event.begin_ns <= self._checkpoint[1]:
            deps.add(self._checkpoint[0])
        who = {"file_class": call.file_class, "pid": int(call.pid), "tid": int(call.tid)}
        number = self._storage("FS", call.operation, times, sorted(deps - {0}), detail, **who)
        self._last_of[call.tid] = number, event.begin_ns, event.end_ns
        self._threads_of[call.pid].add(call.tid)
        if op == "FS_OP_OPEN":
            self._opened[opened] = number
        elif op == "FS_OP_CLOSE":
            self._opened.pop(opened, None)
        elif call.kind == "read" and call.file_class == files.TFRECORDS:
            heapq.heappush(self._ready, (event.end_ns, number))
        return "calls"

    def _write_page(self, event: Event, times: dict) -> str:
        page = event.values
        detail = {"op": "PAGE_OP_ADD_TO_CACHE", "nr_pages": 1}
        detail["page_index"] = int(page.offset_bytes) // PAGE_BYTES
        around = self._around({page.tid}, event)
        self._storage("PAGE", ADD_TO_PAGE_CACHE, times, around, detail, path=page.path)
        return "pages"

    def _write_request(self, event: Event, times: dict) -> str:
        block = event.values
        detail = {
            "op": _block_op(block.operation), "queue_event": "BLOCK_EVENT_DISPATCH",
            "device": block.device, "lba": int(block.sector),
            "nr_sectors": int(block.size_bytes) // _SECTOR_BYTES,
        }  # fmt: skip
        around = self._around(self._threads_of.get(block.pid, set()), event)
        self._storage("BLOCK", "block_io", times, around, detail, letters=block.operation)
        return "block requests"

    def _storage(
        self, level: str, name: str, times: dict, deps: list[int], detail: dict, **attr: Any
    ) -> int:
        storage = {"level": f"STORAGE_LEVEL_{level}", level.lower(): detail}
        return self._writer.node(
            "STORAGE", name, ctrl_deps=deps, attr=attr, storage=storage, **times
        )

    def _around(self, threads: set[int], event: Event) -> list[int]:
        """The call within which something happened below it."""
        calls = [self._last_of[tid] for tid in threads if tid in self._last_of]
        calls = [call for call in calls if call[1] <= event.begin_ns <= call[2]]
        return [max(calls, key=lambda call: call[1])[0]] if calls else []


def _block_op(letters: str) -> str | None:
    """Of the kernel's letters; None for discards and the like, which move nothing."""
    ops = {"R": "BLOCK_OP_READ", "W": "BLOCK_OP_WRITE"}
    found = next((ops[letter] for letter in letters if letter in ops), None)
    return found or ("BLOCK_OP_FLUSH" if letters.startswith("F") else None)
