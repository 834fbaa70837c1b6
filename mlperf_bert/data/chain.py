"""What was made from what: provenance.json in every folder that a step writes into.

    python -m mlperf_bert.data.provenance output

prints the chain from a folder back to the first inputs, and checks every file of it that is there.
A step adds one record: its inputs and outputs with size and digest, its parameters, and the commit,
image and versions that it ran with.
"""

import argparse
import dataclasses
import functools
import posixpath
from collections.abc import Iterable, Iterator, Sequence

from mlperf_bert.data import provenance
from mlperf_bert.files import paths, whole
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.tensorflow_import import tensorflow

_INDEX = ".index"  # of a checkpoint
_SHOWN_CHARACTERS = 200
_ABSENT, _OF_ITS_SIZE = "not here", "of the recorded size, but without a recorded digest"


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


def _read_if_there(folder: str) -> list[provenance.Record]:
    try:
        place = paths.location(folder)
    except ValueError:  # of a store that this host does not read
        return []
    return provenance.read(place)


def verify(steps: Sequence[Step]) -> tuple[int, dict[str, list[str]], list[str]]:
    """Compares the files of a chain with its records.

    Returns:
      How many files are as recorded; those of which this cannot be said, by the reason; and a line
      for each that differs.
    """
    wanted: dict[str, set[tuple[int, str]]] = {}
    for step in steps:
        for file in [*step.record.inputs, *step.record.outputs]:
            name = paths.path_of(file.path, step.folder)
            wanted.setdefault(name, set()).add((file.bytes, file.digest))
    answers = paths.in_parallel(lambda name: _check(name, wanted[name]), sorted(wanted))
    problems = [answer for answer in answers if answer not in ("", _ABSENT, _OF_ITS_SIZE)]
    unknown: dict[str, list[str]] = {}
    for name, answer in zip(sorted(wanted), answers):
        if answer in (_ABSENT, _OF_ITS_SIZE):
            unknown.setdefault(answer, []).append(name)
    return answers.count(""), unknown, problems


def _check(name: str, wanted: set[tuple[int, str]]) -> str:
    digests = {digest for _, digest in wanted if digest}
    by_kind = {digest.partition(":")[0] for digest in digests}
    if len({size for size, _ in wanted}) > 1 or len(digests) > len(by_kind):
        return f"{name}: the step that made it and the one that read it record different files"
    try:
        found = paths.status(name)
    except ValueError:  # of a store that this host cannot read
        return _ABSENT
    if found is None:
        return _ABSENT
    ((size, _), *_) = wanted
    if found.size_bytes != size:
        return f"{name}: {found.size_bytes:,} bytes, {size:,} were recorded"
    if not digests:
        return _OF_ITS_SIZE
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
    given = parser.parse_args(paths.words_with_home(argv))
    folder = paths.location(given.folder)
    return _add(folder, given) if given.add else _report(folder)


def _add(folder: paths.Location, given: argparse.Namespace) -> int:
    files = {
        name: [path for pattern in getattr(given, name) for path in whole.matching_files(pattern)]
        for name in ("inputs", "outputs")
    }
    for name, found in files.items():
        if not found:
            raise ValueError(f"--{name}: no file matches {getattr(given, name)}")
    parameters = dict(parameter.partition("=")[::2] for parameter in given.parameters)
    provenance.note(
        folder,
        step=given.add,
        inputs=files["inputs"],
        outputs=files["outputs"],
        parameters=parameters,
    )
    return 0


def _report(folder: paths.Location) -> int:
    steps = list(chain(folder))
    print(*_lines(steps), sep="\n")
    num_right, unknown, problems = verify(steps)
    print(f"{num_right} files are as recorded")
    for why, names in unknown.items():
        print(f"{len(names)} {why}, such as {names[0]}")
    print(*problems, sep="\n", end="\n" if problems else "")
    return 1 if problems else 0
