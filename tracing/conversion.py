"""Makes tables of raw files: calls, processes, block I/O, MLLOG events, spans, clocks."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from tracing import backends, bpftrace, files, mllog, strace
from tracing.calls import Losses
from tracing.clocks import Alignment
from tracing.containers import Container
from tracing.recording import RAW, RawFile, Recording
from tracing.tables import read_table, table_writer, write_table

CALL_TABLES = ("file_ops", "process_events", "block_io")
_NAMES_OF_LOGS = ("*.log", "*.out", "*.txt")


@dataclass
class Locator:
    """Finds on this machine the files that the traced programs name."""

    containers: list[Container] = field(default_factory=list)
    of_path: dict[str, str] = field(default_factory=dict)

    def within(self, raw_file: RawFile) -> Callable[[str], str]:
        """Returns the function that maps a path in one tracer's lines to this machine's path."""
        container = raw_file.container
        if container is None:
            return str

        def host_path(path: str) -> str:
            return self.of_path.setdefault(path, container.host_path(path))

        return host_path

    def find(self, path: str) -> Path:
        """This machine's path of a path in the tables."""
        if path not in self.of_path:
            # Samples do not say whose path it is, so containers' mounts are tried first.
            inside = (container.host_path(path) for container in self.containers)
            self.of_path[path] = next((each for each in inside if files.is_there(each)), path)
        return Path(self.of_path[path])


def write_tables(trace: Path, recording: Recording) -> tuple[Losses, Locator]:
    """Writes every table that the sampler has not written already."""
    alignment = recording.alignment()
    losses = Losses(lost_lines=recording.num_lost_lines)
    locator = Locator(recording.containers)
    with contextlib.ExitStack() as stack:
        writers = {
            table: stack.enter_context(table_writer(trace, table, alignment))
            for table in CALL_TABLES
        }
        for raw_file in recording.raw_files:
            _convert(trace, recording, raw_file, writers, losses, locator)
    num_processes = max(losses.asynchronous_processes, recording.num_asynchronous)
    losses.asynchronous_processes = num_processes
    write_table(trace, "clock_pairs", map(vars, recording.pairs), alignment)
    _write_mllog(trace, recording, alignment, locator)
    return losses, locator


def _convert(trace, recording: Recording, raw_file: RawFile, writers, losses, locator) -> None:
    path = trace / RAW / raw_file.name
    if not path.exists():
        return  # the tracer ended before it began
    folder = "/" if raw_file.container else recording.folder
    where = {
        "folder": folder, "host_path": locator.within(raw_file), "losses": losses,
        "folder_of": dict(raw_file.folder_of),
        "process_of_thread": dict(raw_file.process_of_thread),
    }  # fmt: skip
    parser: strace.Parser | bpftrace.Parser
    if recording.backend == backends.STRACE:
        with _lines(path) as lines:
            births = strace.births_in(lines)
        parser = strace.Parser(births=births, **where)
    else:
        parser = bpftrace.Parser(opened_before=raw_file.opened_before, **where)
    begin = recording.pairs[0].boottime_ns
    with _lines(path) as lines:
        for table, row in parser.parse(lines):
            # The machine's disks were traced already before the command began.
            if table != "block_io" or row["boottime_ns"] >= begin:
                writers[table]([row])


def _lines(path: Path):
    return path.open(encoding="utf-8", errors="backslashreplace", newline="\n")


def _write_mllog(trace: Path, recording: Recording, alignment: Alignment, locator) -> None:
    events = list(_mllog_events(trace, recording, locator))
    write_table(trace, "mllog", events, alignment)
    spans = mllog.span_rows(events, end_ns=recording.end_ns)
    for span in spans:
        end = alignment.converted(span["end_realtime_ns"], "realtime_ns", "monotonic_ns")
        span["end_monotonic_ns"] = int(end)
    write_table(trace, "spans", spans, alignment)


def _mllog_events(trace: Path, recording: Recording, locator: Locator) -> Iterator[dict]:
    seen = set()
    for path in _written_logs(trace, locator):
        for event in _events_in(locator.find(path), recording):
            # A copied log repeats its events.
            content = tuple(value for key, value in event.items() if key != "file")
            if content not in seen:
                seen.add(content)
                yield {**event, "file": path}


def _events_in(path: Path, recording: Recording) -> Iterator[dict]:
    """The trace's events in a log; none if it is gone or closed to us."""
    if files.is_file(path):
        with contextlib.suppress(OSError):
            yield from mllog.event_rows(path, begin_ns=recording.begin_ns, end_ns=recording.end_ns)


def _written_logs(trace: Path, locator: Locator) -> list[str]:
    """Paths of logs in the order in which they were first seen, under their last names.

    A log is known by its name, or by a line of MLPerf's in a file of another name.
    """
    operations = read_table(trace, "file_ops", ["path", "new_path", "kind"])
    written = operations[operations["kind"].isin(["create", "write", "rename"])]
    sampled = read_table(trace, "open_files", ["path"])["path"].drop_duplicates()
    folders = sorted({str(PurePath(path).parent) for path in sampled})
    # Samples do not show renames: a log may have been renamed between two samples.
    beside = [f"{folder}/{log.name}" for folder in folders for name in _NAMES_OF_LOGS
              for log in sorted(locator.find(folder).glob(name))]  # fmt: skip
    seen = [*written["new_path"].dropna(), *written["path"], *sampled, *beside]
    return [path for path in dict.fromkeys(seen) if _is_log(path, locator)]


def _is_log(path: str, locator: Locator) -> bool:
    file_class = files.classify(path)
    return file_class == files.LOGS or (
        file_class == files.OTHER and mllog.holds_log(locator.find(path))
    )
