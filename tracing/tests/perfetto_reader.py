"""Reads Perfetto's protobuf back, with the classes of the `perfetto` package."""

import collections
from collections.abc import Iterator
from pathlib import Path

from google.protobuf import text_format
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto


def lines(path: Path) -> Iterator[str]:
    """A trace as text: clocks, tracks, slices and instants; then each counter, its samples summed.

    Words stand in place of their numbers, tracks by their names: those of one name are numbered.
    """
    trace, words = proto.Trace.FromString(path.read_bytes()), dict[tuple[str, int], str]()
    tracks, begun = dict[int, str](), dict[int, str]()
    counted = collections.defaultdict[int, list[tuple[int, float]]](list)
    # Viewers understand words' numbers by these alone: 1 begins a sequence, 2 needs its beginning.
    flags = [(packet.trusted_packet_sequence_id, packet.sequence_flags) for packet in trace.packet]
    assert flags == [(1, 1), *[(1, 2)] * (len(flags) - 1)]
    assert trace.packet[0].trace_packet_defaults.timestamp_clock_id == 3  # monotonic
    for packet in trace.packet:
        _learn(words, packet.interned_data)
        event, stamp, track = packet.track_event, packet.timestamp, packet.track_event.track_uuid
        if packet.HasField("clock_snapshot"):
            yield text_format.MessageToString(packet.clock_snapshot, as_one_line=True)
        elif packet.HasField("track_descriptor"):
            name = _name(packet.track_descriptor, tracks)
            number = sum(other.partition(" #")[0] == name for other in tracks.values())
            tracks[packet.track_descriptor.uuid] = f"{name} #{number}" if number else name
        elif event.type == proto.TrackEvent.TYPE_COUNTER:
            counted[track].append((stamp, event.double_counter_value))
        elif event.type == proto.TrackEvent.TYPE_SLICE_END:
            yield f"{begun.pop(track)} to {stamp}"
        elif packet.HasField("track_event"):
            told = f"{stamp} {tracks[track]}: {' '.join(_told(event, words))}"
            if event.type == proto.TrackEvent.TYPE_INSTANT:
                yield told
            else:
                assert event.type == proto.TrackEvent.TYPE_SLICE_BEGIN and track not in begun
                begun[track] = told
    assert not begun
    for track, name in tracks.items():
        if samples := counted[track]:
            (first_ns, first), *_ = samples
            last_ns, last = samples[-1]
            name += f": {len(samples)} samples, {first:g} at {first_ns} to {last:g} at {last_ns}"
            name += f", together {sum(value for _, value in samples):.10g}"
        yield f"track {name}"


def _learn(words: dict[tuple[str, int], str], new: proto.InternedData) -> None:
    for field, entries in new.ListFields():
        for entry in entries:
            word = entry.name if hasattr(entry, "name") else entry.str.decode()
            assert words.setdefault((field.name, entry.iid), word) == word


def _name(described: proto.TrackDescriptor, tracks: dict[int, str]) -> str:
    """Behind the name of its parent; with what the kind of track has beside a name."""
    name = described.name
    if described.HasField("process"):
        name = f"process {described.process.pid} {described.process.process_name!r}"
    if described.HasField("thread"):
        thread = described.thread
        name = f"thread {thread.pid} {thread.tid} {thread.thread_name!r}"
    if described.HasField("counter"):
        name += f" ({text_format.MessageToString(described.counter, as_one_line=True)})"
    parent = f"{tracks[described.parent_uuid]} / " if described.parent_uuid else ""
    return parent + name


def _told(event: proto.TrackEvent, words: dict[tuple[str, int], str]) -> Iterator[str]:
    yield words["event_names", event.name_iid]
    yield from (words["event_categories", number] for number in event.category_iids)
    for shown in event.debug_annotations:
        name = words["debug_annotation_names", shown.name_iid]
        text = words.get(("debug_annotation_string_values", shown.string_value_iid))
        yield f"{name}={shown.int_value if text is None else text!r}"
