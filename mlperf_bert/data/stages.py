"""How a stage or a data set runs: one function per file, many at once, all or a clear error."""

import concurrent.futures
import contextlib
import multiprocessing.connection
import os
import posixpath
import queue
import re
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import Any

from mlperf_bert.files import paths, whole
from mlperf_bert.files.whole import matching_files, read_regular_file
from mlperf_bert.messages import Progress

_RECORDS = re.compile(r"(^|/)(parts\.json|eval\.(txt|md5))$")
_JSON = re.compile(rf'{whole.BYTE_ORDER_MARK}?[\s\[]*{{\s*"[^"\n]*"\s*:')
_COPY = re.compile(r"\.\d$")  # what the stages leave beside a raw file


def input_files(
    pattern: str, *, flag: str = "data", alone: str = "the raw files alone, such as text/??/wiki_??"
) -> list[str]:
    """The sorted files behind a glob. Order matters: seeds and packing go by it."""
    paths.require_local(pattern, flag=flag)
    if not (files := matching_files(pattern)):
        raise ValueError(
            f"--{flag}={pattern}: no file matches; quote the glob, and check the folder"
        )
    present = set(files)
    copies = {name for name in files if _COPY.search(name) and _COPY.sub("", name) in present}
    others = [name for name in files if name in copies or _RECORDS.search(name)]
    if others and len(files) > 1:
        shown = ", ".join(map(posixpath.basename, others[:3]))
        raise ValueError(
            f"--{flag}={pattern}: matches {shown} too, written beside the texts; give a glob of "
            f"{alone}"
        )
    return files


def require_no_others(folder: Path, pattern: str, names: Iterable[str], *, variable: str) -> None:
    """Raises ValueError for files of another run, which would be read with this one's `names`.

    The `variable` of process_wiki.sh names the folder.
    """
    present = {path.relative_to(folder).parts[0] for path in folder.glob(pattern)}
    if others := sorted(present - set(names)):
        raise ValueError(
            f"{folder}: holds {others[0]}, which this run does not make ({len(others)} of this "
            f"kind); remove them or choose another --out_dir ({variable}=... for process_wiki.sh)"
        )


def read_text(path: str, *, keep_line_ends: bool = False) -> str:
    r"""A file's text, by default with every line end, \r and \r\n too, as \n."""
    try:
        text = whole.decode(read_regular_file(path), path)
    except FileNotFoundError as error:
        raise ValueError(f"{path}: no such file; run the stage before this one first") from error
    require_sentences(text, path)
    return text if keep_line_ends else text.replace("\r\n", "\n").replace("\r", "\n")


def require_sentences(text: str, path: str) -> None:
    """Raises ValueError for JSON with objects, whose lines would pass for text."""
    if _JSON.match(text):
        raise ValueError(f"{path}: is JSON, not text; give documents the suffix .json or .jsonl")


def hint_of_markup(text: str, path: str) -> str | None:
    """What to do with a text that nobody has cleaned; None for any other."""
    if text.lstrip().startswith("<mediawiki"):
        return f"hint: {path}: is a dump of XML; extract and clean it first (docs/data.md)"
    if "<doc id=" in text and (tags := re.findall(r"^<doc id=", text, re.MULTILINE)):
        return (
            f"hint: {path}: {len(tags)} lines begin with <doc id=, as WikiExtractor leaves them; "
            "tags and titles become training text: clean it with cleanup_scripts/process_wiki.sh"
        )
    return None


def lines_of(text: str) -> list[str]:
    r"""The lines with their ends, cut at \n alone (str.splitlines cuts at eight more)."""
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def process_pool(number: int) -> concurrent.futures.Executor:
    """A pool of worker processes that end with this one; one thread where it cannot have any."""
    fork = multiprocessing.get_context("fork")
    try:
        return concurrent.futures.ProcessPoolExecutor(number, fork, initializer=_watch_parent)
    except OSError:  # /dev/shm, where the pool's semaphores lie, is not writable
        return concurrent.futures.ThreadPoolExecutor(1)


def _watch_parent() -> None:
    """Makes a worker end with its parent: a parent that is killed cannot stop its workers."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # a worker always has one

    def end_with_parent() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def require_apart(
    jobs: Iterable[tuple], *, also_read: Sequence[str], also_written: Sequence[str]
) -> None:
    """Raises ValueError if an output would replace an input of any job, or another output.

    The arguments are those of `run`.
    """
    read, written = list(also_read), list(also_written)
    for first, second, *_ in (job for job in jobs if len(job) > 1):
        is_gathered = isinstance(second, list)
        read += second if is_gathered else [first]
        written.append(first if is_gathered else second)
    named = [(os.fspath(path), path) for path in written]
    whole.require_apart(named, read, remedy="give other suffixes, or another folder")


def run(
    function: Callable,
    jobs: Iterable[tuple],
    *,
    num_workers: int,
    description: str,
    also_read: Sequence[str] = (),
    also_written: Sequence[str] = (),
) -> list[object]:
    """Calls `function(*job)` for every job, in workers; returns the results in order.

    Args:
      function: does one job.
      jobs: each begins with its input and its output, or its output and a list of its inputs.
      num_workers: how many at once.
      description: of the stage.
      also_read: files that no job may replace.
      also_written: files that are written after the jobs.

    Raises:
      ValueError: a worker was killed, or an output would replace an input of any job, or another
        output.
      Whatever the first failing call raises; calls not yet begun are dropped.
    """
    jobs = list(jobs)
    require_apart(jobs, also_read=also_read, also_written=also_written)
    pool = process_pool(min(num_workers, len(jobs)))
    results: dict[int, object] = {}
    with (
        contextlib.closing(as_they_end(pool, function, jobs, description)) as ended,
        Progress(total=len(jobs), unit="files", description=description) as progress,
    ):
        for job, result in ended:
            results[job] = result
            progress.advance(1)
        progress.line(f"{description}: {len(jobs)} files done")
    return [results[job] for job in range(len(jobs))]


def as_they_end(
    pool: concurrent.futures.Executor, function: Callable, jobs: Iterable[tuple], description: str
) -> Generator[tuple[int, Any], None, None]:
    """Calls `function(*job)` for every job in a pool; yields the number and the result of each.

    Where the caller shuts the pool down, calls not yet begun are left out.

    Raises:
      ValueError: a worker was killed.
      Whatever the first failing call raises; calls not yet begun are dropped.
    """
    with pool:
        numbers = {pool.submit(function, *job): number for number, job in enumerate(jobs)}
        # Not `as_completed`, which waits for ever for calls that a shut pool has left out.
        ended: queue.SimpleQueue[concurrent.futures.Future] = queue.SimpleQueue()
        try:
            for future in numbers:
                future.add_done_callback(ended.put)
            for _ in numbers:
                if not (future := ended.get()).cancelled():
                    yield numbers[future], future.result()
        except concurrent.futures.BrokenExecutor as error:
            raise ValueError(
                f"{description}: a worker was killed, perhaps for lack of memory; lower --nworker "
                "and run again"
            ) from error
        except BaseException as error:
            # Interrupted, or closed by the caller: nobody may write once the folder is unlocked.
            if not isinstance(error, Exception):
                for process in multiprocessing.active_children():
                    process.terminate()
            pool.shutdown(cancel_futures=True)
            raise
