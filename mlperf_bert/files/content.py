"""What a file holds by its first bytes, to name it where a reader expects something else."""

import json
import re

HEAD_BYTES = 4096
"""So many of a file tell what it is."""
BYTE_ORDER_MARK = "\ufeff"
_POINTER = b"version https://git-lfs.github.com/spec/"
_PACKED = (
    (rb"\x1f\x8b\x08", "compressed by gzip", "gzip -dc FILE > OTHER"),
    (rb"BZh[1-9](1AY&SY|\x17\x72\x45)", "compressed by bzip2", "bzip2 -dc FILE > OTHER"),
    (rb"\xfd7zXZ\x00", "compressed by xz", "xz -dc FILE > OTHER"),
    (rb"\x28\xb5\x2f\xfd", "compressed by zstd", "zstd -dc FILE > OTHER"),
    (rb"\x04\x22\x4d\x18", "compressed by lz4", "lz4 -dc FILE > OTHER"),
    (rb"PK(\x03\x04|\x05\x06)", "a zip archive", "unzip FILE"),
    (rb"7z\xbc\xaf\x27\x1c", "a 7z archive", "7z x FILE"),
    (rb".{257}ustar", "a tar archive", "tar -xf FILE"),
)
_WIDE = (
    (b"\xff\xfe\0\0", "UTF-32"),
    (b"\0\0\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)
_OTHER = (
    (rb"PAR1", "a Parquet file"),
    (rb"\x89PNG", "a picture"),
    (rb"%PDF-", "a PDF file"),
    (rb"\x89HDF", "an HDF5 file"),
    (rb"\s*<(!doctype html|html)", "a web page"),
)
_DIGEST = re.compile("[0-9a-f]{32}", re.IGNORECASE)
_LINES_LOOKED_AT = 10


def packed(head: bytes) -> str | None:
    """What hides the real content of a file, to go on after its name; None if nothing does.

    No text, JSON or vocabulary begins so. A TFRecord file can, by chance: ask after it has failed.
    """
    if head.startswith(_POINTER):
        return "is a Git LFS pointer, not the file itself; fetch it with git lfs pull"
    for pattern, kind, command in _PACKED:
        if re.match(pattern, head, re.DOTALL):
            return f"is {kind}; unpack it first ({command})"
    return None


def wide(head: bytes) -> str | None:
    """The encoding of a text of wide characters, by its byte order mark; None for others."""
    return next((name for mark, name in _WIDE if head.startswith(mark)), None)


def kind_of(head: bytes) -> str | None:
    """What a file is that is neither packed nor a TFRecord, as "a picture"; None if unknown."""
    for pattern, kind in _OTHER:
        if re.match(pattern, head):
            return kind
    if encoding := wide(head):
        return f"text in {encoding}"
    if b"\0" in head:
        return None
    try:
        # A character may be cut where the head ends.
        text = head.decode() if len(head) < HEAD_BYTES else head[:-3].decode(errors="ignore")
    except UnicodeDecodeError:
        return None
    return "JSON" if text.lstrip(BYTE_ORDER_MARK).lstrip()[:1] in ("{", "[") else "text"


def is_list_of_digests(text: str) -> bool:
    """Whether each of a text's first lines is an MD5 digest, as in eval.md5."""
    lines = text.split("\n", _LINES_LOOKED_AT)[:_LINES_LOOKED_AT]
    filled = [line.strip() for line in lines if line.strip()]
    return bool(filled) and all(_DIGEST.fullmatch(line) for line in filled)


def is_json(text: str) -> bool:
    """Whether a whole text is JSON with objects: one, a list of them, or one on every line."""
    text = text.lstrip(BYTE_ORDER_MARK).strip()
    if text[:1] not in ("{", "["):
        return False
    first, _, rest = text.partition("\n")
    if _has_objects(first):
        lines = (line.lstrip() for line in rest.split("\n", _LINES_LOOKED_AT)[:_LINES_LOOKED_AT])
        return all(line[0] in "{[" for line in lines if line)
    return text[-1] in "}]" and _has_objects(text)


def _has_objects(text: str) -> bool:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) or (
        isinstance(value, list) and bool(value) and isinstance(value[0], dict)
    )
