"""The plots, filters and table of a standing page: Bokeh's, which need no server.

Bokeh's own code goes into the page; what reacts to the filters is JavaScript in `CustomJS`.
"""

import math
from collections.abc import Sequence
from typing import Any

from bokeh.document import Document
from bokeh.embed import components
from bokeh.models import (
    BooleanFilter,
    CDSView,
    ColumnDataSource,
    CustomJS,
    CustomJSTickFormatter,
    DataRange1d,
    HoverTool,
    Model,
    NumeralTickFormatter,
)
from bokeh.models.annotations import Span
from bokeh.models.widgets import (
    DataTable,
    Div,
    MultiChoice,
    NumberFormatter,
    Select,
    StringFormatter,
    TableColumn,
    TextInput,
)
from bokeh.palettes import Category20_20, Dark2_8
from bokeh.plotting import figure
from bokeh.resources import Resources

import pages
from mlperf_bert.mlperf.convergence import reference_points
from mlperf_bert.mlperf.rules import TARGET_MASKED_LM_ACCURACY
from mlperf_results.nearest import Standing
from mlperf_results.published import Entry
from pages.charts import GREEN, INK, RED

YOURS = "yours"
_HEIGHT_PIXELS = 420
_MOST_CURVES = 8
"""That are drawn before any is chosen."""
_HOVER = [
    ("system", "@name"),
    ("accelerators", "@accelerators_text of @family"),
    ("batch", "@batch{0,0}"),
    ("time to train", "@minutes{0,0.00} min"),
    ("samples to converge", "@samples{0,0}"),
    ("samples/s per accelerator", "@rate{0,0.0}"),
    ("framework", "@framework"),
    ("unlike", "@caveat"),
    ("RCP", "@rcp"),
    ("official checker", "@rcp_unaided"),
]
# Of the table: a column, its heading, its width in pixels, and how a number is written.
_COLUMNS = (
    ("name", "system", 260, None),
    ("minutes", "minutes", 80, "0,0.00"),
    ("accelerators", "accelerators", 90, "0,0"),
    ("family", "accelerator", 100, None),
    ("batch", "batch", 70, "0,0"),
    ("samples", "samples", 90, "0,0"),
    ("rate", "samples/s each", 100, "0,0.0"),
    ("framework", "framework", 200, None),
    ("caveat", "unlike", 200, None),
    ("rcp", "RCP, today's checker", 330, None),
    ("rcp_unaided", "the same, counting by epoch_num", 330, None),
)
_SHORT = "return tick >= 1e6 ? `${tick / 1e6}M` : tick >= 1e3 ? `${tick / 1e3}k` : `${tick}`"


def draw(standings: Sequence[Standing], entries: Sequence[Entry]) -> dict[str, object]:
    """Draw all that reacts: filters, table and plots.

    Returns: library and script, in script tags; places, by name the elements that plots, filters
    and table will fill; colors, by family of accelerators.
    """
    own = [standing.own for standing in standings]
    everything = [*own, *entries]  # one's own first: the table begins with them
    colors = _colors(everything)
    each = [
        _row(entry, colors[entry.family], is_own=place < len(own))
        for place, entry in enumerate(everything)
    ]
    rows = ColumnDataSource({name: [row[name] for row in each] for name in each[0]})
    row_filter = BooleanFilter(booleans=[True] * len(everything))
    lines, curves = (
        ColumnDataSource({column: [] for column in ("xs", "ys", "color", name)})
        for name in ("family", "name")
    )
    rows.selected.indices = _chosen(standings, everything)
    count, legend = (
        Div(text="", sizing_mode="stretch_width", styles={"font-size": "13px"}) for _ in range(2)
    )
    filters = _filters(entries)
    of_rows = {"rows": rows, "row_filter": row_filter, "lines": lines, "count": count}
    apply = CustomJS(args=of_rows | filters, code=pages.text("standing_filter.js"))
    for widget in filters.values():
        widget.js_on_change("value_input" if isinstance(widget, TextInput) else "value", apply)
    # Red is one's own in every plot.
    colors_of_curves = {"own_color": RED, "palette": [c for c in Dark2_8 if c != RED]}
    of_curves = {"rows": rows, "curves": curves, "legend": legend}
    show = CustomJS(args=of_curves | colors_of_curves, code=pages.text("standing_curves.js"))
    rows.selected.js_on_change("indices", show)
    shown: dict[str, Model] = {
        **{f"filter_{name}": widget for name, widget in filters.items()},
        "count": count,
        "legend": legend,
        "minutes": _minutes(rows, row_filter, lines),
        "rate": _scatter(
            rows,
            row_filter,
            ("accelerators", "accelerators"),
            ("rate", "samples/s per accelerator"),
            y_range=DataRange1d(start=0),
        ),
        "convergence": _convergence(rows, row_filter),
        "accuracy": _accuracy(curves),
        "table": _table(rows, row_filter),
    }
    for name, model in (shown | of_rows).items():
        model.name = name  # by which a script finds it in the page
    document = Document()
    for model in shown.values():
        document.add_root(model)
    # As the filters stand at first: closed results, with a line through the fastest.
    document.js_on_event("document_ready", apply, show)
    script, places = components(shown)
    return {"library": _library(), "script": script, "places": places, "colors": colors}


def _chosen(standings: Sequence[Standing], everything: Sequence[Entry]) -> list[int]:
    """The rows whose curves are shown at first."""
    # A page with many curves shows nothing: some of the neighbours of each are chosen.
    num_each = max(_MOST_CURVES // max(len(standings), 1), 1)
    neighbours = {other.name for standing in standings for other in standing.neighbours[:num_each]}
    return [place for place, entry in enumerate(everything) if entry.name in neighbours]


def _library() -> str:
    # Inline: the page loads nothing from elsewhere.
    code: Any = ["bokeh", "bokeh-widgets", "bokeh-tables"]
    return Resources(mode="inline", components=code, log_level="error").render_js()


def _colors(entries: Sequence[Entry]) -> dict[str, str]:
    """Give a colour to each family, those with most results first."""
    names = [entry.family for entry in entries]
    # So that the most frequent ones have the strongest colours.
    ordered = sorted(set(names), key=lambda name: (-names.count(name), name))
    strong, pale = Category20_20[::2], Category20_20[1::2]
    palette = [color for color in (*strong, *Dark2_8, *pale) if color != Category20_20[6]]
    return {name: palette[place % len(palette)] for place, name in enumerate(ordered)}


def _row(entry: Entry, color: str, *, is_own: bool) -> dict[str, object]:
    """Return what plots and table show of an entry."""
    twin = entry.same_logs_as
    return {
        "name": entry.name,
        "round": entry.round or YOURS,
        "family": entry.family,
        "color": RED if is_own else color,
        "division": entry.division or "",
        "framework": entry.framework or "",
        "frameworks": list(entry.frameworks),
        "accelerators": entry.accelerators or math.nan,
        "accelerators_text": "unknown" if entry.accelerators is None else str(entry.accelerators),
        "batch": entry.global_batch_size or math.nan,
        "minutes": entry.minutes or math.nan,
        "samples": entry.samples_mean or math.nan,
        "rate": entry.samples_per_second_per_accelerator or math.nan,
        "caveat": entry.caveat or ("" if is_own or not twin else f"same runs as {twin}"),
        "rcp": entry.rcp or "",
        "rcp_unaided": entry.rcp_unaided or "",
        "is_own": is_own,
        "marker": _marker(entry, is_own),
        "size": 18 if is_own else 8,
        "curve_x": [samples for samples, _ in entry.curve],
        "curve_y": [accuracy for _, accuracy in entry.curve],
    }


def _marker(entry: Entry, is_own: bool) -> str:
    if is_own:
        return "square_x" if entry.departures else "star"
    return "x" if entry.departures else "circle"


def _filters(entries: Sequence[Entry]) -> dict[str, Model]:
    """Return the widgets by their names in the script."""
    divisions: Any = ["all", "closed", "open"]
    families: Any = sorted({entry.family for entry in entries})
    frameworks: Any = sorted({name for entry in entries for name in entry.frameworks})
    rounds: Any = sorted({entry.round for entry in entries})
    wide: Any = {"sizing_mode": "stretch_width"}
    return {
        "division": Select(title="Division", options=divisions, value="closed", **wide),
        "round": MultiChoice(title="Rounds", options=rounds, **wide),
        "family": MultiChoice(title="Accelerator", options=families, **wide),
        "framework": MultiChoice(title="Framework", options=frameworks, **wide),
        "accelerators": TextInput(title="Number of accelerators", placeholder="8 or 8..64", **wide),
        "batch": TextInput(title="Global batch size", placeholder="448 or 256..1024", **wide),
        "text": TextInput(title="Name contains", placeholder="organisation, system", **wide),
    }


def _figure(x_label: str, y_label: str, **options: Any) -> figure:
    drawn = figure(
        height=_HEIGHT_PIXELS,
        sizing_mode="stretch_width",
        tools="pan,box_zoom,reset,save",
        toolbar_location="above",
        x_axis_label=x_label,
        y_axis_label=y_label,
        **options,
    )
    drawn.toolbar.logo = None
    return drawn


def _scatter(
    source: ColumnDataSource,
    shown: BooleanFilter,
    x: tuple[str, str],
    y: tuple[str, str],
    **options: Any,
) -> figure:
    """Return the plot of a column over another, each with its label."""
    drawn = _figure(x[1], y[1], x_axis_type="log", **options)
    # All that the filters leave, then one's own on top, which the filters never hide.
    own = BooleanFilter(booleans=list(source.data["is_own"]))
    renderers = [
        drawn.scatter(
            x[0],
            y[0],
            source=source,
            view=CDSView(filter=each),
            marker="marker",
            size="size",
            color="color",
            alpha=0.75,
            selection_line_color=INK,
            selection_alpha=1,
            nonselection_alpha=0.75,
        )
        for each in (shown, own)
    ]
    drawn.add_tools(HoverTool(renderers=[renderers[0]], tooltips=_HOVER, limit=4))
    drawn.xaxis.formatter = NumeralTickFormatter(format="0,0")
    drawn.yaxis.formatter = NumeralTickFormatter(format="0,0.[00]")
    return drawn


def _minutes(rows: ColumnDataSource, shown: BooleanFilter, lines: ColumnDataSource) -> figure:
    over = "accelerators", "accelerators"
    drawn = _scatter(rows, shown, over, ("minutes", "minutes"), y_axis_type="log")
    drawn.multi_line(
        "xs", "ys", color="color", source=lines, line_width=1.5, alpha=0.6, level="underlay"
    )
    return drawn


def _convergence(rows: ColumnDataSource, shown: BooleanFilter) -> figure:
    batch = "batch", "global batch size"
    drawn = _scatter(rows, shown, batch, ("samples", "samples to converge"))
    points = reference_points()
    reference = ColumnDataSource(
        {
            "batch": list(points),
            "mean": [point.mean_samples for point in points.values()],
            "least": [point.min_mean_samples for point in points.values()],
        }
    )
    drawn.line("batch", "mean", color=GREEN, source=reference, line_width=2)
    drawn.line("batch", "least", color=RED, source=reference, line_width=2, line_dash="dashed")
    means = drawn.scatter("batch", "mean", color=GREEN, size=8, source=reference)
    tooltips = [("reference at batch", "@batch{0,0}"), ("mean", "@mean{0,0}"),
                ("credible from", "@least{0,0}")]  # fmt: skip
    drawn.add_tools(HoverTool(renderers=[means], tooltips=tooltips, limit=4))
    drawn.yaxis.formatter = CustomJSTickFormatter(code=_SHORT)
    return drawn


def _accuracy(curves: ColumnDataSource) -> figure:
    drawn = _figure("samples", "masked-LM accuracy")
    line = drawn.multi_line("xs", "ys", color="color", source=curves, line_width=2, alpha=0.85)
    tooltips = [("system", "@name"), ("samples", "$x{0,0}"), ("accuracy", "$y{0.0000}")]
    drawn.add_tools(HoverTool(renderers=[line], tooltips=tooltips, limit=4))
    target = Span(
        location=TARGET_MASKED_LM_ACCURACY, dimension="width", line_color=RED, line_dash="dashed"
    )
    drawn.add_layout(target)
    drawn.xaxis.formatter = CustomJSTickFormatter(code=_SHORT)
    return drawn


def _table(rows: ColumnDataSource, shown: BooleanFilter) -> DataTable:
    columns = []
    for column, title, width, spec in _COLUMNS:
        number = NumberFormatter(format=spec or "", nan_format="-", text_align="right")
        formatter = number if spec else StringFormatter()
        columns.append(TableColumn(field=column, title=title, width=width, formatter=formatter))
    return DataTable(
        source=rows,
        view=CDSView(filter=shown),
        columns=columns,
        autosize_mode="none",
        index_position=None,
        selectable="checkbox",
        reorderable=False,
        height=_HEIGHT_PIXELS,
        sizing_mode="stretch_width",
    )
