"""A program whose processes and threads share descriptors; OFFSETS says where each call begins."""

import array
import ctypes
import fcntl
import mmap
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

OFFSETS: dict[str, list[int | None]] = {
    "fork": [0, 10, 20],
    "dup": [0, 10, 20, 30, 40, 50, 60],
    "exec": [0, 5, 10],
    "cleared": [0, 5, 10],
    "closed": [0, 10, 0],
    "seek": [0, 100, 110, 3],
    "written": [0, 10, 20],
    "append": [None, None, 0, None, 0],
    "set append": [0, None],
    "thread": [0, 10, 20],
    "copy": [0, 10, 7, 20],
    "vfork": [0, 10, 20],
    "clone": [0, 10, 0, 30],
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
    "taken": [0, None, None],
    "received": [0, None, None],
}
"""File -> where its reads and writes begin, in order of time; None: a trace cannot know it."""
UNKNOWN: dict[str, dict[str, list[int | None]]] = {
    "strace": {"exec": [0, None, None]},  # FIONCLEX is one of the ioctls, too many to stop at
    "bpftrace": {
        "copy": [0, 10, None, 20],
        # By the name /proc/self/fd/N, and by descriptors without a name.
        "reopened": [0, 10],
        "taken": [0, None],
        "received": [0, None],
    },
}
"""What a backend does not know."""
NAMES = [*OFFSETS][-14:-2]
"""Names in which strace's own signs stand."""

_PIDFD_GETFD, _CLONE = 438, 56  # of x86-64
_CLONE_FILES, _SIGCHLD = 0x400, 17
_libc = ctypes.CDLL(None)


def _child(work) -> None:
    if (pid := os.fork()) == 0:
        work()
        os._exit(0)
    os.waitpid(pid, 0)


def _duplicated(fd: int) -> None:
    os.read(fd, 10)
    copies = [os.dup(fd), os.dup2(fd, 90), os.dup2(fd, 91, inheritable=False)]
    copies += [fcntl.fcntl(fd, fcntl.F_DUPFD, 50), fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 60)]
    for copy in copies:
        os.read(copy, 10)
    for copy in copies:
        os.close(copy)
    os.read(fd, 10)


def _cloned(fd: int) -> None:
    """A child that has the same descriptors closes one, and opens another file under its number."""
    os.read(fd, 10)
    kept = os.dup(fd)
    path = Path(f"/proc/self/fd/{fd}").readlink()
    if (pid := _libc.syscall(_CLONE, _CLONE_FILES | _SIGCHLD, 0, 0, 0, 0)) == 0:
        os.read(fd, 20)
        os.close(fd)
        os.open(path, os.O_RDONLY)
        os._exit(0)
    os.waitpid(pid, 0)
    os.read(fd, 30)
    os.read(kept, 5)
    os.close(kept)


def _copied(fd: int, folder: Path) -> None:
    with (folder / "target").open("wb") as target:
        os.read(fd, 10)
        os.sendfile(target.fileno(), fd, None, 10)
        os.sendfile(target.fileno(), fd, 7, 10)
        os.read(fd, 10)


def _handed_on(fd: int) -> None:
    os.read(fd, 10)
    one, other = socket.socketpair()
    one.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
    _, [received], _, _ = socket.recv_fds(other, 1, 1)
    os.read(received, 10)
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


def _executed(fd: int, *, keeps: bool) -> None:
    os.read(fd, 5)
    os.set_inheritable(fd, keeps)
    command = ["sh", "-c", f"head -c 5 <&{fd}" if keeps else "head -c 5"]
    subprocess.run(command, stdin=None if keeps else fd, close_fds=False, capture_output=True)
    os.read(fd, 5)


def _spawned(fd: int) -> None:
    os.read(fd, 10)
    command = ["sh", "-c", "head -c 10 >/dev/null"]
    actions = [(os.POSIX_SPAWN_DUP2, fd, 0)]
    os.waitpid(os.posix_spawn("/bin/sh", command, {}, file_actions=actions), 0)
    os.read(fd, 10)


def _closed(fd: int, path: Path) -> None:
    os.read(fd, 10)
    two = os.dup(fd)
    os.close(fd)
    os.read(two, 10)
    assert os.open(path, os.O_RDONLY) == fd
    os.read(fd, 10)


def _sought(fd: int) -> None:
    os.read(fd, 10)
    _child(lambda: os.lseek(fd, 100, os.SEEK_SET))
    os.read(fd, 10)
    os.read(fd, 10)
    os.pread(fd, 5, 3)


def _by_thread(fd: int) -> None:
    os.read(fd, 10)
    thread = threading.Thread(target=os.read, args=[fd, 10])
    thread.start()
    thread.join()
    os.read(fd, 10)


def _reopened(fd: int) -> None:
    os.read(fd, 10)
    os.read(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY), 10)
    os.read(fd, 10)


def _taken(fd: int) -> None:
    os.read(fd, 10)
    os.read(_libc.syscall(_PIDFD_GETFD, os.pidfd_open(os.getpid()), fd, 0), 10)
    os.read(fd, 10)


def _in_turn(call) -> None:
    call(b"1" * 10)
    _child(lambda: call(b"2" * 10))
    call(b"3" * 10)


def main(folder: Path) -> None:
    """Does all of it, one after the other."""
    opened = {}
    for name in OFFSETS:
        (folder / name).write_bytes(bytes(1000))
        opened[name] = os.open(folder / name, os.O_RDWR)
    _in_turn(lambda data: os.read(opened["fork"], len(data)))
    _in_turn(lambda data: os.write(opened["written"], data))
    _duplicated(opened["dup"])
    _executed(opened["exec"], keeps=True)
    _executed(opened["cleared"], keeps=False)
    _closed(opened["closed"], folder / "closed")
    _sought(opened["seek"])
    _appended(folder / "append")
    os.write(opened["set append"], b"1")
    fcntl.fcntl(opened["set append"], fcntl.F_SETFL, os.O_APPEND)
    os.write(opened["set append"], b"2")
    _by_thread(opened["thread"])
    _copied(opened["copy"], folder)
    _spawned(opened["vfork"])
    _cloned(opened["clone"])
    _reopened(opened["reopened"])
    for name in NAMES:
        os.read(opened[name], 2)
        os.readv(opened[name], [bytearray(2), bytearray(1)])
        os.preadv(opened[name], [bytearray(2), bytearray(1)], 5)
        mmap.mmap(opened[name], 1000, prot=mmap.PROT_READ).close()
    _taken(opened["taken"])
    _handed_on(opened["received"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
