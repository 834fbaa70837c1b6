"""The pictures of a trace, as SVG text that can stand in a page."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import PurePath

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, NullFormatter

from tracing import files, look
from tracing.loaded import Trace
from tracing.look import BLUE, GREEN, INK, ORANGE, RED

CLASS_COLORS = {
    files.TFRECORDS: BLUE,
    files.CHECKPOINTS: GREEN,
    files.LOGS: ORANGE,
    files.LIBRARIES: "#8a63b8",
    files.OTHER: "#8b98a5",
}
PHASE_COLORS = {"init": "#e6eaef", "block": "#dbe8f7", "eval": "#fbe6cf", "checkpoint": "#cfead9"}
_MOST_BINS = 300
_SHORTEST_BIN_S = 0.05
_MOST_FILES_DRAWN = 8
Panel = Callable[[Axes], None]
"""Draws on axes whose phases are shaded; everything with a label is in their legend."""


def _over_time(
    trace: Trace, alt: str, panels: Sequence[Panel], *, height_inches: float = 4.6
) -> str:
    """Draws panels above each other over the trace's seconds, with its phases shaded."""

    def draw(axes: np.ndarray) -> None:
        for own_axes, panel in zip(axes[:, 0], panels):
            panel(own_axes)
            handles, _ = own_axes.get_legend_handles_labels()
            for name, color in PHASE_COLORS.items():
                of_name = trace.spans[trace.spans["name"] == name]
                for span in of_name.itertuples():
                    # Above the background, below the grid; a checkpoint is over its block.
                    own_axes.axvspan(span.seconds, span.end_seconds, color=color, lw=0, zorder=0)
                if len(of_name) and panel is panels[-1]:
                    handles.append(Patch(color=color, label=name))
            if handles:  # one row above the right end, where the legend hides nothing
                own_axes.legend(handles=handles, ncols=8, loc="lower right", bbox_to_anchor=(1, 1),
                             borderaxespad=0)  # fmt: skip
            own_axes.set_xlim(0, max(trace.seconds, 0.1))
        axes[-1, 0].set_xlabel("seconds since the trace began")

    return look.svg(draw, height_inches, alt, rows=len(panels))


def _draw_curves(label: str, curves: Mapping[str, tuple], axes: Axes, *, most: int | None = None):
    """Draws label -> (x, y, color) as lines; x may be edges, one more than y has numbers."""
    for name, (x, y, color) in curves.items():
        if len(x) > len(y):
            axes.stairs(y, x, color=color, label=name, linewidth=1.2)
        else:
            axes.plot(x, y, color=color, label=name)
    axes.set_ylabel(label)
    axes.set_ylim(0, most)


def _bins_of(seconds: float) -> np.ndarray:
    """Edges that divide a trace's time."""
    width = max(seconds / _MOST_BINS, _SHORTEST_BIN_S)
    return np.arange(0, seconds + width, width)


def _rate(rows: pd.DataFrame, bins: np.ndarray) -> np.ndarray:
    """MB/s of the rows that begin between each two edges."""
    moved, _ = np.histogram(rows["seconds"], bins, weights=rows["size_bytes"])
    return moved / np.diff(bins) / 1e6


def _by_class(axes: Axes, calls: pd.DataFrame, column: str, bins: np.ndarray, weights=None):
    """A histogram, the classes of files on top of each other."""
    groups = {name: group for name, group in calls.groupby("file_class") if name in CLASS_COLORS}
    # Always in this order, so that a class has the same place on the page of every trace.
    names = [name for name in CLASS_COLORS if name in groups]
    if names:
        axes.hist(
            [groups[name][column] for name in names], bins.tolist(), stacked=True, linewidth=0,
            weights=[groups[name][weights] for name in names] if weights else None,
            histtype="stepfilled", color=[CLASS_COLORS[name] for name in names], label=names,
        )  # fmt: skip
    axes.set_ylim(bottom=0)


def transfers_over_time(trace: Trace) -> str | None:
    """Reads and writes in MB/s by class of file, and the part that storage served.

    Without calls the processes' counters give all of it; None without them too.
    """
    counters = trace.storage_counters if trace.has_calls else trace.counters
    # A line needs two intervals.
    counters = counters if len(counters) > 2 else counters[:0]
    if not trace.has_calls and counters.empty:
        return None
    rates = counters.diff().div(np.diff(counters.index, prepend=np.nan), axis=0).iloc[1:] / 1e6
    bins = _bins_of(trace.seconds)

    def panel(kind: str, verb: str, of_calls: str, of_storage: str, axes: Axes) -> None:
        curves = {"storage": (rates.index, rates[of_storage], RED)}
        if trace.has_calls:
            calls = trace.transfers[trace.transfers["kind"] == kind]
            calls = calls.assign(rate=calls["size_bytes"] / 1e6 / (bins[1] - bins[0]))
            _by_class(axes, calls, "seconds", bins, "rate")
        else:
            curves["calls"] = (rates.index, rates[of_calls], BLUE)
        _draw_curves(f"{verb}, MB/s", curves if len(rates) else {}, axes)

    panels = [
        partial(panel, "read", "read", "read_call_bytes", "storage_read_bytes"),
        partial(panel, "write", "written", "write_call_bytes", "storage_written_bytes"),
    ]
    return _over_time(trace, "Bytes read and written over time", panels)


def histograms(trace: Trace) -> str | None:
    """Sizes and latencies of reads and writes by class of file; None without calls."""
    if trace.transfers.empty:
        return None

    def draw(axes) -> None:
        for (sizes, latencies), kind in zip(axes, ("read", "write")):
            calls = trace.transfers[trace.transfers["kind"] == kind]
            _by_class(sizes, calls, "size_bytes", 2.0 ** np.arange(0, 31))
            calls = calls.assign(latency_s=calls["latency_ns"] / 1e9)
            _by_class(latencies, calls, "latency_s", 10 ** np.arange(-7, 1.6, 0.25))
            sizes.set_ylabel(f"{kind} calls")
            _set_log_axis(sizes, "B")
            _set_log_axis(latencies, "s")
        axes[0, 0].set_title("request size", color=INK, fontsize=9)
        axes[0, 1].set_title("latency, as the program saw it", color=INK, fontsize=9)
        drawn = dict(zip(*reversed(axes[1, 0].get_legend_handles_labels())))
        drawn |= dict(zip(*reversed(axes[0, 0].get_legend_handles_labels())))
        axes[0, 1].figure.legend(drawn.values(), drawn, ncols=5, loc="outside upper right")

    return look.svg(draw, 5, "Request sizes and latencies", rows=2, columns=2)


def _set_log_axis(axes: Axes, unit: str) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(EngFormatter(unit))
    axes.xaxis.set_minor_formatter(NullFormatter())


def offsets_over_time(trace: Trace) -> str | None:
    """Offsets of reads over time in the TFRecord files most read; None without reads."""
    reads = trace.transfers.dropna(subset=["offset_bytes"])
    reads = reads[(reads["kind"] == "read") & (reads["file_class"] == files.TFRECORDS)]
    if reads.empty:
        return None
    by_bytes = reads.groupby("final_path")["size_bytes"].sum()
    drawn = sorted(by_bytes.nlargest(_MOST_FILES_DRAWN).index)

    def panel(path: str, axes: Axes) -> None:
        of_file = reads[reads["final_path"] == path]
        begins = of_file["offset_bytes"] / 1e6
        axes.vlines(
            of_file["seconds"], begins, begins + of_file["size_bytes"] / 1e6, linewidth=1.2,
            color=CLASS_COLORS[files.TFRECORDS], rasterized=len(of_file) > 2000,
        )  # fmt: skip
        axes.set_ylim(bottom=0)
        axes.set_title(PurePath(path).name, loc="left", fontsize=8, color=INK, pad=2)
        axes.set_ylabel("MB")
        axes.tick_params(labelbottom=path == drawn[-1])

    panels = [partial(panel, path) for path in drawn]
    height_inches = 0.6 + 1.05 * len(drawn)
    return _over_time(trace, "Read offsets over time per file", panels, height_inches=height_inches)


def machine(trace: Trace) -> str | None:
    """Processors of the machine, memory of the target and page cache, and GPUs, if there are any.

    None without samples.
    """
    percentages, gpus = trace.cpu_percentages(), trace.table("gpus")
    if not len(percentages):
        return None
    resident = trace.table("processes").groupby("seconds")["resident_bytes"].sum() / 1e9
    memory = trace.table("memory")
    dirty = memory["dirty_bytes"] + memory["writeback_bytes"]

    def processors(axes: Axes) -> None:
        axes.stackplot(percentages.index, percentages.T, colors=[BLUE, ORANGE, RED], linewidth=0,
                        labels=["programs", "kernel", "waiting for I/O"])  # fmt: skip
        axes.set_ylim(0, 100)
        axes.set_ylabel("all CPUs, %")

    def of_gpus(column: str, unit: float) -> dict[str, tuple]:
        by_gpu = gpus.groupby("gpu")
        return {f"GPU {gpu}": (rows["seconds"], rows[column] / unit, None) for gpu, rows in by_gpu}

    curves = {
        "resident, all of the target": (resident.index, resident, BLUE),
        "page cache, machine": (memory["seconds"], memory["page_cache_bytes"] / 1e9, GREEN),
        "not yet written back": (memory["seconds"], dirty / 1e9, RED),
    }
    panels: list[Panel] = [processors, partial(_draw_curves, "GB", curves)]
    if len(gpus):
        panels.append(partial(_draw_curves, "busy, %", of_gpus("busy_percent", 1), most=100))
        panels.append(partial(_draw_curves, "of GPUs, GB", of_gpus("memory_used_bytes", 1e9)))
    title = "Processors, memory and GPUs over time"
    return _over_time(trace, title, panels, height_inches=2.3 * len(panels))


def block_io(trace: Trace) -> str | None:
    """Block I/O of the machine in MB/s, and its mean latency; None without any."""
    requests = trace.table("block_io")
    if requests.empty:
        return None
    bins = _bins_of(trace.seconds)
    rates, latencies = {}, {}
    for letter, name, color in (("R", "read", BLUE), ("W", "written", ORANGE)):
        group = requests[requests["operation"].str.contains(letter)]
        rates[name] = (bins, _rate(group, bins), color)
        means = group.groupby(np.digitize(group["seconds"], bins))["latency_ns"].mean() / 1e6
        # The numbers of bins count from 1.
        latencies[name] = (bins[means.index - 1], means, color)
    panels = [
        partial(_draw_curves, "block devices, MB/s", rates),
        partial(_draw_curves, "issue to completion, ms", latencies),
    ]
    return _over_time(trace, "Block I/O", panels)
