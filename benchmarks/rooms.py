"""Draws the rooms of the code in their true proportions, for docs/architecture.md.

    python -m benchmarks.rooms --output=docs/rooms.png

A box is as large as its room has lines of Python, shell and templates, tests left out. A room
imports only from those to its left. tests/test_architecture.py holds the code to this order.
"""

import argparse
from pathlib import Path

from mlperf_bert.files import paths

ROOT = Path(__file__).resolve().parents[1]
HEART = [
    {"files"},
    {"mlperf", "data", "model", "optimization"},
    {"checkpoints", "input"},
    {"training"},
]
"""What a run executes: subpackages of mlperf_bert, level by level."""
GUESTS = {"submission", "finetuning", "portable", "convert"}
"""What a counted run does not execute: it may import the heart, which knows nothing of it."""
BESIDE = [".", "tracing", "benchmarks", "demo", "cleanup_scripts", "cloud", "pages", "exchange"]
"""Not in the package: the root scripts, and what uses it from outside or not at all."""
_COUNTED = {".py", ".sh", ".bt", ".html", ".js", ".sbatch"}
_COLUMN, _GAP, _LINES_PER_INCH = 1.6, 0.45, 2200


def lines_of(folder: Path) -> int:
    """The lines of a room; of the root itself those of its scripts."""
    found = folder.glob("*") if folder == ROOT else folder.rglob("*")
    files = [path for path in found if path.suffix in _COUNTED]
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)


def draw(output: Path) -> None:
    """Writes the picture."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    package = ROOT / "mlperf_bert"
    columns = [
        *(("" if n else "the heart", "#4c78a8", level) for n, level in enumerate(HEART)),
        ("guests", "#f58518", GUESTS),
        ("beside the package", "#9d9d9d", BESIDE),
    ]
    sizes = [
        sorted(
            ((lines_of((package if title != "beside the package" else ROOT) / room), room)
             for room in rooms), reverse=True,
        )
        for title, _, rooms in columns
    ]  # fmt: skip
    tallest = max(sum(lines for lines, _ in column) for column in sizes) / _LINES_PER_INCH
    width, height = len(columns) * (_COLUMN + _GAP), tallest + 1.6
    figure = Figure(figsize=(width, height), dpi=110)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.axis("off")
    for n, ((title, color, _), column) in enumerate(zip(columns, sizes)):
        left, top = _GAP / 2 + n * (_COLUMN + _GAP), height - 0.6
        axes.text(left, height - 0.4, title, fontsize=11, weight="bold", color=color)
        for lines, room in column:
            tall = lines / _LINES_PER_INCH
            corner = left, top - tall
            axes.add_patch(Rectangle(corner, _COLUMN, tall, fc=color, ec=color, alpha=0.35))
            name = "root scripts" if room == "." else room
            label = f"{name} {lines:,}" if tall < 0.4 else f"{name}\n{lines:,}"
            axes.text(
                left + _COLUMN / 2, top - tall / 2, label, ha="center", va="center",
                fontsize=9 if tall > 0.2 else 7,
            )  # fmt: skip
            top -= tall + 0.08
        if 0 < n < len(columns) - 1:
            arrow = {"arrowstyle": "->", "color": "#555555", "lw": 1.5}
            axes.annotate("", (left, height - 0.85), (left - _GAP, height - 0.85), arrowprops=arrow)
    about = "In the package a room imports only what is to its left. Lines without tests."
    axes.text(_GAP / 2, 0.15, about, fontsize=9, color="#555555")
    figure.savefig(output)


def main(words: list[str] | None = None) -> None:
    """Draws the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "rooms.png")
    draw(parser.parse_args(paths.words_with_home(words)).output)


if __name__ == "__main__":
    main()
