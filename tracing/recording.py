"""What the tables are made from, next to the tracers' lines: recording.json in the folder raw/."""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path

from tracing.clocks import Alignment, ClockPair
from tracing.containers import Container

RAW = "raw"
FILE = "recording.json"


@dataclass(frozen=True)
class RawFile:
    """One tracer's lines, in the folder of raw files, and what they do not contain."""

    name: str
    container: Container | None
    process_of_thread: dict[int, int] = field(default_factory=dict)
    path_of_fd: list[tuple[int, int, str]] = field(default_factory=list)
    """(process, descriptor, path) of what was open before."""


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A trace as it was taken."""

    command: list[str]
    """Empty if the trace was attached to what ran already."""
    folder: str
    """Where the command was started."""
    exit_code: int | None
    ended_by: str | None
    """The signal that ended the trace early; None if it came to its end."""
    backend: str
    notes: list[str]
    """What was used, what is missing, what went wrong: one line each."""
    containers: list[Container]
    raw_files: list[RawFile]
    num_lost_lines: int
    """Lines for which the disk had no room."""
    tracer_cpu_ms: int
    pairs: list[ClockPair]
    machine: dict

    def alignment(self) -> Alignment:
        """How the clocks map onto each other over the whole trace."""
        return Alignment(self.pairs)

    @property
    def begin_ns(self) -> int:
        """CLOCK_REALTIME."""
        return self.pairs[0].realtime_ns

    @property
    def end_ns(self) -> int:
        """CLOCK_REALTIME."""
        return self.pairs[-1].realtime_ns


def save(recording: Recording, trace: Path) -> None:
    """Writes it into the trace's folder of raw files."""
    text = json.dumps(dataclasses.asdict(recording))
    (trace / RAW / FILE).write_text(text, encoding="utf-8")


def load(trace: Path) -> Recording:
    """Reads it back.

    Raises:
      ValueError: the raw files are gone.
    """
    path = trace / RAW / FILE
    try:
        return _recording(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{path} cannot be read ({error!r:.300}): the raw files are needed"
        ) from None


def _recording(*, raw_files, containers, pairs, **rest) -> Recording:
    pairs = [ClockPair(**pair) for pair in pairs]
    if not pairs or not all(type(ns) is int for pair in pairs for ns in vars(pair).values()):
        raise ValueError("the readings of the clocks are not whole numbers")
    return Recording(
        raw_files=[_raw_file(**entry) for entry in raw_files],
        containers=[_container(**entry) for entry in containers],
        pairs=pairs,
        **rest,
    )


def _container(*, mounts, **rest) -> Container:
    return Container(mounts=tuple(tuple(mount) for mount in mounts), **rest)


def _raw_file(*, name, container, process_of_thread, path_of_fd) -> RawFile:
    if container:
        container = _container(**container)
    threads = {int(tid): pid for tid, pid in process_of_thread.items()}
    return RawFile(name, container, threads, [tuple(entry) for entry in path_of_fd])
