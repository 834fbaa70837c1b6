"""The plots, filters and table of a standing page: Bokeh's, which need no server.

Bokeh's own code goes into the page; what reacts to the filters is JavaScript in `CustomJS`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from bokeh.models.renderers import GlyphRenderer
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
from bokeh.themes import Theme

from mlperf_bert.mlperf.convergence import ReferencePoint
from mlperf_bert.mlperf.rules import TARGET_MASKED_LM_ACCURACY
from mlperf_bert.submission.comparison import Standing
from mlperf_bert.submission.entry import Entry
from pages.charts import GREEN, GREY, GRID, INK, MUTED, RED

YOURS = "yours"
_HEIGHT_PIXELS = 420
_MOST_CURVES = 8
"""That are drawn before any is chosen."""
_THEME = Theme(
    json={
        "attrs": {
            "Axis": {
                "axis_line_color": GREY,
                "major_tick_line_color": GREY,
                "minor_tick_line_color": None,
                "major_label_text_color": MUTED,
                "axis_label_text_color": MUTED,
                "axis_label_text_font_style": "normal",
            },
            "Grid": {"grid_line_color": GRID},
            "Plot": {"outline_line_color": None, "background_fill_color": None},
        }
    }
)
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
_FILTER = """
const {data} = rows;
const within = (text, value) => {
  const limits = text.trim().match(/^(\\d+)$|^(\\d*)\\.\\.(\\d*)$/);
  if (!limits) return true;
  const least = Number(limits[1] || limits[2] || 0);
  const most = limits[1] ? least : (limits[3] ? Number(limits[3]) : Infinity);
  return value >= least && value <= most;
};
const any = (chosen, value) => !chosen.value.length || chosen.value.includes(value);
const words = text.value.toLowerCase();
const visible = Array.from(data.name, (name, i) => data.is_own[i] || (
  (division.value == "all" || data.division[i] == division.value)
  && any(round, data.round[i]) && any(family, data.family[i])
  && (!framework.value.length || framework.value.some(f => data.frameworks[i].includes(f)))
  && within(accelerators.value, data.accelerators[i]) && within(batch.value, data.batch[i])
  && `${name} ${data.framework[i]}`.toLowerCase().includes(words)));
row_filter.booleans = visible;
run_filter.booleans = Array.from(runs.data.row, i => visible[i]);
const best = new Map();
visible.forEach((shown, i) => {
  if (!shown || data.caveat[i] || !(data.accelerators[i] > 0)) return;
  const points = best.get(data.family[i]) ?? new Map();
  const known = points.get(data.accelerators[i]) ?? [Infinity];
  const found = [data.minutes[i], data.color[i]];
  if (found[0] < known[0]) points.set(data.accelerators[i], found);
  best.set(data.family[i], points);
});
const drawn = {xs: [], ys: [], color: [], family: []};
for (const [name, points] of best) {
  const ordered = [...points].sort((a, b) => a[0] - b[0]);
  drawn.xs.push(ordered.map(p => p[0]));
  drawn.ys.push(ordered.map(p => p[1][0]));
  drawn.color.push(ordered[0]?.[1][1]);
  drawn.family.push(name);
}
lines.data = drawn;
const own = data.is_own.filter(x => x).length;
const shown = visible.filter(x => x).length - own;
count.text = `${shown} of ${data.name.length - own} published results`;
"""
_SHORT = "return tick >= 1e6 ? `${tick / 1e6}M` : tick >= 1e3 ? `${tick / 1e3}k` : `${tick}`"
_CURVES = """
const {data} = rows;
const drawn = {xs: [], ys: [], name: [], color: []};
const places = [...rows.selected.indices].filter(i => !data.is_own[i]);
Array.from(data.name).forEach((name, i) => { if (data.is_own[i]) places.push(i); });
places.filter(i => data.curve_x[i].length).forEach((i, number) => {
  drawn.xs.push(data.curve_x[i]);
  drawn.ys.push(data.curve_y[i]);
  drawn.name.push(data.name[i]);
  drawn.color.push(data.is_own[i] ? own_color : palette[number % palette.length]);
});
curves.data = drawn;
const escaped = text => text.replace(/[&<>"']/g, c => `&#${c.charCodeAt(0)};`);
const names = drawn.name.map((name, i) =>
  `<span><b style="color: ${drawn.color[i]}">&#9644;</b> ${escaped(name)}</span>`);
const without = places.filter(i => !data.curve_x[i].length).map(i => escaped(data.name[i]));
if (without.length)
  names.push(`<span>no accuracy over samples in the logs of ${without.join(", ")}</span>`);
legend.text = `<div style="display: flex; flex-wrap: wrap; gap: 0 1rem">${names.join("")}</div>`;
"""


@dataclass(frozen=True)
class Drawn:
    """What goes into the page."""

    library: str
    """Bokeh's own code, in script tags."""
    script: str
    places: Mapping[str, str]
    """Name of a plot, a filter or the table -> the element that it will fill."""
    colors: Mapping[str, str]
    """Family of accelerators -> its colour in all plots."""


def draw(
    standings: Sequence[Standing],
    entries: Sequence[Entry],
    points: Mapping[int, ReferencePoint],
    *,
    parts: Sequence[str] | None = None,
) -> Drawn:
    """Draw all that reacts: filters, table and plots; or only those of some names."""
    own = [standing.own for standing in standings]
    everything = [*own, *entries]
    colors = _colors(everything)
    rows = ColumnDataSource(_columns(everything, len(own), colors))
    runs = ColumnDataSource(_runs(everything, len(own), colors))
    row_filter = BooleanFilter(booleans=[True] * len(everything))
    run_filter = BooleanFilter(booleans=[True] * len(runs.data["row"]))
    lines, curves = (ColumnDataSource({name: [] for name in columns}) for columns in (
        ("xs", "ys", "color", "family"), ("xs", "ys", "color", "name")))  # fmt: skip
    num_each = max(_MOST_CURVES // max(len(standings), 1), 1)
    neighbours = {other.name for standing in standings for other in standing.neighbours[:num_each]}
    rows.selected.indices = [
        place for place, entry in enumerate(everything) if entry.name in neighbours
    ]
    count, legend = (
        Div(text="", sizing_mode="stretch_width", styles={"font-size": "13px"}) for _ in range(2)
    )
    filters = _filters(entries)
    apply = CustomJS(
        args={
            "rows": rows,
            "runs": runs,
            "lines": lines,
            "row_filter": row_filter,
            "run_filter": run_filter,
            "count": count,
            **filters,
        },
        code=_FILTER,
    )
    for widget in filters.values():
        widget.js_on_change("value_input" if isinstance(widget, TextInput) else "value", apply)
    show = CustomJS(
        args={
            "rows": rows,
            "curves": curves,
            "legend": legend,
            "own_color": RED,
            "palette": [color for color in Dark2_8 if color != RED],
        },
        code=_CURVES,
    )
    rows.selected.js_on_change("indices", show)
    views = _views(rows, row_filter)
    shown: dict[str, Model] = {
        **{f"filter_{name}": widget for name, widget in filters.items()},
        "count": count,
        "legend": legend,
        "minutes": _minutes(rows, views, lines),
        "rate": _rate(rows, views),
        "convergence": _convergence(runs, _views(runs, run_filter), points),
        "accuracy": _accuracy(curves),
        "table": _table(rows, views[0]),
    }
    for name, model in {**shown, "rows": rows, "row_filter": row_filter, "lines": lines}.items():
        model.name = name  # by which a script finds it in the page
    shown = {name: model for name, model in shown.items() if parts is None or name in parts}
    document = Document(theme=_THEME)
    for model in shown.values():
        document.add_root(model)
    document.js_on_event("document_ready", apply, show)
    script, places = components(shown, theme=_THEME)
    code: Any = ["bokeh", "bokeh-widgets", "bokeh-tables"]
    library = Resources(mode="inline", components=code, log_level="error").render_js()
    return Drawn(library=library, script=script, places=places, colors=colors)


def _colors(entries: Sequence[Entry]) -> dict[str, str]:
    """Give a colour to each family, those with most results first."""
    names = [entry.family for entry in entries]
    ordered = sorted(set(names), key=lambda name: (-names.count(name), name))
    strong, pale = Category20_20[::2], Category20_20[1::2]
    palette = [color for color in (*strong, *Dark2_8, *pale) if color != Category20_20[6]]
    return {name: palette[place % len(palette)] for place, name in enumerate(ordered)}


def _columns(entries: Sequence[Entry], num_own: int, colors: Mapping[str, str]) -> dict:
    nan = float("nan")
    return {
        "name": [entry.name for entry in entries],
        "round": [entry.round or YOURS for entry in entries],
        "family": [entry.family for entry in entries],
        "color": [
            RED if place < num_own else colors[entry.family] for place, entry in enumerate(entries)
        ],
        "division": [entry.division or "" for entry in entries],
        "framework": [entry.framework or "" for entry in entries],
        "frameworks": [list(entry.frameworks) for entry in entries],
        "accelerators": [entry.accelerators or nan for entry in entries],
        "accelerators_text": [
            "unknown" if entry.accelerators is None else str(entry.accelerators)
            for entry in entries
        ],
        "batch": [entry.global_batch_size or nan for entry in entries],
        "minutes": [entry.minutes or nan for entry in entries],
        "samples": [entry.samples_mean or nan for entry in entries],
        "rate": [entry.samples_per_second_per_accelerator or nan for entry in entries],
        "per_watt": [entry.samples_per_joule or nan for entry in entries],
        "per_rated_watt": [entry.samples_per_rated_joule or nan for entry in entries],
        "caveat": [caveat_of(entry) for entry in entries],
        "rcp": [entry.rcp or "" for entry in entries],
        "rcp_unaided": [entry.rcp_unaided or "" for entry in entries],
        "is_own": [place < num_own for place in range(len(entries))],
        "marker": [_marker(entry, place < num_own) for place, entry in enumerate(entries)],
        "size": [18 if place < num_own else 8 for place in range(len(entries))],
        "curve_x": [[samples for samples, _ in entry.curve] for entry in entries],
        "curve_y": [[accuracy for _, accuracy in entry.curve] for entry in entries],
    }


def caveat_of(entry: Entry) -> str:
    """Return why an entry is not ranked; empty if it is."""
    if entry.departures:
        return f"not comparable: {', '.join(entry.departures)}"
    return f"same runs as {entry.same_logs_as}" if entry.same_logs_as and entry.round else ""


def _marker(entry: Entry, is_own: bool) -> str:
    if is_own:
        return "square_x" if entry.departures else "star"
    return "x" if entry.departures else "circle"


def _runs(entries: Sequence[Entry], num_own: int, colors: Mapping[str, str]) -> dict:
    """Return a row for each converged run whose samples are known."""
    found = [
        (place, entry, samples, minutes)
        for place, entry in enumerate(entries)
        for samples, minutes in zip(entry.run_samples, entry.run_minutes, strict=True)
        if samples and entry.global_batch_size
    ]
    return {
        "row": [place for place, *_ in found],
        "name": [entry.name for _, entry, *_ in found],
        "batch": [entry.global_batch_size for _, entry, *_ in found],
        "samples": [samples for *_, samples, _ in found],
        "minutes": [minutes for *_, minutes in found],
        "color": [RED if place < num_own else colors[entry.family] for place, entry, *_ in found],
        "caveat": [caveat_of(entry) for _, entry, *_ in found],
        "is_own": [place < num_own for place, *_ in found],
        "marker": [_marker(entry, place < num_own) for place, entry, *_ in found],
        "size": [16 if place < num_own else 5 for place, *_ in found],
    }


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


def _add_hover(drawn: figure, renderers: Sequence[GlyphRenderer], tooltips: Sequence) -> None:
    drawn.add_tools(HoverTool(renderers=list(renderers), tooltips=list(tooltips), limit=4))


def _views(source: ColumnDataSource, row_filter: BooleanFilter) -> tuple[CDSView, CDSView]:
    """Return what is drawn: all that the filters leave, then one's own on top."""
    own = BooleanFilter(booleans=list(source.data["is_own"]))
    return CDSView(filter=row_filter), CDSView(filter=own)


def _scatter(
    drawn: figure, source: ColumnDataSource, views: Sequence[CDSView], x: str, y: str
) -> list[GlyphRenderer]:
    return [
        drawn.scatter(
            x,
            y,
            source=source,
            view=view,
            marker="marker",
            size="size",
            color="color",
            alpha=0.75,
            selection_line_color=INK,
            selection_alpha=1,
            nonselection_alpha=0.75,
        )
        for view in views
    ]


def _minutes(rows: ColumnDataSource, views: Sequence[CDSView], lines: ColumnDataSource) -> figure:
    drawn = _figure("accelerators", "minutes", x_axis_type="log", y_axis_type="log")
    drawn.multi_line("xs", "ys", color="color", source=lines, line_width=1.5, alpha=0.6)
    _add_hover(drawn, _scatter(drawn, rows, views, "accelerators", "minutes")[:1], _HOVER)
    _plain_numbers(drawn)
    return drawn


def _rate(rows: ColumnDataSource, views: Sequence[CDSView]) -> figure:
    drawn = _figure(
        "accelerators",
        "samples/s per accelerator",
        x_axis_type="log",
        y_range=DataRange1d(start=0),
    )
    _add_hover(drawn, _scatter(drawn, rows, views, "accelerators", "rate")[:1], _HOVER)
    _plain_numbers(drawn)
    return drawn


def _plain_numbers(drawn: figure) -> None:
    drawn.xaxis.formatter = NumeralTickFormatter(format="0,0")
    drawn.yaxis.formatter = NumeralTickFormatter(format="0,0.[00]")


def _convergence(
    runs: ColumnDataSource, views: Sequence[CDSView], points: Mapping[int, ReferencePoint]
) -> figure:
    drawn = _figure("global batch size", "samples to converge", x_axis_type="log")
    reference = ColumnDataSource(
        {
            "batch": list(points),
            "mean": [point.mean_samples for point in points.values()],
            "least": [point.min_mean_samples for point in points.values()],
        }
    )
    known = _scatter(drawn, runs, views, "batch", "samples")
    drawn.line("batch", "mean", color=GREEN, source=reference, line_width=2)
    drawn.line("batch", "least", color=RED, source=reference, line_width=2, line_dash="dashed")
    means = drawn.scatter("batch", "mean", color=GREEN, size=8, source=reference)
    _add_hover(
        drawn,
        known[:1],
        [("system", "@name"), ("batch", "@batch{0,0}"), ("samples", "@samples{0,0}"),
         ("minutes", "@minutes{0,0.00}"), ("unlike", "@caveat")],
    )  # fmt: skip
    _add_hover(
        drawn,
        [means],
        [("reference at batch", "@batch{0,0}"), ("mean", "@mean{0,0}"),
         ("credible from", "@least{0,0}")],
    )  # fmt: skip
    drawn.xaxis.formatter = NumeralTickFormatter(format="0,0")
    drawn.yaxis.formatter = CustomJSTickFormatter(code=_SHORT)
    return drawn


def _accuracy(curves: ColumnDataSource) -> figure:
    drawn = _figure("samples", "masked-LM accuracy")
    line = drawn.multi_line("xs", "ys", color="color", source=curves, line_width=2, alpha=0.85)
    _add_hover(
        drawn,
        [line],
        [("system", "@name"), ("samples", "$x{0,0}"), ("accuracy", "$y{0.0000}")],
    )
    target = Span(
        location=TARGET_MASKED_LM_ACCURACY, dimension="width", line_color=RED, line_dash="dashed"
    )
    drawn.add_layout(target)
    drawn.xaxis.formatter = CustomJSTickFormatter(code=_SHORT)
    return drawn


def _table(rows: ColumnDataSource, view: CDSView) -> DataTable:
    columns = [
        ("name", "system", 260, None),
        ("minutes", "minutes", 80, "0,0.00"),
        ("accelerators", "accelerators", 90, "0,0"),
        ("family", "accelerator", 100, None),
        ("batch", "batch", 70, "0,0"),
        ("samples", "samples", 90, "0,0"),
        ("rate", "samples/s each", 100, "0,0.0"),
        ("per_watt", "per watt", 70, "0.000"),
        ("per_rated_watt", "per rated watt", 100, "0.000"),
        ("framework", "framework", 200, None),
        ("caveat", "unlike", 200, None),
        ("rcp", "RCP, today's checker", 330, None),
        ("rcp_unaided", "the same, counting by epoch_num", 330, None),
    ]
    return DataTable(
        source=rows,
        view=view,
        columns=[
            TableColumn(field=field, title=title, width=width,
                        formatter=_formatter(spec))
            for field, title, width, spec in columns
        ],
        autosize_mode="none",
        index_position=None,
        selectable="checkbox",
        reorderable=False,
        height=_HEIGHT_PIXELS,
        sizing_mode="stretch_width",
    )  # fmt: skip


def _formatter(spec: str | None) -> StringFormatter:
    """Return that of texts, or of numbers in a format."""
    if spec is None:
        return StringFormatter()
    return NumberFormatter(format=spec, nan_format="-", text_align="right")
