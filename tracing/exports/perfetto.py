"""Writes Perfetto's protobuf, for ui.perfetto.dev and trace_processor, with all of a trace.

Every call is a slice on its thread's track, every phase of the MLPerf log a slice on the track of
its kind, every block I/O a slice on a track of its device, every sampled number a counter. Source:
perfetto_trace.proto, TrackEvent; the `perfetto` package's classes and streaming builder write it.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import pandas as pd
import pyarrow as pa
from google.protobuf.message import Message
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto
from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

from tracing import mllog
from tracing.loaded import Trace
from tracing.tables import COLUMNS, written_beside

_CALL_COLUMNS = (
    "monotonic_ns", "latency_ns", "pid", "tid", "operation", "file_class", "path", "new_path",
    "offset_bytes", "requested_bytes", "size_bytes", "error",
)  # fmt: skip
# Sampled table -> columns that say whose numbers a row holds.
_OWNERS: Mapping[str, list[str]] = {
    "cpus": ["cpu"], "memory": [], "disks": ["device"], "networks": ["device"],
    "gpus": ["gpu", "name"], "processes": ["pid"], "threads": ["pid", "tid"],
    "open_files": ["pid", "fd", "path"],
}  # fmt: skip
_CLOCKS = {
    "monotonic_ns": proto.BUILTIN_CLOCK_MONOTONIC,
    "realtime_ns": proto.BUILTIN_CLOCK_REALTIME,
    "boottime_ns": proto.BUILTIN_CLOCK_BOOTTIME,
}
_SEQUENCE = 1  # one writer
_STRINGS = "debug_annotation_string_values"


def write(trace: Trace, output: Path) -> str:
    """Writes the file beside and renames it; returns how many calls it holds."""
    with written_beside(output, "wb") as file:
        writer = _Writer(trace, file)
        writer.clocks(trace.table("clock_pairs"))
        _write_log(trace, writer)
        _write_counters(trace, writer)
        _write_processes(trace, writer)
        _write_block_io(trace, writer)
        num_calls = _write_calls(trace, writer)
    return f"{num_calls:,} calls"


class _Writer:
    """Writes packets of one sequence, with numbers for words; tracks are made when asked for."""

    def __init__(self, trace: Trace, file: IO[bytes]):
        self._name_of_process = trace.process_names()
        threads = trace.table("threads")
        keys = zip(threads["pid"].tolist(), threads["tid"].tolist())
        self._name_of_thread = dict(zip(keys, threads["name"]))  # the last one counts
        self._builder = StreamingTraceProtoBuilder(file)
        self._num_tracks = 0
        self._words: dict[tuple[str, str], int] = {}
        defaults = proto.TracePacketDefaults(timestamp_clock_id=proto.BUILTIN_CLOCK_MONOTONIC)
        cleared = proto.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        self._write(None, cleared, trace_packet_defaults=defaults)

    def _write(
        self,
        stamp_ns: int | None,
        flags: int = proto.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE,
        **fields: Message,
    ) -> None:
        packet = proto.TracePacket(
            timestamp=stamp_ns, trusted_packet_sequence_id=_SEQUENCE, sequence_flags=flags, **fields
        )
        self._builder.write_packet(packet)

    def clocks(self, pairs: pd.DataFrame) -> None:
        """Writes the clocks that were read together."""
        for pair in pairs[list(_CLOCKS)].itertuples(index=False):
            snapshot = proto.ClockSnapshot()
            for number, stamp in zip(_CLOCKS.values(), pair):
                snapshot.clocks.add(clock_id=number, timestamp=stamp)
            self._write(pair.monotonic_ns, clock_snapshot=snapshot)

    def _track(self, **fields) -> int:
        """A new track, by the fields of its descriptor; returns its number."""
        self._num_tracks += 1
        descriptor = proto.TrackDescriptor(uuid=self._num_tracks, **fields)
        self._write(None, track_descriptor=descriptor)
        return self._num_tracks

    @functools.cache  # noqa: B019 - lives as long as the export
    def process(self, pid: int) -> int:
        """A process's track."""
        name = self._name_of_process.get(pid, f"process {pid}")
        return self._track(process=proto.ProcessDescriptor(pid=pid, process_name=name))

    @functools.cache  # noqa: B019 - lives as long as the export
    def thread(self, pid: int, tid: int) -> int:
        """A thread's track."""
        name = self._name_of_thread.get((pid, tid), f"thread {tid}")
        thread = proto.ThreadDescriptor(pid=pid, tid=tid, thread_name=name)
        return self._track(parent_uuid=self.process(pid), thread=thread)

    @functools.cache  # noqa: B019 - lives as long as the export
    def named(self, name: str, parent: int | None = None, number: int = 0) -> int:
        """A track of its own kind; `number` tells tracks of one name apart, which viewers merge."""
        return self._track(name=name, parent_uuid=parent)

    @functools.cache  # noqa: B019 - lives as long as the export
    def counter(self, name: str, parent: int, unit: str) -> int:
        """A counter's track."""
        counter = proto.CounterDescriptor(unit_name=unit)
        if unit == "bytes":
            counter = proto.CounterDescriptor(unit=proto.CounterDescriptor.UNIT_SIZE_BYTES)
        return self._track(name=name, parent_uuid=parent, counter=counter)

    def slice(
        self, track: int, name: str, category: str, begin_ns: int, lasting_ns: int, **values
    ) -> None:
        """Writes something that lasted, with those of the values that are known."""
        begin, end = proto.TrackEvent.TYPE_SLICE_BEGIN, proto.TrackEvent.TYPE_SLICE_END
        self._event(begin, track, name, category, begin_ns, values)
        event = proto.TrackEvent(type=end, track_uuid=track)
        self._write(begin_ns + lasting_ns, track_event=event)

    def instant(self, track: int, name: str, category: str, at_ns: int, **values) -> None:
        """Writes something that happened at one moment."""
        self._event(proto.TrackEvent.TYPE_INSTANT, track, name, category, at_ns, values)

    def count(self, track: int, at_ns: int, value: float) -> None:
        """Writes a sample of a counter."""
        kind = proto.TrackEvent.TYPE_COUNTER
        event = proto.TrackEvent(type=kind, track_uuid=track, double_counter_value=value)
        self._write(at_ns, track_event=event)

    def _event(self, kind, track: int, name: str, category: str, at_ns: int, values: dict) -> None:
        new = proto.InternedData()
        event = proto.TrackEvent(
            type=kind, track_uuid=track, name_iid=self._number(new, "event_names", name),
            category_iids=[self._number(new, "event_categories", category)],
        )  # fmt: skip
        for key, value in values.items():
            if value is None:
                continue
            shown = event.debug_annotations.add()
            shown.name_iid = self._number(new, "debug_annotation_names", key)
            if isinstance(value, str):
                shown.string_value_iid = self._number(new, _STRINGS, value)
            else:
                shown.int_value = value
        self._write(at_ns, track_event=event, interned_data=new)

    def _number(self, new: proto.InternedData, table: str, word: str) -> int:
        """A word's number; the first packet that needs it explains it, in `new`."""
        number = self._words.get((table, word))
        if number is None:
            number = self._words[table, word] = len(self._words) + 1
            spelled = {"str": word.encode()} if table == _STRINGS else {"name": word}
            getattr(new, table).add(iid=number, **spelled)
        return number


def _write_log(trace: Trace, writer: _Writer) -> None:
    """Writes points and phases of the MLPerf log."""
    log, events = writer.named("MLPerf log"), trace.table("mllog")
    for event in events[events["event_type"] == "POINT_IN_TIME"].itertuples():
        values = {"value": event.value, "metadata": event.metadata}
        writer.instant(log, event.key, "mllog", event.monotonic_ns, **values)
    for name in mllog.SPANS:
        writer.named(name, log)  # in this order
    for span in trace.table("spans").itertuples():
        lasting_ns = span.end_monotonic_ns - span.monotonic_ns
        values = {"is_closed": int(span.is_closed), "metadata": span.metadata, "file": span.file}
        track = writer.named(span.name, log)
        writer.slice(track, span.name, "mllog", span.monotonic_ns, lasting_ns, **values)


def _write_counters(trace: Trace, writer: _Writer) -> None:
    """Writes every number of every sample, and the processors' shares that follow from them."""
    machine = writer.named("machine")
    for seconds, *shares in trace.cpu_percentages().itertuples():
        for name, share in zip(("user", "system", "iowait"), shares):
            track = writer.counter(f"CPU {name}", machine, "%")
            writer.count(track, trace.begin_ns + round(seconds * 1e9), share)
    for table, owners in _OWNERS.items():
        columns = COLUMNS[table]
        numbers = [n for n in columns if n not in owners and pa.types.is_integer(columns[n][0])]
        units = [n.rpartition("_")[2] for n in numbers]
        for at_ns, *row in trace.rows(table, ["monotonic_ns", *owners, *numbers]):
            owner, values = dict(zip(owners, row)), row[len(owners) :]
            parent = machine
            if "tid" in owner:
                parent = writer.thread(owner.pop("pid"), owner.pop("tid"))
            elif "pid" in owner:
                parent = writer.process(owner.pop("pid"))
            prefix = " ".join(str(part) for part in [table, *owner.values()])
            for name, unit, value in zip(numbers, units, values):
                if value is not None:
                    writer.count(writer.counter(f"{prefix} {name}", parent, unit), at_ns, value)


def _write_processes(trace: Trace, writer: _Writer) -> None:
    """Writes begin, program and end of processes and threads."""
    columns = ["monotonic_ns", "pid", "tid", "event", "parent_pid", "detail"]
    for at_ns, pid, tid, event, parent_pid, detail in trace.rows("process_events", columns):
        values = {"parent_pid": parent_pid, "detail": detail}
        writer.instant(writer.thread(pid, tid), event, "process", at_ns, **values)


def _write_block_io(trace: Trace, writer: _Writer) -> None:
    """Writes requests; those that overlap are on several tracks of their device."""
    devices = writer.named("block devices")
    ends: dict[str, list[int]] = {}
    columns = ["monotonic_ns", "latency_ns", "device", "operation"]
    shown = ["sector", "size_bytes", "pid", "command"]
    # Sorted by their beginning: they were recorded as they ended.
    requests = sorted(trace.rows("block_io", [*columns, *shown]), key=lambda row: row[0])
    for begin_ns, latency_ns, device, operation, *values in requests:
        lanes = ends.setdefault(device, [])
        free = (number for number, end_ns in enumerate(lanes) if end_ns <= begin_ns)
        lane = next(free, len(lanes))
        lanes[lane : lane + 1] = [begin_ns + latency_ns]
        track = writer.named(device, devices, lane)
        details = dict(zip(shown, values))
        writer.slice(track, operation, "block", begin_ns, latency_ns, **details)


def _write_calls(trace: Trace, writer: _Writer) -> int:
    num_calls = 0
    for row in trace.rows("file_ops", _CALL_COLUMNS):
        begin_ns, lasting_ns, pid, tid, operation, file_class, *rest = row
        values = dict(zip(_CALL_COLUMNS[6:], rest))
        track = writer.thread(pid, tid)
        writer.slice(track, operation, file_class, begin_ns, lasting_ns or 0, **values)
        num_calls += 1
    return num_calls
