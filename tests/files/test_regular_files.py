"""Only regular files are read and replaced; files and folders appear whole or not at all."""

import errno
import os
import socket
from pathlib import Path

import pytest

from mlperf_bert.files import paths, whole
from mlperf_bert.files.paths import require_regular_file
from mlperf_bert.files.whole import partial, require_apart, write_whole, written_beside
from mlperf_bert.messages import as_lines
from mlperf_bert.model.config import BertConfig
from mlperf_bert.training.setup import Findings


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def test_a_disk_that_fails_while_it_is_read_names_the_file(tmp_path):
    (tmp_path / "input").symlink_to("/proc/self/mem")  # has no first byte: EIO
    with pytest.raises(OSError) as failed, paths.opened(tmp_path / "input") as file:
        file.readline()
    assert as_lines(failed.value) == (
        f"{tmp_path}/input: Input/output error; its disk, or the way to it, has failed; repeat the "
        "command, or take another copy"
    )
    findings = Findings()
    with findings.collecting():
        BertConfig.from_json_file(str(tmp_path / "input"))
    assert findings[0].text.startswith(f"{tmp_path}/input: Input/output error; its disk")


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (errno.EIO, "Input/output error; its disk, or the way to it, has failed"),
        (errno.ENOSPC, "No space left on device"),
        (errno.EDQUOT, "Disk quota exceeded"),
        (errno.EFBIG, "File too large"),
    ],
)
def test_a_disk_that_fails_while_it_is_written_names_the_file(tmp_path, monkeypatch, number, told):
    def fail(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError) as failed:
        write_whole(tmp_path / "output", "text")
    assert as_lines(failed.value).startswith(f"{tmp_path}/output: {told}")
    assert failed.value.errno == number and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "make", [os.mkfifo, os.mkdir, bind, lambda path: path.symlink_to("/dev/full")]
)
def test_what_is_no_regular_file_is_neither_read_nor_replaced(tmp_path, monkeypatch, make):
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    make(path := Path("input"))
    before = path.lstat()
    with pytest.raises(ValueError, match="input: exists and is not a regular file; give the name"):
        write_whole(path, "text")
    assert path.lstat() == before and list(tmp_path.iterdir()) == [tmp_path / "input"]
    Path("link").symlink_to("input")
    for named in ("input", Path("link")):
        with pytest.raises(ValueError, match=rf"^{named}: is not a regular file; give one"):
            require_regular_file(named)


def test_a_file_may_be_behind_a_link(tmp_path):
    (tmp_path / "file").write_bytes(b"123")
    (tmp_path / "link").symlink_to("file")
    assert require_regular_file(str(tmp_path / "link")).size_bytes == 3
    with paths.opened(tmp_path / "link") as file:
        assert (file.seek(-1, os.SEEK_END), file.read()) == (2, b"3")
    with pytest.raises(FileNotFoundError):
        require_regular_file(tmp_path / "none")


@pytest.mark.parametrize("dangling", [False, True])
def test_a_link_is_followed(tmp_path, dangling):
    target, link = tmp_path / "target", tmp_path / "link"
    if not dangling:
        target.write_text("old")
    link.symlink_to(target)
    write_whole(link, "new")
    assert link.is_symlink() and target.read_text() == "new"


@pytest.mark.parametrize("failure", [OSError("disk full"), KeyboardInterrupt("Ctrl-C")])
def test_a_failure_leaves_what_was_there(tmp_path, failure):
    path = tmp_path / "out"
    path.write_text("old")
    with pytest.raises(type(failure), match=str(failure)), written_beside(path) as file:
        file.write(b"half")
        raise failure
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """A power cut leaves the old file or the new one, none of it empty."""
    order = []
    fsync, replace = os.fsync, Path.replace

    def content_of(file: int) -> tuple[str, str]:
        beside = Path(os.path.realpath(f"/proc/self/fd/{file}"))
        return str(beside), beside.read_text()

    monkeypatch.setattr(os, "fsync", lambda file: (order.append(content_of(file)), fsync(file)))
    monkeypatch.setattr(
        Path, "replace", lambda old, new: (order.append((str(old), str(new))), replace(old, new))
    )
    write_whole(tmp_path / "file", "text")
    beside = str(tmp_path / ".file.partial")
    assert order == [(beside, "text"), (beside, str(tmp_path / "file"))]
    assert (tmp_path / "file").read_text() == "text"


def test_outputs_are_apart_from_inputs_and_from_each_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("input").write_text("text")
    Path("folder/soft").symlink_to(tmp_path / "input")
    Path("other").symlink_to("folder")
    for output in ("input", "./folder/../input", "other/soft"):
        with pytest.raises(ValueError, match=r"^--x=: is an input too; name another file$"):
            require_apart([("--x=", output)], ["none", Path("input")])
    require_apart([("--x=", "new"), ("--y=", "folder/new")], ["input", "input"])
    for one, two in (("new", Path("./new")), ("other/new", "folder/new"), ("gs://b/x", "gs://b/x")):
        with pytest.raises(ValueError, match=r"^--y=: is the same file as --x=; move it$"):
            require_apart([("--x=", one), ("--y=", two)], remedy="move it")


def test_a_folder_appears_with_all_that_is_in_it_or_not_at_all(tmp_path):
    new = tmp_path / "new"

    def written_over_what_a_killed_process_left():
        (partial(new) / "half").mkdir(parents=True)
        return whole.folder_written_beside(new)

    with pytest.raises(KeyError), written_over_what_a_killed_process_left():
        raise KeyError
    assert not list(tmp_path.iterdir())
    with written_over_what_a_killed_process_left() as folder:
        (folder / "a").write_text("1")
        assert not new.exists()
    assert list(tmp_path.rglob("*")) == [new, new / "a"]
