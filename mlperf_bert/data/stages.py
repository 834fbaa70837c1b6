"""How a clean-up stage runs: one function per file, many files at once, all or a clear error."""

import concurrent.futures
import os
from collections.abc import Callable, Iterable
from concurrent.futures.process import BrokenProcessPool

from mlperf_bert.data import processes
from mlperf_bert.progress import Progress
from mlperf_bert.reading import matching_files, read_regular_file


def input_files(pattern: str) -> list[str]:
    """The sorted files behind a glob. Order matters: seeds and packing go by it.

    Raises:
      ValueError: nothing matches.
    """
    if not (files := matching_files(pattern)):
        raise ValueError(f"--data={pattern}: no file matches; quote the glob, and check the folder")
    return files


def read_text(path: str, *, encoding: str = "utf-8", keep_line_ends: bool = False) -> str:
    r"""A file's text, by default with every line end, \r and \r\n too, as \n.

    Raises:
      ValueError: no such file, no regular one, or bytes that are not UTF-8.
    """
    try:
        text = read_regular_file(path).decode(encoding)
    except FileNotFoundError as error:
        raise ValueError(f"{path}: no such file; run the stage before this one first") from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: byte {error.start} is not UTF-8; extract the file again, or fix it with "
            "iconv -f UTF-8 -t UTF-8 -c"
        ) from error
    return text if keep_line_ends else text.replace("\r\n", "\n").replace("\r", "\n")


def lines_of(text: str) -> list[str]:
    r"""The lines with their ends, cut at \n alone (str.splitlines cuts at eight more)."""
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _workers(number: int, files: Iterable[str | os.PathLike]) -> concurrent.futures.Executor:
    """So many processes, or one thread where /dev/shm, which processes need, is not writable."""
    try:
        return concurrent.futures.ProcessPoolExecutor(number, processes.context(files))
    except OSError:
        return concurrent.futures.ThreadPoolExecutor(1)


def run(
    function: Callable, jobs: Iterable[tuple], *, num_workers: int, description: str
) -> list[object]:
    """Calls `function(*job)` for every job, in workers; returns the results in order.

    Raises:
      ValueError: a worker was killed, or the first two values of a job, its files, are one.
      Whatever the first failing call raises; calls not yet begun are dropped.
    """
    jobs = list(jobs)
    if same := next((job[0] for job in jobs if len(job) > 1 and job[0] == job[1]), None):
        raise ValueError(f"{same} would be replaced by its own output; give other suffixes")
    files = (each for job in jobs for each in job if isinstance(each, str | os.PathLike))
    with (
        _workers(min(num_workers, len(jobs)), files) as pool,
        Progress(total=len(jobs), unit="files", description=description) as progress,
    ):
        futures = [pool.submit(function, *job) for job in jobs]
        try:
            for future in concurrent.futures.as_completed(futures):
                future.result()
                progress.advance(1)
        except BrokenProcessPool as error:
            raise ValueError(
                f"{description}: a worker was killed, perhaps for lack of memory; lower --nworker"
            ) from error
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
        progress.line(f"{description}: {len(jobs)} files done")
    return [future.result() for future in futures]
