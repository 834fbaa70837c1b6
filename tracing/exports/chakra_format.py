"""The format of Chakra execution traces of MLCommons: schema, writer, reader, and rules.

A file is one GlobalMetadata and then nodes, each message after its length as a varint. Source of
names and numbers: schema/protobuf/et_def.proto of github.com/mlcommons/chakra at SCHEMA_COMMIT,
where storage came in; release 1.0.0 before it has none, so the version alone does not tell. Forks
differ (Keysight's names batches and checkpoints DATA_OP): this follows MLCommons.
"""

import gzip
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, proto
from google.protobuf.message import DecodeError

VERSION = "1.0.0"
SCHEMA_COMMIT = "6dc63e147b9d115286626cc122459e44d9d08401"

_PACKAGE = "ChakraProtoMsg"
_KINDS = (
    "double float int32 int64 uint32 uint64 sint32 sint64 fixed32 fixed64 sfixed32 sfixed64 bool "
    "string bytes"
).split()  # of an attribute: value 3, list 4, the next kind's value 5, ...
# enum -> names in order from 0; a name in capitals alone is the enum's own of its message
ENUMS = {
    "NodeType": "INVALID_NODE METADATA_NODE MEM_LOAD_NODE MEM_STORE_NODE COMP_NODE COMM_SEND_NODE "
    "COMM_RECV_NODE COMM_COLL_NODE STORAGE_NODE BATCH_NODE CHECKPOINT_NODE",
    "StorageLevel": "STORAGE_LEVEL_UNKNOWN STORAGE_LEVEL_FS STORAGE_LEVEL_PAGE STORAGE_LEVEL_BLOCK "
    "STORAGE_LEVEL_DEVICE",
    "FsOp.Op": "FS_OP_UNKNOWN FS_OP_OPEN FS_OP_CLOSE FS_OP_READ FS_OP_WRITE FS_OP_PREAD "
    "FS_OP_PWRITE FS_OP_FSYNC FS_OP_FDATASYNC FS_OP_SYNC_FILE_RANGE",
    "PageOp.Op": "PAGE_OP_UNKNOWN PAGE_OP_ADD_TO_CACHE PAGE_OP_DIRTY PAGE_OP_READAHEAD_SYNC - - "
    "PAGE_OP_READAHEAD_ASYNC",
    "BlockOp.Op": "BLOCK_OP_UNKNOWN BLOCK_OP_READ BLOCK_OP_WRITE BLOCK_OP_FLUSH",
    "BlockOp.QueueEvent": "BLOCK_EVENT_UNKNOWN BLOCK_EVENT_QUEUE BLOCK_EVENT_GET "
    "BLOCK_EVENT_INSERT BLOCK_EVENT_DISPATCH BLOCK_EVENT_COMPLETE",
}  # fmt: skip
# message -> fields: name, number, type; [] repeats, | is one of several
MESSAGES = {
    **{f"{kind.title()}List": f"values 1 {kind}[]" for kind in _KINDS},
    "AttributeProto": "name 1 string, doc_string 2 string, "
    + ", ".join(
        f"{kind}_val {2 * n + 3} {kind}|value, {kind}_list {2 * n + 4} {kind.title()}List|value"
        for n, kind in enumerate(_KINDS)
    ),
    "GlobalMetadata": "version 1 string, attr 2 AttributeProto[]",
    "FsOp": "op 1 FsOp.Op, pathname 2 string, fd 3 int32, offset 4 uint64, size_bytes 5 uint64, "
    "flags 6 uint32",
    "PageOp": "op 1 PageOp.Op, inode 2 uint64, page_index 3 uint64, nr_pages 4 uint32",
    "BlockOp": "op 1 BlockOp.Op, queue_event 2 BlockOp.QueueEvent, device 3 string, lba 4 uint64, "
    "nr_sectors 5 uint32, req_op_flags 6 uint32",
    "StorageInfo": "level 1 StorageLevel, fs 10 FsOp|detail, page 11 PageOp|detail, "
    "block 12 BlockOp|detail",
    "Node": "id 1 uint64, name 2 string, type 3 NodeType, ctrl_deps 4 uint64[], "
    "data_deps 5 uint64[], start_time_micros 6 uint64, duration_micros 7 uint64, "
    "attr 10 AttributeProto[], storage 11 StorageInfo",
}
# By a damaged file; its length of a message may be more than fits into memory, or into a number.
_DAMAGES = (
    DecodeError, EOFError, ValueError, gzip.BadGzipFile, zlib.error, MemoryError, OverflowError,
)  # fmt: skip


def _classes() -> dict[str, Any]:
    """The messages' classes, in a pool of their own: MLCommons' may be loaded beside them."""
    file = descriptor_pb2.FileDescriptorProto(
        name="et_def.proto", package=_PACKAGE, syntax="proto3"
    )
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for words in fields.split(", "):
            field_name, number, kind = words.split()
            kind, _, group = kind.partition("|")
            field = message.field.add(name=field_name, number=int(number))
            field.label = kinds.LABEL_REPEATED if kind.endswith("[]") else kinds.LABEL_OPTIONAL
            kind = kind.removesuffix("[]")
            if kind in _KINDS:
                field.type = getattr(kinds, f"TYPE_{kind.upper()}")
            else:
                field.type = kinds.TYPE_ENUM if kind in ENUMS else kinds.TYPE_MESSAGE
                field.type_name = f".{_PACKAGE}.{kind}"
            if group:
                if not message.oneof_decl:
                    message.oneof_decl.add(name=group)
                field.oneof_index = 0
    by_name = {message.name: message for message in file.message_type}
    for name, values in ENUMS.items():
        owner, _, short = name.rpartition(".")
        enum = (by_name[owner] if owner else file).enum_type.add(name=short)
        for n, value in enumerate(values.split()):
            if value != "-":
                enum.value.add(name=value, number=n)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in MESSAGES
    }


_CLASSES = _classes()


def message(name: str) -> Any:
    """The class of a message, by its name."""
    return _CLASSES[name]


Node = message("Node")


def value_of(enum: str, name: str) -> int:
    """The number of an enum's name: `value_of("NodeType", "COMP_NODE")` is 4."""
    return ENUMS[enum].split().index(name)


def attributes(**values: bool | int | float | str) -> list:
    """Attributes as other producers type them; ASTRA-sim converts between kinds of integers."""
    kinds = {bool: "bool_val", int: "int64_val", float: "double_val", str: "string_val"}
    kind = message("AttributeProto")
    return [kind(name=n, **{kinds[type(v)]: v}) for n, v in values.items()]


def attributes_of(message) -> dict[str, Any]:
    """Name -> value of the attributes of a node or of the metadata, lists left out."""
    found = {}
    for attr in message.attr:
        kind = attr.WhichOneof("value")
        if kind and kind.endswith("_val"):
            found[attr.name] = getattr(attr, kind)
    return found


class Writer:
    """Writes a trace; nodes are numbered from 1 in the order in which they are written."""

    def __init__(self, file: IO[bytes], **about: bool | int | float | str):
        """Begins a trace; `about` becomes attributes of its metadata."""
        self._file = file
        self.num_nodes = 0
        attr = attributes(schema_commit=SCHEMA_COMMIT, **about)
        metadata = message("GlobalMetadata")(version=VERSION, attr=attr)
        proto.serialize_length_prefixed(metadata, file)

    def node(self, kind: str, name: str, *, attr: dict | None = None, **fields: Any) -> int:
        """Writes a node of `kind`, such as COMP; returns its number.

        Args:
          attr: attributes, by name.
          fields: as the schema names them; data_deps and ctrl_deps are numbers of earlier nodes.
        """
        self.num_nodes += 1
        number = value_of("NodeType", f"{kind}_NODE")
        node = Node(
            id=self.num_nodes, name=name, type=number, attr=attributes(**attr or {}), **fields
        )
        proto.serialize_length_prefixed(node, self._file)
        return self.num_nodes


def read(path: Path) -> tuple[Any, Iterator[Any]]:
    """The metadata of a trace, and its nodes one after the other; gzipped traces too.

    Raises:
      ValueError: the file is not such a trace, or it is cut; while the nodes are read, too.
      OSError: it cannot be read.
    """
    messages = _messages(path)
    metadata = next(messages, None)
    if metadata is None or not metadata.version:
        raise ValueError(f"{path} is not a Chakra trace: it does not begin with a version")
    return metadata, messages


def _messages(path: Path) -> Iterator[Any]:
    with path.open("rb") as plain:
        is_gzipped = plain.read(2) == b"\x1f\x8b"
        plain.seek(0)
        file: Any = gzip.GzipFile(fileobj=plain) if is_gzipped else plain
        kind = message("GlobalMetadata")
        try:
            while (found := proto.parse_length_prefixed(kind, file)) is not None:
                yield found
                kind = Node
        except _DAMAGES:
            raise ValueError(f"{path} is not a Chakra trace, or is damaged or cut") from None


def moved_bytes(node) -> int:
    """What a node of storage moved, at its own level; 0 for any other node, and for opens."""
    if not node.HasField("storage"):
        return 0
    detail = node.storage.WhichOneof("detail")
    if detail == "block":
        return 512 * node.storage.block.nr_sectors
    return node.storage.fs.size_bytes if detail == "fs" else 0


def violations(nodes: Iterable[Any]) -> Iterator[str]:
    """What a trace breaks of its own order, in words; nothing for a good one.

    Every node has its own number; every dependency is there; there is no cycle; nodes stand in the
    file in order of time, none before what it depends on began, nor before its data were there.
    """
    seen: dict[int, tuple[int, int]] = {}  # number -> begin and end, us
    last = 0
    for node in nodes:
        begin, name = node.start_time_micros, f"node {node.id} ({node.name})"
        if node.id in seen:
            yield f"{name}: its number occurs twice"
        if begin < last:
            yield f"{name}: begins at {begin} us, before the node above it"
        last = max(last, begin)
        for dep in (*node.data_deps, *node.ctrl_deps):
            # Dependencies stand above: so there is no cycle, and one pass finds what is missing.
            if dep not in seen:
                yield f"{name}: depends on node {dep}, which does not stand above it"
        for dep in node.data_deps:
            if dep in seen and seen[dep][1] > begin:
                yield f"{name}: begins at {begin} us, its data from node {dep} at {seen[dep][1]} us"
        seen[node.id] = begin, begin + node.duration_micros
