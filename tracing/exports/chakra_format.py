"""The format of Chakra execution traces of MLCommons: schema and writer.

A file is one GlobalMetadata and then nodes, each message after its length as a varint. Source of
names and numbers: schema/protobuf/et_def.proto of github.com/mlcommons/chakra at SCHEMA_COMMIT,
where storage came in; release 1.0.0 before it has none, so the version alone does not tell. Forks
differ (Keysight's names batches and checkpoints DATA_OP): this follows MLCommons. Fields and
attributes that nothing here writes are left out.
"""

from typing import IO, Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, proto

VERSION = "1.0.0"
SCHEMA_COMMIT = "6dc63e147b9d115286626cc122459e44d9d08401"

_PACKAGE = "ChakraProtoMsg"
_KIND_OF_VALUE = {bool: "bool", int: "int64", float: "double", str: "string"}
# enum -> names in order from 0; a name with a dot is the enum's own of its message
ENUMS = {
    "NodeType": "INVALID_NODE METADATA_NODE MEM_LOAD_NODE MEM_STORE_NODE COMP_NODE COMM_SEND_NODE "
    "COMM_RECV_NODE COMM_COLL_NODE STORAGE_NODE BATCH_NODE CHECKPOINT_NODE",
    "StorageLevel": "STORAGE_LEVEL_UNKNOWN STORAGE_LEVEL_FS STORAGE_LEVEL_PAGE STORAGE_LEVEL_BLOCK "
    "STORAGE_LEVEL_DEVICE",
    "FsOp.Op": "FS_OP_UNKNOWN FS_OP_OPEN FS_OP_CLOSE FS_OP_READ FS_OP_WRITE FS_OP_PREAD "
    "FS_OP_PWRITE FS_OP_FSYNC FS_OP_FDATASYNC FS_OP_SYNC_FILE_RANGE",
    "PageOp.Op": "PAGE_OP_UNKNOWN PAGE_OP_ADD_TO_CACHE PAGE_OP_DIRTY PAGE_OP_READAHEAD_SYNC",
    "BlockOp.Op": "BLOCK_OP_UNKNOWN BLOCK_OP_READ BLOCK_OP_WRITE BLOCK_OP_FLUSH",
    "BlockOp.QueueEvent": "BLOCK_EVENT_UNKNOWN BLOCK_EVENT_QUEUE BLOCK_EVENT_GET "
    "BLOCK_EVENT_INSERT BLOCK_EVENT_DISPATCH BLOCK_EVENT_COMPLETE",
}
# message -> fields: name, number, type; [] repeats, | is one of several
MESSAGES = {
    "AttributeProto": "name 1 string, double_val 3 double|value, int64_val 9 int64|value, "
    "bool_val 27 bool|value, string_val 29 string|value",
    "GlobalMetadata": "version 1 string, attr 2 AttributeProto[]",
    "FsOp": "op 1 FsOp.Op, pathname 2 string, fd 3 int32, offset 4 uint64, size_bytes 5 uint64",
    "PageOp": "op 1 PageOp.Op, page_index 3 uint64, nr_pages 4 uint32",
    "BlockOp": "op 1 BlockOp.Op, queue_event 2 BlockOp.QueueEvent, device 3 string, lba 4 uint64, "
    "nr_sectors 5 uint32",
    "StorageInfo": "level 1 StorageLevel, fs 10 FsOp|detail, page 11 PageOp|detail, "
    "block 12 BlockOp|detail",
    "Node": "id 1 uint64, name 2 string, type 3 NodeType, ctrl_deps 4 uint64[], "
    "data_deps 5 uint64[], start_time_micros 6 uint64, duration_micros 7 uint64, "
    "attr 10 AttributeProto[], storage 11 StorageInfo",
}


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
            if kind in ENUMS or kind in MESSAGES:
                field.type = kinds.TYPE_ENUM if kind in ENUMS else kinds.TYPE_MESSAGE
                field.type_name = f".{_PACKAGE}.{kind}"
            else:
                field.type = getattr(kinds, f"TYPE_{kind.upper()}")
            if group:
                if not message.oneof_decl:
                    message.oneof_decl.add(name=group)
                field.oneof_index = 0
    by_name = {message.name: message for message in file.message_type}
    for name, values in ENUMS.items():
        owner, _, short = name.rpartition(".")
        enum = (by_name[owner] if owner else file).enum_type.add(name=short)
        for n, value in enumerate(values.split()):
            enum.value.add(name=value, number=n)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in MESSAGES
    }


CLASSES = _classes()


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
