"""Many parts at once: one TFRecord per text file, in processes, resumable, with a manifest.

Every part is made by a new process: its memory is freed when it ends, and when it is killed, the
part is known. A part is written whole, then entered in the manifest, so that after any interruption
a rerun makes exactly what is missing.
"""

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
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from multiprocessing.connection import wait
from typing import Any, TypeAlias

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
from mlperf_bert.messages import Progress

# Measured: 0.43 GB for a part of 26 MB with dupe_factor 10.
_WORKER_BASE_BYTES = 250 << 20
_WORKER_BYTES_PER_INPUT_BYTE = 2
_WORKER_BYTES_PER_INPUT_BYTE_AND_COPY = 1.2
# The workers of a run that was killed keep its lock for a moment.
LOCK_PATIENCE_SECONDS = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetConfig:
    """How a data set is made."""

    vocab_file: str
    do_lower_case: bool = True
    preserve_unused_tokens: bool = False
    examples_per_part: int = 0
    """Only the first so many examples of each part: a uniform sample of it; 0 for all."""
    instances: InstanceConfig

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


Make: TypeAlias = Callable[
    [dict[str, str], paths.Location, Tokenizer, DatasetConfig],
    Generator[dict[str, Part | str], None, None],
]
"""Makes the parts of a folder from their texts (name -> path); yields some at a time: name -> the
part, or why it failed."""


def write_dataset(
    *,
    input_file: str,
    output_dir: str,
    config: DatasetConfig,
    nworker: int = 0,
    memory_budget_bytes: float = 0,
    make: Make | None = None,
) -> tuple[Manifest, list[str]]:
    """Makes the parts that are missing; returns the manifest and the names made now.

    Args:
      input_file: globs separated by commas.
      output_dir: gets one TFRecord per part and the manifest.
      config: how.
      nworker: as in `num_workers`.
      memory_budget_bytes: as in `num_workers`.
      make: what makes parts, in place of processes of this host.

    Raises:
      ValueError: bad input, data made with other parameters, or parts that failed, by name; the
        other parts are kept.
    """
    files = expand_input(input_file)
    inputs = {posixpath.basename(path): path for path in files}
    if len(inputs) < len(files):
        raise ValueError(
            "--input_file: two files have one name; name each file once, and give files of one "
            "name different --output_dir"
        )
    tokenizer = config.tokenizer()
    hints: list[str] = []
    if make is None:
        workers = num_workers(
            files,
            dupe_factor=config.instances.dupe_factor,
            nworker=nworker,
            memory_budget_bytes=memory_budget_bytes,
        )
        make = functools.partial(_make_in_processes, workers=workers, hints=hints)
    folder = paths.location(output_dir)
    paths.require_no_file(folder)
    named = [(f"--output_dir: {folder / name}", folder / name) for name in inputs]
    whole.require_apart(named, [*files, config.vocab_file], remedy="give another --output_dir")
    failures: dict[str, str] = {}
    with locks.held(folder, patience_seconds=LOCK_PATIENCE_SECONDS) as lock:
        found = _open_manifest(folder, config, inputs)
        missing = _missing_parts(folder, found, inputs)
        if missing:
            provenance.read(folder)  # a damaged one is refused now, not when the parts are made
        to_go, last = set(missing), {}
        with contextlib.closing(make(missing, folder, tokenizer, config)) as results:
            for result in results:
                made = {name: part for name, part in result.items() if isinstance(part, Part)}
                failures |= {name: why for name, why in result.items() if isinstance(why, str)}
                to_go -= made.keys()
                if made and not to_go:
                    last = dict([made.popitem()])
                if made:
                    lock.require_held()
                    found.parts |= made
                    found.save(folder)
        if last:
            # Until the record is written one part counts as missing: a run that ends before is
            # repeated, and makes this part again and the record.
            lock.require_held()
            found.parts |= last
            _note_provenance(folder, found, inputs, vocab_file=config.vocab_file)
            found.save(folder)
    manifest.raise_failures(failures, len(inputs))
    if hints:
        others = f" ({len(hints)} parts have such a hint)" if len(hints) > 1 else ""
        print(f"{hints[0]}{others}", file=sys.stderr)
    return found, sorted(missing)


def _note_provenance(
    folder: paths.Location, found: Manifest, inputs: Mapping[str, str], *, vocab_file: str
) -> None:
    """Records what the parts were made from; their digests are those of the manifest."""
    parts = {str(folder / name): f"sha256:{part.sha256}" for name, part in found.parts.items()}
    texts = {path: f"md5:{found.parts[name].input_md5}" for name, path in inputs.items()}
    provenance.note(
        folder,
        step="training examples",
        inputs=[*(inputs[name] for name in sorted(inputs)), vocab_file],
        outputs=[folder / name for name in sorted(found.parts)],
        parameters=found.parameters,
        digests=parts | texts,
        continues=True,
    )


def _open_manifest(folder: paths.Location, config: DatasetConfig, parts: Iterable[str]) -> Manifest:
    """Returns the manifest to go on with: the folder's, or a new one, which is written.

    Raises:
      ValueError: the folder holds data made with other parameters, or parts of unknown origin.
    """
    parameters = config.parameters()
    found = manifest.load(folder)
    if found is None:
        with paths.failures_named(folder):
            present = {path.name for path in folder.glob("*")}
        if foreign := min(present.intersection(parts), default=None):
            raise ValueError(
                f"{folder}: holds {foreign} but no {manifest.NAME}; "
                "choose another --output_dir or remove the old data"
            )
        versions = {"python": platform.python_version(), "numpy": np.__version__}
        found = Manifest(parameters, versions | {"numba": numba.__version__})
        found.save(folder)
    for name, value in parameters.items():
        if found.parameters.get(name) != value:
            raise ValueError(
                f"{folder}: made with {name}={found.parameters.get(name)}, now it is {value}; "
                "choose another --output_dir or remove the old data"
            )
    return found


def _missing_parts(
    folder: paths.Location, found: Manifest, inputs: Mapping[str, str]
) -> dict[str, str]:
    """Name -> input of every part that is not what the manifest says, or of another text.

    Sizes are always compared; the content only of files changed since the manifest was written, so
    that a rerun over hundreds of GB is quick. `verify` reads everything.
    """
    written = paths.status(folder / manifest.NAME)
    assert written is not None  # `_open_manifest` has written it

    def is_done(name: str) -> bool:
        if (part := found.parts.get(name)) is None:
            return False
        files = (folder / name, paths.location(inputs[name]))
        statuses = [paths.status(file) for file in files]
        sizes = [status and status.size_bytes for status in statuses]
        if sizes != [part.bytes, part.input_bytes]:
            return False
        digests = (("sha256", part.sha256), ("md5", part.input_md5))
        return all(
            (status and status.is_older_than(written)) or digest(file, algorithm) == expected
            for file, status, (algorithm, expected) in zip(files, statuses, digests)
        )

    done = dict(zip(inputs, paths.in_parallel(is_done, list(inputs))))
    return {name: path for name, path in inputs.items() if not done[name]}


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
    hints: list[str],
) -> Generator[dict[str, Part | str], None, None]:
    """A `Make`: each part by itself, as they end; `hints` takes what is said of their texts."""
    if not inputs:
        return
    print("compiling (takes long the first time only)", file=sys.stderr)
    warm_up(tokenizer, config.instances)
    context: Any = stages.worker_context([folder, *inputs.values()])
    waiting = sorted(inputs, reverse=True)
    running: dict = {}
    sizes = dict(zip(inputs, paths.in_parallel(paths.size_bytes, list(inputs.values()))))
    with Progress(total=sum(sizes.values()), unit="B", description="text") as progress:
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    name = waiting.pop()
                    receiver, sender = context.Pipe(duplex=False)
                    arguments = (sender, inputs[name], folder / name, tokenizer, config)
                    process = context.Process(target=_work, args=arguments, daemon=True)
                    process.start()
                    sender.close()
                    running[receiver] = name, process
                ended: Any  # a connection: nothing else is waited for
                for ended in wait(list(running)):
                    name, process = running[ended]
                    try:
                        result, hints_of_part = ended.recv()
                        hints += hints_of_part
                        process.join()
                    except EOFError:
                        process.join()
                        code = process.exitcode
                        result = f"its process ended with code {code} (memory? lower --nworker)"
                    del running[ended]
                    progress.advance(sizes[name])
                    state = "done" if isinstance(result, Part) else "failed"
                    progress.line(f"{name}: {state}, {len(waiting) + len(running)} to go")
                    if isinstance(result, str) and os.strerror(errno.ENOSPC) in result:
                        waiting.clear()
                    yield {name: result}
        finally:  # they must not write once the folder is unlocked
            for _, process in running.values():
                process.terminate()
                process.join()


def _work(
    sender, input_path: str, output: paths.Location, tokenizer: Tokenizer, config: DatasetConfig
):
    threading.Thread(target=_die_with_parent, daemon=True).start()
    result: Part | str
    hints: list[str] = []
    try:
        result = make_part(input_path, output, tokenizer, config, on_hint=hints.append)
    except OSError as error:
        folder, _ = whole.workplace(output)
        result = f"{error.strerror}; free space or fix {folder}" if error.strerror else str(error)
    except ValueError as error:
        result = str(error)
    sender.send((result, hints))


def _die_with_parent() -> None:
    """A parent that is killed cannot stop its workers: each watches it and ends itself."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # a worker's
    wait([parent.sentinel])
    os._exit(1)


def make_part(
    input_path: str,
    output: paths.Location,
    tokenizer: Tokenizer,
    config: DatasetConfig,
    *,
    on_hint: Callable[[str], object] = lambda hint: print(hint, file=sys.stderr),
) -> Part:
    """Makes one TFRecord of one text file; `on_hint` as in `write_examples`.

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
            on_hint=on_hint,
        )
    return Part(
        input_bytes=paths.size_bytes(input_path),
        input_md5=digest(input_path, "md5"),
        bytes=paths.size_bytes(output),
        sha256=sha256.hexdigest(),
        **dataclasses.asdict(statistics),
    )
