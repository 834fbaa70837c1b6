"""Programs drawn at random, which write down themselves what they do to files.

`drawn_program.py FOLDER FIRST COUNT`: program SEED works in FOLDER/SEED, and leaves SEED.json: a
line for each call, with the rows that a trace has to hold, by what the kernel says of descriptors
in /proc; and what the kernel calls each file that was opened in the end. Threads and processes of a
program take turns. It needs no packages.
"""

# System calls as they are, and a name for each.
# ruff: noqa: E731, PTH103, PTH112, PTH115, PTH123

import ctypes
import fcntl
import json
import os
import platform
import random
import signal
import socket
import stat
import sys
import threading
import time
import traceback

LIBC = ctypes.PyDLL(None, use_errno=True)  # one that forks must not let go of the interpreter
AT_FDCWD, RENAME_EXCHANGE = -100, 2
CLONE_FS, CLONE_FILES = 0x200, 0x400
OLD_CALLS = {"open": 2, "creat": 85, "openat2": 437, "clone": 56, "exit": 60}
"""Their numbers on x86_64: the C library makes others in their place."""
HAS_OLD_CALLS = platform.machine() == "x86_64"
JOURNAL = 900
"""The descriptor of the socket to the keeper."""
NAMES = ["a", 'b "c" 3<d> -> e', "f) = 3 <unfinished ...>", "O_APPEND|O_CREAT\n\\x41\t"]
"""Strace's own signs stand in them."""
FOLDERS = [".", "one", "two", "one/in"]


def of_c(call: str, *arguments) -> int:
    """What a function of the C library returns, or a system call by its number."""
    words = [a.encode() if isinstance(a, str) else a for a in arguments]
    by_number = call in OLD_CALLS
    result = LIBC.syscall(OLD_CALLS[call], *words) if by_number else LIBC[call](*words)
    if result < 0:
        raise OSError(ctypes.get_errno(), call)
    return result


def path_of(fd: int | str) -> str:
    """By the kernel; empty if it is not open."""
    try:
        return os.readlink(f"/proc/thread-self/fd/{fd}")
    except FileNotFoundError:
        return ""


class Actor:
    """A process: its descriptors, and what it does."""

    def __init__(self, root: str, seed: int, fds: list[int], depth: int = 0):
        self.root, self.depth, self.fds = root, depth, fds
        self.draw = random.Random(seed)

    # --- what is written down ---

    def note(self, fd: int | None = None, **line) -> None:
        """Sends a line to the keeper, and waits until it has what this opened."""
        line |= {"pid": os.getpid(), "tid": threading.get_native_id(), "opened": fd}
        with socket.socket(fileno=os.dup(JOURNAL)) as journal:
            journal.send(json.dumps(line).encode())
            journal.recv(1)

    def timed(self, call, rows):
        """Makes a call, and notes the rows that it makes by its result; None if it failed."""
        error, result, began = None, None, time.monotonic_ns()
        try:
            result = call()
        except OSError as failed:
            error = failed.errno
        ended = time.monotonic_ns()
        rows = rows(result)
        for row in rows if error else ():
            row.pop("offset_bytes", None)
        opened = result if rows[0]["kind"] in ("open", "create") and "fd" in rows[0] else None
        if opened is not None:
            rows[0]["file"] = os.fstat(opened).st_ino
        self.note(opened, began=began, ended=ended, error=error, rows=rows)
        return result

    @staticmethod
    def about(fd: int) -> dict:
        """What rows hold of the file of a descriptor."""
        return {
            "fd": fd,
            "path": path_of(fd).removesuffix(" (deleted)"),
            "file": os.fstat(fd).st_ino,
        }

    @staticmethod
    def position(fd: int) -> int:
        with open(f"/proc/thread-self/fdinfo/{fd}") as info:
            return int(info.readline().split()[1])

    # --- names ---

    def written(self, path: str) -> tuple[str, int | None, str]:
        """(as the program writes it, the descriptor of its folder, the whole path)."""
        way = self.draw.choice(["absolute", "relative", "relative", "dotted", "at"])
        here = os.readlink("/proc/thread-self/cwd")
        if way == "at" and (folders := self.held(stat.S_ISDIR)):
            fd = self.draw.choice(folders)
            base = path_of(fd)
            if not base.endswith(" (deleted)"):
                return os.path.relpath(path, base), fd, path
        if way == "absolute" or here.endswith(" (deleted)"):
            return path, None, path
        return ("./" if way == "dotted" else "") + os.path.relpath(path, here), None, path

    def folder(self, folders=FOLDERS) -> str:
        return os.path.normpath(f"{self.root}/{self.draw.choice(folders)}")

    def name(self) -> tuple[str, int | None, str]:
        return self.written(f"{self.folder()}/{self.draw.choice(NAMES)}")

    def held(self, of_kind=stat.S_ISREG) -> list[int]:
        return [fd for fd in self.fds if of_kind(os.fstat(fd).st_mode)]

    def hold(self, fd: int | None) -> None:
        if fd is not None and fd not in self.fds:
            self.fds.append(fd)

    # --- calls on names ---

    def open(self) -> None:
        written, at, path = self.name()
        more = [0, os.O_CREAT, os.O_CREAT | os.O_APPEND, os.O_CREAT | os.O_CLOEXEC]
        flags = os.O_RDWR | self.draw.choice(more)
        how = self.draw.choice(["python", "python", *["open", "creat", "openat2"] * HAS_OLD_CALLS])
        if how == "openat2":
            structure = (ctypes.c_uint64 * 3)(flags, 0o600 if flags & os.O_CREAT else 0, 0)
            folder = AT_FDCWD if at is None else at
            call = lambda: of_c("openat2", folder, written, ctypes.byref(structure), 24)
        elif how == "python" or at is not None:
            call = lambda: os.open(written, flags, dir_fd=at)
        elif how == "creat":
            flags, call = os.O_CREAT, lambda: of_c("creat", written, 0o600)
        else:
            call = lambda: of_c("open", written, flags, 0o600)
        kind = "create" if flags & os.O_CREAT else "open"
        self.hold(self.timed(call, lambda fd: [{"kind": kind, "path": path, "fd": fd}]))

    def open_folder(self) -> None:
        written, at, path = self.written(self.folder())
        call = lambda: os.open(written, os.O_RDONLY | os.O_DIRECTORY, dir_fd=at)
        self.hold(self.timed(call, lambda fd: [{"kind": "open", "path": path, "fd": fd}]))

    def rename(self) -> None:
        names = (self.name(), self.name())
        if self.draw.random() < 0.3:
            folders = [[path] for path in ("one", "two", "three")]
            names = tuple(self.written(self.folder(self.draw.choice(folders))) for _ in "12")
        (written, at, path), (new, new_at, new_path) = names
        if self.draw.random() < 0.2:
            kind, (at, new_at) = "exchange", (AT_FDCWD if fd is None else fd for fd in (at, new_at))
            call = lambda: of_c("renameat2", at, written, new_at, new, RENAME_EXCHANGE)
        else:
            kind = "rename"
            call = lambda: os.rename(written, new, src_dir_fd=at, dst_dir_fd=new_at)
        self.timed(call, lambda _: [{"kind": kind, "path": path, "new_path": new_path}])

    def unlink(self) -> None:
        written, at, path = self.name()
        call = lambda: os.unlink(written, dir_fd=at)
        self.timed(call, lambda _: [{"kind": "remove", "path": path}])

    def make_folder(self) -> None:
        written, at, path = self.written(self.folder())
        call = lambda: os.mkdir(written, dir_fd=at)
        self.timed(call, lambda _: [{"kind": "create", "path": path}])

    def enter(self) -> None:
        written, at, _ = self.written(self.folder())
        if at is None and os.path.isdir(written):
            os.chdir(written)
        elif folders := self.held(stat.S_ISDIR):
            os.fchdir(self.draw.choice(folders))

    # --- calls on descriptors ---

    def transfer(self) -> None:
        if not (fds := self.held()):
            self.open()
            return
        fd, size, at = (
            self.draw.choice(fds),
            self.draw.randrange(1, 3000),
            self.draw.randrange(5000),
        )
        about, data = self.about(fd), b"x" * size
        calls = {
            "read": lambda: len(os.read(fd, size)),
            "pread": lambda: len(os.pread(fd, size, at)),
            "readv": lambda: os.readv(fd, [bytearray(size), bytearray(7)]),
            "preadv": lambda: os.preadv(fd, [bytearray(size)], at),
            "write": lambda: os.write(fd, data),
            "pwrite": lambda: os.pwrite(fd, data, at),
            "writev": lambda: os.writev(fd, [data, b"y"]),
            "pwritev": lambda: os.pwritev(fd, [data], at),
        }
        name = self.draw.choice(["read", "read", *calls])
        about["kind"] = "write" if "write" in name else "read"
        about["offset_bytes"] = at if name.startswith("p") else self.position(fd)
        if about["kind"] == "write" and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND:
            about["offset_bytes"] = os.fstat(fd).st_size
        if not name.endswith("v"):
            about["requested_bytes"] = size
        self.timed(calls[name], lambda moved: [{**about, "size_bytes": moved or 0}])

    def copy(self) -> None:
        fds = self.held()
        source, target = (self.draw.choice(fds), self.draw.choice(fds)) if fds else (0, 0)
        if not fds or os.path.sameopenfile(source, target):
            self.open()
            return
        size, at = self.draw.randrange(1, 3000), self.draw.choice([None, 10])
        if self.draw.random() < 0.5:
            call = lambda: os.sendfile(target, source, at, size)
        else:
            call = lambda: os.copy_file_range(source, target, size, at)
        one, two = self.about(source), self.about(target)
        # Told where, bpftrace does not know where that is.
        one["offset_bytes"] = self.position(source) if at is None else at
        two["offset_bytes"] = self.position(target)
        for each in (one, two):
            del each["fd"]
        self.timed(
            call,
            lambda moved: [
                {**one, "kind": "read", "size_bytes": moved or 0},
                {**two, "kind": "write", "size_bytes": moved or 0},
            ],
        )

    def seek(self) -> None:
        if fds := self.held():
            fd = self.draw.choice(fds)
            how = self.draw.choice([os.SEEK_SET, os.SEEK_CUR, os.SEEK_END])
            to = self.draw.randrange(2000)
            about = {"kind": "seek", **self.about(fd)}
            self.timed(lambda: os.lseek(fd, to, how), lambda now: [{**about, "offset_bytes": now}])

    def sync(self) -> None:
        if fds := self.held():
            fd = self.draw.choice(fds)
            about = {"kind": "sync", **self.about(fd)}
            self.timed(lambda: os.fsync(fd), lambda _: [about])

    def duplicate(self) -> None:
        if not self.fds:
            self.open()
            return
        fd, free = self.draw.choice(self.fds), self.draw.randrange(20, 40)
        over = self.draw.choice([*self.fds, *[free] * (not path_of(free))])
        new = self.draw.choice([
            lambda: os.dup(fd),
            lambda: fcntl.fcntl(fd, fcntl.F_DUPFD, 50),
            lambda: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 50),
            lambda: os.dup2(fd, over),
            lambda: os.dup2(fd, over, inheritable=False) if fd != over else None,  # dup3
        ])()  # fmt: skip
        self.hold(new)

    def mark(self) -> None:
        """Says what an exec closes, or that a file appends."""
        for fd in self.fds:
            way = self.draw.choice(["ioctl", "fcntl", "range", "append", None])
            on = self.draw.random() < 0.3
            if way == "ioctl":
                os.set_inheritable(fd, not on)
            elif way == "fcntl":
                fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC if on else 0)
            elif way == "range" and on and hasattr(LIBC, "close_range"):
                of_c("close_range", fd, fd, 4)  # CLOSE_RANGE_CLOEXEC
            elif way == "append" and fd in self.held():
                fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND if on else 0)

    def close(self) -> None:
        if self.fds:
            fd = self.fds.pop(self.draw.randrange(len(self.fds)))
            about = {"kind": "close", **self.about(fd)}
            self.timed(lambda: os.close(fd), lambda _: [about])

    # --- threads and processes ---

    def thread(self) -> None:
        thread = threading.Thread(target=self.in_thread, args=[self.draw.randrange(1, 5)])
        thread.start()
        thread.join()

    def in_thread(self, count: int) -> None:
        self.note(event={"event": "thread"})
        self.some(count)

    def begin(self, parent: int, seed: int) -> None:
        """What a child does first."""
        self.note(event={"event": "process", "parent_pid": parent})
        self.depth += 1
        self.draw.seed(seed)
        self.some(self.draw.randrange(1, 5))

    def fork(self) -> None:
        """The child acts, then its parent, and again the child, of which nobody waits for some."""
        if self.depth > 2:
            return
        (ready, done), (go, goes) = os.pipe(), os.pipe()
        for fd in (done, goes):  # who executes a program has its turn until that ends
            os.set_inheritable(fd, True)
        seed, parent = self.draw.randrange(1 << 30), os.getpid()
        if not (child := os.fork()):
            os.close(ready), os.close(goes)
            self.begin(parent, seed)
            os.close(done)
            os.read(go, 1)
            self.some(self.draw.randrange(4))
            os._exit(0)
        os.close(done), os.close(go)
        os.read(ready, 1)
        self.some(self.draw.randrange(4))
        os.close(goes)
        os.close(ready)
        os.waitpid(child, 0)

    def clone(self) -> None:
        """A process that has its maker's folder, or its maker's descriptors, not copies of them."""
        if self.depth > 2 or not HAS_OLD_CALLS:
            return
        flags = signal.SIGCHLD | self.draw.choice([CLONE_FS, CLONE_FILES, CLONE_FS | CLONE_FILES])
        seed, parent = self.draw.randrange(1 << 30), os.getpid()
        if not (child := of_c("clone", flags, 0, 0, 0, 0)):
            self.begin(parent, seed)
            of_c("unshare", self.draw.choice([0, CLONE_FS, CLONE_FILES]))
            self.some(self.draw.randrange(3))
            os._exit(0)
        os.waitpid(child, 0)
        if flags & CLONE_FILES:
            self.fds = [fd for fd in range(60) if path_of(fd).startswith(self.root)]

    def give(self) -> None:
        """A process is given in a message what was opened after its making, and moves it."""
        ours, theirs = socket.socketpair()
        seed, parent = self.draw.randrange(1 << 30), os.getpid()
        if not (child := os.fork()):
            given = socket.recv_fds(theirs, 1, 1)[1]  # its turn begins with the message
            self.begin(parent, seed)
            self.fds = given
            for _ in self.fds:
                self.transfer()
            os._exit(0)
        self.open()
        self.transfer()
        socket.send_fds(ours, [b"x"], self.held()[-1:])
        os.waitpid(child, 0)
        self.transfer()
        ours.close()
        theirs.close()

    def words(self, fds: list[int]) -> list[str]:
        state = json.dumps([self.root, self.draw.randrange(1 << 30), fds, self.depth + 1])
        return [sys.executable, "-I", "-S", os.path.realpath(__file__), "go on", state]

    def spawn(self) -> None:
        """A program is given a file as its standard input."""
        if self.depth > 2 or not (fds := self.held()):
            return
        actions = [(os.POSIX_SPAWN_DUP2, self.draw.choice(fds), 0)]
        words = self.words([0])
        os.waitpid(os.posix_spawn(words[0], words, os.environ, file_actions=actions), 0)

    def execute(self) -> None:
        if self.depth < 2:
            words = self.words([fd for fd in self.fds if os.get_inheritable(fd)])
            self.note(
                event={"event": "exec"},
            )
            os.execv(words[0], words)

    def first_ends(self) -> None:
        """The first thread of the process; another continues."""
        if HAS_OLD_CALLS and threading.current_thread() is threading.main_thread():
            threading.Thread(target=self.go_on_alone).start()
            ctypes.CDLL(None).syscall(OLD_CALLS["exit"], 0)

    def go_on_alone(self) -> None:
        self.note(event={"event": "thread"})
        self.some(5)
        os._exit(0)

    CALLS = {open: 9, open_folder: 2, transfer: 18, copy: 1.5, seek: 3, sync: 1, duplicate: 4,
             mark: 1, close: 3, rename: 4, unlink: 2, make_folder: 1, enter: 4, thread: 2,
             fork: 1.5, clone: 0.7, give: 0.7, spawn: 0.4, execute: 0.5}  # fmt: skip

    def some(self, count: int) -> None:
        try:
            for _ in range(count):
                [call] = self.draw.choices([*self.CALLS], [*self.CALLS.values()])
                call(self)
        except Exception:
            self.note(failed=traceback.format_exc())
            os._exit(1)

    def all(self) -> None:
        self.some(self.draw.randrange(8, 30))
        if self.draw.random() < 0.15:
            self.first_ends()
        os._exit(0)


def run(root: str, seed: int) -> None:
    """One program, and the keeper of what it opens: no inode is used again meanwhile."""
    for name in FOLDERS:
        os.makedirs(f"{root}/{name}")
        for file in NAMES[:2]:
            with open(f"{root}/{name}/{file}", "wb") as made:
                made.write(bytes(4096))
    keeper, journal = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if not (child := os.fork()):
        os.dup2(journal.fileno(), JOURNAL)
        keeper.close()
        journal.close()
        os.chdir(root)
        Actor(root, seed, []).all()
    journal.close()
    lines, kept = [], []
    while message := keeper.recv(100_000):  # until all its processes have ended
        lines.append(line := json.loads(message))
        if line["opened"] is not None:
            kept.append(os.open(f"/proc/{line['tid']}/fd/{line['opened']}", os.O_PATH))
        keeper.send(b"x")
    os.waitpid(child, 0)
    last = {os.fstat(fd).st_ino: path_of(fd) for fd in kept}
    for fd in (*kept, keeper.detach()):
        os.close(fd)
    with open(f"{root}.json", "w") as file:
        json.dump({"lines": lines, "last": last}, file)


def main(words: list[str]) -> None:
    """Draws the programs, or continues as one of them after an exec."""
    if words[0] == "go on":
        root, seed, fds, depth = json.loads(words[1])
        Actor(root, seed, fds, depth).all()
    folder, first, count = os.path.realpath(words[0]), int(words[1]), int(words[2])
    for seed in range(first, first + count):
        run(f"{folder}/{seed}", seed)


if __name__ == "__main__":
    main(sys.argv[1:])
