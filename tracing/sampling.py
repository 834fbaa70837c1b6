"""The /proc backend: what the machine and the target's processes have used, at each sample."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pynvml

from tracing import clocks, files, processes
from tracing.processes import PROC
from tracing.tables import table_writer

MEMINFO_KEYS = {
    "total_bytes": "MemTotal", "free_bytes": "MemFree", "available_bytes": "MemAvailable",
    "buffers_bytes": "Buffers", "page_cache_bytes": "Cached", "dirty_bytes": "Dirty",
    "writeback_bytes": "Writeback", "mapped_bytes": "Mapped", "swap_free_bytes": "SwapFree",
}  # fmt: skip
_MS_PER_TICK = 1000 // os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")


def cpu_rows() -> Iterator[dict]:
    """One row for each processor."""
    for cpu, times in enumerate(psutil.cpu_times(percpu=True)):
        yield {
            "cpu": cpu,
            "user_ms": _ms(times.user + times.nice),
            "system_ms": _ms(times.system + times.irq + times.softirq),
            "iowait_ms": _ms(times.iowait),
            "idle_ms": _ms(times.idle),
            "steal_ms": _ms(times.steal),
        }


def _ms(seconds: float) -> int:
    return round(1000 * seconds)


def memory_rows() -> Iterator[dict]:
    """One row; psutil lacks bytes dirty, mapped or in writeback, and counts more as cached."""
    lines = (line.split() for line in (PROC / "meminfo").read_text().splitlines())
    kib = {fields[0].rstrip(":"): int(fields[1]) for fields in lines}
    yield {column: kib.get(key, 0) * 1024 for column, key in MEMINFO_KEYS.items()}


def disk_rows() -> Iterator[dict]:
    """One row for each block device that was ever used; loop and RAM devices are left out."""
    for name, used in psutil.disk_io_counters(perdisk=True, nowrap=False).items():
        if used.read_count + used.write_count and not name.startswith(("loop", "ram")):
            yield {
                "device": name,
                "num_reads": used.read_count,
                "read_bytes": used.read_bytes,
                "read_ms": used.read_time,
                "num_writes": used.write_count,
                "written_bytes": used.write_bytes,
                "write_ms": used.write_time,
            }


def network_rows() -> Iterator[dict]:
    """One row for each interface of this process's network name space."""
    for name, used in psutil.net_io_counters(pernic=True, nowrap=False).items():
        yield {
            "device": name,
            "received_bytes": used.bytes_recv,
            "received_packets": used.packets_recv,
            "sent_bytes": used.bytes_sent,
            "sent_packets": used.packets_sent,
        }


def process_row(pid: int) -> dict | None:
    """One process; None if it is gone. Bytes are null without the right to read /proc/PID/io."""
    if not (fields := processes.stat_fields(pid)):
        return None
    row = {
        "pid": pid,
        "parent_pid": int(fields[1]),
        "command": " ".join(processes.arguments_of(pid))[:200],
        "minor_faults": int(fields[7]),
        "children_minor_faults": int(fields[8]),
        "major_faults": int(fields[9]),
        "children_major_faults": int(fields[10]),
        "user_ms": int(fields[11]) * _MS_PER_TICK,
        "system_ms": int(fields[12]) * _MS_PER_TICK,
        "children_ms": (int(fields[13]) + int(fields[14])) * _MS_PER_TICK,
        "num_threads": int(fields[17]),
        "resident_bytes": int(fields[21]) * _PAGE_BYTES,
    }
    try:
        io = psutil.Process(pid).io_counters()
    except psutil.Error:
        return row
    return row | {
        "read_call_bytes": io.read_chars,
        "write_call_bytes": io.write_chars,
        "storage_read_bytes": io.read_bytes,
        "storage_written_bytes": io.write_bytes,
    }


def starter_row(pid: int) -> dict | None:
    """The row of a tracer that has started the command: its children's counters, once they ended.

    It has written only the lines of the trace, and has read next to nothing itself.
    """
    if processes.is_running(pid) or (row := process_row(pid)) is None:
        return None
    own = ("user_ms", "system_ms", "minor_faults", "major_faults", "num_threads", "resident_bytes")
    return {**row, **dict.fromkeys(own, 0), "write_call_bytes": None}


def thread_rows(pid: int) -> Iterator[dict]:
    """One row for each thread of a process; psutil does not know their names."""
    for tid, user_s, system_s in processes.threads_of(pid):
        row = {"pid": pid, "tid": tid, "user_ms": _ms(user_s), "system_ms": _ms(system_s)}
        if name := processes.text_of(pid, f"task/{tid}/comm").strip():
            yield {**row, "name": name}


def open_file_rows(pid: int) -> Iterator[dict]:
    """One row for each regular file that a process holds open.

    psutil leaves out removed files, and files that only a container sees.
    """
    for descriptor, path in processes.open_paths(pid):
        if not path.startswith("/"):
            continue
        position = processes.text_of(pid, f"fdinfo/{descriptor}").partition("pos:")[2].split()
        seen_as = PROC / str(pid) / "fd" / str(descriptor)
        file_class = files.classify(path, seen_as=str(seen_as) if seen_as.exists() else None)
        if position and file_class not in files.IN_KERNEL:
            row = {"pid": pid, "fd": descriptor, "path": path, "file_class": file_class}
            yield {**row, "offset_bytes": int(position[0])}


SYSTEM_TABLES: dict[str, Callable[[], Iterator[dict]]] = {
    "cpus": cpu_rows,
    "memory": memory_rows,
    "disks": disk_rows,
    "networks": network_rows,
}
TABLES = (*SYSTEM_TABLES, "gpus", "processes", "threads", "open_files")


class Sampler(threading.Thread):
    """Writes the tables of counters until stopped; the clocks are read each time as well."""

    def __init__(self, target: processes.Target, folder: Path, *, interval_s: float):
        """Takes the target, the folder of the tables, and the seconds between samples."""
        super().__init__(name="sampler", daemon=True)
        self.pairs: list[clocks.ClockPair] = []
        self.errors: list[str] = []
        self.asynchronous: set[int] = set()
        """Processes that were seen to hold a ring of libaio or io_uring."""
        self._target = target
        self._interval_s = interval_s
        self._done = threading.Event()
        self._gpus = Gpus()
        self.gpu_status = self._gpus.status
        self._opened = {table: contextlib.ExitStack() for table in TABLES}
        self._write = {
            table: stack.enter_context(table_writer(folder, table))
            for table, stack in self._opened.items()
        }

    def run(self) -> None:
        """Samples at fixed times, so that the work does not lengthen the interval."""
        due = time.monotonic()
        while not self._done.wait(due - time.monotonic()):
            self._sample()
            due = max(due + self._interval_s, time.monotonic())
        self._sample()

    def stop(self) -> None:
        """Takes the last sample and the last pair of clocks, and completes the tables."""
        self._done.set()
        self.join()
        self._gpus.close()
        self.pairs.append(clocks.read_pair())
        for table, stack in self._opened.items():
            self._try(table, stack.close)

    def _sample(self) -> None:
        pair = clocks.read_pair()
        self.pairs.append(pair)
        stamps = {"monotonic_ns": pair.monotonic_ns, "realtime_ns": pair.realtime_ns}
        for table, rows in self._readings():
            self._try(table, self._write[table], ({**stamps, **row} for row in rows))

    def _readings(self) -> Iterator[tuple[str, Iterable[dict]]]:
        """Yields (table, rows); the rows are read as they are iterated over."""
        for table, read in SYSTEM_TABLES.items():
            yield table, read()
        yield "gpus", self._gpus.rows()
        for pid in self._target.pids():
            if row := process_row(pid):
                yield "processes", [row]
                yield "threads", thread_rows(pid)
                yield "open_files", open_file_rows(pid)
                if processes.uses_asynchronous_io(pid):
                    self.asynchronous.add(pid)
        for pid in self._target.starters():
            if row := starter_row(pid):
                yield "processes", [row]

    def _try(self, table: str, action: Callable, *arguments: object) -> None:
        """Runs an action for a table; if a file or room is missing, the trace goes without it."""
        try:
            action(*arguments)
        except (OSError, ValueError, NotImplementedError) as error:
            message = f"table {table}: {error}"
            if message not in self.errors:
                self.errors.append(message)


class Gpus:
    """The GPUs of this machine; none where NVML is missing, and `status` says why."""

    def __init__(self):
        self._handles: list = []
        try:
            pynvml.nvmlInit()
            numbers = range(pynvml.nvmlDeviceGetCount())
            self._handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in numbers]
            self.status = f"{len(self._handles)} recorded"
        except pynvml.NVMLError as error:
            self.status = f"none recorded: {error}"

    def rows(self) -> Iterator[dict]:
        """One row for each GPU; counters that a GPU lacks are null."""
        for index, handle in enumerate(self._handles):
            row = {"gpu": index, "name": _ask_nvml(pynvml.nvmlDeviceGetName, handle)}
            if rates := _ask_nvml(pynvml.nvmlDeviceGetUtilizationRates, handle):
                row |= {"busy_percent": rates.gpu, "memory_busy_percent": rates.memory}
            if memory := _ask_nvml(pynvml.nvmlDeviceGetMemoryInfo, handle):
                row["memory_used_bytes"] = memory.used
            row["power_mw"] = _ask_nvml(pynvml.nvmlDeviceGetPowerUsage, handle)
            kind = pynvml.NVML_TEMPERATURE_GPU
            row["temperature_c"] = _ask_nvml(pynvml.nvmlDeviceGetTemperature, handle, kind)
            yield row

    def close(self) -> None:
        """Lets go of NVML."""
        with contextlib.suppress(pynvml.NVMLError):  # NVML was not there
            pynvml.nvmlShutdown()


def _ask_nvml(function: Callable, *arguments: object) -> Any:
    try:
        return function(*arguments)
    except pynvml.NVMLError:
        return None
