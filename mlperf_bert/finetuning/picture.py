"""The picture of the results: the metric of every run over the epochs, a panel for each task."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from mlperf_bert.files.whole import written_beside

_MOST_COLUMNS = 4
_MOST_IN_LEGEND = 8


def draw(panels: Mapping[str, Mapping[str, Sequence[float]]], path: Path) -> None:
    """Writes a PNG; panels: title -> name of a run -> metric after each epoch."""
    num_columns = min(len(panels), _MOST_COLUMNS)
    num_rows = math.ceil(len(panels) / num_columns)
    size = max(5.0, 3.2 * num_columns), 3.4 * num_rows
    # Not pyplot: no display is needed, and no figure stays open.
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    grid = figure.subplots(num_rows, num_columns, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, (title, runs) in zip(grid.flat, panels.items()):
        for name, values in runs.items():
            axes.plot(range(1, len(values) + 1), values, "o-", markersize=3, label=name)
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("epochs")
        axes.set_ylabel("percent")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        if len(runs) <= _MOST_IN_LEGEND:
            axes.legend(frameon=False, fontsize=7)
    with written_beside(path) as file:
        figure.savefig(file, format="png")
