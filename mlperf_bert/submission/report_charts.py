"""The pictures of a report: SVG text, which is read on a screen and on a telephone."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, MaxNLocator

import pages
from mlperf_bert.mlperf import ledger
from mlperf_bert.mlperf.log_reader import RunResult
from mlperf_bert.mlperf.rules import TARGET_MASKED_LM_ACCURACY
from mlperf_bert.submission.official import RcpVerdict
from pages import BLUE, GREEN, GREY, INK, RED

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
_OUTCOME_COLORS = {"success": BLUE, "no success": RED}


def accuracy_over_samples(runs: Sequence[RunResult], rcp: RcpVerdict) -> str | None:
    """Draws accuracy over samples with the target; None if the logs count no samples.

    Args:
      runs: of a system.
      rcp: how many samples the reference needs.
    """
    if not any(evaluation.samples is not None for run in runs for evaluation in run.evaluations):
        return None

    def draw(axes: Axes) -> None:
        for run in runs:
            points = [(e.samples, e.accuracy) for e in run.evaluations if e.samples is not None]
            if points:
                color = _OUTCOME_COLORS[_outcome(run)]
                axes.plot(*zip(*points), color=color, linewidth=1.3, alpha=0.6)
                axes.plot(*points[-1], "o", color=color, markersize=4)
        for outcome, number in Counter(map(_outcome, runs)).items():
            label = f"{number} {'run' if number == 1 else 'runs'}: {outcome}"
            axes.plot([], [], "o-", color=_OUTCOME_COLORS[outcome], markersize=4, label=label)
        target = TARGET_MASKED_LM_ACCURACY
        dashes = (0, (4, 3))
        axes.axhline(
            target, color=RED, linestyle=dashes, linewidth=1.2, label=f"target {target:.3f}"
        )
        # A diverged run has NaN, with which the axis would have no ends.
        shown = [e.accuracy for run in runs for e in run.evaluations if math.isfinite(e.accuracy)]
        low, high = (end([*shown, target]) for end in (min, max))
        axes.set_ylim(low - 0.05 * (high - low) - 0.005, high + 0.08 * (high - low) + 0.005)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set_xlabel("samples")
        axes.set_ylabel("masked-LM accuracy")
        if {run.global_batch_size for run in runs} != {rcp.batch_size}:
            if rcp.batch_size:
                other = f"no RCP at this batch (judged by that of {rcp.batch_size:,.0f})"
                axes.plot([], [], linestyle="", label=other)
        elif rcp.mean_samples and rcp.min_mean_samples:
            label = "RCP: from least credible mean to mean"
            axes.axvspan(rcp.min_mean_samples, rcp.mean_samples, color=BAND, zorder=0, label=label)
            axes.axvline(rcp.mean_samples, color=GREEN, linewidth=1)

    return pages.svg(draw, _SIZE_INCHES)


def _outcome(run: RunResult) -> str:
    return "success" if run.succeeded else "no success"


def minutes_by_run(runs: Sequence[RunResult], olympic_minutes: float | None) -> str | None:
    """Draws each run's minutes with the olympic mean; None if no run reached the target.

    A dot is hollow where the olympic mean leaves the run out, and an x where it failed.
    """
    known = {number: run.minutes for number, run in enumerate(runs) if run.succeeded}
    if not known:
        return None
    # A failed run is the slowest, which the olympic mean leaves out.
    ordered = sorted(known, key=lambda number: known[number])
    left_out = ordered[:1] if len(known) < len(runs) else [ordered[0], ordered[-1]]

    def draw(axes: Axes) -> None:
        bottom = axes.get_xaxis_transform()
        for number in range(len(runs)):
            if number in known:
                face = "white" if number in left_out else BLUE
                style: Any = {"markersize": 7, "markerfacecolor": face, "markeredgecolor": BLUE}
                axes.plot(number, known[number], "o", **style)
            else:
                axes.text(number, 0.02, "x", color=RED, ha="center", transform=bottom)
        if olympic_minutes is not None:
            label = f"olympic mean {olympic_minutes:.4g}"
            axes.axhline(olympic_minutes, color=INK, linewidth=1.2, label=label)
        axes.set_xticks(range(len(runs)), [_number(run) for run in runs])
        axes.set_xlim(-0.6, len(runs) - 0.4)
        axes.margins(y=0.25)
        axes.grid(axis="x", visible=False)
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.yaxis.set_major_formatter("{x:,g}")
        axes.set_xlabel("run (hollow: left out of the olympic mean)")
        axes.set_ylabel("minutes")

    return pages.svg(draw, _SIZE_INCHES)


def ledgers(runs: Sequence[RunResult]) -> str | None:
    """Draws where every second of every run went, in percent; None if no log keeps a ledger."""
    kinds = [kind for kind in _KIND_COLORS if any((run.seconds or {}).get(kind) for run in runs)]
    if not kinds:
        return None

    def draw(axes: Axes) -> None:
        for row, run in enumerate(runs):
            seconds, end = run.seconds or {}, 0.0
            for kind in kinds:
                if seconds.get(kind):
                    percent = 100 * seconds[kind] / sum(seconds.values())
                    axes.barh(row, percent, 0.72, left=end, color=_KIND_COLORS[kind], linewidth=0)
                    end += percent
        for kind in kinds:
            axes.plot([], [], "s", color=_KIND_COLORS[kind], label=kind.replace("_", " "))
        axes.set_xlim(0, 100)
        axes.set_yticks(range(len(runs)), [_number(run) for run in runs])
        axes.set_ylim(len(runs) - 0.4, -0.6)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("percent of the time from run_start to run_stop")
        axes.set_ylabel("run")

    return pages.svg(draw, _SIZE_INCHES)


def _number(run: RunResult) -> str:
    return run.path.stem.removeprefix("result_")
