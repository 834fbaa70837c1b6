"""What measurements leave: a line of JSON for each, tables in Markdown, pictures with bars."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path


def stored(file: Path) -> list[dict]:
    """The measurements of a file, in their order; none without the file."""
    return list(map(json.loads, file.read_text().splitlines())) if file.exists() else []


def store(file: Path, row: Mapping) -> None:
    """Adds a measurement, which a process that is killed later does not take away."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lines:
        lines.write(json.dumps(dict(row)) + "\n")


def table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown, lines of titles and cells."""
    lines = [list(titles), *([str(cell) for cell in row] for row in rows)]
    head, *body = [
        "".join(f"| {cell} " if cell else "| " for cell in line) + "|\n" for line in lines
    ]
    return "".join([head, "|---" * len(titles) + "|\n", *body])


def bars(
    file: Path,
    panels: Mapping[str, Sequence[tuple[str, Sequence[float]]]],
    label: str,
    *,
    spec: str,
) -> None:
    """Draws bars, 1,200 pixels wide: means of figures by their names, from least to greatest.

    Args:
      file: the PNG.
      panels: of each title the names and figures, from below; ours are blue.
      label: what the figures are.
      spec: how a mean is written, as %-format.
    """
    import pages  # needs matplotlib, which a machine that only measures may lack

    counts = list(map(len, panels.values()))
    size_inches = (8, 0.3 * sum(counts) + 0.6 * len(counts) + 0.4)
    longest = max(max(figures) for rows in panels.values() for _, figures in rows)
    with pages.png(file, size_inches, rows=len(counts)) as grid:
        grid[0][0].get_gridspec().set_height_ratios(counts)
        for [axes], (title, rows) in zip(grid, panels.items()):
            names, figures = zip(*rows)
            means = [statistics.mean(each) for each in figures]
            below = [mean - min(each) for mean, each in zip(means, figures)]
            above = [max(each) - mean for mean, each in zip(means, figures)]
            colours = [pages.BLUE if name.startswith("ours") else pages.GREY for name in names]
            ends = {"xerr": [below, above], "capsize": 3} if any(above) else {}
            # By number: a name may stand twice, of two sittings.
            drawn = axes.barh(range(len(rows)), means, color=colours, tick_label=names, **ends)
            axes.bar_label(drawn, fmt=spec, padding=3)
            axes.set_xlim(0, 1.12 * longest)
            axes.set_title(title, loc="left")
        axes.set_xlabel(label)
