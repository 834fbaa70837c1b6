"""Whole folders: written so that they appear whole or not at all; copied to disk; removed.

A run needs none of this: it writes whole files (whole.py) into a folder of its own (locks.py).
"""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from mlperf_bert.files import paths
from mlperf_bert.files.whole import no_room_named, partial, upload
from mlperf_bert.tensorflow_import import tensorflow


@contextlib.contextmanager
def on_disk(
    folder: paths.Location, *, before_upload: Callable[[], None] = lambda: None
) -> Iterator[Path]:
    """Yields a local folder itself; for a bucket's an empty one, whose files are uploaded then."""
    if isinstance(folder, Path):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="mlperf-bert-") as name:
        yield Path(name)
        before_upload()
        for file in sorted(Path(name).rglob("*")):
            if file.is_file():
                upload(file, folder / file.relative_to(name).as_posix())


@contextlib.contextmanager
def written_beside(path: paths.Location) -> Iterator[Path]:
    """Yields a hidden directory next to `path`, which becomes `path` once all is written.

    When anything fails, the hidden directory is removed, and so is what a killed process left. In
    a bucket the files appear one after the other, each as a whole.
    """
    if not isinstance(path, Path):
        with on_disk(path) as folder:
            yield folder
        return
    beside = partial(path)
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir(parents=True)
        with no_room_named(path):
            yield beside
        beside.rename(path)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


@contextlib.contextmanager
def copied_to_disk(
    names: Sequence[str], *, only: Sequence[str] = ("*",)
) -> Iterator[dict[str, Path]]:
    """Copies the files, and folders of files, of a bucket; removes the copies at the end.

    Args:
      names: those that are not of a bucket stay as they are, whatever they are.
      only: globs of the files to copy from a folder.

    Yields: what is of a bucket -> its copy.

    Raises:
      OSError: the bucket refuses it.
    """

    def copy(name: str) -> None:
        source = paths.location(name)
        with paths.failures_named(source):
            found = list(source.iterdir()) if source.is_dir() else [source]
        for file in found:
            if file == source or any(file.match(pattern) for pattern in only):
                target = copies[name] / file.relative_to(source).as_posix()
                target.parent.mkdir(parents=True, exist_ok=True)
                with paths.opened(file) as there, target.open("wb") as here:
                    shutil.copyfileobj(there, here)

    with tempfile.TemporaryDirectory(prefix="mlperf-bert-") as folder:
        remote = list(filter(paths.is_remote, names))
        copies = {name: Path(folder, str(n), Path(name).name) for n, name in enumerate(remote)}
        paths.in_parallel(copy, remote)
        yield copies


def remove(path: paths.Location) -> None:
    """Removes a folder and all that is in it; nothing where there is none.

    Raises:
      OSError: the bucket refuses it.
    """
    with paths.failures_named(path), contextlib.suppress(FileNotFoundError):
        if path.is_dir():
            tensorflow().io.gfile.rmtree(str(path))


def is_renamed_whole(path: paths.Location) -> bool:
    """Whether renaming a folder is one step; in a bucket its objects are copied one by one."""
    return isinstance(path, Path)
