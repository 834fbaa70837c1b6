"""Makes reports and pictures: pages and SVG that need nothing from outside, and PNG files."""

import contextlib
import functools
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, MUTED, GRID = "#1c2733", "#5b6b7b", "#e3e8ee"
BLUE, RED, GREEN, ORANGE, GREY = "#1f5fa8", "#b3261e", "#1b7f4b", "#d9822b", "#b9c4cf"

_FOLDER = Path(__file__).parent / "templates"
_STYLE: Any = {  # matplotlib's types list every name of a parameter
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "pages",  # the same data give the same bytes
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


class Card(NamedTuple):
    """One figure at the head of a page."""

    label: str
    value: str
    note: str
    good: bool | None = None
    """Colours the value; None leaves it as it is."""


def render(template: str, **values: object) -> str:
    """Returns a page of templates/; every value is escaped unless the template says `safe`.

    Raises:
      jinja2.UndefinedError: the template asks for a value that is not given.
    """
    return _templates().get_template(template).render(values)


@functools.cache
def _templates() -> Environment:
    return Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def svg(draw: Callable[[Axes], None], size_inches: tuple[float, float]) -> str:
    """Returns a picture from "<svg" on, its legend above; `draw` labels what is in the legend.

    Args:
      draw: is given the axes.
      size_inches: width and height.
    """
    # Without pyplot no display is needed, and no figure stays open.
    with matplotlib.rc_context(_STYLE):
        figure, text = Figure(figsize=size_inches, layout="constrained"), io.StringIO()
        draw(figure.subplots())
        figure.legend(loc="outside upper left", handlelength=1.6)
        figure.savefig(text, format="svg", metadata={"Date": None}, transparent=True)
    return text.getvalue()[text.getvalue().index("<svg") :]


@contextlib.contextmanager
def png(file: Any, size_inches: tuple[float, float], *, rows: int = 1) -> Iterator[np.ndarray]:
    """Yields an array of axes, [rows, 1]; then writes a PNG of 150 pixels an inch."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=size_inches, dpi=150, layout="constrained")
        yield figure.subplots(rows, squeeze=False)
        figure.savefig(file, format="png")
