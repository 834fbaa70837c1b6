"""TFRecord files: frames around records, and their checksums. Needs no TensorFlow.

A frame is: the record's length in bytes (uint64), the masked CRC-32C of these 8 bytes (uint32), the
record, the masked CRC-32C of the record (uint32); all little-endian.

Source: tensorflow/core/lib/io/record_writer.h.
"""

import dataclasses
import os
import struct
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from mlperf_bert.data.jit import kernel
from mlperf_bert.files import paths, whole

HEADER_BYTES = 12
FOOTER_BYTES = 4


def _crc_tables() -> np.ndarray:
    """Returns the tables of the slicing-by-16 CRC-32C, [16, 256] uint32."""
    tables = np.zeros((16, 256), np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        tables[0, byte] = crc
    for i in range(1, 16):
        tables[i] = (tables[i - 1] >> np.uint32(8)) ^ tables[0, tables[i - 1] & np.uint32(255)]
    return tables


CRC_TABLES = _crc_tables()


@kernel
def masked_crc(data, start, stop, tables):
    """The masked CRC-32C of data[start:stop], by `CRC_TABLES`, as an int64 below 2**32."""
    crc = np.uint32(0xFFFFFFFF)
    i = start
    while i + 16 <= stop:
        # The first four bytes meet the CRC; the tables of the others do not wait for it.
        others = np.uint32(0)
        for n in range(4, 16):
            others ^= tables[15 - n, data[i + n]]
        crc = (
            tables[15, (crc ^ data[i]) & 255]
            ^ tables[14, ((crc >> 8) ^ data[i + 1]) & 255]
            ^ tables[13, ((crc >> 16) ^ data[i + 2]) & 255]
            ^ tables[12, ((crc >> 24) ^ data[i + 3]) & 255]
            ^ others
        )
        i += 16
    while i < stop:
        crc = tables[0, (crc ^ data[i]) & 255] ^ (crc >> np.uint32(8))
        i += 1
    crc ^= np.uint32(0xFFFFFFFF)
    plain = np.int64(crc)
    rotated = (plain >> 15) | ((plain & 0x7FFF) << 17)
    return (rotated + 0xA282EAD8) & 0xFFFFFFFF


def masked_crc32c(data: bytes) -> int:
    """Returns the checksum that TFRecord files carry."""
    return int(masked_crc(np.frombuffer(data, np.uint8), 0, len(data), CRC_TABLES))


def frame(record: bytes) -> bytes:
    """Wraps the bytes of one example as a TFRecord: length, checksums."""
    length = struct.pack("<Q", len(record))
    length_crc, record_crc = (struct.pack("<I", masked_crc32c(data)) for data in (length, record))
    return length + length_crc + record + record_crc


class BadRecord(ValueError):
    """A record that cannot be used: where it is, what is wrong with it, and the fix."""

    def __init__(self, path: str | os.PathLike, index: int, offset_bytes: int, problem: str):
        """`problem` goes on after "record N at byte M"; records are counted from 0."""
        where = f"{os.fspath(path)}: record {index} at byte {offset_bytes}"
        super().__init__(f"{where} {problem}")


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """A record of a file with its length and checksums, which have been verified."""

    path: str | os.PathLike
    index: int
    offset_bytes: int
    framed: bytes

    @property
    def record(self) -> bytes:
        """The bytes of the example."""
        return self.framed[HEADER_BYTES:-FOOTER_BYTES]

    def bad(self, problem: str) -> BadRecord:
        """The error to raise about this record."""
        return BadRecord(self.path, self.index, self.offset_bytes, problem)


def _damaged(path: str | os.PathLike, index: int, offset: int, reason: str) -> BadRecord:
    return BadRecord(path, index, offset, f"is damaged ({reason}); copy or make the file again")


def _require_records(file: BinaryIO, path: str | os.PathLike) -> None:
    """Names what a file is that does not begin with a record, if that can be seen."""
    file.seek(0)
    head = file.read(whole.HEAD_BYTES)
    if problem := whole.packed(head):
        raise ValueError(f"{os.fspath(path)}: {problem}")
    if b"\0" not in head:  # the length of a record has zeros
        raise ValueError(
            f"{os.fspath(path)}: is text, not TFRecords; give files of create_pretraining_data.py"
        )


def _places(
    path: str | os.PathLike, *, skips: bool = False
) -> Iterator[tuple[BinaryIO, int, int, int]]:
    """Yields (open file, index, begin, end) of each record; if it `skips`, reads headers alone."""
    with paths.opened(path, skips=skips) as file:
        size_bytes = file.seek(0, os.SEEK_END)
        file.seek(0)
        index = offset = 0
        while header := file.read(HEADER_BYTES):
            if len(header) < HEADER_BYTES:
                raise _damaged(path, index, offset, "the file ends within the header")
            length, crc = struct.unpack("<QI", header)
            # A length is used only if its checksum is right and the file is long enough: a wrong
            # one would ask for any amount of memory.
            if crc != masked_crc32c(header[:8]):
                if not offset:
                    _require_records(file, path)
                raise _damaged(path, index, offset, "the checksum of the length is wrong")
            end = offset + HEADER_BYTES + length + FOOTER_BYTES
            if end > size_bytes:
                raise _damaged(path, index, offset, "the file ends within the data")
            yield file, index, offset, end
            file.seek(end)
            index, offset = index + 1, end


def read_frames(path: str | os.PathLike) -> Iterator[Frame]:
    """Yields the records of a TFRecord file, verifying all checksums.

    Raises:
      BadRecord: a truncated or corrupt record.
      ValueError: not a regular file.
    """
    for file, index, begin, end in _places(path):
        file.seek(begin)
        frame = Frame(path, index, begin, file.read(end - begin))
        (crc,) = struct.unpack("<I", frame.framed[-FOOTER_BYTES:])
        if crc != masked_crc32c(frame.record):
            raise _damaged(path, index, begin, "the checksum of the data is wrong")
        yield frame


def first_frame(path: str | os.PathLike) -> Frame:
    """The first record of a file; raises ValueError if there is none, or as `read_frames`."""
    for frame in read_frames(path):
        return frame
    raise ValueError(f"{os.fspath(path)}: holds no examples; make the file again")


def count_records(path: str | os.PathLike) -> int:
    """Returns the number of examples, from the headers alone.

    Raises:
      BadRecord: a header is damaged or the file ends within a record.
      ValueError: not a regular file.
    """
    return sum(1 for _ in _places(path, skips=True))
