"""Many parts at once: one TFRecord per text file, in processes, resumable, with a manifest.

Every part is made by a new process: its memory is freed when it ends, and when it is killed, the
part is known. A part is written whole, then entered in the manifest, so that after any interruption
a rerun makes exactly what is missing.
"""

import concurrent.futures
import contextlib
import dataclasses
import errno
import functools
import hashlib
import multiprocessing
import os
import platform
import posixpath
import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import TypeAlias

import numba
import numpy as np

from mlperf_bert.data import example_encoder, manifest, provenance, stages
from mlperf_bert.data.examples import expand_input, write_examples
from mlperf_bert.data.instances import InstanceConfig, batches, make_instances
from mlperf_bert.data.manifest import Manifest, Part
from mlperf_bert.data.sentences import documents_of
from mlperf_bert.data.tokenization import Tokenizer
from mlperf_bert.files import locks, paths, whole
from mlperf_bert.files.whole import digest, read_regular_file
from mlperf_bert.messages import Progress, as_lines
from mlperf_bert.options import flags_of, option, options

# Measured: 0.43 GB for a part of 26 MB with dupe_factor 10.
_WORKER_BASE_BYTES = 250 << 20
_WORKER_BYTES_PER_INPUT_BYTE = 2
_WORKER_BYTES_PER_INPUT_BYTE_AND_COPY = 1.2
# The workers of a run that was killed keep its lock for a moment.
LOCK_PATIENCE_SECONDS = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What is made, where, and by how many workers."""

    input_file: str = option(None, "Text files; globs and commas are allowed.", path=True)
    output_file: str = option(None, "TFRecord, or several with commas, filled in turn.", path=True)
    # From here on: not in the reference.
    output_dir: str = option(
        None, "Folder for one TFRecord per input file, and a manifest.", path=True
    )
    nworker: int = option(0, "Parts of --output_dir made at once; 0: one per core.", at_least=0)
    memory_budget_gib: float = option(0.0, "Lowers --nworker to fit; 0: no limit.", at_least=0)
    beam_options: str = option(
        None, "Make --output_dir with Apache Beam: its options, as '--runner=...'."
    )
    verify: bool = option(False, "Only check --output_dir against its manifest, make nothing.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetConfig:
    """How a data set is made."""

    vocab_file: str = option(None, "WordPiece vocabulary.", path=True)
    do_lower_case: bool = option(
        True,
        "Lower-case the text; False for cased vocabularies. A tokenizer_config.json beside the "
        "vocabulary decides.",
    )
    preserve_unused_tokens: bool = option(False, "Keep [unused7] in the text as one token.")
    examples_per_part: int = option(0, "Only the first so many of each part; 0: all.", at_least=0)
    instances: InstanceConfig = options(InstanceConfig, **flags_of(InstanceConfig))

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that these settings describe."""
        return Tokenizer(
            self.vocab_file,
            do_lower_case=self.do_lower_case,
            preserve_unused_tokens=self.preserve_unused_tokens,
        )

    def parameters(self) -> dict[str, object]:
        """Everything that determines the bytes, as the manifest records it."""
        own = dataclasses.asdict(self)
        vocabulary = read_regular_file(own.pop("vocab_file"))
        return own.pop("instances") | own | {"vocab_md5": hashlib.md5(vocabulary).hexdigest()}


def num_workers(
    inputs: list[str], *, dupe_factor: int, nworker: int = 0, memory_budget_bytes: float = 0
) -> int:
    """Returns how many parts to make at once: `nworker` or the cores, as far as memory reaches.

    Raises:
      ValueError: the budget is too small for one worker.
    """
    workers = min(nworker or len(os.sched_getaffinity(0)), len(inputs))
    largest_bytes = max(paths.in_parallel(paths.size_bytes, inputs))
    factor = _WORKER_BYTES_PER_INPUT_BYTE + _WORKER_BYTES_PER_INPUT_BYTE_AND_COPY * dupe_factor
    per_worker_bytes = _WORKER_BASE_BYTES + factor * largest_bytes
    if memory_budget_bytes:
        workers = min(workers, int(memory_budget_bytes / per_worker_bytes))
    if workers < 1:
        raise ValueError(
            f"memory_budget_gib={memory_budget_bytes / 2**30:.2f}: one worker needs about "
            f"{per_worker_bytes / 2**30:.2f} GiB for the largest part; raise the budget"
        )
    return workers


Results: TypeAlias = dict[str, Part | str]
"""Name -> the part, or why it failed."""
Make: TypeAlias = Callable[
    [dict[str, str], paths.Location, Tokenizer, DatasetConfig], Generator[Results, None, None]
]
"""Makes the parts of a folder from their texts (name -> path); yields some at a time."""


def write_dataset(
    request: Request, config: DatasetConfig, make: Make | None = None
) -> tuple[Manifest, list[str]]:
    """Makes the parts that are missing; returns the manifest and the names made now.

    Args:
      request: with an output_dir.
      config: how.
      make: what makes parts, in place of processes of this host.

    Raises:
      ValueError: bad input, data made with other parameters, or parts that failed, by name; the
        other parts are kept.
    """
    files = expand_input(request.input_file)
    inputs = {posixpath.basename(path): path for path in files}
    if len(inputs) < len(files):
        raise ValueError(
            "--input_file: two files have one name; name each file once, and give files of one "
            "name different --output_dir"
        )
    tokenizer = config.tokenizer()
    if make is None:
        workers = num_workers(
            files,
            dupe_factor=config.instances.dupe_factor,
            nworker=request.nworker,
            memory_budget_bytes=request.memory_budget_gib * 2**30,
        )
        make = functools.partial(_make_in_processes, workers=workers)
    folder = paths.location(request.output_dir)
    named = [(f"--output_dir: {folder / name}", folder / name) for name in inputs]
    whole.require_apart(named, [*files, config.vocab_file], remedy="give another --output_dir")
    with locks.held(folder, patience_seconds=LOCK_PATIENCE_SECONDS) as lock:
        made = _DataSet(folder, inputs, config, _open_manifest(folder, config, inputs))
        missing = made.missing()
        if missing:
            provenance.read(folder)  # a damaged one is refused now, not when the parts are made
        with contextlib.closing(make(missing, folder, tokenizer, config)) as results:
            failures = made.enter(results, len(missing), require_held=lock.require_held)
    if failures:
        listed = "; ".join(f"{name}: {reason}" for name, reason in sorted(failures.items()))
        raise ValueError(f"{len(failures)} of {len(inputs)} parts failed, run again: {listed}")
    return made.manifest, sorted(missing)


def _open_manifest(folder: paths.Location, config: DatasetConfig, parts: Iterable[str]) -> Manifest:
    """Returns the manifest to go on with: the folder's, or a new one, which is written.

    Raises:
      ValueError: the folder holds data made with other parameters, or parts of unknown origin.
    """
    parameters = config.parameters()
    before = manifest.load(folder)
    if before is None:
        with paths.failures_named(folder):
            present = {path.name for path in folder.glob("*")}
        if foreign := min(present.intersection(parts), default=None):
            raise ValueError(
                f"{folder}: holds {foreign} but no {manifest.NAME}; "
                "choose another --output_dir or remove the old data"
            )
        versions = {"python": platform.python_version(), "numpy": np.__version__}
        before = Manifest(parameters, versions | {"numba": numba.__version__})
        before.save(folder)
    for name, value in parameters.items():
        if before.parameters.get(name) != value:
            raise ValueError(
                f"{folder}: made with {name}={before.parameters.get(name)}, now it is {value}; "
                "choose another --output_dir or remove the old data"
            )
    return before


@dataclasses.dataclass(frozen=True)
class _DataSet:
    """A folder, the text of each part (name -> path), and the manifest, which grows."""

    folder: paths.Location
    inputs: Mapping[str, str]
    config: DatasetConfig
    manifest: Manifest

    def missing(self) -> dict[str, str]:
        """Name -> input of every part that is not what the manifest says, or of another text.

        Sizes are always compared; the content only of files changed since the manifest was written,
        so that a rerun over hundreds of GB is quick. `verify` reads everything.
        """
        written = paths.status(self.folder / manifest.NAME)
        assert written is not None  # `_open_manifest` has written it

        def is_done(name: str) -> bool:
            if (part := self.manifest.parts.get(name)) is None:
                return False
            files = (self.folder / name, paths.location(self.inputs[name]))
            statuses = [paths.status(file) for file in files]
            sizes = [status and status.size_bytes for status in statuses]
            if sizes != [part.bytes, part.input_bytes]:
                return False
            digests = (("sha256", part.sha256), ("md5", part.input_md5))
            return all(
                (status and status.is_older_than(written)) or digest(file, algorithm) == expected
                for file, status, (algorithm, expected) in zip(files, statuses, digests)
            )

        done = dict(zip(self.inputs, paths.in_parallel(is_done, list(self.inputs))))
        return {name: path for name, path in self.inputs.items() if not done[name]}

    def enter(
        self, results: Iterable[Results], to_go: int, *, require_held: Callable[[], None]
    ) -> dict[str, str]:
        """Enters so many parts in the manifest as they come; returns why others failed, by name."""
        failures: dict[str, str] = {}
        for result in results:
            failures |= {name: why for name, why in result.items() if isinstance(why, str)}
            parts = {name: part for name, part in result.items() if isinstance(part, Part)}
            to_go -= len(parts)
            # Until the record is written one part counts as missing: a run that ends before is
            # repeated, and makes this part again and the record.
            last = dict([parts.popitem()]) if parts and not to_go else {}
            for entered in filter(None, (parts, last)):
                require_held()
                self.manifest.parts.update(entered)
                if entered is last:
                    self._note_provenance()
                self.manifest.save(self.folder)
        return failures

    def _note_provenance(self) -> None:
        """Records what the parts were made from; their digests are those of the manifest."""
        parts = self.manifest.parts
        made = {str(self.folder / name): f"sha256:{part.sha256}" for name, part in parts.items()}
        texts = {path: f"md5:{parts[name].input_md5}" for name, path in self.inputs.items()}
        provenance.note(
            self.folder,
            step="training examples",
            inputs=[*(self.inputs[name] for name in sorted(self.inputs)), self.config.vocab_file],
            outputs=[self.folder / name for name in sorted(parts)],
            parameters=self.manifest.parameters,
            digests=made | texts,
            continues=True,
        )


def warm_up(tokenizer: Tokenizer, config: InstanceConfig) -> None:
    """Compiles once, before the processes are forked."""
    instances = make_instances(
        documents_of(b"a a\na\na\n\n" * 2, tokenizer),
        tokenizer.vocabulary,
        dataclasses.replace(config, dupe_factor=1),
    )
    for batch in batches(instances, tokenizer.vocabulary, config):
        example_encoder.encode_records(batch)


def _make_in_processes(
    inputs: dict[str, str],
    folder: paths.Location,
    tokenizer: Tokenizer,
    config: DatasetConfig,
    *,
    workers: int,
) -> Generator[Results, None, None]:
    """A `Make`: each part by itself, as they end."""
    if not inputs:
        return
    print("compiling (takes long the first time only)", file=sys.stderr)
    warm_up(tokenizer, config.instances)
    waiting = sorted(inputs, reverse=True)
    running: dict[concurrent.futures.Future, tuple[str, concurrent.futures.Executor]] = {}
    sizes = dict(zip(inputs, paths.in_parallel(paths.size_bytes, list(inputs.values()))))
    with Progress(total=sum(sizes.values()), unit="B", description="text") as progress:
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    name = waiting.pop()
                    # A pool of its own: a process that is killed breaks no other part's.
                    pool = stages.processes(1, [folder, inputs[name]])
                    job = (inputs[name], folder / name, tokenizer, config)
                    running[pool.submit(_made, *job)] = name, pool
                ended, _ = concurrent.futures.wait(running, return_when="FIRST_COMPLETED")
                for future in ended:
                    name, pool = running.pop(future)
                    result: Part | str = "its process was killed (memory? lower --nworker)"
                    with contextlib.suppress(concurrent.futures.BrokenExecutor):
                        result = future.result()
                    pool.shutdown()
                    progress.advance(sizes[name])
                    state = "done" if isinstance(result, Part) else "failed"
                    progress.line(f"{name}: {state}, {len(waiting) + len(running)} to go")
                    if isinstance(result, str) and os.strerror(errno.ENOSPC) in result:
                        waiting.clear()  # the others would fail too
                    yield {name: result}
        finally:  # they must not write once the folder is unlocked
            for process in multiprocessing.active_children():
                process.terminate()
            for _, pool in running.values():
                pool.shutdown(cancel_futures=True)


def _made(
    input_path: str, output: paths.Location, tokenizer: Tokenizer, config: DatasetConfig
) -> Part | str:
    """A part, or why it failed: an error of one part does not end the others."""
    try:
        return make_part(input_path, output, tokenizer, config)
    except OSError as error:
        return as_lines(error)
    except ValueError as error:
        return str(error)


def make_part(
    input_path: str, output: paths.Location, tokenizer: Tokenizer, config: DatasetConfig
) -> Part:
    """Makes one TFRecord of one text file.

    Raises:
      ValueError: bad input.
      OSError: it cannot be written, as on a full disk; nothing is left of it then.
    """
    sha256 = hashlib.sha256()
    # The run's own lock ends with a killed run, though its workers may write a moment longer.
    with locks.held_by_one_writer(output, patience_seconds=LOCK_PATIENCE_SECONDS):
        statistics = write_examples(
            [input_path],
            [output],
            tokenizer,
            config.instances,
            at_most=config.examples_per_part,
            silent=True,
            on_written=sha256.update,
        )
    return Part(
        input_bytes=paths.size_bytes(input_path),
        input_md5=digest(input_path, "md5"),
        bytes=paths.size_bytes(output),
        sha256=sha256.hexdigest(),
        **dataclasses.asdict(statistics),
    )
