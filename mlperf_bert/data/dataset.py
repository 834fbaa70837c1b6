"""Many parts at once: one TFRecord per text file, in processes, resumable, with a record of them.

A part is written whole, then entered in parts.json, so that after any interruption, also of a
process that is killed, a rerun makes exactly what is missing.
"""

import contextlib
import dataclasses
import errno
import os
import posixpath
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from mlperf_bert.data import example_encoder, parts, stages, vocabulary
from mlperf_bert.data.examples import write_examples
from mlperf_bert.data.instances import InstanceConfig, batches, make_instances
from mlperf_bert.data.sentences import text_of_bytes
from mlperf_bert.data.tokenization import Tokenizer
from mlperf_bert.files import locks, whole
from mlperf_bert.messages import Progress, as_lines
from mlperf_bert.options import flags_of, option, options

# The workers of a killed run keep its lock for a moment.
LOCK_PATIENCE_SECONDS = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What is made, where, and by how many workers."""

    input_file: str = option(None, "Text files; globs and commas are allowed.", path=True)
    output_file: str = option(None, "TFRecord, or several with commas, filled in turn.", path=True)
    # The reference has none of the flags below.
    output_dir: str = option(
        None, "Folder for one TFRecord per input file, and a record of them.", path=True
    )
    nworker: int = option(0, "Parts of --output_dir made at once; 0: one per core.", at_least=0)
    beam_options: str = option(
        None, "Make --output_dir with Apache Beam: its options, as '--runner=...'."
    )
    verify: bool = option(False, "Only check --output_dir against its record, make nothing.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetConfig:
    """How a data set is made."""

    vocab_file: str = option(None, "WordPiece vocabulary.", path=True)
    do_lower_case: bool = option(
        True,
        "Lower-case the text; False for cased vocabularies.",
    )
    preserve_unused_tokens: bool = option(False, "Keep [unused7] in the text as one token.")
    examples_per_part: int = option(
        0, "Write only the first N examples of each part; 0: all.", at_least=0
    )
    instances: InstanceConfig = options(InstanceConfig, **flags_of(InstanceConfig))

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that these settings describe."""
        return Tokenizer(
            self.vocab_file,
            do_lower_case=self.do_lower_case,
            preserve_unused_tokens=self.preserve_unused_tokens,
        )

    def parameters(self, words: Iterable[str]) -> dict[str, object]:
        """Everything that determines the bytes, as parts.json records it.

        Args:
          words: those of `vocab_file`.
        """
        own = dataclasses.asdict(self)
        del own["vocab_file"]
        return own.pop("instances") | own | {"vocab_md5": vocabulary.md5_of(words)}


Made: TypeAlias = tuple[parts.File, parts.File]
"""The text of a part, and the part."""
Results: TypeAlias = Generator[tuple[str, Made | str], None, None]
"""The name of each part as it ends, with the part or why it failed."""
Make: TypeAlias = Callable[[dict[str, str], Path, Tokenizer, DatasetConfig], Results]
"""Makes the parts of a folder from their texts (name -> path)."""


def write_dataset(
    texts: Sequence[str], folder: Path, config: DatasetConfig, make: Make
) -> tuple[parts.DataSet, list[str]]:
    """Makes the parts that are missing; returns the record of all and the names made now.

    Args:
      texts: their paths.
      folder: gets a part for each, of its name.
      config: how.
      make: what makes parts, such as `make_in_processes`.
    """
    inputs = {posixpath.basename(path): path for path in texts}
    if len(inputs) < len(texts):
        raise ValueError(
            "--input_file: two files have one name; name each file once, and give files of one "
            "name different --output_dir"
        )
    tokenizer = config.tokenizer()
    named = [(f"--output_dir: {folder / name}", folder / name) for name in inputs]
    whole.require_apart(named, [*texts, config.vocab_file], remedy="give another --output_dir")
    failures: dict[str, str] = {}
    with locks.held(folder, patience_seconds=LOCK_PATIENCE_SECONDS):
        data_set = _record_to_go_on(folder, config.parameters(tokenizer.vocabulary), inputs)
        missing = _missing(folder, data_set, inputs)
        with contextlib.closing(make(missing, folder, tokenizer, config)) as results:
            for name, result in results:
                if isinstance(result, str):
                    failures[name] = result
                    continue
                data_set.inputs[name], data_set.files[name] = result
                parts.write(folder, parts.PARTS, data_set)
    if failures:
        listed = "; ".join(f"{name}: {reason}" for name, reason in sorted(failures.items()))
        raise ValueError(f"{len(failures)} of {len(inputs)} parts failed, run again: {listed}")
    return data_set, sorted(missing)


def _record_to_go_on(
    folder: Path, parameters: dict[str, object], names: Iterable[str]
) -> parts.DataSet:
    """The record of the folder's parts; a new one is written."""
    remedy = "choose another --output_dir or remove the old data"
    before = parts.read(folder).get(parts.PARTS)
    data_set = parts.DataSet(
        parameters=parameters,
        inputs=before.inputs if before else {},
        files=before.files if before else {},
    )
    if before is None:
        if foreign := next((name for name in sorted(names) if (folder / name).exists()), None):
            raise ValueError(f"{folder}: holds {foreign}, and no record of its origin; {remedy}")
        parts.write(folder, parts.PARTS, data_set)
        return data_set
    for name, value in parameters.items():
        if (there := before.parameters.get(name)) != value:
            raise ValueError(f"{folder}: made with {name}={there}, now it is {value}; {remedy}")
    return data_set


def _missing(folder: Path, data_set: parts.DataSet, inputs: Mapping[str, str]) -> dict[str, str]:
    """Name -> text of every part that differs from its record, or whose text does.

    Sizes are always compared; the content only of files changed since the record was written, so
    that a rerun over hundreds of GB is quick. `--verify` reads everything.
    """
    since = folder / parts.NAME

    def is_done(name: str) -> bool:
        if name not in data_set.inputs or name not in data_set.files:
            return False
        files = ((Path(inputs[name]), data_set.inputs[name]), (folder / name, data_set.files[name]))
        return not any(parts.difference(path, file, since=since) for path, file in files)

    return {name: path for name, path in inputs.items() if not is_done(name)}


def summary(
    data_set: parts.DataSet,
    *,
    num_made: int,
    seconds: float,
    samples_needed: Mapping[int, float],
) -> str:
    """The numbers of parts, examples and bytes, the time, and how many passes runs need.

    Args:
      data_set: all parts.
      num_made: parts made by this run in `seconds`.
      samples_needed: global batch size -> samples a run needs on average.
    """
    files = data_set.files.values()
    examples, num_bytes = (sum(getattr(f, n) for f in files) for n in ("examples", "bytes"))
    first = data_set.parameters["examples_per_part"]
    kind = f"the first {first} examples of each part: a uniform sample, not fit for a submission"
    return "\n".join(
        [
            f"{len(files)} parts, {examples:,} examples, {num_bytes:,} bytes "
            f"({kind if first else 'whole parts'})",
            f"{num_made} parts made in {seconds:.1f} s, {len(files) - num_made} were there already",
            "a run needs on average, by global batch size, so many samples, or passes over these:",
            *(
                f"{batch:>10}: {needed:>11,.0f}  {needed / max(examples, 1):10.2f}"
                for batch, needed in sorted(samples_needed.items())
            ),
        ]
    )


def warm_up(tokenizer: Tokenizer, config: InstanceConfig) -> None:
    """Compiles once, before the processes are forked."""
    instances = make_instances(
        text_of_bytes(b"a a\na\na\n\n" * 2, tokenizer),
        tokenizer.vocabulary,
        dataclasses.replace(config, dupe_factor=1),
    )
    for batch in batches(instances, tokenizer.vocabulary, config):
        example_encoder.encode_records(batch)


def make_in_processes(
    inputs: dict[str, str],
    folder: Path,
    tokenizer: Tokenizer,
    config: DatasetConfig,
    *,
    workers: int,
) -> Results:
    """A `Make` by several processes, 0: one for each core; yields each part as it ends."""
    if not inputs:
        return
    print("compiling (takes long the first time only)", file=sys.stderr)
    warm_up(tokenizer, config.instances)
    names = sorted(inputs)
    sizes = [Path(inputs[name]).stat().st_size for name in names]
    pool = stages.process_pool(min(workers or len(os.sched_getaffinity(0)), len(names)))
    jobs = [(inputs[name], folder / name, tokenizer, config) for name in names]
    with (
        contextlib.closing(stages.as_they_end(pool, make_part, jobs, str(folder))) as ended,
        Progress(total=sum(sizes), unit="B", description="text") as progress,
    ):
        for left, (number, result) in zip(reversed(range(len(jobs))), ended):
            progress.advance(sizes[number])
            state = "failed" if isinstance(result, str) else "done"
            progress.line(f"{names[number]}: {state}, {left} to go")
            if isinstance(result, str) and os.strerror(errno.ENOSPC) in result:
                # The others would fail too; parts that have begun continue, and are recorded.
                pool.shutdown(wait=False, cancel_futures=True)
            yield names[number], result


def make_part(
    input_path: str, output: Path, tokenizer: Tokenizer, config: DatasetConfig
) -> Made | str:
    """Makes one TFRecord of one text file; returns text and part, or why it failed.

    An error of one part does not end the others. On a full disk nothing is left of the part.
    """
    try:
        [part] = write_examples(
            [input_path],
            [output],
            tokenizer,
            config.instances,
            at_most=config.examples_per_part,
            silent=True,
        )
        return parts.describe(Path(input_path)), part
    except (ValueError, OSError) as error:
        return as_lines(error)
