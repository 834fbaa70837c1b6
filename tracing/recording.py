"""recording.json in the folder raw/, from which, with the tracers' lines, tables are made."""

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
    process_of_thread: list[tuple[int, int]] = field(default_factory=list)
    """(thread, process) of the threads that were there before."""
    opened_before: list[tuple[int, int, str, bool]] = field(default_factory=list)
    """(process, descriptor, path, whether exec closes it)."""
    folder_of: list[tuple[int, str]] = field(default_factory=list)
    """(process, folder) of the processes that were there before."""


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A trace as it was taken."""

    command: list[str]
    """The command; empty if the trace was attached to running processes."""
    folder: str
    """The folder where the command was started."""
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
    num_asynchronous: int = 0
    """Processes that were seen to hold a ring of libaio or io_uring."""
    pairs: list[ClockPair]
    machine: dict

    def alignment(self) -> Alignment:
        """Converts between the clocks over the whole trace."""
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
    """Reads it back."""
    path = trace / RAW / FILE
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        record["containers"] = [Container(**each) for each in record["containers"]]
        for each in record["raw_files"]:
            each["container"] = each["container"] and Container(**each["container"])
        record["raw_files"] = [RawFile(**each) for each in record["raw_files"]]
        record["pairs"] = [ClockPair(**pair) for pair in record["pairs"]]
        return Recording(**record)
    except (OSError, ValueError, TypeError, LookupError) as error:
        reason = f"{path} cannot be read ({error!r:.300}): the raw files are needed"
        raise ValueError(reason) from None
