"""Reads Perfetto's protobuf back, with the classes of the `perfetto` package."""

from collections import defaultdict
from pathlib import Path

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto


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
                values[name] = self._words["debug_annotation_string_values", shown.string_value_iid]
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

    def lines(self) -> list[str]:
        """All of it as text, a track at a time."""
        found = [f"clocks {clock}" for clock in self.clocks]
        for number, track in self.tracks.items():
            unit = track.counter.unit_name or track.counter.unit or ""
            found.append(f"track {number}: {self.path_of(number)} {unit}")
            for rows in (self.slices, self.instants, self.counts):
                found += [f"  {row}" for row in rows.get(number, [])]
        return found
