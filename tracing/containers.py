"""Containers that the traced command starts: found by command lines, described by inspect."""

import contextlib
import itertools
import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tracing import processes

ENGINES = ("docker", "podman")
ANSWERS_WITHIN_S = 30
_LOOKS_WITHIN_S = 2  # while it looks, no signal reaches the command


@dataclass(frozen=True)
class Container:
    """A running container as the engine's inspect describes it."""

    engine: str
    name: str
    pid: int
    """The id of its first process, on this host."""
    mounts: list[tuple[str, str]]
    """(folder of the host, folder of the container), longest folder of the container first."""

    def host_path(self, path: str) -> str:
        """This host's path of a file of the container: in a mount, or its process's root."""
        for source, destination in self.mounts:
            if path == destination or path.startswith(destination.rstrip("/") + "/"):
                return source + path[len(destination.rstrip("/")) :]
        return f"/proc/{self.pid}/root{path}"


def inspect(engine: str, name: str, within_s: float = ANSWERS_WITHIN_S) -> Container | None:
    """Asks the engine; None as long as the container does not run."""
    if shutil.which(engine) is None:
        raise ValueError(f"{engine} is not installed: name the process with --pid instead")
    command = [engine, "container", "inspect", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=within_s)
    except subprocess.TimeoutExpired:
        raise ValueError(
            f"{engine} does not answer within {within_s} s: restart it, or name the "
            "process with --pid instead"
        ) from None
    return None if done.returncode else from_inspect(engine, done.stdout)


def from_inspect(engine: str, text: str) -> Container | None:
    """Reads what inspect prints; None if the container does not run."""
    [inspected] = json.loads(text)
    pid = inspected["State"]["Pid"]
    if not pid:
        return None
    mounts = [
        (mount["Source"], mount["Destination"])
        for mount in inspected.get("Mounts") or []
        if mount.get("Source")
    ]
    mounts.sort(key=lambda mount: -len(mount[1]))
    return Container(engine, inspected["Name"].lstrip("/"), pid, mounts)


def signal(container: Container, name: str) -> None:
    """Sends a signal to a container's first process, as its engine does it, if it answers."""
    command = [container.engine, "kill", f"--signal={name}", container.name]
    with contextlib.suppress(subprocess.TimeoutExpired):  # the trace continues without it
        subprocess.run(command, capture_output=True, timeout=ANSWERS_WITHIN_S)


def started_by(arguments: list[str]) -> tuple[str, str] | None:
    """(engine, name) of the named container that a command line runs; else None."""
    if not arguments or Path(arguments[0]).name not in ENGINES or "run" not in arguments:
        return None
    for word, after in itertools.pairwise([*arguments, ""]):
        option, has_value, value = word.partition("=")
        if option == "--name":  # the first counts: options behind the image are the command's
            name = value if has_value else after
            return (arguments[0], name) if name else None
    return None


class Watcher:
    """Looks for containers that the target starts and calls `found` for each, once."""

    def __init__(self, target: processes.Target, on_container: Callable[[Container], None]):
        self._target = target
        self._on_container = on_container
        self._has_engine = any(shutil.which(engine) for engine in ENGINES)
        self._wanted: set[tuple[str, str]] = set()
        self._seen: set[str] = set()

    def look(self) -> None:
        """Looks once; does nothing on machines without an engine."""
        for pid in self._target.pids() if self._has_engine else ():
            if started := started_by(processes.arguments_of(pid)):
                self._wanted.add(started)
        for engine, name in self._wanted:
            if name in self._seen:
                continue
            container = None
            # The engine does not answer, or does not start: it is asked again.
            with contextlib.suppress(ValueError, OSError, LookupError, TypeError):
                container = inspect(engine, name, _LOOKS_WITHIN_S)
            if container:
                self._seen.add(name)
                self._on_container(container)
