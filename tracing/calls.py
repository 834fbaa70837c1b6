"""What the parsers of strace's and bpftrace's lines share: calls on files, folders, positions."""

from collections.abc import Callable

from tracing import files
from tracing.descriptors import Descriptors, OpenFile, Thread

KINDS = {
    "open": "open openat openat2",
    "close": "close",
    "read": "read pread64 readv preadv preadv2",
    "write": "write pwrite64 writev pwritev pwritev2",
    "map": "mmap",
    "seek": "lseek",
    "create": "creat mkdir mkdirat",
    "remove": "unlink unlinkat rmdir",
    "rename": "rename renameat renameat2",
    "sync": "fsync fdatasync",
    "copy": "sendfile copy_file_range splice",
    "receive": "recvfrom recvmsg",
    "send": "sendto sendmsg",
}
KIND_OF = {call: kind for kind, calls in KINDS.items() for call in calls.split()}
DESCRIPTOR_CALLS = ("dup", "dup2", "dup3", "fcntl", "close_range", "unshare", "pidfd_getfd")
"""They make no row: by them the position is known that a read or write begins at."""


class CallParser:
    """Follows the folder of each process and the open files of its descriptors.

    Counts what is missing: events lost, lines that cannot be understood, calls cut short by a kill.
    """

    def __init__(self, *, folder: str, host_path: Callable[[str], str] = str):
        """Takes what the lines do not contain.

        Args:
          folder: where the command was started.
          host_path: where this machine finds a path of a container.
        """
        self.num_lost_events = 0
        self.num_damaged_lines = 0
        self.num_calls_cut_short = 0
        self._first_folder = folder
        self._host_path = host_path
        self._folders: dict[int, str] = {}
        self._descriptors = Descriptors()

    def _folder_of(self, pid: int) -> str:
        return self._folders.get(pid, self._first_folder)

    def _absolute(self, pid: int, path: str, folder: str | None = None) -> str:
        """A path from a folder, or from the process's own."""
        if path.startswith("/"):
            return path
        folder = folder or self._folder_of(pid)
        return f"{folder.rstrip('/')}/{path.removeprefix('./')}"

    def _named(self, row: dict, path: str) -> tuple[str, dict]:
        file_class = files.classify(path, seen_as=self._host_path(path))
        return "file_ops", {**row, "path": path, "file_class": file_class}

    def _damaged(self) -> None:
        """A line is not understood: what it moved is unknown."""
        self.num_damaged_lines += 1
        self._descriptors.lose()

    @staticmethod
    def _moved(file: OpenFile | None, row: dict, offset: int | None) -> int | None:
        """Where a read or write began; without an offset of its own it moves the position."""
        writes = row["kind"] == "write"
        row["opening"] = file.number if file else None
        if offset is not None:
            # Linux appends whatever the offset says; pwrite(2), "BUGS".
            return None if writes and file and file.appends else offset
        return file.moved(row["size_bytes"], writes=writes) if file else None

    def _duplicate(self, thread: Thread, fd: int, new_fd: int, *, closes: bool) -> None:
        if fd != new_fd:
            file = self._descriptors.get(thread, fd)
            self._descriptors.open(thread, new_fd, file, closes=closes)

    def _close_range(self, thread: Thread, first: int, last: int, *, marks: bool) -> None:
        fds = self._descriptors.within(thread, first, last)
        if not marks:
            self._descriptors.close(thread, fds)
            return
        for fd in fds:
            self._descriptors.set_closing(thread, fd, True)
