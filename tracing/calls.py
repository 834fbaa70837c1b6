"""What the parsers of strace's and bpftrace's lines share: calls on files, folders, positions."""

from collections.abc import Callable

from tracing import files

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
    "copy": "sendfile copy_file_range",
    "receive": "recvfrom recvmsg",
    "send": "sendto sendmsg",
}
KIND_OF = {call: kind for kind, calls in KINDS.items() for call in calls.split()}


class CallParser:
    """Follows the folder of each process and the position of each descriptor.

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
        self._positions: dict[tuple[int, int], int] = {}

    def _folder_of(self, pid: int) -> str:
        return self._folders.get(pid, self._first_folder)

    def _absolute(self, pid: int, path: str, folder: str | None = None) -> str:
        """A path from a folder, or from the process's own."""
        if path.startswith("/"):
            return path
        folder = folder or self._folder_of(pid)
        return f"{folder.rstrip('/')}/{path.removeprefix('./')}"

    def _inherit(self, parent: int, child: int) -> None:
        """A process begins in the folder of the one that made it, with its descriptors."""
        self._folders.setdefault(child, self._folder_of(parent))
        for (owner, fd), position in list(self._positions.items()):
            if owner == parent:
                self._positions.setdefault((child, fd), position)

    def _named(self, row: dict, path: str) -> tuple[str, dict]:
        file_class = files.classify(path, seen_as=self._host_path(path))
        return "file_ops", {**row, "path": path, "file_class": file_class}

    def _opened(self, place: tuple[int, int], *, appends: bool) -> None:
        """Where an appending writer stands is not known without its file's size."""
        self._positions.pop(place, None)
        if not appends:
            self._positions[place] = 0

    def _moved(self, place: tuple[int, int], offset: int | None, size_bytes: int) -> int | None:
        """Where a read or write began; without an offset of its own it moves the position."""
        if offset is not None:
            return offset
        began = self._positions.get(place)
        if began is not None:
            self._positions[place] += size_bytes
        return began
