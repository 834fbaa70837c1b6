"""Classifies files: by name if that is enough, else by their first bytes."""

import functools
import os
import re
import struct
from pathlib import Path

TFRECORDS, CHECKPOINTS, LOGS, LIBRARIES = "tfrecords", "checkpoints", "logs", "libraries"
PSEUDO, PIPES, OTHER = "pseudo", "pipes", "other"
CLASSES = (TFRECORDS, CHECKPOINTS, LOGS, LIBRARIES, PSEUDO, PIPES, OTHER)
IN_KERNEL = (PSEUDO, PIPES)
"""The classes of what is in no file of a disk."""

IN_WORDS = {
    TFRECORDS: "TFRecords", CHECKPOINTS: "checkpoints", LOGS: "logs", LIBRARIES: "libraries",
    PSEUDO: "devices and the kernel's own files (/dev, /proc, /sys)", PIPES: "pipes and sockets",
    OTHER: "other files",
}  # fmt: skip

_BY_NAME = [
    (PIPES, r"^(pipe|socket|anon_inode|TCP|UDP|UNIX|NETLINK).*:|^unknown:$|^/memfd:|^$"),
    (PSEUDO, r"^/(proc|sys|dev(?!/shm/))(/|$)"),  # data may be staged in /dev/shm
    # Whole files are written under a hidden name, with .partial, and renamed.
    (LOGS, r"/events\.out\.tfevents[^/]*$|\.log(\.partial)?$|/result_\d+\.txt$"),
    (LOGS, r"/\.?(metrics\.jsonl|eval_results\.\w+|(run|parts)\.json)(\.partial)?$"),
    (CHECKPOINTS, r"ckpt-\d|\.data-\d{5}-of-\d{5}|\.index(\.tempstate\d+)?$"),
    (CHECKPOINTS, r"/checkpoint(\.tmp\w*)?$"),
    (LIBRARIES, r"\.(so(\.[\d.]+)?|pyc?|pth)$|site-packages|/lib/python3"),
    (TFRECORDS, r"\.tfrecords?(\.|$)"),
]
_SYSTEM_FOLDERS = re.compile(r"^/(usr|lib|lib64|etc|opt|bin|sbin)/")
_COMPILED = [(name, re.compile(pattern)) for name, pattern in _BY_NAME]


@functools.lru_cache(maxsize=100_000)
def classify(path: str, *, seen_as: str | None = None) -> str:
    """The class of a file.

    Args:
      path: its name.
      seen_as: this machine's path of it, if it differs, as for files of a container.
    """
    for name, pattern in _COMPILED:
        if pattern.search(path):
            return name
    if holds_tfrecords(seen_as or path):
        return TFRECORDS
    return LIBRARIES if _SYSTEM_FOLDERS.match(path) else OTHER


def is_there(path: str | Path) -> bool:
    """Whether a file or folder can be seen; a traced program may have named one in vain."""
    # pathlib's raises where the name is too long, or the folder is closed to us.
    return os.path.exists(path)  # noqa: PTH110


def is_file(path: str | Path) -> bool:
    """Whether it is a regular file that can be seen; to open a FIFO would block."""
    return os.path.isfile(path)  # noqa: PTH113 - as above


def holds_tfrecords(path: str) -> bool:
    """Whether a file begins with a record's length and the masked CRC of this length."""
    try:
        return is_file(path) and bool(record_lengths(path, 1))
    except OSError:
        return False


def _masked_crc32c(data: bytes) -> int:
    """Source: TensorFlow's record format."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def record_lengths(path: str | Path, most: int) -> list[int]:
    """The lengths in bytes of a TFRecord file's first records, without length and CRCs.

    Anything that is no record ends the list.
    """
    lengths: list[int] = []
    begin = 0
    with Path(path).open("rb") as file:
        while len(lengths) < most:
            file.seek(begin)
            head = file.read(12)
            if len(head) < 12 or struct.unpack("<I", head[8:])[0] != _masked_crc32c(head[:8]):
                break
            [length] = struct.unpack("<Q", head[:8])
            lengths.append(length)
            begin += length + 16
    return lengths
