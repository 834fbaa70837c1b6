"""Files appear whole or not at all, and replace nothing but files."""

import os
import socket
import stat

import pytest

from mlperf_bert.files.whole import replaceable, write_whole, written_beside


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


SPECIAL = {
    "pipe": os.mkfifo,
    "folder": os.mkdir,
    "socket": make_socket,
    "link to a pipe": lambda path: (os.mkfifo(f"{path}.pipe"), path.symlink_to(f"{path}.pipe")),
}


@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_no_regular_file_is_refused_and_stays(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    path = tmp_path.relative_to(tmp_path) / "out"
    SPECIAL[kind](path)
    before = [(entry.name, stat.S_IFMT(entry.stat().st_mode)) for entry in os.scandir()]
    with pytest.raises(ValueError, match=r"out: exists and is not a regular file; give the name"):
        write_whole(path, "text")
    after = [(entry.name, stat.S_IFMT(entry.stat().st_mode)) for entry in os.scandir()]
    assert sorted(after) == sorted(before)


@pytest.mark.parametrize("device", ["/dev/null", "/dev/full"])
def test_a_device_is_refused(device):
    with pytest.raises(ValueError, match=f"{device}: exists and is not a regular file"):
        replaceable(device)


@pytest.mark.parametrize("dangling", [False, True])
def test_a_link_is_followed(tmp_path, dangling):
    target, link = tmp_path / "target", tmp_path / "link"
    if not dangling:
        target.write_text("old")
    link.symlink_to(target)
    write_whole(link, "new")
    assert link.is_symlink() and target.read_text() == "new"


def test_a_failure_leaves_what_was_there(tmp_path):
    path = tmp_path / "out"
    path.write_text("old")
    with pytest.raises(OSError, match="full"), written_beside(path) as file:
        file.write(b"half")
        raise OSError("disk full")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
