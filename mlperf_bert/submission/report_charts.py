"""The pictures of a report.

A wide picture comes twice, drawn for a screen and for a telephone; the page shows what fits.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from mlperf_bert.mlperf import ledger
from mlperf_bert.mlperf.logs import LoggedEvaluation, RunResult
from mlperf_bert.mlperf.rules import TARGET_MASKED_LM_ACCURACY
from mlperf_bert.submission.official import RcpVerdict
from pages import charts
from pages.charts import BLUE, GREEN, GREY, INK, ORANGE, RED

BAND = "#dff0e6"
_WIDE_INCHES, _NARROW_INCHES = (9.6, 3.7), (4.3, 3.5)
_KIND_COLORS = {
    ledger.COMPUTE: BLUE,
    ledger.EVALUATION_COMPUTE: "#7fb0e0",
    ledger.INPUT_WAIT: RED,
    ledger.EVALUATION_INPUT_WAIT: "#e39a94",
    ledger.SAVING: GREEN,
    ledger.HOST: GREY,
}
_OUTCOME_COLORS = {"success": BLUE, "not ended": ORANGE, "no success": RED}
_PHASE_COLORS = {"init": GREY, "train": BLUE, "evaluation": ORANGE, "checkpoint": GREEN}


class Picture(NamedTuple):
    """SVG for a screen, and for a telephone where that needs a drawing of its own."""

    title: str
    wide: str
    narrow: str | None = None


def accuracy_over_samples(
    runs: Sequence[RunResult], rcp: RcpVerdict | None = None
) -> Picture | None:
    """Draw accuracy over samples with the target; None if the logs count no samples.

    Args:
      runs: of a system.
      rcp: draws how many samples the reference needs.
    """
    if not any(evaluation.samples is not None for run in runs for evaluation in run.evaluations):
        return None

    title = "Masked-LM accuracy over training samples"
    return _accuracy(runs, lambda each: each.samples, title, "samples", rcp)


def accuracy_over_time(runs: Sequence[RunResult]) -> Picture:
    """Draw accuracy over minutes since run_start with the target."""
    title, label = "Masked-LM accuracy over time", "minutes since run_start"
    return _accuracy(runs, lambda each: each.minutes, title, label)


def _accuracy(
    runs: Sequence[RunResult],
    over: Callable[[LoggedEvaluation], float | None],
    title: str,
    xlabel: str,
    rcp: RcpVerdict | None = None,
) -> Picture:
    def draw(axes: Axes) -> None:
        for color, run in _colored(runs):
            points = [(x, e.accuracy) for e in run.evaluations if (x := over(e)) is not None]
            if points:
                axes.plot(*zip(*points), color=color, linewidth=1.3, alpha=0.85)
                axes.plot(*points[-1], "o", color=color, markersize=4)
        target: Any = {"color": RED, "linestyle": (0, (4, 3)), "linewidth": 1.2}
        axes.axhline(TARGET_MASKED_LM_ACCURACY, **target)
        # A run that has diverged has NaN, which would leave the axis without ends.
        shown = [e.accuracy for run in runs for e in run.evaluations if math.isfinite(e.accuracy)]
        low, high = (end([*shown, TARGET_MASKED_LM_ACCURACY]) for end in (min, max))
        axes.set_ylim(low - 0.05 * (high - low) - 0.005, high + 0.08 * (high - low) + 0.005)
        axes.xaxis.set_major_formatter(FuncFormatter(_short))
        axes.set_xlabel(xlabel)
        axes.set_ylabel("masked-LM accuracy")
        label = f"target {TARGET_MASKED_LM_ACCURACY:.3f}"
        handles: list[Any] = [*_runs_handles(runs), Line2D([], [], label=label, **target)]
        if rcp and rcp.mean_samples and rcp.min_mean_samples:
            axes.axvspan(rcp.min_mean_samples, rcp.mean_samples, color=BAND, zorder=0)
            axes.axvline(rcp.mean_samples, color=GREEN, linewidth=1)
            handles.append(Patch(color=BAND, label="RCP: from least credible mean to mean"))
        _legend_above(axes, handles)

    return _both_sizes(draw, title)


def minutes_by_run(runs: Sequence[RunResult], olympic_minutes: float | None) -> Picture | None:
    """Draw each run's minutes with the olympic mean; None if no run reached the target."""
    values = [run.minutes if run.succeeded else None for run in runs]
    levels = [(olympic_minutes, INK, "olympic mean {:.4g}")]
    return _by_run(runs, values, levels, "Time to train of every run", "minutes")


def samples_by_run(runs: Sequence[RunResult], rcp: RcpVerdict) -> Picture | None:
    """Draw each run's samples to converge with the RCP; None if no run reached the target."""
    values = [run.samples_to_converge for run in runs]
    levels = [
        (rcp.mean_samples, GREEN, "RCP mean {:,.0f}"),
        (rcp.min_mean_samples, RED, "least credible mean {:,.0f}"),
        (rcp.submission_mean_samples, INK, "olympic mean {:,.0f}"),
    ]
    title, label = "Samples to converge of every run", "samples to converge"
    return _by_run(
        runs, values, levels, title, label, band=(rcp.min_mean_samples, rcp.mean_samples)
    )


def _by_run(
    runs: Sequence[RunResult],
    values: Sequence[float | None],
    levels: Sequence[tuple[float | None, str, str]],
    title: str,
    ylabel: str,
    *,
    band: tuple[float | None, float | None] = (None, None),
) -> Picture | None:
    """Draw a value of each run; `levels` are lines with colour and label, `band` is between two."""
    if not any(run.succeeded for run in runs):
        return None

    def draw(axes: Axes) -> None:
        _draw_dots(axes, runs, values)
        low, high = band
        if low is not None and high is not None:
            axes.axhspan(low, high, color=BAND, zorder=0)
        for level, color, label in levels:
            if level is not None:
                axes.axhline(level, color=color, linewidth=1.2, label=label.format(level))
        axes.yaxis.set_major_formatter(FuncFormatter(_short))
        axes.set_ylabel(ylabel)
        _legend_above(axes, axes.get_legend_handles_labels()[0])

    return Picture(title, _svg(draw, _NARROW_INCHES))


def timeline(runs: Sequence[RunResult]) -> Picture:
    """Draw init, training, evaluations and checkpoints of every run, a row each."""
    kinds = [k for k in _PHASE_COLORS if any(p.kind == k for run in runs for p in run.phases)]

    def draw(axes: Axes) -> None:
        for row, run in enumerate(runs):
            for kind in kinds:
                spans = [
                    (phase.start_minutes, phase.stop_minutes - phase.start_minutes)
                    for phase in run.phases
                    if phase.kind == kind
                ]
                axes.broken_barh(spans, (row - 0.36, 0.72), color=_PHASE_COLORS[kind], linewidth=0)
            end_color = GREEN if run.succeeded else RED
            axes.plot([run.minutes] * 2, [row - 0.45, row + 0.45], color=end_color)
        axes.axvline(0, color=INK, linewidth=1)  # run_start: init lies before it
        _finish_rows(axes, runs, "minutes since run_start")
        handles: list = [Patch(color=_PHASE_COLORS[kind], label=kind) for kind in kinds]
        handles.append(Line2D([], [], color=GREEN, label="run_stop"))
        _legend_above(axes, handles)

    return _both_sizes(draw, "Phases of every run")


def ledgers(runs: Sequence[RunResult]) -> Picture | None:
    """Draw where every second of every run went, in percent; None if no log keeps a ledger."""
    seconds = [run.seconds or {} for run in runs]
    totals = [sum(spent_of_run.values()) or 1.0 for spent_of_run in seconds]
    shares = [
        {kind: 100 * spent / total for kind, spent in spent_of_run.items()}
        for spent_of_run, total in zip(seconds, totals)
    ]
    colors = {
        kind: color
        for kind, color in _KIND_COLORS.items()
        if any(spent_of_run.get(kind) for spent_of_run in seconds)
    }
    if not colors:
        return None

    def draw(axes: Axes) -> None:
        ends = np.zeros(len(runs))
        for kind, color in colors.items():
            parts = np.array([spent_of_run.get(kind, 0.0) for spent_of_run in shares])
            axes.barh(range(len(runs)), parts, left=ends, height=0.72, color=color)
            ends += parts
        axes.set_xlim(0, 100)
        _finish_rows(axes, runs, "percent of the time from run_start to run_stop")
        words = {kind: kind.replace("_", " ") for kind in colors}
        _legend_above(axes, [Patch(color=colors[kind], label=words[kind]) for kind in colors])

    return _both_sizes(draw, "Where every second of every run went")


def _finish_rows(axes: Axes, runs: Sequence[RunResult], xlabel: str) -> None:
    """A row for each run, the first one at the top."""
    axes.set_yticks(range(len(runs)), [_number(run) for run in runs])
    axes.set_ylim(len(runs) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(xlabel)
    axes.set_ylabel("run")


def _runs_handles(runs: Sequence[RunResult]) -> list[Line2D]:
    counts = Counter(map(_outcome, runs))
    return [
        Line2D([], [], color=color, marker="o", markersize=4, label=f"{_runs(counts[o])}: {o}")
        for o, color in _OUTCOME_COLORS.items()
        if counts[o]
    ]


def _outcome(run: RunResult) -> str:
    unended = "not ended" if run.status == "running" else "no success"
    return "success" if run.succeeded else unended


def _draw_dots(axes: Axes, runs: Sequence[RunResult], values: Sequence[float | None]) -> None:
    """Draw a dot for each run, hollow where the olympic mean leaves it out, x where it failed."""
    known = {place: value for place, value in enumerate(values) if value is not None}
    # As the olympic mean counts: a failed run is the slowest one that it leaves out.
    ordered = sorted(known, key=lambda place: known[place])
    left_out = ordered[:1] if len(known) < len(values) else [ordered[0], ordered[-1]]
    for place, value in enumerate(values):
        if value is None:  # it counts as the slowest
            axes.text(
                place, 0.02, "x", color=RED, ha="center", transform=axes.get_xaxis_transform()
            )
            continue
        face = "white" if place in left_out else BLUE
        axes.plot(place, value, "o", markersize=7, markerfacecolor=face, markeredgecolor=BLUE)
    axes.set_xticks(range(len(runs)), [_number(run) for run in runs])
    axes.set_xlim(-0.6, len(runs) - 0.4)
    axes.margins(y=0.25)
    axes.grid(axis="x", visible=False)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlabel("run (hollow: left out of the olympic mean)")


def _legend_above(axes: Axes, handles: list) -> None:
    figure = axes.figure.get_figure(root=True)
    columns = len(handles) if figure.get_figwidth() > _NARROW_INCHES[0] else 1
    figure.legend(handles=handles, loc="outside upper left", ncols=columns, handlelength=1.6)


def _colored(runs: Sequence[RunResult]) -> list[tuple[str, RunResult]]:
    """Give every run a shade of blue; orange if it has not ended, red if it did not succeed."""
    shades = matplotlib.colormaps["Blues"](0.45 + 0.5 * np.linspace(0, 1, len(runs)))
    hex_of = matplotlib.colors.to_hex
    return [
        (hex_of(shade) if run.succeeded else _OUTCOME_COLORS[_outcome(run)], run)
        for shade, run in zip(shades, runs, strict=True)
    ]


def _number(run: RunResult) -> str:
    return run.path.stem.removeprefix("result_")


def _runs(number: int) -> str:
    return "1 run" if number == 1 else f"{number} runs"


def _short(value: float, position: object = None) -> str:
    return charts.in_units(value, [(1e6, "M"), (1e3, "k"), (1, "")], ".4g")


def _both_sizes(draw: Callable[[Axes], None], title: str) -> Picture:
    return Picture(title, _svg(draw, _WIDE_INCHES), _svg(draw, _NARROW_INCHES))


def _svg(draw: Callable[[Axes], None], size_inches: tuple[float, float]) -> str:
    return charts.svg(lambda axes: draw(axes[0, 0]), size_inches, salt="report", transparent=True)
