"""What was made from what: provenance.json in every folder that a step writes into.

    python -m mlperf_bert.data.provenance output

prints the chain from a folder back to the first inputs, and checks every file of it that is there.
A step adds one record: its inputs and outputs with size and digest, its parameters, and the commit,
image and versions that it ran with.
"""

import argparse
import contextlib
import dataclasses
import functools
import hashlib
import os
import platform
import posixpath
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from mlperf_bert.files import paths, whole
from mlperf_bert.files.json_text import read_record, write_record
from mlperf_bert.tensorflow_import import tensorflow

NAME = "provenance.json"
_REPOSITORY = Path(__file__).resolve().parents[2]
# Name -> the packages that may hold it: TensorFlow for TPUs has another one.
_PACKAGES = {"numpy": ["numpy"], "numba": ["numba"], "tensorflow": ["tensorflow", "tensorflow-tpu"]}
_INDEX = ".index"  # of a checkpoint
_SHOWN_CHARACTERS = 200
_NVIDIA = Path("/proc/driver/nvidia")


@dataclasses.dataclass(frozen=True, kw_only=True)
class File:
    """A file of a step."""

    path: str
    """From the folder of the record, or absolute."""
    bytes: int
    digest: str
    """sha256:... or md5:...; empty where it is not known. For a checkpoint its index stands, which
    has a checksum of every tensor."""


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
    return {"commit": _commit(), "image": image, "python": platform.python_version(), **versions}


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


def _version(packages: Sequence[str]) -> str:
    for package in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(package)
    return "unknown"


def _commit() -> str:
    if in_image := os.environ.get("MLPERF_BERT_COMMIT"):
        return in_image
    command = ["git", "-C", str(_REPOSITORY), "describe", "--always", "--abbrev=40", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def describe(path: str | os.PathLike, folder: paths.Location, *, digest: str | None = None) -> File:
    """A file as a record in `folder` names it; its digest is computed if it is not given.

    Raises:
      OSError: it cannot be read.
    """
    if os.fspath(path).startswith(whole.HUGGING_FACE):  # a revision is in its name
        return File(
            path=os.fspath(path), bytes=whole.size_on_hugging_face(os.fspath(path)), digest=""
        )
    found = whole.require_regular_file(path)
    return File(
        path=paths.name_from(str(found), folder),
        bytes=paths.size_bytes(found),
        digest=f"sha256:{whole.digest(found, 'sha256')}" if digest is None else digest,
    )


def note(
    folder: paths.Location,
    *,
    step: str,
    inputs: Iterable[File | str | os.PathLike],
    outputs: Iterable[str | os.PathLike],
    parameters: Mapping[str, object],
    digests: Mapping[str, str] | None = None,
    continues: bool = False,
) -> None:
    """Describes a step of this process and adds it, as `add`; `digests` are those known already."""
    known = digests or {}

    def described(file: File | str | os.PathLike) -> File:
        if isinstance(file, File):
            return file
        return describe(file, folder, digest=known.get(os.fspath(file)))

    record = Record(
        step=step,
        inputs=paths.in_parallel(described, list(inputs)),
        outputs=paths.in_parallel(described, list(outputs)),
        parameters=dict(parameters),
        made_with=made_with(),
    )
    add(folder, record, continues=continues)


def add(folder: paths.Location, record: Record, *, continues: bool = False) -> None:
    """Adds a record to a folder's file; it replaces those with an output of the same name.

    Args:
      continues: some of the outputs were made before: what made them is named too.

    Raises:
      ValueError: the file is damaged.
      OSError: it cannot be written.
    """
    made = {file.path for file in record.outputs}
    kept: list[Record] = []
    replaced: list[Record] = []
    for other in read(folder):
        (replaced if made.intersection(file.path for file in other.outputs) else kept).append(other)
    if continues:
        before = [other.made_with for other in replaced]
        record = dataclasses.replace(record, made_with=_joined([*before, record.made_with]))
    records = [dataclasses.asdict(each) for each in [*kept, record]]
    write_record(folder / NAME, {"records": records})


def _joined(found: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """All different values of each name, in order, with commas."""
    names = dict.fromkeys(name for each in found for name in each)
    values = {
        name: [part for each in found for part in each.get(name, "").split(", ")] for name in names
    }
    return {name: ", ".join(filter(None, dict.fromkeys(values[name]))) for name in names}


def read(folder: paths.Location) -> list[Record]:
    """The records of a folder; none if it has no file.

    Raises:
      ValueError: the file is damaged.
    """

    def parsed(content: dict) -> list[Record]:
        return [_parsed(one) for one in content["records"]]

    return read_record(folder / NAME, parsed, remedy="copy it here again") or []


def _parsed(content: Mapping) -> Record:
    files = {name: [File(**file) for file in content[name]] for name in ("inputs", "outputs")}
    found = Record(**{**content, **files})
    for file in [*found.inputs, *found.outputs]:
        if not isinstance(file.path, str) or not isinstance(file.digest, str):
            raise TypeError(f"{file.path!r:.80}: no path or digest")
        if type(file.bytes) is not int:
            raise TypeError(f"{file.path}: bytes is not a number")
    return found


def known_digests(files: Iterable[str]) -> dict[str, str]:
    """File -> its digest, as recorded in its folder; empty where there is no record.

    Raises:
      ValueError: a folder's record is damaged.
    """
    names = list(files)
    found: dict[str, str] = {}
    for folder in {posixpath.dirname(name) for name in names}:
        place = paths.location(folder or ".")
        for record in read(place):
            found |= {paths.path_of(file.path, place): file.digest for file in record.outputs}
    return {name: found.get(paths.path_of(name, Path()), "") for name in names}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """A record in its folder, and how many steps lie between it and where the look began."""

    folder: paths.Location
    record: Record
    depth: int


def chain(folder: paths.Location) -> Iterator[Step]:
    """The steps of a folder, each before those that its inputs come from.

    Raises:
      ValueError: a record is damaged, or the folder has none.
    """
    records = read(folder)
    if not records:
        raise ValueError(f"{folder}: no {NAME}, so it is unknown what it was made from")
    records_in = functools.cache(_read_if_there)
    pending = [Step(folder=folder, record=record, depth=0) for record in records]
    seen = {(str(folder), number) for number in range(len(records))}
    while pending:
        step = pending.pop()
        yield step
        wanted = {paths.path_of(file.path, step.folder) for file in step.record.inputs}
        for above in sorted({place for name in wanted for place in _places_above(name)}):
            for number, record in enumerate(records_in(above)):
                made = {paths.path_of(file.path, paths.location(above)) for file in record.outputs}
                if (above, number) not in seen and made & wanted:
                    seen.add((above, number))
                    found = Step(folder=paths.location(above), record=record, depth=step.depth + 1)
                    pending.append(found)


def _places_above(name: str) -> list[str]:
    """Where the record of a file may be: its folder, or the one above, as of text/AA/wiki_00."""
    folder = posixpath.dirname(name)
    return [folder, posixpath.dirname(folder)]


def _read_if_there(folder: str) -> list[Record]:
    try:
        place = paths.location(folder)
    except ValueError:  # of a store that this host does not read
        return []
    return read(place)


def verify(steps: Sequence[Step]) -> tuple[int, list[str], list[str]]:
    """Compares the files of a chain with its records.

    Returns:
      How many files are as recorded; those that are not here, or whose digest was never taken; and
      a line for each that differs.
    """
    wanted: dict[str, set[tuple[int, str]]] = {}
    for step in steps:
        for file in [*step.record.inputs, *step.record.outputs]:
            name = paths.path_of(file.path, step.folder)
            wanted.setdefault(name, set()).add((file.bytes, file.digest))
    answers = paths.in_parallel(lambda name: _check(name, wanted[name]), sorted(wanted))
    problems = [answer for answer in answers if answer not in ("", "absent")]
    absent = [name for name, answer in zip(sorted(wanted), answers) if answer == "absent"]
    return answers.count(""), absent, problems


def _check(name: str, wanted: set[tuple[int, str]]) -> str:
    digests = {digest for _, digest in wanted if digest}
    by_kind = {digest.partition(":")[0] for digest in digests}
    if len({size for size, _ in wanted}) > 1 or len(digests) > len(by_kind):
        return f"{name}: the step that made it and the one that read it record different files"
    try:
        found = paths.status(name)
    except ValueError:  # of a store that this host cannot read
        return "absent"
    if found is None or not digests:
        return "absent"
    ((size, _), *_) = wanted
    if found.size_bytes != size:
        return f"{name}: {found.size_bytes:,} bytes, {size:,} were recorded"
    for algorithm, _, expected in (digest.partition(":") for digest in digests):
        if whole.digest(name, algorithm) != expected:
            return f"{name}: its content has changed since it was recorded ({algorithm})"
    return _damage(name.removesuffix(_INDEX)) if name.endswith(_INDEX) else ""


def _damage(prefix: str) -> str:
    """Reads every tensor of a checkpoint; TensorFlow compares it with its checksum in the index."""
    tf = tensorflow()
    types = tf.train.load_checkpoint(prefix).get_variable_to_dtype_map()
    for name, kind in types.items():
        try:
            tf.raw_ops.RestoreV2(
                prefix=prefix, tensor_names=[name], shape_and_slices=[""], dtypes=[kind]
            )
        except tf.errors.OpError:
            return f"{prefix}: the content of {name} has changed since it was written"
    return ""


def digest_of_files(files: Sequence[File]) -> str:
    """One digest for several files, by their names and digests; "unknown" if one has none."""
    if not files or not all(file.digest for file in files):
        return "unknown"
    lines = sorted(f"{posixpath.basename(file.path)} {file.digest}\n" for file in files)
    return f"sha256:{hashlib.sha256(''.join(lines).encode()).hexdigest()}"


def _lines(steps: Iterable[Step]) -> Iterator[str]:
    for step in steps:
        record, indent = step.record, "  " * step.depth
        commit = record.made_with.get("commit", "unknown")[:12]
        yield f"{indent}{step.folder}: {record.step}, commit {commit}, {_count(record.outputs)}"
        if record.parameters:
            given = ", ".join(
                f"{name}={value}" for name, value in sorted(record.parameters.items())
            )
            cut = "..." if len(given) > _SHOWN_CHARACTERS else ""
            yield f"{indent}  with {given[:_SHOWN_CHARACTERS]}{cut}"
        yield f"{indent}  from {_count(record.inputs)}"


def _count(files: Sequence[File]) -> str:
    names = ", ".join(file.path for file in files[:2]) + (", ..." if len(files) > 2 else "")
    return f"{len(files)} files of {sum(file.bytes for file in files):,} bytes ({names})"


def main(argv: list[str] | None = None) -> None:
    """Shows and checks the chain of a folder, or adds a record to it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", help="whose chain to show and check")
    parser.add_argument("--add", metavar="STEP", help="add a record of a step instead")
    parser.add_argument("--inputs", metavar="GLOB", nargs="+", default=[], help="of the step")
    parser.add_argument("--outputs", metavar="GLOB", nargs="+", default=[], help="of the step")
    parser.add_argument("--parameters", metavar="NAME=VALUE", nargs="*", default=[])
    given = parser.parse_args(paths.words_with_home(argv))
    try:
        folder = paths.location(given.folder)
        if given.add:
            _add(folder, given)
        else:
            sys.exit(_report(folder))
    except (ValueError, OSError) as error:
        sys.exit(f"provenance: {error}")


def _add(folder: paths.Location, given: argparse.Namespace) -> None:
    files = {
        name: [path for pattern in getattr(given, name) for path in whole.matching_files(pattern)]
        for name in ("inputs", "outputs")
    }
    for name, found in files.items():
        if not found:
            raise ValueError(f"--{name}: no file matches {getattr(given, name)}")
    parameters = dict(parameter.partition("=")[::2] for parameter in given.parameters)
    note(
        folder,
        step=given.add,
        inputs=files["inputs"],
        outputs=files["outputs"],
        parameters=parameters,
    )


def _report(folder: paths.Location) -> int:
    steps = list(chain(folder))
    print(*_lines(steps), sep="\n")
    num_right, absent, problems = verify(steps)
    print(f"{num_right} files are as recorded")
    if absent:
        print(f"{len(absent)} are not here or have no digest, such as {absent[0]}")
    print(*problems, sep="\n", end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    main()
