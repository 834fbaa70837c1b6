"""Traces of several hosts of one training, put on one clock.

    python -m tracing.merge traces/host-0 traces/host-1 --output=traces/merged

The clock is CLOCK_REALTIME, which every row carries. No common event is looked for: how far two
hosts may be apart is the sum of what each trace recorded about its own clocks.

Exit codes: 0 the folder is written; 1 bad input.
"""

import json
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tracing import charts, ends_in_one_line, files, look, parser_of, path_with_home, tables
from tracing.loaded import summary_of
from tracing.look import Card, bytes_text

_MERGED = [table for table in tables.COLUMNS if table != "clock_pairs"]
_HOSTS: look.Columns = {
    "host": ("host", "{}"), "begins": ("begins_after_seconds", "{:.3f} s"),
    "lasts": ("seconds", "{:.1f} s"),
    "TFRecords read": (f"read_bytes.{files.TFRECORDS}", bytes_text),
    "checkpoints written": (f"written_bytes.{files.CHECKPOINTS}", bytes_text),
    "own stamps": ("error_bound_of_stamps_ns", lambda bound_ns: f"± {bound_ns / 1e6:.3f} ms"),
    "its clock": ("error_bound_of_clock_ns", lambda bound_ns: f"± {bound_ns / 1e6:.3f} ms"),
}  # fmt: skip


def write(folders: Sequence[Path], output: Path) -> dict:
    """Writes the tables with a column `host`, summary.json and summary.html; returns the summary.

    Raises:
      ValueError: a folder holds no finished trace, there are fewer than two, or the output exists.
    """
    if len(folders) < 2 or len({folder.resolve() for folder in folders}) < len(folders):
        raise ValueError("name two or more folders of traces, each once")
    if output.exists():
        raise ValueError(f"{output} is there already: name another folder")
    summaries = [summary_of(folder) for folder in folders]
    begin_ns = min(summary["begin_realtime_ns"] for summary in summaries)
    hosts = [_host(*each, begin_ns) for each in zip(folders, summaries)]
    if len({host["host"] for host in hosts}) < len(hosts):
        for host in hosts:  # hosts of one name are told apart by their folders
            host["host"] = host["folder"]
    bounds = [host["error_bound_of_clock_ns"] for host in hosts]
    apart = None
    if None not in bounds:
        # The two that know least of their clocks may be the furthest apart.
        apart = sum(sorted(b + h["error_bound_of_stamps_ns"] for b, h in zip(bounds, hosts))[-2:])
    found = {
        "clock": "CLOCK_REALTIME",
        "begin_realtime_ns": begin_ns,
        "seconds": max(host["begins_after_seconds"] + host["seconds"] for host in hosts),
        "error_bound_between_hosts_ns": apart,
        "hosts": hosts,
    }
    command = shlex.join(summaries[0].get("command") or []) or "running programs"
    with tables.folder_written_beside(output) as folder:
        for table in _MERGED:
            _write_table(hosts, table, folder)
        (folder / "summary.json").write_text(json.dumps(found, indent=1) + "\n")
        page = _page(command, found, folder)
        (folder / "summary.html").write_text(page, encoding="utf-8")
    return found


def _host(folder: Path, summary: dict, begin_ns: int) -> dict:
    """What one trace says, and how far its stamps may be from true time.

    A bound of the stamps is of converting between the host's own clocks, one of the clock what sets
    it knows of its error; None if nothing sets it.
    """
    classes, clock = summary["file_classes"] or {}, summary["machine"].get("clock") or {}
    return {
        "host": summary["machine"].get("hostname") or folder.name,
        "folder": str(folder),
        "begins_after_seconds": round((summary["begin_realtime_ns"] - begin_ns) / 1e9, 6),
        "seconds": summary["seconds"],
        "error_bound_of_stamps_ns": summary["clocks"]["error_bound_ns"],
        "error_bound_of_clock_ns": clock.get("error_bound_ns"),
        "clock": clock,
        "read_bytes": {name: entry["read_bytes"] for name, entry in classes.items()},
        "written_bytes": {name: entry["written_bytes"] for name, entry in classes.items()},
        "page_cache": summary["access"]["page_cache"],
    }


def _write_table(hosts: Sequence[dict], table: str, output: Path) -> None:
    """Rows in order of CLOCK_REALTIME; `monotonic_ns` stays the host's own."""
    parts = []
    for host in hosts:
        found = tables.read_table(Path(host["folder"]), table)
        part = pa.Table.from_pandas(found, tables.schema(table), preserve_index=False)
        column = pa.array([host["host"]] * len(found), pa.string()).dictionary_encode()
        parts.append(part.add_column(0, "host", column))
    # Words of several hosts get the same numbers.
    merged = pa.concat_tables(parts, promote_options="permissive").unify_dictionaries()
    pq.write_table(merged.sort_by("realtime_ns"), output / f"{table}.parquet", compression="zstd")


def notes_on_clocks(found: dict) -> list[str]:
    """Whose stamps can be compared how closely, and what the bound is made of."""
    bound = found["error_bound_between_hosts_ns"]
    unknown = ", ".join(
        f"{host['host']} ({host['clock'].get('why') or 'not recorded'})"
        for host in found["hosts"]
        if host["error_bound_of_clock_ns"] is None
    )
    first = (
        f"how far the hosts' clocks are apart is unknown: {unknown}; their events stand where "
        "their own clocks put them"
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


def _page(command: str, found: dict, output: Path) -> str:
    bound = found["error_bound_between_hosts_ns"]
    apart = "unknown" if bound is None else f"± {bound / 1e6:.3f} ms"
    return look.page(
        title=command,
        subtitle=f"{len(found['hosts'])} hosts on one clock, {found['seconds']:.1f} s",
        figures=[
            Card("Hosts", str(len(found["hosts"])), "traces"),
            Card("Clocks of two hosts", apart, "the most that stamps of one moment differ"),
        ],
        charts=[
            (
                "Reads and writes over time, by host",
                _transfers(found, output),
                "These traces record no single calls.",
            )
        ],
        tables=[("Hosts", look.table(_HOSTS, found["hosts"]))],
        notes=notes_on_clocks(found),
        terms=[],
    )


def _transfers(found: dict, output: Path) -> str | None:
    """Reads and writes in MB/s, a line for each host; None without calls."""
    columns = ["host", "kind", "file_class", "size_bytes", "realtime_ns"]
    operations = pd.read_parquet(output / "file_ops.parquet", columns=columns)
    operations = operations[~operations["file_class"].isin(files.IN_KERNEL)]
    if operations.empty:
        return None
    seconds = (operations["realtime_ns"] - found["begin_realtime_ns"]) / 1e9
    operations, bins = operations.assign(seconds=seconds), charts.bins_of(found["seconds"])
    panels = []
    for kind, verb in (("read", "read"), ("write", "written")):
        of_kind = operations[operations["kind"] == kind]
        curves = {
            host["host"]: (bins, charts.rate(of_kind[of_kind["host"] == host["host"]], bins), None)
            for host in found["hosts"]
        }
        panels.append(partial(charts.draw_curves, f"{verb}, MB/s", curves))
    spans = pd.DataFrame({"name": [], "seconds": [], "end_seconds": []})  # each host has its own
    alt = "Bytes read and written by host"
    return charts.over_time(alt, found["seconds"], spans, panels, height_inches=4.2)


@ends_in_one_line("merge")
def main(arguments: Sequence[str] | None = None) -> None:
    """Merges traces."""
    parser = parser_of("merge", __doc__)
    parser.add_argument("traces", nargs="+", type=path_with_home, help="folders of finished traces")
    parser.add_argument("--output", type=path_with_home, required=True, help="new folder")
    given = parser.parse_args(arguments)
    found = write(given.traces, given.output)
    print(*notes_on_clocks(found)[:1], f"look at {given.output / 'summary.html'}", sep="\n")


if __name__ == "__main__":
    main()
