"""Reads Chakra's files again, and says what a trace breaks of its own order."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from google.protobuf import proto

from tracing.exports import chakra


def read(path: Path) -> tuple[Any, list[Any]]:
    """The metadata of a trace, and its nodes."""
    with path.open("rb") as file:
        metadata = proto.parse_length_prefixed(chakra.CLASSES["GlobalMetadata"], file)
        nodes = iter(lambda: proto.parse_length_prefixed(chakra.CLASSES["Node"], file), None)
        return metadata, list(nodes)


def violations(nodes: Iterable[Any]) -> Iterator[str]:
    """What a trace breaks of its own order, in words; nothing for a good one.

    Every node has its own number; every dependency is there; there is no cycle; nodes stand in the
    file in order of time, none before what it depends on began, nor before its data were there.
    """
    seen: dict[int, tuple[int, int]] = {}  # number -> begin and end, us
    last = 0
    for node in nodes:
        begin, name = node.start_time_micros, f"node {node.id} ({node.name})"
        if node.id in seen or begin < last:
            yield f"{name}: its number occurs twice, or it begins before the node above it"
        last = max(last, begin)
        # Dependencies stand above: so there is no cycle, and one pass finds what is missing.
        if missing := {*node.data_deps, *node.ctrl_deps} - seen.keys():
            yield f"{name}: depends on {missing}, which do not stand above it"
        for dep in seen.keys() & {*node.data_deps}:
            if seen[dep][1] > begin:
                yield f"{name}: begins at {begin} us, its data from node {dep} at {seen[dep][1]} us"
        seen[node.id] = begin, begin + node.duration_micros
