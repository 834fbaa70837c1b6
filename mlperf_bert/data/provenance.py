"""What a step was made from: its record in provenance.json, in the folder that it writes into.

A record has inputs and outputs with size and digest, parameters, and the commit, image and versions
of the step. `python -m mlperf_bert.data.chain FOLDER` shows and checks them; see chain.py.
"""

import contextlib
import dataclasses
import functools
import hashlib
import os
import platform
import posixpath
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar, get_origin

from mlperf_bert.files import paths, whole
from mlperf_bert.files.json_text import read_record, write_record

NAME = "provenance.json"
PARTS = "training examples"
"""The step that makes a TFRecord of each text; its outputs are the parts of a data set."""
_ALGORITHMS = ("", "sha256", "md5")
_NO_NAME = re.compile("[\0\ud800-\udc7f\udd00-\udfff]")  # a file's name has none of these
_REPOSITORY = Path(__file__).resolve().parents[2]
# Name -> the packages that may hold it: TensorFlow without kernels for GPUs has another one.
_PACKAGES = {"numpy": ("numpy",), "numba": ("numba",), "jax": ("jax",)} | {
    "tensorflow": ("tensorflow", "tensorflow-cpu")
}
_NVIDIA = Path("/proc/driver/nvidia")

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class File:
    """A file of a step."""

    path: str
    """From the folder of the record, or absolute."""
    bytes: int
    digest: str
    """sha256:... or md5:...; empty where it is not known. For a checkpoint its index stands, which
    has a checksum of every tensor."""
    examples: int | None = None
    """How many a TFRecord holds, where that is known."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """One step."""

    step: str
    inputs: list[File]
    outputs: list[File]
    parameters: dict[str, object]
    made_with: dict[str, str]
    """commit, image (empty outside a container), and versions; of a run `machine` too."""


def made_with() -> dict[str, str]:
    """Commit, image and versions of this process; "unknown" for what cannot be found out."""
    versions = {name: _version(packages) for name, packages in _PACKAGES.items()}
    image = os.environ.get("MLPERF_BERT_IMAGE", "")
    commit = os.environ.get("MLPERF_BERT_COMMIT") or _commit_of_checkout()
    return {"commit": commit, "image": image, "python": platform.python_version(), **versions}


def machine() -> dict[str, str]:
    """Host, processors, accelerators, driver and kernel; what Linux does not tell is empty."""
    cpus = re.findall(r"^model name\s*: (.+)", _text("/proc/cpuinfo"), re.MULTILINE)
    cards = [_text(path) for path in sorted(_NVIDIA.glob("gpus/*/information"))]
    models = re.findall(r"^Model:\s*(.+)", "\n".join(cards), re.MULTILINE)
    driver = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", _text(_NVIDIA / "version"))
    in_container = os.environ.get("MLPERF_BERT_IMAGE")  # whose name is another in each
    return {
        "host": "" if in_container else platform.node(),
        "processor": f"{len(cpus)} x {cpus[0]}" if cpus else platform.machine(),
        "accelerator": ", ".join(f"{models.count(name)} x {name}" for name in sorted({*models})),
        "driver": driver[1] if driver else "",
        "kernel": platform.release(),
    }


def _text(path: str | os.PathLike) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# Once: git takes up to a second.
@functools.cache
def _version(packages: tuple[str, ...]) -> str:
    for package in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(package)
    return "unknown"


@functools.cache
def _commit_of_checkout() -> str:
    words = ["-C", str(_REPOSITORY), "describe", "--always", "--abbrev=40", "--dirty"]
    return printed_by("git", *words) or "unknown"


def printed_by(*command: str) -> str:
    """What a program prints; empty if there is none or it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def describe(path: str | os.PathLike, folder: paths.Location, *, digest: str | None = None) -> File:
    """A file as a record in `folder` names it; its digest is computed if it is not given.

    Raises:
      OSError: it cannot be read.
    """
    found = paths.location(path)
    return File(
        path=paths.name_from(str(found), folder),
        bytes=paths.require_regular_file(found).size_bytes,
        digest=f"sha256:{whole.digest(found, 'sha256')}" if digest is None else digest,
    )


def describe_all(
    files: Iterable[File | str | os.PathLike],
    folder: paths.Location,
    digests: Mapping[str, str] | None = None,
) -> list[File]:
    """As `describe`, several at a time; `digests` are known, what is described stays as it is."""
    known = digests or {}

    def described(file: File | str | os.PathLike) -> File:
        if isinstance(file, File):
            return file
        return describe(file, folder, digest=known.get(os.fspath(file)))

    return paths.in_parallel(described, list(files))


def note(
    folder: paths.Location,
    *,
    step: str,
    inputs: Iterable[File | str | os.PathLike],
    outputs: Iterable[str | os.PathLike],
    parameters: Mapping[str, object],
) -> None:
    """Describes a step of this process and adds it, as `add`."""
    record = Record(
        step=step,
        inputs=describe_all(inputs, folder),
        outputs=describe_all(outputs, folder),
        parameters=dict(parameters),
        made_with=made_with(),
    )
    add(folder, record)


def add(folder: paths.Location, record: Record, *, continues: bool = False) -> None:
    """Adds a record to a folder's file; it replaces those with an output of the same name.

    Args:
      continues: some of the outputs were made before: what made them is named too.

    Raises:
      ValueError: the file is damaged.
      OSError: it cannot be written.
    """
    made = {file.path for file in record.outputs}
    records = read(folder)
    # A file has one origin, so that the chain has one way up. A step that has not ended has no
    # outputs yet.
    replaced = [r for r in records if not r.outputs or made & {file.path for file in r.outputs}]
    if continues:
        makers = [*(each.made_with for each in replaced), record.made_with]
        record = dataclasses.replace(record, made_with=_joined(makers))
    kept = [each for each in records if each not in replaced]
    content = [dataclasses.asdict(each, dict_factory=_known) for each in [*kept, record]]
    write_record(folder / NAME, {"records": content})


def _known(fields: list[tuple[str, object]]) -> dict[str, object]:
    return {name: value for name, value in fields if (name, value) != ("examples", None)}


def _joined(makers: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """All different values of each name, in order, with commas."""
    joined: dict[str, str] = {}
    for name in dict.fromkeys(name for maker in makers for name in maker):
        # Each may itself be of several.
        values = [value for maker in makers for value in str(maker.get(name, "")).split(", ")]
        joined[name] = ", ".join(filter(None, dict.fromkeys(values)))
    return joined


def read(folder: paths.Location) -> list[Record]:
    """The records of a folder; none if it has no file.

    Raises:
      ValueError: the file is damaged.
    """

    def parsed(content: dict) -> list[Record]:
        return [_parsed(one) for one in content["records"]]

    return read_record(folder / NAME, parsed, remedy="copy it here again") or []


def of_step(folder: paths.Location, step: str) -> Record | None:
    """The record of a step in a folder, None if there is none; raises as `read`."""
    return next((record for record in read(folder) if record.step == step), None)


def by_name(files: Iterable[File]) -> dict[str, File]:
    """The files by their names, without folders."""
    return {posixpath.basename(file.path): file for file in files}


def _parsed(content: Mapping) -> Record:
    inputs, outputs = ([fitting(File, f) for f in content[n]] for n in ("inputs", "outputs"))
    for file in (*inputs, *outputs):
        is_known = file.digest.partition(":")[0] in _ALGORITHMS and not _NO_NAME.search(file.path)
        if not is_known or file.bytes < 0:
            raise ValueError(f"{file.path!r:.80}, {file.digest!r:.80}: of no known kind")
    return fitting(Record, {**content, "inputs": inputs, "outputs": outputs})


def fitting(kind: type[_T], content: Mapping[str, Any]) -> _T:
    """A dataclass of the fields of a record; raises TypeError for one that is not of its type."""
    made = kind(**content)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        value, origin = getattr(made, field.name), get_origin(field.type)
        expected = origin if origin in (list, dict) else field.type
        # Python takes a truth for a number too.
        if not isinstance(value, expected) or isinstance(value, bool):  # type: ignore[arg-type]
            raise TypeError(f"{field.name} is {value!r:.80}")
    return made


def difference(
    file: File, folder: paths.Location, *, since: paths.Status | None = None
) -> str | None:
    """How a file differs from its record in `folder`, in a line; None if it does not.

    The content of a file that is older than the one of `since` is not read.
    """
    path = paths.path_of(file.path, folder)
    if (status := paths.status(path)) is None:
        return f"{path}: missing"
    if status.size_bytes != file.bytes:
        return f"{path}: {status.size_bytes:,} bytes, {file.bytes:,} were recorded"
    algorithm, _, recorded = file.digest.partition(":")
    is_trusted = since is not None and status.is_older_than(since)
    if recorded and not is_trusted and whole.digest(path, algorithm) != recorded:
        return f"{path}: its content has changed since it was recorded ({algorithm})"
    return None


def known_digests(files: Iterable[str]) -> dict[str, str]:
    """File -> its digest, as recorded in its folder; empty where there is no record.

    Raises:
      ValueError: a folder's record is damaged.
    """
    names = list(files)
    found = recorded(names)
    return {name: found[name][1].digest if name in found else "" for name in names}


def recorded(files: Iterable[str]) -> dict[str, tuple[Record, File]]:
    """File -> the record of the step that made it, and its place there; without those of none.

    Raises:
      ValueError: a folder's record is damaged.
    """
    names = list(files)
    made: dict[str, tuple[Record, File]] = {}
    for folder in {paths.location(posixpath.dirname(name) or ".") for name in names}:
        for record in read(folder):
            made |= {paths.path_of(file.path, folder): (record, file) for file in record.outputs}
    whole_names = {name: paths.path_of(name, Path()) for name in names}
    return {name: made[each] for name, each in whole_names.items() if each in made}


def digest_of_files(files: Sequence[File]) -> str:
    """One digest for several files, by their names and digests; "unknown" if one has none."""
    if not files or not all(file.digest for file in files):
        return "unknown"
    lines = sorted(f"{posixpath.basename(file.path)} {file.digest}\n" for file in files)
    return f"sha256:{hashlib.sha256(''.join(lines).encode()).hexdigest()}"
