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

import google_crc32c

from mlperf_bert.files import paths, whole

HEADER_BYTES = 12
FOOTER_BYTES = 4


def masked_crc32c(data: bytes) -> int:
    """Returns the checksum that TFRecord files carry."""
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(record: bytes) -> bytes:
    """Wraps the bytes of one example as a TFRecord: length, checksums."""
    length = struct.pack("<Q", len(record))
    length_crc, record_crc = (struct.pack("<I", masked_crc32c(data)) for data in (length, record))
    return b"".join((length, length_crc, record, record_crc))


class BadRecord(ValueError):
    """A record that cannot be used: where it is, what is wrong with it, and the fix."""

    def __init__(self, path: str | os.PathLike, index: int, offset_bytes: int, problem: str):
        """`problem` continues the line "record N at byte M"; records are counted from 0."""
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


def _bad_record(path: str | os.PathLike, index: int, offset: int, reason: str) -> BadRecord:
    return BadRecord(path, index, offset, f"is damaged ({reason}); copy or make the file again")


def _require_records(file: BinaryIO, path: str | os.PathLike) -> None:
    """Raises ValueError for a file that cannot begin with a record, and says what it is."""
    file.seek(0)
    head = file.read(whole.HEAD_BYTES)
    if problem := whole.packing_problem(head):
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
                raise _bad_record(path, index, offset, "the file ends within the header")
            length, crc = struct.unpack("<QI", header)
            # A length is used only if its checksum is right and the file is long enough: a wrong
            # one would ask for any amount of memory.
            if crc != masked_crc32c(header[:8]):
                if not offset:
                    _require_records(file, path)
                raise _bad_record(path, index, offset, "the checksum of the length is wrong")
            end = offset + HEADER_BYTES + length + FOOTER_BYTES
            if end > size_bytes:
                raise _bad_record(path, index, offset, "the file ends within the data")
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
            raise _bad_record(path, index, begin, "the checksum of the data is wrong")
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
