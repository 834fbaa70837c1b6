"""Perfetto's protobuf, read back with the classes of the `perfetto` package."""

from collections import Counter, defaultdict
from pathlib import Path

import pandas as pd
import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

from tracing import mllog, tables
from tracing.exports import perfetto
from tracing.exports.finished import Finished
from tracing.tests import generated_trace


class ReadBack:
    """A trace as its packets say: tracks by number, slices by track, with words in place."""

    def __init__(self, path: Path):
        self.tracks: dict[int, proto.TrackDescriptor] = {}
        self.slices: dict[int, list[tuple]] = defaultdict(list)
        self.instants: dict[int, list[tuple]] = defaultdict(list)
        self.counts: dict[int, list[tuple[int, float]]] = defaultdict(list)
        self.clocks: list[dict[int, int]] = []
        self._words: dict[tuple[str, int], str] = {}
        trace = proto.Trace()
        trace.ParseFromString(path.read_bytes())
        assert trace.packet[0].trace_packet_defaults.timestamp_clock_id == 3  # monotonic
        events = []
        for packet in trace.packet:
            self._take(packet)
            if packet.HasField("track_event"):
                assert packet.track_event.track_uuid in self.tracks
                events.append((packet.timestamp, self._named(packet.track_event)))
        self._play(sorted(events, key=lambda event: event[0]))  # stable, as the viewers

    def _take(self, packet: proto.TracePacket) -> None:
        if packet.HasField("track_descriptor"):
            self.tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        for snapshot in [packet.clock_snapshot.clocks] if packet.HasField("clock_snapshot") else []:
            self.clocks.append({clock.clock_id: clock.timestamp for clock in snapshot})
        for field, entries in packet.interned_data.ListFields():
            for entry in entries:
                word = entry.name if hasattr(entry, "name") else entry.str.decode()
                assert self._words.setdefault((field.name, entry.iid), word) == word

    def _named(self, event: proto.TrackEvent) -> tuple:
        values = {}
        for shown in event.debug_annotations:
            name = self._words["debug_annotation_names", shown.name_iid]
            values[name] = shown.int_value
            if shown.HasField("string_value_iid"):
                values[name] = self._words[perfetto._STRINGS, shown.string_value_iid]
        name = self._words.get(("event_names", event.name_iid))
        categories = [self._words["event_categories", iid] for iid in event.category_iids]
        return event, name, categories, values

    def _play(self, events: list) -> None:
        open_slices = defaultdict(list)
        for at_ns, (event, name, categories, values) in events:
            track = event.track_uuid
            if event.type == proto.TrackEvent.TYPE_SLICE_BEGIN:
                open_slices[track].append((name, *categories, at_ns, values))
            elif event.type == proto.TrackEvent.TYPE_SLICE_END:
                name, category, begin_ns, values = open_slices[track].pop()
                self.slices[track].append((name, category, begin_ns, at_ns - begin_ns, values))
            elif event.type == proto.TrackEvent.TYPE_INSTANT:
                self.instants[track].append((name, at_ns, values))
            else:
                self.counts[track].append((at_ns, event.double_counter_value))
        assert not any(open_slices.values())

    def path_of(self, number: int) -> tuple[str, ...]:
        """The names from the outermost track to this one."""
        track = self.tracks[number]
        above = self.path_of(track.parent_uuid) if track.parent_uuid else ()
        name = track.name or track.process.process_name or track.thread.thread_name
        return (*above, name)


@pytest.fixture(scope="module")
def found(generated, tmp_path_factory) -> ReadBack:
    output = tmp_path_factory.mktemp("perfetto") / "trace.pftrace"
    perfetto.write(Finished(generated), output)
    return ReadBack(output)


def test_every_call_is_a_slice_on_its_threads_track(generated, found):
    shown = Counter()
    for number, slices in found.slices.items():
        thread = found.tracks[number].thread
        for name, category, begin_ns, lasting_ns, values in slices if thread.tid else []:
            place = (thread.pid, thread.tid, name, category, begin_ns, lasting_ns)
            shown[*place, tuple(sorted(values.items()))] += 1
    expected = Counter()
    for row in tables.read_table(generated, "file_ops").to_dict("records"):
        values = {key: row[key] for key in ("path", "new_path", "error", "offset_bytes",
                                            "requested_bytes", "size_bytes")}  # fmt: skip
        values = {k: v if isinstance(v, str) else int(v) for k, v in values.items() if pd.notna(v)}
        place = [row[key] for key in ("pid", "tid", "operation", "file_class", "monotonic_ns")]
        expected[*place, int(row["latency_ns"]), tuple(sorted(values.items()))] += 1
    assert shown == expected


def test_processes_threads_phases_and_devices_are_named(found):
    paths = {found.path_of(number) for number in found.tracks}
    command = "python train.py"
    assert {(command,), (command, "tf_data"), ("process 4100", "thread 4100")} <= paths
    assert {("MLPerf log", name) for name in mllog.SPANS} <= paths
    assert {("machine", "CPU user"), ("machine", "disks vda read_bytes"),
            ("machine", "gpus 0 A100 busy_percent"), (command, "processes user_ms"),
            (command, "tf_data", "threads user_ms"),
            ("block devices", "254:0")} <= paths  # fmt: skip


def test_phases_lie_on_the_tracks_of_their_kinds(generated, found):
    spans = tables.read_table(generated, "spans")
    shown = {
        (found.path_of(number)[1], begin_ns, begin_ns + lasting_ns)
        for number, slices in found.slices.items()
        for _, category, begin_ns, lasting_ns, _ in slices
        if category == "mllog"
    }
    assert shown == set(zip(spans["name"], spans["monotonic_ns"], spans["end_monotonic_ns"]))
    begin_ns = generated_trace.BEGIN_NS
    assert found.clocks[0] == {
        proto.BUILTIN_CLOCK_MONOTONIC: begin_ns,
        proto.BUILTIN_CLOCK_REALTIME: begin_ns + generated_trace.REALTIME_AHEAD_NS,
        proto.BUILTIN_CLOCK_BOOTTIME: begin_ns + 77,
    }
    [points] = [i for n, i in found.instants.items() if found.path_of(n) == ("MLPerf log",)]
    assert [(name, values["value"]) for name, _, values in points][:1] == [("seed", "7")]
    assert len(points) == len(tables.read_table(generated, "mllog"))


def test_where_a_blocks_time_went_is_counted_from_its_begin_to_its_end(found):
    counts = {found.path_of(n): counts for n, counts in found.counts.items()}
    begin_ns, end_ns = (generated_trace.BEGIN_NS + ms * 10**6 for ms in (100, 500))
    for kind, share in (("input wait", 25), ("compute", 75)):
        at = counts["MLPerf log", f"ledger {kind}"]
        assert at == [(begin_ns, pytest.approx(share)), (end_ns, 0)]


def test_block_io_that_overlaps_lies_side_by_side(found):
    lanes = [s for n, s in found.slices.items() if found.path_of(n)[0] == "block devices"]
    assert sorted(len(lane) for lane in lanes) == [1, 1, 2]
    for lane in lanes:
        ends = [begin_ns + lasting_ns for _, _, begin_ns, lasting_ns, _ in lane]
        assert all(end <= later[2] for end, later in zip(ends, lane[1:]))


def test_every_number_of_every_sample_is_a_count(generated, found):
    num_numbers = 0
    for table, owners in perfetto._OWNERS.items():
        rows = tables.read_table(generated, table).drop(columns=["monotonic_ns", "realtime_ns"])
        num_numbers += int(rows.drop(columns=owners).select_dtypes("number").count().sum())
    num_shares = 3 * generated_trace.SECONDS  # of the processors: user, system, iowait
    num_in_ledgers = 2 * 2  # both kinds of a block, at its begin and end
    num_counts = sum(map(len, found.counts.values()))
    assert num_counts == num_numbers + num_shares + num_in_ledgers
    [used] = [c for n, c in found.counts.items() if found.path_of(n)[-1] == "CPU user"]
    assert [value for _, value in used] == [pytest.approx(30)] * generated_trace.SECONDS
    received = {
        found.path_of(n)[-1]: [value for _, value in counted]
        for n, counted in found.counts.items()
        if found.path_of(n)[-1].startswith("networks")
    }
    seconds = range(generated_trace.SECONDS + 1)
    assert received == {
        "networks lo net:[1] received_bytes": list(seconds),
        "networks lo net:[2] received_bytes": [1000 * second for second in seconds],
    }
    [number] = [n for n in found.counts if found.path_of(n)[-1] == "memory available_bytes"]
    assert {value for _, value in found.counts[number]} == {5e9}
    assert found.tracks[number].counter.unit == proto.CounterDescriptor.UNIT_SIZE_BYTES


def test_a_trace_without_calls_shows_its_counters(tmp_path):
    trace = generated_trace.write(tmp_path / "trace", backend="proc")
    (trace / "file_ops.parquet").unlink()
    assert perfetto.write(Finished(trace), tmp_path / "trace.pftrace") == "0 calls"
    found = ReadBack(tmp_path / "trace.pftrace")
    assert len(found.counts) > 20
