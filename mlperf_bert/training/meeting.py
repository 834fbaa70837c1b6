"""How the processes of a run meet before TensorFlow connects them, and see that they are equal.

They meet by files in the --output_dir that they share: flags, sizes of data and the chief's
decision go through these, not through TensorFlow's key-value store. While TensorFlow waits for a
process it keeps Python's lock, so nothing could name one that does not start, and no signal would
be heard.
"""

import contextlib
import dataclasses
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import tensorflow as tf

from mlperf_bert.files import json_text, paths
from mlperf_bert.files.whole import read_regular_file, write_whole
from mlperf_bert.input import pipeline
from mlperf_bert.training import coordination, devices
from mlperf_bert.training.config import Cluster, DeviceConfig, RunConfig

MEETING_SECONDS = 300.0
_LOOK_SECONDS = 0.5
_ANSWER_SECONDS = 60.0


def compared(config: RunConfig) -> dict:
    """Everything that must be equal on all processes, by flag."""
    flags = dataclasses.asdict(config)
    del flags["cluster"]  # it has the index of the process
    # Not only the flags: the same path may lead to other files on another host.
    return {
        **flags,
        "TensorFlow": tf.__version__,
        "data of --input_file": _sizes(config.input_file, "input_file"),
        "data of --eval_input_file": _sizes(config.eval_input_file, "eval_input_file"),
        "content of --bert_config_file": _content(config.bert_config_file),
    }


def _sizes(patterns: str | None, flag: str) -> dict[str, int] | str:
    try:
        files = pipeline.expand_input(patterns, flag=flag) if patterns else []
        return dict(zip(files, paths.in_parallel(paths.size_bytes, files)))
    except (ValueError, OSError, tf.errors.OpError) as error:
        return str(error)


def _content(path: str) -> str:
    try:
        return " ".join(read_regular_file(path).decode(errors="replace").split())
    except FileNotFoundError:
        return "no such file"
    except (ValueError, OSError) as error:
        return str(error)


def obstacle(device: DeviceConfig, cluster: Cluster) -> str | None:
    """Why TensorFlow cannot start here: the others would wait for this process without an end."""
    try:
        coordination.require_names()
        devices.require_devices(device)
        _require_free_port(cluster)
    except ValueError as error:
        return str(error)
    return None


def _require_free_port(cluster: Cluster) -> None:
    port = int(cluster.addresses[cluster.index].rpartition(":")[2])
    # Only a look: another program can still take the port before TensorFlow does.
    try:
        socket.create_server(("", port)).close()
    except OSError as error:
        raise ValueError(
            f"cannot listen on port {port} ({os.strerror(error.errno or 0)}); end the program that "
            "uses it, or give this process another port"
        ) from error


class Meeting:
    """The files by which processes find each other, `.worker-N.json` for each, in a shared folder.

    A file may be left over from a process that was killed. So each process draws a token for this
    start: the others write down the chief's, and the chief answers to theirs.
    """

    def __init__(
        self, cluster: Cluster, folder: paths.Location, *, seconds: float = MEETING_SECONDS
    ):
        """Waits so many seconds for the others; reads and writes nothing yet."""
        self._cluster = cluster
        self._folder = folder
        self._files = [folder / f".worker-{n}.json" for n in range(len(cluster.addresses))]
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._token = secrets.token_hex(8)
        self.made: list[Path] = []
        """The folders that were absent, the innermost first; for who wants to remove them again."""

    def hold(self, parameters: dict, obstacle: str | None, decide: Callable[[], dict]) -> dict:
        """Waits for all processes, and returns the chief's decision; leaves no file.

        Args:
          parameters: what must be equal on all processes, name -> JSON value.
          obstacle: why this process cannot run; None if it can.
          decide: called on the chief once all are known to be equal.

        Raises:
          ValueError: something differs, is in the way, or the chief cannot decide; the message is
            the same on all processes.
          OSError: the chief is missing, or the folder cannot be written.
        """
        own = {"token": self._token, "parameters": parameters, "obstacle": obstacle}
        own = json.loads(json.dumps(own))  # as the others read it
        is_chief = self._cluster.is_chief
        try:
            answer = self._lead(own, decide) if is_chief else self._join(own)
        finally:
            # The chief is the last one, and removes what killed processes have left.
            for file in self._files if is_chief else [self._files[self._cluster.index]]:
                with contextlib.suppress(OSError), paths.failures_named(file):
                    file.unlink(missing_ok=True)
        if answer["problem"]:
            raise ValueError(answer["problem"])
        return answer["decision"]

    def _lead(self, own: dict, decide: Callable[[], dict]) -> dict:
        self._write({"token": self._token})
        members: dict[int, dict] = {}
        for _ in self._looks():
            read = {index: self._read(index) for index in range(1, len(self._files))}
            # Only who answers to this start's token: other files are of processes that were killed.
            members = {n: said for n, said in read.items() if said.get("chief") == self._token}
            if len(members) == len(read):
                break
        everyone = {0: own, **members}
        problem = self._missing(members) or self._difference(everyone) or self._obstacle(everyone)
        decision = None
        # Last: it locks the directory, which is not done for a run that cannot begin.
        if not problem:
            try:
                decision = decide()
            except (ValueError, OSError) as error:
                problem = str(error)
        answer = {"problem": problem, "decision": decision}
        # Each token stands in the answer: so a process knows that it is meant for its own start.
        self._write({member["token"]: index for index, member in members.items()} | answer)
        deadline = time.monotonic() + _ANSWER_SECONDS
        # A process removes its file once it has read the answer.
        while unread := [index for index in members if paths.is_file(self._files[index])]:
            if time.monotonic() > deadline:
                return {"problem": problem or f"{self._names(unread)} has not read the answer"}
            time.sleep(_LOOK_SECONDS)
        return answer

    def _join(self, own: dict) -> dict:
        heard = None
        for _ in self._looks():
            said = self._read(0)
            if self._token in said:
                return said
            # Each new token is answered to: the first may be that of a chief that was killed.
            token = said.get("token")
            if token and token != heard:
                heard = token
                self._write(own | {"chief": token})
            elif heard and not paths.is_file(self._files[0]):  # it is replaced as a whole
                raise OSError(f"{self._cluster.name(0)}, the chief, has ended; start all again")
        raise OSError(
            f"{self._cluster.name(0)}, the chief, has not answered in --output_dir={self._folder} "
            f"within {self._seconds:.0f} s; check that it was started, with a directory that all "
            "processes share"
        )

    def _looks(self) -> Iterator[None]:
        while time.monotonic() < self._deadline:
            yield
            time.sleep(_LOOK_SECONDS)

    def _read(self, index: int) -> dict:
        """What a process has left; nothing if it has not, or is writing it."""
        try:
            return json_text.read_object(self._files[index])
        except (ValueError, OSError):
            return {}

    def _write(self, content: dict) -> None:
        try:
            self.made += paths.make_folder(self._folder)
            write_whole(self._files[self._cluster.index], json.dumps(content))
        except paths.StoreUnavailable:
            raise
        except OSError as error:
            raise OSError(
                f"--output_dir={self._folder}: {error.strerror or error}; give a directory that "
                "all processes share, and run them as one user"
            ) from error

    def _names(self, indices: list[int]) -> str:
        return ", ".join(self._cluster.name(index) for index in indices)

    def _missing(self, members: dict[int, dict]) -> str | None:
        absent = [index for index in range(1, len(self._files)) if index not in members]
        if not absent:
            return None
        return (
            f"{self._names(absent)} left no sign in --output_dir={self._folder} within "
            f"{self._seconds:.0f} s; check that every process was started, with a directory that "
            "all processes share"
        )

    def _difference(self, everyone: dict[int, dict]) -> str | None:
        here = everyone[0]["parameters"]
        for index, other in sorted(everyone.items()):
            there = other["parameters"]
            names = sorted(here.keys() | there.keys())
            differing = [name for name in names if here.get(name) != there.get(name)]
            if differing:
                details = "; ".join(
                    f"{name}: {_short(here.get(name), there.get(name))} on the chief, "
                    f"{_short(there.get(name), here.get(name))} there"
                    for name in differing
                )
                return (
                    f"{self._cluster.name(index)} was started differently ({details}); give all "
                    "processes the same flags and data"
                )
        return None

    def _obstacle(self, everyone: dict[int, dict]) -> str | None:
        for index, each in sorted(everyone.items()):
            if each["obstacle"]:
                return f"{self._cluster.name(index)}: {each['obstacle']}"
        return None


def _short(value, other) -> str:
    """A value as text; of a dict only the entries that differ from the other's."""
    if isinstance(value, dict) and isinstance(other, dict):
        names = [name for name in value if value[name] != other.get(name)]
        shown = ", ".join(f"{name}={value[name]}" for name in names[:3])
        return (shown + (", ..." if len(names) > 3 else "")) or "nothing more"
    return str(value)
