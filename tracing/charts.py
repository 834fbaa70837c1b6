"""The pictures of a trace, as SVG text that can stand in a page."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import PurePath

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullFormatter

from tracing import files, look
from tracing.access_figures import Access
from tracing.loaded import Loaded
from tracing.look import BLUE, GREEN, INK, ORANGE, RED

CLASS_COLORS = {
    files.TFRECORDS: BLUE,
    files.CHECKPOINTS: GREEN,
    files.LOGS: ORANGE,
    files.LIBRARIES: "#8a63b8",
    files.OTHER: "#8b98a5",
}
PHASE_COLORS = {
    "init": "#e6eaef",
    "block": "#dbe8f7",
    "eval": "#fbe6cf",
    "checkpoint": "#cfead9",
}
_MOST_BINS = 300
_SHORTEST_BIN_S = 0.05
_MOST_FILES_DRAWN = 8
_MOST_PROCESSES_DRAWN = 20
Panel = Callable[[Axes, list[Patch]], list]
"""Draws on axes whose phases are shaded; returns the legend's entries."""


def _shade_phases(axes: Axes, trace: Loaded) -> list[Patch]:
    present = []
    for name, color in PHASE_COLORS.items():
        spans = trace.spans[trace.spans["name"] == name]
        for span in spans.itertuples():
            # Above the ground, below the grid; a checkpoint lies over its block.
            axes.axvspan(span.seconds, span.end_seconds, color=color, linewidth=0, zorder=0)
        if len(spans):
            present.append(Patch(color=color, label=name))
    return present


def _finish_time_axis(axes: Axes, trace: Loaded, *, has_label: bool = True) -> None:
    axes.set_xlim(0, max(trace.seconds, 0.1))
    if has_label:
        axes.set_xlabel("seconds since the trace began")


def _over_time(
    trace: Loaded, alt: str, panels: Sequence[Panel], *, height_inches: float = 4.6
) -> str:
    """Draws panels above each other over the same seconds, with the phases shaded."""

    def draw(axes: np.ndarray) -> None:
        for place, panel in zip(axes[:, 0], panels):
            handles = panel(place, _shade_phases(place, trace))
            if handles:  # in one row over the right end, where the legend hides nothing
                place.legend(handles=handles, ncols=8, loc="lower right", bbox_to_anchor=(1, 1),
                             borderaxespad=0)  # fmt: skip
            _finish_time_axis(place, trace, has_label=panel is panels[-1])

    return look.svg(draw, height_inches, alt, rows=len(panels))


def _bins(trace: Loaded) -> np.ndarray:
    width = max(trace.seconds / _MOST_BINS, _SHORTEST_BIN_S)
    return np.arange(0, trace.seconds + width, width)


def transfers_over_time(trace: Loaded) -> str | None:
    """Reads and writes in MB/s by class of file, the phases shaded; None without calls."""
    if trace.transfers.empty:
        return None
    bins = _bins(trace)

    def panel(kind: str, verb: str, place: Axes, shades: list) -> list:
        _stacked(place, trace.transfers[trace.transfers["kind"] == kind], bins)
        place.set_ylabel(f"{verb}, MB/s")
        place.set_ylim(bottom=0)
        return _classes(trace) if kind == "read" else shades

    panels = [partial(panel, "read", "read"), partial(panel, "write", "written")]
    return _over_time(trace, "Bytes read and written over time", panels)


def _classes(trace: Loaded) -> list[Patch]:
    """A legend's entries: the classes of files from or to which bytes moved."""
    present = set(trace.transfers["file_class"])
    return [Patch(color=color, label=n) for n, color in CLASS_COLORS.items() if n in present]


def _stacked(axes: Axes, transfers: pd.DataFrame, bins: np.ndarray) -> None:
    base = np.zeros(len(bins) - 1)
    for name, color in CLASS_COLORS.items():
        group = transfers[transfers["file_class"] == name]
        if group.empty:
            continue
        moved, _ = np.histogram(group["seconds"], bins, weights=group["size_bytes"])
        rate = moved / np.diff(bins) / 1e6
        axes.stairs(base + rate, bins, baseline=base, fill=True, color=color, linewidth=0)
        base = base + rate


def hosts_over_time(operations: pd.DataFrame, hosts: Sequence[str], seconds: float) -> str | None:
    """Reads and writes in MB/s, a line for each host; None without calls.

    Takes `file_ops` of several hosts, with `host` and `seconds`.
    """
    if operations.empty:
        return None
    bins = np.arange(0, seconds + 2 * _SHORTEST_BIN_S, max(seconds / _MOST_BINS, _SHORTEST_BIN_S))

    def draw(axes: np.ndarray) -> None:
        for place, kind, verb in zip(axes[:, 0], ("read", "write"), ("read", "written")):
            for host in hosts:
                found = operations[(operations["host"] == host) & (operations["kind"] == kind)]
                moved, _ = np.histogram(found["seconds"], bins, weights=found["size_bytes"])
                place.stairs(moved / np.diff(bins) / 1e6, bins, label=host, linewidth=1.2)
            place.set_ylabel(f"{verb}, MB/s")
            place.set_ylim(bottom=0)
            place.set_xlim(0, bins[-1])
        axes[0, 0].legend(ncols=4, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0)
        axes[1, 0].set_xlabel("seconds since the first trace began, CLOCK_REALTIME")

    return look.svg(draw, 4.2, "Bytes read and written by host", rows=2)


def counters_over_time(trace: Loaded) -> str | None:
    """Reads and writes by the processes' own counters: all that /proc records."""
    totals = trace.counters
    if len(totals) < 3:
        return None  # no line without two intervals
    columns = ["read_call_bytes", "storage_read_bytes", "write_call_bytes", "storage_written_bytes"]
    rates = totals.diff().div(np.diff(totals.index, prepend=np.nan), axis=0).iloc[1:] / 1e6

    def panel(columns: list[str], verb: str, place: Axes, shades: list) -> list:
        calls, storage = columns
        place.plot(rates.index, rates[calls], color=BLUE, label="by calls")
        place.plot(rates.index, rates[storage], color=RED, label="from or to storage")
        place.set_ylabel(f"{verb}, MB/s")
        place.set_ylim(bottom=0)
        return [*place.get_lines(), *(shades if verb == "read" else [])]

    panels = [partial(panel, columns[:2], "read"), partial(panel, columns[2:], "written")]
    return _over_time(trace, "Bytes by the counters of the processes", panels)


def histograms(trace: Loaded) -> str | None:
    """Sizes and latencies of reads and writes by class of file; None without calls."""
    if trace.transfers.empty:
        return None

    def draw(axes) -> None:
        for row, kind in enumerate(["read", "write"]):
            calls = trace.transfers[trace.transfers["kind"] == kind]
            sizes, latencies = axes[row]
            _histogram(sizes, calls, "size_bytes", 2.0 ** np.arange(0, 31))
            _histogram(latencies, calls, "latency_ns", 10 ** np.arange(2.0, 10.6, 0.25))
            sizes.set_ylabel(f"{kind} calls")
            sizes.xaxis.set_major_formatter(FuncFormatter(_bytes_text))
            latencies.xaxis.set_major_formatter(FuncFormatter(_time_text))
        axes[0, 0].set_title("request size", color=INK, fontsize=9)
        axes[0, 1].set_title("latency, as the program saw it", color=INK, fontsize=9)
        axes[0, 1].figure.legend(handles=_classes(trace), ncols=5, loc="outside upper right")

    return look.svg(draw, 5, "Request sizes and latencies", rows=2, columns=2)


def _histogram(axes: Axes, calls: pd.DataFrame, column: str, bins: np.ndarray) -> None:
    axes.set_xscale("log", base=2 if column == "size_bytes" else 10)
    base = np.zeros(len(bins) - 1)
    for name, color in CLASS_COLORS.items():
        values = calls.loc[calls["file_class"] == name, column].dropna()
        counts, _ = np.histogram(values, bins)
        axes.stairs(base + counts, bins, baseline=base, fill=True, color=color, linewidth=0)
        base = base + counts
    used = np.flatnonzero(base)
    low, high = (used[0], used[-1] + 1) if len(used) else (0, len(bins) - 1)
    axes.set_xlim(bins[low], bins[high])
    axes.set_ylim(bottom=0)
    axes.xaxis.set_minor_formatter(NullFormatter())


def _bytes_text(value: float, _=None) -> str:
    units = [(1 << 30, " GiB"), (1 << 20, " MiB"), (1 << 10, " KiB"), (1, " B")]
    return look.in_units(value, units)


def _time_text(value: float, _=None) -> str:
    return look.in_units(value, [(1e9, " s"), (1e6, " ms"), (1e3, " µs"), (1, " ns")])


def _tfrecord_reads(trace: Loaded) -> pd.DataFrame:
    found = trace.transfers
    return found[(found["kind"] == "read") & (found["file_class"] == files.TFRECORDS)]


def num_tfrecord_files(trace: Loaded) -> tuple[int, int]:
    """How many TFRecord files were read, and how many of them are drawn."""
    found = _tfrecord_reads(trace)["final_path"].nunique()
    return found, min(found, _MOST_FILES_DRAWN)


def offsets_over_time(trace: Loaded) -> str | None:
    """Where in each TFRecord file is read when, the files most read first; None without reads."""
    reads = _tfrecord_reads(trace).dropna(subset=["offset_bytes"])
    if reads.empty:
        return None
    by_bytes = reads.groupby("final_path")["size_bytes"].sum().sort_values(ascending=False)
    drawn = sorted(by_bytes.index[:_MOST_FILES_DRAWN])

    def panel(path: str, place: Axes, shades: list) -> list:
        of_file = reads[reads["final_path"] == path]
        place.vlines(
            of_file["seconds"],
            of_file["offset_bytes"] / 1e6,
            (of_file["offset_bytes"] + of_file["size_bytes"]) / 1e6,
            color=CLASS_COLORS[files.TFRECORDS],
            linewidth=1.2,
            rasterized=len(of_file) > 2000,
        )
        place.set_ylim(bottom=0)
        place.set_title(PurePath(path).name, loc="left", fontsize=8, color=INK, pad=2)
        place.set_ylabel("MB")
        place.tick_params(labelbottom=path == drawn[-1])
        return []

    panels = [partial(panel, path) for path in drawn]
    height_inches = 0.6 + 1.05 * len(drawn)
    return _over_time(trace, "Read offsets over time per file", panels, height_inches=height_inches)


def queue_depths(trace: Loaded, access: Access) -> str | None:
    """Calls, and requests to block devices, in flight over time; None without calls."""
    parts = [
        ("calls", (("read_calls", "reading", BLUE), ("write_calls", "writing", ORANGE))),
        ("block I/O", (("block_reads", "reading", BLUE), ("block_writes", "writing", ORANGE))),
    ]
    present = [(label, lines) for label, lines in parts if lines[0][0] in access.in_flight
               or lines[1][0] in access.in_flight]  # fmt: skip
    if not present:
        return None
    bins = _bins(trace)

    def panel(label: str, lines, place: Axes, shades: list) -> list:
        for name, verb, color in lines:
            if name in access.in_flight:
                depths = access.in_flight[name].mean_over(trace.begin_ns + bins * 1e9)
                place.stairs(depths, bins, color=color, label=verb, linewidth=1.2)
        place.set_ylabel(f"{label}, mean")
        place.set_ylim(bottom=0)
        return [*place.patches[-len(lines) :], *(shades if label == "calls" else [])]

    panels = [partial(panel, label, lines) for label, lines in present]
    return _over_time(trace, "Calls in flight over time", panels, height_inches=2.3 * len(panels))


def reuse(access: Access, summary: dict) -> str | None:
    """The share of block reads whose distance is at most that, by class; None without any."""
    found = summary["access"]["reuse"]
    classes = {
        name: figures["share_within_bytes"]
        for name, figures in (found["file_classes"] if found else {}).items()
        if figures["share_within_bytes"] and name in CLASS_COLORS
    }
    if not classes:
        return None

    def draw(axes) -> None:
        place = axes[0, 0]
        for name, shares in classes.items():
            sizes = [int(size) for size in shares]
            place.step(sizes, [100 * share for share in shares.values()], where="post",
                       color=CLASS_COLORS[name], label=name)  # fmt: skip
        place.set_xscale("log", base=2)
        place.xaxis.set_major_formatter(FuncFormatter(_bytes_text))
        place.xaxis.set_minor_formatter(NullFormatter())
        place.set_xlabel("distinct data between two reads of a block")
        place.set_ylabel("of block reads, %")
        place.set_ylim(0, 101)
        place.legend(loc="upper left")

    return look.svg(draw, 2.8, "Reuse distances")


def processors_and_memory(trace: Loaded) -> str | None:
    """Processors of the machine, memory of the target and page cache; None without samples."""
    percentages = np.array(list(trace.cpu_percentages()))
    if not len(percentages):
        return None
    resident = trace.table("processes").groupby("seconds")["resident_bytes"].sum() / 1e9
    memory = trace.table("memory")

    def processors(place: Axes, shades: list) -> list:
        seconds, user, system, iowait = percentages.T
        areas = place.stackplot(
            seconds, user, system, iowait, colors=[BLUE, ORANGE, RED],
            labels=["programs", "kernel", "waiting for I/O"], linewidth=0,
        )  # fmt: skip
        place.set_ylim(0, 100)
        place.set_ylabel("all CPUs, %")
        return [*areas, *shades]

    def bytes_held(place: Axes, shades: list) -> list:
        dirty = memory["dirty_bytes"] + memory["writeback_bytes"]
        place.plot(resident.index, resident, color=BLUE, label="resident, all of the target")
        place.plot(memory["seconds"], memory["page_cache_bytes"] / 1e9, color=GREEN,
                   label="page cache, machine")  # fmt: skip
        place.plot(memory["seconds"], dirty / 1e9, color=RED, label="not yet written back")
        place.set_ylabel("GB")
        place.set_ylim(bottom=0)
        return place.get_lines()

    return _over_time(trace, "Processors and memory over time", [processors, bytes_held])


def gpus(trace: Loaded) -> str | None:
    """Each GPU's busy share and memory; None without GPUs."""
    found = trace.table("gpus")
    if found.empty:
        return None

    def panel(column: str, scale: float, label: str, most: int | None, place, shades) -> list:
        for gpu, rows in found.groupby("gpu"):
            place.plot(rows["seconds"], rows[column] / scale, label=f"GPU {gpu}")
        place.set_ylim(0, most)
        place.set_ylabel(label)
        return place.get_lines() if column == "busy_percent" else []

    busy = partial(panel, "busy_percent", 1, "busy, %", 100)
    memory = partial(panel, "memory_used_bytes", 1e9, "memory used, GB", None)
    return _over_time(trace, "GPUs over time", [busy, memory], height_inches=4.2)


def block_io(trace: Loaded) -> str | None:
    """Block I/O of the machine: MB/s, and latency from issue to completion; None without any."""
    found = trace.table("block_io")
    if found.empty:
        return None
    bins = _bins(trace)

    def draw(axes) -> None:
        rates, latencies = axes[0]
        _shade_phases(rates, trace)
        used = 10.0 ** np.arange(
            np.floor(np.log10(found["latency_ns"].clip(lower=1000).min())),
            np.ceil(np.log10(found["latency_ns"].max())) + 0.2,
            0.2,
        )
        for letter, name, color in (("R", "read", BLUE), ("W", "written", ORANGE)):
            group = found[found["operation"].str.contains(letter)]
            moved, _ = np.histogram(group["seconds"], bins, weights=group["size_bytes"])
            rates.stairs(moved / np.diff(bins) / 1e6, bins, color=color, label=name)
            latencies.hist(group["latency_ns"], used, color=color,
                           alpha=0.7, label=name)  # fmt: skip
        rates.set_ylabel("block devices, MB/s")
        rates.set_ylim(bottom=0)
        rates.legend()
        _finish_time_axis(rates, trace)
        latencies.set_xscale("log")
        latencies.xaxis.set_major_formatter(FuncFormatter(_time_text))
        latencies.set_xlabel("from issue to completion")
        latencies.set_ylabel("requests")

    return look.svg(draw, 3, "Block I/O", columns=2)


def processes_over_time(trace: Loaded) -> str | None:
    """When the processes that worked most lived; None if none was sampled."""
    samples = trace.table("processes")
    if samples.empty:
        return None
    by_pid = samples.groupby("pid")
    found = by_pid.agg(first=("seconds", "min"), last=("seconds", "max"), user=("user_ms", "max"),
                       system=("system_ms", "max"))  # fmt: skip
    found["cpu_s"] = (found["user"] + found["system"]) / 1000
    found = found.sort_values("cpu_s", ascending=False).head(_MOST_PROCESSES_DRAWN)
    found = found.sort_values("first", ascending=False)
    names = trace.process_names()

    def panel(place: Axes, shades: list) -> list:
        for row, process in enumerate(found.itertuples()):
            width = max(process.last - process.first, trace.seconds / 300)
            place.barh(row, width, left=process.first, height=0.34, color=BLUE)
            text = f"{_short(names.get(process.Index, '?'))}   {process.cpu_s:.1f} s CPU"
            is_late = process.first > trace.seconds / 2
            place.text(process.first + (width if is_late else 0), row + 0.19, text, fontsize=7,
                       va="bottom", ha="right" if is_late else "left")  # fmt: skip
        place.set_yticks([])
        place.set_ylim(-0.6, len(found))
        return []

    height_inches = 0.9 + 0.31 * len(found)
    return _over_time(trace, "Processes over time", [panel], height_inches=height_inches)


def _short(command: str) -> str:
    words = [PurePath(word).name if "/" in word else word for word in command.split()[:5]]
    text = " ".join(words)
    # matplotlib reads a pair of dollar signs as mathematics.
    return (text[:60] + "…" if len(text) > 60 else text).replace("$", r"\$")
