"""A program whose processes and threads share descriptors; OFFSETS says where each call begins."""

import fcntl
import mmap
import os
import sys
import threading
from pathlib import Path

OFFSETS: dict[str, list[int | None]] = {
    "fork": [0, None, None],
    "written": [0, None, None],
    "thread": [0, None, None],
    "worker": [0],
    "dup": [0, 10, 20, 30, 40, 50, 60],
    "closed": [0, 10, 0],
    "seek": [0, 100, 110, 3],
    "append": [None, None, 0, None, 0],
    "set append": [0, None],
    "copy": [0, 10, 7, 20],
    "reopened": [0, 0, 10],
    "a, b": [0, 2, 5],
    "c) = 3": [0, 2, 5],
    'd "e" f': [0, 2, 5],
    "g 3<h> -> i": [0, 2, 5],
    "clone(1) = 2": [0, 2, 5],
    "O_APPEND|O_CREAT": [0, 2, 5],
    "k (deleted)": [0, 2, 5],
    "l <unfinished ...>": [0, 2, 5],
    "tab\t, \\x41": [0, 2, 5],
    "two\nlines": [0, 2, 5],
    "m" * 60: [0, 2, 5],
    os.fsdecode(b"\xff\xfe\xe4"): [0, 2, 5],
}
"""File -> where its reads and writes begin, in order of time; None: a trace does not know it."""
UNKNOWN: dict[str, dict[str, list[int | None]]] = {
    "strace": {},
    # Offsets that are told to a copy, and what is opened by the name /proc/self/fd/N.
    "bpftrace": {"copy": [0, 10, None, 20], "reopened": [0, 10]},
}
"""What a backend does not know."""
NAMES = [*OFFSETS][-12:]
"""Names in which strace's own signs stand."""


def _child(work) -> None:
    if (pid := os.fork()) == 0:
        work()
        os._exit(0)
    os.waitpid(pid, 0)


def _in_turn(call) -> None:
    call(b"1" * 10)
    _child(lambda: call(b"2" * 10))
    call(b"3" * 10)


def _by_thread(fd: int) -> None:
    thread = threading.Thread(target=os.read, args=[fd, 10])
    thread.start()
    thread.join()


def _duplicated(fd: int) -> None:
    os.read(fd, 10)
    copies = [os.dup(fd), os.dup2(fd, 90), os.dup2(fd, 91, inheritable=False)]
    copies += [fcntl.fcntl(fd, fcntl.F_DUPFD, 50), fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 60)]
    for copy in copies:
        os.read(copy, 10)
    for copy in copies:
        os.close(copy)
    os.read(fd, 10)


def _copied(fd: int, folder: Path) -> None:
    with (folder / "target").open("wb") as target:
        os.read(fd, 10)
        os.sendfile(target.fileno(), fd, None, 10)
        os.sendfile(target.fileno(), fd, 7, 10)
        os.read(fd, 10)


def _appended(path: Path) -> None:
    fds = [os.open(path, os.O_RDWR | os.O_APPEND) for _ in "ab"]
    for fd in fds:
        os.lseek(fd, 0, os.SEEK_END)
        os.write(fd, b"x" * 10)
    os.lseek(fds[0], 0, os.SEEK_SET)
    os.read(fds[0], 10)
    os.pwrite(fds[0], b"y", 3)
    os.pread(fds[0], 10, 0)


def _closed(fd: int, path: Path) -> None:
    os.read(fd, 10)
    two = os.dup(fd)
    os.close(fd)
    os.read(two, 10)
    assert os.open(path, os.O_RDONLY) == fd
    os.read(fd, 10)


def _sought(fd: int) -> None:
    os.read(fd, 10)
    os.lseek(fd, 100, os.SEEK_SET)
    os.read(fd, 10)
    os.read(fd, 10)
    os.pread(fd, 5, 3)


def _reopened(fd: int) -> None:
    os.read(fd, 10)
    os.read(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY), 10)
    os.read(fd, 10)


def main(folder: Path) -> None:
    """Does all of it, one after the other."""

    def opened(name: str) -> int:
        # Only now: a fork makes unknown where all that is open by then stands.
        (folder / name).write_bytes(bytes(1000))
        return os.open(folder / name, os.O_RDWR)

    fd = opened("fork")
    _in_turn(lambda data: os.read(fd, len(data)))
    written = opened("written")
    _in_turn(lambda data: os.write(written, data))
    read = opened("thread")
    os.read(read, 10)
    _by_thread(read)
    os.read(read, 10)
    worker = opened("worker")
    _by_thread(worker)
    _duplicated(opened("dup"))
    _closed(opened("closed"), folder / "closed")
    _sought(opened("seek"))
    (folder / "append").write_bytes(bytes(1000))
    _appended(folder / "append")
    appended = opened("set append")
    os.write(appended, b"1")
    fcntl.fcntl(appended, fcntl.F_SETFL, os.O_APPEND)
    os.write(appended, b"2")
    _copied(opened("copy"), folder)
    _reopened(opened("reopened"))
    for name in NAMES:
        named = opened(name)
        os.read(named, 2)
        os.readv(named, [bytearray(2), bytearray(1)])
        os.preadv(named, [bytearray(2), bytearray(1)], 5)
        mmap.mmap(named, 1000, prot=mmap.PROT_READ).close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
