"""Whole folders: written so that they appear whole or not at all; copied to disk; removed.

A run needs none of this: it writes whole files (whole.py) into a folder of its own (working.py).
"""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from mlperf_bert.files import paths
from mlperf_bert.files.whole import partial, upload


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
        with paths.failures_named(path):
            yield beside
        beside.rename(path)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


@contextlib.contextmanager
def copied_to_disk(
    names: Sequence[str], *, only: Sequence[str] = ("*",)
) -> Iterator[dict[str, Path]]:
    """Yields what of the names is of a bucket -> its copy; removes the copies at the end.

    Args:
      names: of files, and of folders of files; what is not of a bucket stays, whatever it is.
      only: globs of the files to copy from a folder.

    Raises:
      OSError: the bucket refuses it.
    """
    with tempfile.TemporaryDirectory(prefix="mlperf-bert-") as folder:
        copies = {}
        for number, name in enumerate(filter(paths.is_remote, names)):
            source, copies[name] = paths.location(name), Path(folder, str(number), Path(name).name)
            with paths.failures_named(source):
                files = list(source.iterdir()) if source.is_dir() else [source]
            for file in files:
                if file == source or any(map(file.match, only)):
                    target = copies[name] / file.relative_to(source).as_posix()
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with (
                        paths.opened(file) as there,
                        paths.failures_named(target),  # the disk of the copy may be full
                        target.open("wb") as here,
                    ):
                        shutil.copyfileobj(there, here)
        yield copies


def remove(path: paths.Location) -> None:
    """Removes a folder and all that is in it; nothing where there is none.

    Raises:
      OSError: the bucket refuses it.
    """
    with paths.failures_named(path):
        if path.is_dir():
            shutil.rmtree(path) if isinstance(path, Path) else path.rmtree()
