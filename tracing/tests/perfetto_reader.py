"""Reads Perfetto's protobuf back, with the classes of the `perfetto` package."""

from collections.abc import Iterator
from pathlib import Path

from google.protobuf import text_format
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto


def lines(path: Path) -> Iterator[str]:
    """A trace's packets as text, with words in place of their numbers."""
    trace, tracks = proto.Trace.FromString(path.read_bytes()), set()
    words: dict[tuple[str, int], str] = {}
    assert trace.packet[0].trace_packet_defaults.timestamp_clock_id == 3  # monotonic
    for packet in trace.packet:
        for field, entries in packet.interned_data.ListFields():
            for entry in entries:
                word = entry.name if hasattr(entry, "name") else entry.str.decode()
                assert words.setdefault((field.name, entry.iid), word) == word
        if not packet.HasField("track_event"):
            tracks.add(packet.track_descriptor.uuid)
            fields = (packet.track_descriptor, packet.clock_snapshot)
            yield "".join(text_format.MessageToString(each, as_one_line=True) for each in fields)
            continue
        event = packet.track_event
        assert event.track_uuid in tracks
        told = [proto.TrackEvent.Type.Name(event.type), words.get(("event_names", event.name_iid))]
        told += [words["event_categories", number] for number in event.category_iids]
        for shown in event.debug_annotations:
            name = words["debug_annotation_names", shown.name_iid]
            text = words.get(("debug_annotation_string_values", shown.string_value_iid))
            told.append(f"{name}={shown.int_value if text is None else text!r}")
        number = f" {event.double_counter_value}" if event.HasField("double_counter_value") else ""
        yield f"{packet.timestamp} {event.track_uuid} {' '.join(filter(None, told))}{number}"
