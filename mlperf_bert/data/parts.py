"""parts.json: what the TFRecords of a folder were made from, and what they must be.

    {"parts": {"parameters": {...}, "made_with": {...}, "inputs": {...}, "files": {...}},
     "eval_10k": {...}}

"parts" is the data set that --output_dir makes. A file that is made alone is a data set of its own,
by its name.
"""

import dataclasses
import operator
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from mlperf_bert.data import software
from mlperf_bert.files import paths, whole
from mlperf_bert.files.json_text import read_record, write_record

NAME = "parts.json"
PARTS = "parts"


@dataclasses.dataclass(frozen=True, kw_only=True)
class File:
    """A text or a TFRecord."""

    bytes: int
    md5: str
    examples: int = 0
    """How many a TFRecord holds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSet:
    """What one command has made."""

    parameters: dict[str, object]
    """Everything that determines the bytes, but the inputs."""
    inputs: dict[str, File]
    """Name -> text, or TFRecord that examples were picked from."""
    files: dict[str, File]
    """Name -> TFRecord."""
    made_with: dict[str, str] = dataclasses.field(default_factory=software.made_with)


def read(folder: paths.Location) -> dict[str, DataSet]:
    """The data sets of a folder by their names; none if it has no record."""

    def parsed(content: dict) -> dict[str, DataSet]:
        return {name: _data_set_of(each) for name, each in content.items()}

    return read_record(folder / NAME, parsed, remedy="copy it here again") or {}


def _data_set_of(content: Mapping) -> DataSet:
    inputs, files = (
        {name: _file(each) for name, each in content[kind].items()} for kind in ("inputs", "files")
    )
    parameters, made_with = (dict(content[kind]) for kind in ("parameters", "made_with"))
    return DataSet(parameters=parameters, inputs=inputs, files=files, made_with=made_with)


def _file(content: Mapping) -> File:
    num_bytes, examples = (operator.index(content[name]) for name in ("bytes", "examples"))
    return File(bytes=num_bytes, md5=str(content["md5"]), examples=examples)


def of_files(
    files: Iterable[str], *, read: Callable[[paths.Location], dict[str, DataSet]] = read
) -> dict[paths.Location, list[DataSet]]:
    """The data sets that hold some of the files, in the folders that these lie in."""
    names: dict[paths.Location, set[str]] = {}
    for file in map(paths.location, files):
        names.setdefault(file.parent, set()).add(file.name)
    return {
        folder: [each for each in read(folder).values() if each.files.keys() & names[folder]]
        for folder in sorted(names, key=str)
    }


def write(folder: Path, name: str, data_set: DataSet) -> None:
    """Replaces a data set in the record of a folder."""
    content = {each: dataclasses.asdict(there) for each, there in read(folder).items()}
    content[name] = dataclasses.asdict(data_set)
    for kind in ("inputs", "files"):  # parts end in any order
        content[name][kind] = dict(sorted(content[name][kind].items()))
    write_record(folder / NAME, content)


def describe(path: Path, *, examples: int = 0) -> File:
    """A file as a record has it; reads it."""
    return File(bytes=path.stat().st_size, md5=whole.digest(path, "md5"), examples=examples)


def difference(path: Path, file: File, *, since: Path | None = None) -> str | None:
    """A line that says how a file differs from its record; None if it does not.

    The content of a file that is older than the file `since` is not read.
    """
    if not path.is_file():
        return f"{path}: missing"
    status = path.stat()
    if status.st_size != file.bytes:
        return f"{path}: {status.st_size:,} bytes, {file.bytes:,} were recorded"
    is_trusted = since is not None and status.st_mtime_ns <= since.stat().st_mtime_ns
    if not is_trusted and whole.digest(path, "md5") != file.md5:
        return f"{path}: its content has changed since it was recorded (MD5)"
    return None
