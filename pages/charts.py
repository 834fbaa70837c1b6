"""How all pictures look: as SVG text that can stand in a page, and as PNG files."""

import contextlib
import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

INK, MUTED, GRID = "#1c2733", "#5b6b7b", "#e3e8ee"
BLUE, RED, GREEN, ORANGE, GREY = "#1f5fa8", "#b3261e", "#1b7f4b", "#d9822b", "#b9c4cf"

_STYLE: Any = {  # matplotlib's types list every name of a parameter
    "svg.fonttype": "none",  # text stays text
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "legend.frameon": False,
    "legend.fontsize": 8,
}


def svg(
    draw: Callable[[np.ndarray], None],
    size_inches: tuple[float, float],
    *,
    salt: str,
    alt: str = "",
    rows: int = 1,
    columns: int = 1,
    **saved: Any,
) -> str:
    """Returns a picture from "<svg" on.

    Args:
      draw: is given the axes, as an array of rows and columns.
      size_inches: width and height.
      salt: of the names inside; the same data then give the same bytes.
      alt: says what is shown, where the page around it does not.
      rows, columns: of axes.
      saved: further arguments of `Figure.savefig`.
    """
    # Not pyplot: no display is needed, and no figure stays open.
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": salt}):
        figure = Figure(figsize=size_inches, layout="constrained")
        draw(figure.subplots(rows, columns, squeeze=False))
        text = io.StringIO()
        figure.savefig(text, format="svg", **{"metadata": {"Date": None}} | saved)
    drawn = text.getvalue()[text.getvalue().index("<svg") :]
    return drawn.replace("<svg ", f'<svg role="img" aria-label="{alt}" ', 1) if alt else drawn


@contextlib.contextmanager
def png(file: Any, size_inches: tuple[float, float], *, rows: int = 1) -> Iterator[np.ndarray]:
    """Yields axes, an array of rows and one column; then writes a PNG of 150 pixels an inch."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=size_inches, dpi=150, layout="constrained")
        yield figure.subplots(rows, squeeze=False)
        figure.savefig(file, format="png")


def in_units(value: float, units: Sequence[tuple[float, str]], spec: str = "g") -> str:
    """Returns a number in the first unit that it reaches, or the last one: 2500000 as 2.5M.

    Args:
      units: (size, name), the largest first.
      spec: how the number is formatted.
    """
    size, name = next((unit for unit in units if abs(value) >= unit[0]), units[-1])
    return f"{value / size:{spec}}{name}"
