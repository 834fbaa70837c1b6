"""How pages and their pictures look: one template, which needs nothing from outside, and SVG."""

import io
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

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
_WIDTH_INCHES = 9.6
_DPI = 110  # of rasterized parts
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


class Card(NamedTuple):
    """One figure at the head of a page."""

    label: str
    value: str
    note: str


Columns = Mapping[str, tuple[str, str | Callable[[Any], str]]]
"""Heading -> the value's name in a row, with dots for nested ones, and how it is written: a format
or a function."""


def table(columns: Columns, rows: Iterable[dict]) -> list[list[str]]:
    """A table for `page`, its headings first; an unknown value is "-"."""
    return [list(columns), *([_cell(row, *of) for of in columns.values()] for row in rows)]


def _cell(row: dict, name: str, write: str | Callable[[Any], str]) -> str:
    value: Any = row
    for part in name.split("."):
        value = None if value is None else value.get(part)
    if value is None:
        return "-"
    return write.format(value) if isinstance(write, str) else write(value)


def bytes_text(number: float) -> str:
    """Bytes with a unit, such as 2.50 MB."""
    return EngFormatter("B", places=2 if number >= 1e3 else 0)(number)


def page(**values: object) -> str:
    """Returns a page of templates/trace.html; every value but the pictures is escaped.

    Raises:
      jinja2.UndefinedError: the template asks for a value that is not given.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("trace.html").render(values)


def svg(
    draw: Callable[[np.ndarray], None],
    height_inches: float,
    alt: str,
    *,
    rows: int = 1,
    columns: int = 1,
) -> str:
    """Returns a picture from "<svg" on; the same data give the same bytes.

    Args:
      draw: is given the axes, as an array of rows and columns.
      height_inches: of a picture as wide as the page.
      alt: says what is shown.
      rows, columns: of axes.
    """
    # Without pyplot no display is needed, and no figure stays open.
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": "trace"}):
        figure = Figure(figsize=(_WIDTH_INCHES, height_inches), layout="constrained")
        draw(figure.subplots(rows, columns, squeeze=False))
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata=_NO_METADATA, dpi=_DPI)
    drawn = text.getvalue()[text.getvalue().index("<svg") :]
    return drawn.replace("<svg ", f'<svg role="img" aria-label="{alt}" ', 1)
