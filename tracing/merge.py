"""Traces of several hosts of one training, put on one clock.

    python -m tracing.merge traces/host-0 traces/host-1 --output=traces/merged

The clock is CLOCK_REALTIME, which every row carries. No common event is looked for: how far two
hosts may be apart is the sum of what each trace recorded about its own clocks.

Exit codes: 0 the folder is written; 1 bad input.
"""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tracing import charts, ends_in_one_line, files, look, parser_of, path_with_home, tables
from tracing.exports.finished import readable, summary_of
from tracing.look import Card

_NEEDED = ("machine", "clocks", "seconds", "begin_realtime_ns", "file_classes")
_MERGED = [table for table in tables.COLUMNS if table != "clock_pairs"]


@dataclass(frozen=True)
class Host:
    """One trace, and how far its stamps may be from true time."""

    name: str
    folder: Path
    summary: dict

    @property
    def begin_ns(self) -> int:
        """CLOCK_REALTIME."""
        return self.summary["begin_realtime_ns"]

    @property
    def end_ns(self) -> int:
        """CLOCK_REALTIME."""
        return self.begin_ns + round(self.summary["seconds"] * 1e9)

    @property
    def of_stamps_ns(self) -> int:
        """Error of converting between the host's own clocks."""
        return self.summary["clocks"]["error_bound_ns"]

    @property
    def of_clock_ns(self) -> int | None:
        """Error of the host's wall clock by what sets it; None if that is unknown."""
        return self.summary["machine"].get("clock", {}).get("error_bound_ns")

    @property
    def error_bound_ns(self) -> int | None:
        """Both together."""
        return None if self.of_clock_ns is None else self.of_stamps_ns + self.of_clock_ns


def open_hosts(folders: Sequence[Path]) -> list[Host]:
    """Reads the summaries; a name that several hosts have gets their folders' names.

    Raises:
      ValueError: a folder holds no finished trace, or there are fewer than two.
    """
    if len(folders) < 2 or len({folder.resolve() for folder in folders}) < len(folders):
        raise ValueError("name two or more folders of traces, each once")
    summaries = [summary_of(folder, *_NEEDED) for folder in folders]
    names = [found["machine"].get("hostname") or folder.name
             for folder, found in zip(folders, summaries)]  # fmt: skip
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    return [Host(*parts) for parts in zip(names, folders, summaries)]


def between(hosts: Sequence[Host]) -> int | None:
    """How far apart stamps of the same moment on any two hosts may be; None if unknown."""
    bounds = [host.error_bound_ns for host in hosts if host.error_bound_ns is not None]
    return sum(sorted(bounds)[-2:]) if len(bounds) == len(hosts) else None


def write(hosts: Sequence[Host], output: Path) -> dict:
    """Writes the tables with a column `host`, summary.json and summary.html; returns the summary.

    Raises:
      ValueError: the folder is there already.
    """
    if output.exists():
        raise ValueError(f"{output} is there already: name another folder")
    found = _figures(hosts)
    with tables.folder_written_beside(output) as folder:
        for table in _MERGED:
            _write_table(hosts, table, folder)
        (folder / "summary.json").write_text(json.dumps(found, indent=1) + "\n")
        (folder / "summary.html").write_text(_page(hosts, found, folder), encoding="utf-8")
    return found


def _write_table(hosts: Sequence[Host], table: str, output: Path) -> None:
    """Rows in order of CLOCK_REALTIME; `monotonic_ns` stays the host's own."""
    parts = []
    for host in hosts:
        found = pa.Table.from_pandas(
            tables.read_table(host.folder, table), tables.schema(table), preserve_index=False
        )
        column = pa.array([host.name] * len(found), pa.string()).dictionary_encode()
        parts.append(found.add_column(0, "host", column))
    merged = pa.concat_tables(parts, promote_options="permissive").unify_dictionaries()
    pq.write_table(merged.sort_by("realtime_ns"), output / f"{table}.parquet", compression="zstd")


def _figures(hosts: Sequence[Host]) -> dict:
    begin_ns = min(host.begin_ns for host in hosts)
    return {
        "clock": "CLOCK_REALTIME",
        "begin_realtime_ns": begin_ns,
        "seconds": round((max(host.end_ns for host in hosts) - begin_ns) / 1e9, 3),
        "error_bound_between_hosts_ns": between(hosts),
        "hosts": [_figures_of(host, begin_ns) for host in hosts],
    }


def _figures_of(host: Host, begin_ns: int) -> dict:
    classes = host.summary["file_classes"]
    return {
        "host": host.name,
        "folder": str(host.folder),
        "begins_after_seconds": round((host.begin_ns - begin_ns) / 1e9, 6),
        "seconds": host.summary["seconds"],
        "error_bound_of_stamps_ns": host.of_stamps_ns,
        "error_bound_of_clock_ns": host.of_clock_ns,
        "clock": host.summary["machine"].get("clock"),
        "read_bytes": {name: entry["read_bytes"] for name, entry in (classes or {}).items()},
        "written_bytes": {name: entry["written_bytes"] for name, entry in (classes or {}).items()},
        "page_cache": host.summary.get("access", {}).get("page_cache"),
    }


def notes_on_clocks(hosts: Sequence[Host]) -> list[str]:
    """Whose stamps can be compared how closely, and what the bound is made of."""
    bound = between(hosts)
    first = (
        "how far the hosts' clocks are apart is unknown: "
        + ", ".join(f"{host.name} ({_why(host)})" for host in hosts if host.of_clock_ns is None)
        + "; their events stand where their own clocks put them"
        if bound is None
        else f"stamps of two hosts agree to ± {bound / 1e6:.3f} ms; events that lie closer may "
        "have happened in the other order"
    )
    return [
        first,
        "the bound is, of each host: the drift between neighbouring readings of its clocks and "
        "the width of a reading (clock_pairs), and the error that the kernel has of its wall "
        "clock from what sets it (chrony, ntpd, timesyncd), when the trace ended",
        "monotonic_ns is each host's own; realtime_ns is the common clock",
    ]


def _why(host: Host) -> str:
    return (host.summary["machine"].get("clock") or {}).get("why") or "not recorded"


def _page(hosts: Sequence[Host], found: dict, output: Path) -> str:
    bound = found["error_bound_between_hosts_ns"]
    apart = "unknown" if bound is None else f"± {bound / 1e6:.3f} ms"
    columns = ["host", "kind", "file_class", "size_bytes", "realtime_ns"]
    operations = tables.read_table(output, "file_ops", columns)
    operations["seconds"] = (operations["realtime_ns"] - found["begin_realtime_ns"]) / 1e9
    is_file = ~operations["file_class"].isin([files.PIPES, files.PSEUDO])
    rows = [["host", "begins", "lasts", "TFRecords read", "checkpoints written", "own stamps",
             "its clock"]]  # fmt: skip
    for entry in found["hosts"]:
        of_clock = entry["error_bound_of_clock_ns"]
        rows.append(
            [entry["host"], f"{entry['begins_after_seconds']:.3f} s", f"{entry['seconds']:.1f} s",
             f"{entry['read_bytes'].get(files.TFRECORDS, 0) / 1e6:,.1f} MB",
             f"{entry['written_bytes'].get(files.CHECKPOINTS, 0) / 1e6:,.1f} MB",
             f"± {entry['error_bound_of_stamps_ns'] / 1e6:.3f} ms",
             "unknown" if of_clock is None else f"± {of_clock / 1e6:.3f} ms"]
        )  # fmt: skip
    seconds = np.float64(found["seconds"])
    return look.page(
        title=shlex.join(hosts[0].summary.get("command") or []) or "running programs",
        subtitle=f"{len(hosts)} hosts on one clock, {seconds:.1f} s",
        figures=[
            Card("Hosts", str(len(hosts)), "traces"),
            Card("Clocks of two hosts", apart, "the most that stamps of one moment differ"),
        ],
        charts=[
            ("Reads and writes over time, by host",
             charts.hosts_over_time(operations[is_file], [h.name for h in hosts], float(seconds)),
             "These traces record no single calls."),
        ],
        tables=[("Hosts", rows)],
        notes=notes_on_clocks(hosts),
        terms=[],
    )  # fmt: skip


@ends_in_one_line("merge")
def main(arguments: Sequence[str] | None = None) -> None:
    """Merges traces."""
    parser = parser_of("merge", __doc__)
    parser.add_argument("traces", nargs="+", type=path_with_home, help="folders of finished traces")
    parser.add_argument("--output", type=path_with_home, required=True, help="new folder")
    given = parser.parse_args(arguments)
    with readable(*given.traces):
        hosts = open_hosts(given.traces)
        write(hosts, given.output)
    print(*notes_on_clocks(hosts)[:1], f"look at {given.output / 'summary.html'}", sep="\n")


if __name__ == "__main__":
    main()
