"""Writes MLCommons' Chakra execution traces: storage, batches, evaluations and checkpoints.

tracing/docs/chakra.md shows what becomes which node, and what the dependencies mean. A file is one
GlobalMetadata and then nodes, each message after its length as a varint. Forks of the format differ
(Keysight's names batches and checkpoints DATA_OP): this follows MLCommons.
"""

import collections
import heapq
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import pandas as pd
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, proto, text_format

from tracing import backends, files, mllog
from tracing.bpftrace import ADD_TO_PAGE_CACHE, PAGE_BYTES
from tracing.loaded import Trace
from tracing.tables import written_beside

VERSION = "1.0.0"
SCHEMA_COMMIT = "6dc63e147b9d115286626cc122459e44d9d08401"
"""The commit that added storage; release 1.0.0 before it has none, so the version is not enough."""
FS_OPS = {
    "FS_OP_OPEN": "open openat openat2 creat",
    "FS_OP_CLOSE": "close",
    "FS_OP_READ": "read readv",
    "FS_OP_PREAD": "pread64 preadv preadv2",
    "FS_OP_WRITE": "write writev",
    "FS_OP_PWRITE": "pwrite64 pwritev pwritev2",
    "FS_OP_FSYNC": "fsync",
    "FS_OP_FDATASYNC": "fdatasync",
}
BLOCK_OPS = {"R": "BLOCK_OP_READ", "W": "BLOCK_OP_WRITE", "F": "BLOCK_OP_FLUSH"}
"""The kernel's letter -> operation; discards and the like move nothing."""
_OP_OF = {call: op for op, calls in FS_OPS.items() for call in calls.split()}
_COPIES = ("sendfile", "copy_file_range")
_SECTOR_BYTES = 512
# The order of events that begin at once: a dependency comes before what depends on it.
_SORTS = ("checkpoints", "calls", "pages", "block requests", "batches")


def _classes() -> dict[str, Any]:
    """Message -> its class, in a separate pool: MLCommons' own may be loaded too."""
    schema = Path(__file__).with_name("et_def.textproto").read_text(encoding="utf-8")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(schema, descriptor_pb2.FileDescriptorProto()))
    by_name = message_factory.GetMessageClassesForFiles(["et_def.proto"], pool)
    return {name.rpartition(".")[2]: kind for name, kind in by_name.items()}


CLASSES = _classes()
_KIND_OF_VALUE = {bool: "bool", int: "int64", float: "double", str: "string"}


def _attributes(values: dict[str, bool | int | float | str]) -> list:
    """Attributes as other producers type them; ASTRA-sim converts between kinds of integers."""
    kind = CLASSES["AttributeProto"]
    return [kind(name=n, **{f"{_KIND_OF_VALUE[type(v)]}_val": v}) for n, v in values.items()]


class Writer:
    """Writes a trace; nodes are numbered from 1 in the order in which they are written."""

    def __init__(self, file: IO[bytes], **about: bool | int | float | str):
        """Begins a trace; `about` becomes attributes of its metadata."""
        self._file = file
        self._num_nodes = 0
        attr = _attributes({"schema_commit": SCHEMA_COMMIT, **about})
        metadata = CLASSES["GlobalMetadata"](version=VERSION, attr=attr)
        proto.serialize_length_prefixed(metadata, file)

    def node(self, kind: str, name: str, *, attr: dict | None = None, **fields: Any) -> int:
        """Writes a node of `kind`, such as BATCH; returns its number.

        Args:
          attr: attributes, by name.
          fields: as the schema names them; data_deps and ctrl_deps are numbers of earlier nodes.
        """
        self._num_nodes += 1
        node = CLASSES["Node"](
            id=self._num_nodes, name=name, type=f"{kind}_NODE", attr=_attributes(attr or {}),
            **fields,
        )  # fmt: skip
        proto.serialize_length_prefixed(node, self._file)
        return self._num_nodes


class Event(NamedTuple):
    """Something that becomes a node; no two compare equal."""

    begin_ns: int
    order: int
    """The place of its sort in _SORTS."""
    number: int
    end_ns: int
    values: Any


def write(trace: Trace, output: Path) -> str:
    """Writes the file beside and renames it; returns what it holds, and what is missing.

    Raises:
      ValueError: the trace has no single calls.
      OSError: there is no room; nothing is left.
    """
    batches, blocks = list(_batches(trace)), trace.table("block_io")
    counts = collections.Counter[str]()
    with written_beside(output, "wb") as file:
        writer = Writer(
            file, made_by="tracing.export", trace=trace.folder.name,
            backend=trace.summary["backend"], has_block_events=not blocks.empty,
            has_batches=bool(batches), begin_monotonic_ns=trace.begin_ns,
        )  # fmt: skip
        nodes = _Nodes(writer)
        for event in heapq.merge(_marks(trace, batches), _calls(trace), _requests(blocks)):
            begin, end = (
                max(ns - trace.begin_ns, 0) // 1000 for ns in (event.begin_ns, event.end_ns)
            )
            times = {"start_time_micros": begin, "duration_micros": max(end - begin, 0)}
            nodes.write_by_sort[event.order](event, times)
            counts[_SORTS[event.order]] += 1
    held = ", ".join(f"{number:,} {name}" for name, number in sorted(counts.items()))
    held += "; no block I/O, which only bpftrace records" * blocks.empty
    return held + "; no batches: the trace has no MLPerf log of a training" * (not batches)


def _batches(trace: Trace) -> Iterator[tuple[int, int, dict]]:
    """(begin, end, attributes) of every step, as if those of a block took the same time."""
    events = trace.table("mllog")
    accumulated = mllog.value_of(events, "gradient_accumulation_steps") or 1
    examples = (mllog.value_of(events, "global_batch_size") or 0) // accumulated
    for span in trace.table("spans").itertuples() if examples else ():
        is_block = span.name == "block" and span.is_closed
        num_steps = round(mllog.trained_samples(events, span) / examples) if is_block else 0
        begin_ns, lasting_ns = span.monotonic_ns, span.end_monotonic_ns - span.monotonic_ns
        for n in range(num_steps):
            begin, end = (begin_ns + lasting_ns * k // num_steps for k in (n, n + 1))
            yield begin, end, {"phase": "training", "examples": examples}


def _marks(trace: Trace, batches: list[tuple[int, int, dict]]) -> Iterator[Event]:
    order = _SORTS.index("batches")
    events = [Event(begin, order, n, end, attr) for n, (begin, end, attr) in enumerate(batches)]
    for n, span in enumerate(trace.table("spans").itertuples(), len(batches)):
        begin, end = span.monotonic_ns, span.end_monotonic_ns
        if span.name == "eval":
            events.append(Event(begin, order, n, end, {"phase": "evaluation"}))
        elif span.name == "checkpoint":
            events.append(Event(begin, _SORTS.index("checkpoints"), n, end, None))
    return iter(sorted(events))


def _calls(trace: Trace) -> Iterator[Event]:
    if not trace.has_calls:
        raise ValueError(
            f"{trace.folder} holds no single calls: trace with strace or bpftrace, this one was "
            f"made with {backends.PROC}"
        )
    calls = trace.operations
    calls = calls[calls["error"].isna() & ~calls["file_class"].isin(files.IN_KERNEL)]
    calls = calls[calls["operation"].isin([*_OP_OF, *_COPIES, ADD_TO_PAGE_CACHE])]
    for n, call in enumerate(calls.itertuples()):
        end = call.monotonic_ns + (int(call.latency_ns) if pd.notna(call.latency_ns) else 0)
        sort = "pages" if call.operation == ADD_TO_PAGE_CACHE else "calls"
        yield Event(call.monotonic_ns, _SORTS.index(sort), n, end, call)


def _requests(blocks: pd.DataFrame) -> Iterator[Event]:
    order = _SORTS.index("block requests")
    for n, block in enumerate(blocks.itertuples()):
        if block_op(block.operation):
            yield Event(block.monotonic_ns, order, n, block.monotonic_ns + block.latency_ns, block)


def block_op(letters: str) -> str | None:
    """The operation of a request, by the kernel's letters; None if it moves nothing."""
    return next((op for letter, op in BLOCK_OPS.items() if letter in letters), None)


class _Nodes:
    """Writes the nodes in order of time, and knows what the next ones depend on."""

    def __init__(self, writer: Writer):
        self._writer = writer
        self.write_by_sort = (
            self._checkpoint, self._call, self._page, self._request, self._batch
        )  # fmt: skip
        # Thread -> number, begin and end of its last call; process -> its threads.
        self._last_of: dict[int, tuple[int, int, int]] = {}
        self._threads_of: dict[int, set[int]] = collections.defaultdict(set)
        self._opened: dict[tuple[int, str], int] = {}
        # A heap of (end, number) of reads of records that no batch has taken.
        self._ready: list[tuple[int, int]] = []
        # The node that the next batch, evaluation or checkpoint follows, if any.
        self._before: list[int] = []
        self._last_checkpoint = 0, 0

    def _checkpoint(self, event: Event, times: dict) -> None:
        number = self._writer.node("CHECKPOINT", "checkpoint", ctrl_deps=self._before, **times)
        self._last_checkpoint = number, event.end_ns

    def _batch(self, event: Event, times: dict) -> None:
        deps = []
        while self._ready and self._ready[0][0] <= event.begin_ns:
            deps.append(heapq.heappop(self._ready)[1])
        number = self._writer.node(
            "BATCH", event.values["phase"], attr=event.values, data_deps=sorted(deps),
            ctrl_deps=self._before, **times,
        )  # fmt: skip
        self._before = [number]

    def _call(self, event: Event, times: dict) -> None:
        call = event.values
        op = _OP_OF.get(call.operation) or f"FS_OP_{call.kind.upper()}"
        detail = {"op": op, "pathname": call.path, "size_bytes": int(call.size_bytes)}
        known = {"fd": call.fd, "offset": call.offset_bytes}
        detail |= {name: int(value) for name, value in known.items() if pd.notna(value)}
        opened = call.pid, call.path
        deps = {self._last_of.get(call.tid, (0,))[0]}
        if op != "FS_OP_OPEN":
            deps.add(self._opened.get(opened, 0))
        if call.file_class == files.CHECKPOINTS and event.begin_ns <= self._last_checkpoint[1]:
            deps.add(self._last_checkpoint[0])
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

    def _page(self, event: Event, times: dict) -> None:
        page = event.values
        detail = {"op": "PAGE_OP_ADD_TO_CACHE", "nr_pages": 1}
        detail["page_index"] = int(page.offset_bytes) // PAGE_BYTES
        around = self._around({page.tid}, event)
        self._storage("PAGE", ADD_TO_PAGE_CACHE, times, around, detail, path=page.path)

    def _request(self, event: Event, times: dict) -> None:
        block = event.values
        detail = {
            "op": block_op(block.operation), "queue_event": "BLOCK_EVENT_DISPATCH",
            "device": block.device, "lba": int(block.sector),
            "nr_sectors": int(block.size_bytes) // _SECTOR_BYTES,
        }  # fmt: skip
        around = self._around(self._threads_of.get(block.pid, set()), event)
        self._storage("BLOCK", "block_io", times, around, detail, letters=block.operation)

    def _storage(
        self, level: str, name: str, times: dict, deps: list[int], detail: dict, **attr: Any
    ) -> int:
        storage = {"level": f"STORAGE_LEVEL_{level}", level.lower(): detail}
        return self._writer.node(
            "STORAGE", name, ctrl_deps=deps, attr=attr, storage=storage, **times
        )

    def _around(self, threads: set[int], event: Event) -> list[int]:
        """The call that caused an event below it: one that surrounds it in time."""
        calls = [self._last_of[tid] for tid in threads if tid in self._last_of]
        calls = [call for call in calls if call[1] <= event.begin_ns <= call[2]]
        return [max(calls, key=lambda call: call[1])[0]] if calls else []
