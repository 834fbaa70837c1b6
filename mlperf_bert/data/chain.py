"""What was made from what: provenance.json in every folder that a step writes into.

    python -m mlperf_bert.data.chain output

prints the chain from a folder back to the first inputs, and checks every file of it that is there.
A step adds one record: its inputs and outputs with size and digest, its parameters, and the commit,
image and versions that it ran with.
"""

import argparse
import dataclasses
import functools
import posixpath
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from mlperf_bert.data import provenance
from mlperf_bert.files import paths, whole
from mlperf_bert.messages import Progress, ends_in_one_line
from mlperf_bert.options import words_with_home
from mlperf_bert.tensorflow_import import tensorflow

_INDEX = ".index"  # of a checkpoint
_SHOWN_CHARACTERS = 200
USUAL = _RIGHT, _ABSENT, _OF_ITS_SIZE = (
    "as recorded", "not here", "of the recorded size, but without a recorded digest",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """A record in its folder, and how many steps lie between it and where the look began."""

    folder: paths.Location
    record: provenance.Record
    depth: int


def chain(folder: paths.Location) -> Iterator[Step]:
    """The steps of a folder, each before those that its inputs come from.

    Raises:
      ValueError: a record is damaged, or the folder has none.
    """
    records = provenance.read(folder)
    if not records:
        raise ValueError(f"{folder}: no {provenance.NAME}, so it is unknown what it was made from")
    records_in = functools.cache(_read_if_there)
    pending = [Step(folder=folder, record=record, depth=0) for record in records]
    seen = {(str(folder), number) for number in range(len(records))}
    while pending:
        step = pending.pop()
        yield step
        wanted = {paths.path_of(file.path, step.folder) for file in step.record.inputs}
        folders = {posixpath.dirname(name) for name in wanted}
        # The record of a file is in its folder, or in the one above, as of text/NAME/wiki_000000.
        for above in sorted(folders | set(map(posixpath.dirname, folders))):
            for number, record in enumerate(records_in(above)):
                made = {paths.path_of(file.path, paths.location(above)) for file in record.outputs}
                if (above, number) not in seen and made & wanted:
                    seen.add((above, number))
                    found = Step(folder=paths.location(above), record=record, depth=step.depth + 1)
                    pending.append(found)


def _read_if_there(folder: str) -> list[provenance.Record]:
    try:
        place = paths.location(folder)
    except ValueError:  # of a store that this host does not read
        return []
    return provenance.read(place)


def verify(steps: Iterable[Step]) -> list[str]:
    """What is said of each file of a chain, beside its records.

    One of `USUAL`, or a line on how it differs.
    """
    recorded: dict[str, set[tuple[int, str]]] = {}
    for step in steps:
        for file in [*step.record.inputs, *step.record.outputs]:
            name = paths.path_of(file.path, step.folder)
            recorded.setdefault(name, set()).add((file.bytes, file.digest))
    with Progress(total=len(recorded), unit="files", description="verify") as progress:
        return paths.in_parallel(
            lambda name: _check(name, recorded[name]), sorted(recorded), progress.advance
        )


def _check(name: str, recorded: set[tuple[int, str]]) -> str:
    sizes = {size for size, _ in recorded}
    # One of each kind: the step that made it may have recorded MD5, the one that read it SHA-256.
    kinds = [digest.partition(":")[0] for _, digest in recorded if digest]
    if len(sizes) > 1 or len(kinds) > len(set(kinds)):
        return f"{name}: the step that made it and the one that read it record different files"
    try:
        if paths.status(name) is None:
            return _ABSENT
    except ValueError:  # of a store that this host cannot read
        return _ABSENT
    for size, digest in sorted(recorded):
        file = provenance.File(path=name, bytes=size, digest=digest)
        if problem := provenance.difference(file, Path()):
            return problem
    if name.endswith(_INDEX) and kinds:
        return _damage(name.removesuffix(_INDEX)) or _RIGHT
    return _RIGHT if kinds else _OF_ITS_SIZE


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
            yield f"{indent}  with {given:.{_SHOWN_CHARACTERS}}{cut}"
        yield f"{indent}  from {_count(record.inputs)}"


def _count(files: Sequence[provenance.File]) -> str:
    names = ", ".join(file.path for file in files[:2]) + (", ..." if len(files) > 2 else "")
    return f"{len(files)} files of {sum(file.bytes for file in files):,} bytes ({names})"


@ends_in_one_line("provenance")
def main(argv: list[str] | None = None) -> int:
    """Shows and checks the chain of a folder, or adds a record to it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", help="whose chain to show and check")
    parser.add_argument("--add", metavar="STEP", help="add a record of a step instead")
    parser.add_argument("--inputs", metavar="GLOB", nargs="+", default=[], help="of the step")
    parser.add_argument("--outputs", metavar="GLOB", nargs="+", default=[], help="of the step")
    parser.add_argument("--parameters", metavar="NAME=VALUE", nargs="*", default=[])
    given = parser.parse_args(words_with_home(argv))
    folder = paths.location(given.folder)
    if given.add:
        provenance.note(
            folder,
            step=given.add,
            inputs=_matching("inputs", given.inputs),
            outputs=_matching("outputs", given.outputs),
            parameters=dict(parameter.partition("=")[::2] for parameter in given.parameters),
        )
        return 0
    steps = list(chain(folder))
    print(*_lines(steps), sep="\n")
    answers = verify(steps)
    for usual in USUAL:
        if number := answers.count(usual):
            print(f"{number} files are {usual}")
    problems = [answer for answer in answers if answer not in USUAL]
    print(*problems, sep="\n", end="\n" if problems else "")
    return 1 if problems else 0


def _matching(option: str, patterns: Sequence[str]) -> list[str]:
    files = [path for pattern in patterns for path in whole.matching_files(pattern)]
    if not files:
        raise ValueError(f"--{option}: no file matches {patterns}")
    return files


if __name__ == "__main__":
    sys.exit(main())
