"""A trace as an HTML page: what templates/trace.html shows."""

import shlex

from tracing import charts, files, look
from tracing.access import TERMS
from tracing.access_figures import Access
from tracing.loaded import Loaded
from tracing.look import Card, in_units


def page(trace: Loaded, access: Access, summary: dict) -> str:
    """Returns the page; `summary` is that of `figures.summary`."""
    read, drawn = charts.num_tfrecord_files(trace)
    offsets = "Read offsets over time" + (f", {drawn} of {read} files" if drawn < read else "")
    return look.page(
        title=shlex.join(summary["command"]) or "a running program",
        subtitle=f"{summary['seconds']:.1f} s, traced with {summary['backend']}; "
        f"{_how_it_ended(summary)}",
        figures=_cards(trace, summary),
        advice=[f"{words[0].upper()}{words[1:]}." for words in summary["advice"]],
        charts=[
            ("Reads and writes over time, by class of file", charts.transfers_over_time(trace),
             "This backend records no single calls; the counters below stand in."),
            ("Reads and writes by the processes' counters", charts.counters_over_time(trace), ""),
            ("Request sizes and latencies", charts.histograms(trace), ""),
            (offsets, charts.offsets_over_time(trace), ""),
            ("Calls in flight", charts.queue_depths(trace, access), ""),
            ("Reuse: what a cache of this size would serve", charts.reuse(access, summary), ""),
            ("Processors and memory", charts.processors_and_memory(trace), ""),
            ("GPUs", charts.gpus(trace), ""),
            ("Block I/O of the machine", charts.block_io(trace), ""),
            ("Processes", charts.processes_over_time(trace), ""),
        ],
        tables=[
            ("Classes of files", _class_rows(summary)),
            ("How files were read", _access_rows(summary)),
            ("Passes over the training data", _pass_rows(summary)),
            ("Files with the most bytes", _file_rows(summary)),
            ("Checkpoints", _checkpoint_rows(summary)),
            ("Phases", _phase_rows(summary)),
        ],
        notes=[
            *summary["notes"],
            str(trace.losses),
            f"the tracers used {summary['tracer_cpu_seconds']:.1f} s of processor time",
        ],
        terms=[f"{word}: {meaning}" for word, meaning in TERMS.items()],
    )  # fmt: skip


def _how_it_ended(summary: dict) -> str:
    early = f" after {summary['ended_by']}" if summary["ended_by"] else ""
    if summary["exit_code"] is None:
        return f"the trace ended{early}, the program goes on or was gone"
    return f"exit code {summary['exit_code']}{early}"


def _cards(trace: Loaded, summary: dict) -> list[Card]:
    usage, clocks, access = summary["usage"], summary["clocks"], summary["access"]
    found = []
    if classes := summary["file_classes"]:
        records, saved = classes[files.TFRECORDS], classes[files.CHECKPOINTS]
        calls = sum(entry["num_reads"] + entry["num_writes"] for entry in classes.values())
        found += [
            Card("TFRecords read", _bytes(records["read_bytes"]),
                 f"{records['num_reads']:,} calls"),
            Card("Checkpoints written", _bytes(saved["written_bytes"]),
                 f"{len(summary['checkpoints'])} of them"),
            Card("Read and write calls", f"{calls:,}", f"{trace.losses.total():,} events lost"),
        ]  # fmt: skip
    else:
        found.append(Card("Reads and writes", "-", "single calls were not recorded"))
    cached, share, note = access["page_cache"], "unknown", access["page_cache"]["storage_from"]
    if cached["hit_ratio"] is not None:
        share = f"{cached['hit_ratio']:.0%}"
        note = f"{_bytes(cached['storage_bytes'])} came from storage"
    found.append(Card("Read from the page cache", share, note))
    samples, sockets = access["samples"], access["network"]["of_processes"]
    if samples and samples["call_bytes_per_sample"] is not None:
        storage = _bytes(samples["storage_bytes_per_sample"])
        note = f"{storage} from storage; {samples['num_trained']:,} samples"
        found.append(Card("Read per sample", _bytes(samples["call_bytes_per_sample"]), note))
    if sockets and sum(sockets.values()):
        note = f"received; {_bytes(sockets['sent_bytes'])} sent"
        found.append(Card("Network, by sockets", _bytes(sockets["received_bytes"]), note))
    cores = usage["cpu_seconds"] / summary["seconds"] if summary["seconds"] else 0
    return [
        *found,
        Card("Processor time", f"{usage['cpu_seconds']:,.1f} s", f"{cores:.2f} processors busy"),
        Card("Peak memory", _bytes(usage["peak_resident_bytes"]), "resident, all processes"),
        Card("Clocks", f"± {clocks['error_bound_ns'] / 1000:.1f} µs",
             f"drift {clocks['drift_ns'] / 1000 + 0:.1f} µs over the trace"),
    ]  # fmt: skip


def _access_rows(summary: dict) -> list[list[str]]:
    rows = [["class", "sequential", "strided", "random", "unknown", "distinct", "amplification",
             "median reuse distance", "blocks read once"]]  # fmt: skip
    reuse = (summary["access"]["reuse"] or {"file_classes": {}})["file_classes"]
    for name, found in (summary["access"]["file_classes"] or {}).items():
        again = reuse.get(name, {})
        once = again.get("first_reads_share")
        rows.append(
            [name, *(_of_calls_and_bytes(shares) for shares in found["patterns"].values()),
             _bytes(found["distinct_bytes"]),
             "-" if found["read_amplification"] is None else f"{found['read_amplification']:.2f}",
             _bytes((again.get("distance_bytes") or {}).get("p50")),
             "-" if once is None else f"{once:.0%}"]
        )  # fmt: skip
    return rows


def _of_calls_and_bytes(shares: dict) -> str:
    if not shares["num_calls"]:
        return "-"
    of_calls, of_bytes = shares["share_of_calls"], shares["share_of_bytes"]
    return f"{of_calls or 0:.0%} of calls, {of_bytes or 0:.0%} of bytes"


def _pass_rows(summary: dict) -> list[list[str]]:
    rows = [
        ["pass", "begins", "lasts", "read by calls", "read from storage", "from the page cache"]
    ]
    for number, found in enumerate(summary["access"]["passes"] or [], 1):
        storage = found["storage_bytes"]
        cached = "-" if storage is None else f"{max(0, 1 - storage / found['call_bytes']):.0%}"
        rows.append(
            [str(number), f"{found['begin_seconds']:.1f} s", f"{found['seconds']:.1f} s",
             _bytes(found["call_bytes"]), _bytes(storage), cached]
        )  # fmt: skip
    return rows


def _bytes(number: float | None) -> str:
    if number is None:
        return "-"
    if number < 1e3:
        return f"{number:,.0f} B"
    return in_units(number, [(1e9, " GB"), (1e6, " MB"), (1e3, " kB")], ",.2f")


def _us(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f} µs"


def _tail(path: str) -> str:
    return path if len(path) <= 48 else f"…{path[-47:]}"


def _class_rows(summary: dict) -> list[list[str]]:
    rows = [["class", "opens", "reads", "read", "median size", "median", "p99",
             "writes", "written", "median", "p99", "mapped"]]  # fmt: skip
    for name, found in (summary["file_classes"] or {}).items():
        read, write = found["read_latency_us"] or {}, found["write_latency_us"] or {}
        if not found["num_opens"] + found["num_reads"] + found["num_writes"]:
            continue
        size = (found["read_size_bytes"] or {}).get("p50")
        rows.append(
            [name, f"{found['num_opens']:,}", f"{found['num_reads']:,}",
             _bytes(found["read_bytes"]), _bytes(size), _us(read.get("p50")), _us(read.get("p99")),
             f"{found['num_writes']:,}", _bytes(found["written_bytes"]), _us(write.get("p50")),
             _us(write.get("p99")), _bytes(found["mapped_bytes"])]
        )  # fmt: skip
    return rows


def _file_rows(summary: dict) -> list[list[str]]:
    rows = [["file", "class", "size", "reads", "read", "passes", "writes", "written"]]
    for found in summary["files"]:
        passes = "-" if found["passes"] is None else f"{found['passes']:.2f}"
        rows.append(
            [_tail(found["path"]), found["file_class"], _bytes(found["size_bytes"]),
             f"{found['num_reads']:,}", _bytes(found["read_bytes"]), passes,
             f"{found['num_writes']:,}", _bytes(found["written_bytes"])]
        )  # fmt: skip
    return rows


def _checkpoint_rows(summary: dict) -> list[list[str]]:
    rows = [["checkpoint", "at", "files", "written", "calls", "in write calls", "as MLLOG reports"]]
    for found in summary["checkpoints"]:
        span = "-" if found["span_seconds"] is None else f"{found['span_seconds']:.3f} s"
        rows.append(
            [_tail(found["path"]), f"{found['begin_seconds']:.1f} s", str(found["num_files"]),
             _bytes(found["written_bytes"]), f"{found['num_writes']:,}",
             f"{found['writing_seconds']:.3f} s", span]
        )  # fmt: skip
    return rows


def _phase_rows(summary: dict) -> list[list[str]]:
    rows = [["phase", "begins", "lasts", "TFRecords read", "checkpoints written"]]
    for found in summary["phases"]:
        name = found["name"] + ("" if found["is_closed"] else " (not ended)")
        rows.append(
            [name, f"{found['begin_seconds']:.3f} s", f"{found['seconds']:.3f} s",
             _bytes_of(found["read_bytes"], files.TFRECORDS),
             _bytes_of(found["written_bytes"], files.CHECKPOINTS)]
        )  # fmt: skip
    return rows


def _bytes_of(bytes_by_class: dict[str, int] | None, name: str) -> str:
    return _bytes(None if bytes_by_class is None else bytes_by_class.get(name, 0))
