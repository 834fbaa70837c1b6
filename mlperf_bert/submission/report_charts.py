"""The pictures of a report: SVG text, which is read on a screen and on a telephone."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

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
_SIZE_INCHES = (4.3, 3.5)
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
_Spans = Mapping[str, list[list[tuple[float, float]]]]
"""Kind -> for each run, start and length of every span."""


def accuracy_over_samples(runs: Sequence[RunResult], rcp: RcpVerdict | None = None) -> str | None:
    """Draw accuracy over samples with the target; None if the logs count no samples.

    Args:
      runs: of a system.
      rcp: draws how many samples the reference needs.
    """
    if not any(evaluation.samples is not None for run in runs for evaluation in run.evaluations):
        return None
    return _accuracy(runs, lambda each: each.samples, "samples", rcp)


def accuracy_over_time(runs: Sequence[RunResult]) -> str:
    """Draw accuracy over minutes since run_start with the target."""
    return _accuracy(runs, lambda each: each.minutes, "minutes since run_start")


def _accuracy(
    runs: Sequence[RunResult],
    over: Callable[[LoggedEvaluation], float | None],
    xlabel: str,
    rcp: RcpVerdict | None = None,
) -> str:
    def draw(axes: Axes) -> list[Any]:
        for run in runs:
            color = _OUTCOME_COLORS[_outcome(run)]
            points = [(x, e.accuracy) for e in run.evaluations if (x := over(e)) is not None]
            if points:
                axes.plot(*zip(*points), color=color, linewidth=1.3, alpha=0.6)
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
        handles: list[Any] = [*_handles_of_outcomes(runs), Line2D([], [], label=label, **target)]
        if rcp and rcp.mean_samples and rcp.min_mean_samples:
            axes.axvspan(rcp.min_mean_samples, rcp.mean_samples, color=BAND, zorder=0)
            axes.axvline(rcp.mean_samples, color=GREEN, linewidth=1)
            handles.append(Patch(color=BAND, label="RCP: from least credible mean to mean"))
        return handles

    return _svg(draw)


def _outcome(run: RunResult) -> str:
    unended = "not ended" if run.status == "running" else "no success"
    return "success" if run.succeeded else unended


def _handles_of_outcomes(runs: Sequence[RunResult]) -> list[Line2D]:
    counts = Counter(map(_outcome, runs))
    words = {outcome: "1 run" if n == 1 else f"{n} runs" for outcome, n in counts.items()}
    return [
        Line2D([], [], color=color, marker="o", markersize=4, label=f"{words[outcome]}: {outcome}")
        for outcome, color in _OUTCOME_COLORS.items()
        if outcome in words
    ]


def minutes_by_run(runs: Sequence[RunResult], olympic_minutes: float | None) -> str | None:
    """Draw each run's minutes with the olympic mean; None if no run reached the target."""
    values = [run.minutes if run.succeeded else None for run in runs]
    return _by_run(runs, values, [(olympic_minutes, INK, "olympic mean {:.4g}")], "minutes")


def samples_by_run(runs: Sequence[RunResult], rcp: RcpVerdict) -> str | None:
    """Draw each run's samples to converge with the RCP; None if no run reached the target."""
    values = [run.samples_to_converge for run in runs]
    levels = [
        (rcp.mean_samples, GREEN, "RCP mean {:,.0f}"),
        (rcp.min_mean_samples, RED, "least credible mean {:,.0f}"),
        (rcp.submission_mean_samples, INK, "olympic mean {:,.0f}"),
    ]
    band = (rcp.min_mean_samples, rcp.mean_samples)
    return _by_run(runs, values, levels, "samples to converge", band)


def _by_run(
    runs: Sequence[RunResult],
    values: Sequence[float | None],
    levels: Sequence[tuple[float | None, str, str]],
    ylabel: str,
    band: tuple[float | None, float | None] = (None, None),
) -> str | None:
    """Draw a value of each run; `levels` are lines with colour and label, `band` is between two.

    A dot is hollow where the olympic mean leaves the run out, and an x where it failed.
    """
    if not any(run.succeeded for run in runs):
        return None
    known = {place: value for place, value in enumerate(values) if value is not None}
    # As the olympic mean counts: a failed run is the slowest one that it leaves out.
    ordered = sorted(known, key=lambda place: known[place])
    left_out = ordered[:1] if len(known) < len(values) else [ordered[0], ordered[-1]]

    def draw(axes: Axes) -> list[Any]:
        bottom = axes.get_xaxis_transform()
        for place in range(len(values)):
            if place in known:
                face = "white" if place in left_out else BLUE
                style: Any = {"markersize": 7, "markerfacecolor": face, "markeredgecolor": BLUE}
                axes.plot(place, known[place], "o", **style)
            else:
                axes.text(place, 0.02, "x", color=RED, ha="center", transform=bottom)
        low, high = band
        if low is not None and high is not None:
            axes.axhspan(low, high, color=BAND, zorder=0)
        for level, color, label in levels:
            if level is not None:
                axes.axhline(level, color=color, linewidth=1.2, label=label.format(level))
        axes.set_xticks(range(len(runs)), [_number(run) for run in runs])
        axes.set_xlim(-0.6, len(runs) - 0.4)
        axes.margins(y=0.25)
        axes.grid(axis="x", visible=False)
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.yaxis.set_major_formatter(FuncFormatter(_short))
        axes.set_xlabel("run (hollow: left out of the olympic mean)")
        axes.set_ylabel(ylabel)
        return axes.get_legend_handles_labels()[0]

    return _svg(draw)


def timeline(runs: Sequence[RunResult]) -> str:
    """Draw init, training, evaluations and checkpoints of every run, a row each."""
    spans: _Spans = {kind: [[] for _ in runs] for kind in _PHASE_COLORS}
    for row, run in enumerate(runs):
        for phase in run.phases:
            if phase.kind in spans:
                length = phase.stop_minutes - phase.start_minutes
                spans[phase.kind][row].append((phase.start_minutes, length))

    def draw(axes: Axes) -> list[Any]:
        handles = _draw_rows(axes, runs, spans, _PHASE_COLORS, "minutes since run_start")
        for row, run in enumerate(runs):
            color = GREEN if run.succeeded else RED
            axes.plot([run.minutes] * 2, [row - 0.45, row + 0.45], color=color)
        axes.axvline(0, color=INK, linewidth=1)  # run_start: init lies before it
        return [*handles, Line2D([], [], color=GREEN, label="run_stop")]

    return _svg(draw)


def ledgers(runs: Sequence[RunResult]) -> str | None:
    """Draw where every second of every run went, in percent; None if no log keeps a ledger."""
    spans: _Spans = {kind: [[] for _ in runs] for kind in _KIND_COLORS}
    for row, run in enumerate(runs):
        seconds, end = run.seconds or {}, 0.0
        total = sum(seconds.values())
        for kind, of_runs in spans.items():
            if seconds.get(kind):
                of_runs[row].append((end, 100 * seconds[kind] / total))
                end += of_runs[row][0][1]
    if not any(map(any, spans.values())):
        return None

    def draw(axes: Axes) -> list[Any]:
        axes.set_xlim(0, 100)
        label = "percent of the time from run_start to run_stop"
        return _draw_rows(axes, runs, spans, _KIND_COLORS, label)

    return _svg(draw)


def _draw_rows(
    axes: Axes, runs: Sequence[RunResult], spans: _Spans, colors: Mapping[str, str], xlabel: str
) -> list[Any]:
    """Draw spans in a row for each run, the first one at the top; return handles of their kinds."""
    kinds = [kind for kind, of_runs in spans.items() if any(of_runs)]
    for kind in kinds:
        for row, of_run in enumerate(spans[kind]):
            axes.broken_barh(of_run, (row - 0.36, 0.72), color=colors[kind], linewidth=0)
    axes.set_yticks(range(len(runs)), [_number(run) for run in runs])
    axes.set_ylim(len(runs) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(xlabel)
    axes.set_ylabel("run")
    return [Patch(color=colors[kind], label=kind.replace("_", " ")) for kind in kinds]


def _number(run: RunResult) -> str:
    return run.path.stem.removeprefix("result_")


def _short(value: float, position: object = None) -> str:
    return charts.in_units(value, [(1e6, "M"), (1e3, "k"), (1, "")], ".4g")


def _svg(draw: Callable[[Axes], list[Any]]) -> str:
    """Draw a picture with the handles that `draw` returns in a legend above."""

    def complete(axes: Any) -> None:
        figure = axes[0, 0].figure
        figure.legend(handles=draw(axes[0, 0]), loc="outside upper left", handlelength=1.6)

    return charts.svg(complete, _SIZE_INCHES, salt="report", transparent=True)
