"""The page of a standing: its data as JSON, which templates/standing.js filters, sorts and draws.

The page needs no server, and loads nothing.
"""

from collections.abc import Mapping, Sequence

import pages
from mlperf_bert.files import paths
from mlperf_bert.mlperf import convergence
from mlperf_bert.mlperf.rules import TARGET_MASKED_LM_ACCURACY
from mlperf_results import published
from mlperf_results.nearest import Standing, official_words, unlike
from mlperf_results.published import CPU, Entry
from pages.charts import RED

YOURS = "yours"
_MOST_CURVES = 8
"""That are drawn before any is chosen."""
_LIGHTNESS = (34, 46, 58)


def page(
    standings: Sequence[Standing],
    entries: Sequence[Entry],
    *,
    ruleset: str,
    custom_rcps: paths.Location | None = None,
    conditions: Sequence[str] = (),
) -> str:
    """Return the page on one's systems among published ones.

    Args:
      standings: of one's own systems; may be empty.
      entries: the published ones.
      ruleset: whose reference convergence points are drawn, unless there are others.
      custom_rcps: JSON file of other points.
      conditions: by which the entries were chosen.
    """
    points = convergence.reference_points(ruleset, custom_rcps)
    limits = f", only {', '.join(conditions)}" if conditions else ""
    colors = _colors([*(standing.own for standing in standings), *entries])
    return pages.render(
        "standing.html",
        title="Where do I stand?",
        subtitle=f"MLPerf Training BERT: {len(entries)} published results of rounds "
        f"{published.ROUNDS[0]} to {published.ROUNDS[-1]}{limits}; reference convergence points "
        f"of {custom_rcps.name if custom_rcps else f'ruleset {ruleset}'}",
        columns=("system", "minutes", "samples", "samples/s each", "unlike yours"),
        standings=standings,
        facts_of=_facts,
        words_of=official_words,
        cells_of=_cells,
        choices=_choices(entries),
        colors=colors,
        data={
            "rows": _rows(standings, entries, colors),
            "points": [
                {"batch": batch, "mean": point.mean_samples, "least": point.min_mean_samples}
                for batch, point in points.items()
            ],
            "target": TARGET_MASKED_LM_ACCURACY,
            "own_color": RED,
        },
        script=pages.text("standing.js"),
        about=published.provenance(),
    )


def _facts(own: Entry) -> str:
    """Return what the system is, in one line."""
    number = "unknown number of" if own.accelerators is None else f"{own.accelerators:,}"
    accelerators = f"{number} accelerators: {own.accelerator_model_name or own.family}"
    if own.family == CPU:
        accelerators = own.host_processor_model_name or "processors, no accelerators"
    tokens = own.max_sequence_length and f"sequences of {own.max_sequence_length} tokens"
    batch = own.global_batch_size and f"batch {own.global_batch_size:,}"
    said = [accelerators, own.framework, own.precision, own.division, tokens, batch]
    return "; ".join(str(each) for each in said if each)


def _cells(own: Entry, other: Entry) -> list[str]:
    rate = other.samples_per_second_per_accelerator
    return [
        other.name,
        "-" if other.minutes is None else f"{other.minutes:,.4g}",
        "-" if other.samples_mean is None else f"{other.samples_mean:,.0f}",
        "-" if rate is None else f"{rate:,.4g}",
        "; ".join(unlike(own, other)) or "-",
    ]


def _choices(entries: Sequence[Entry]) -> Mapping[str, tuple[str, list[str]]]:
    """Return the title of each filter with options, and these."""
    frameworks = {name for entry in entries for name in entry.frameworks}
    return {
        "round": ("Rounds", sorted({entry.round for entry in entries})),
        "family": ("Accelerator", sorted({entry.family for entry in entries})),
        "framework": ("Framework", sorted(frameworks)),
    }


def _colors(entries: Sequence[Entry]) -> dict[str, str]:
    """Give a colour to each family, those with most results first."""
    names = [entry.family for entry in entries]
    ordered = sorted(set(names), key=lambda name: (-names.count(name), name))
    # By the golden section of the hues from 20 to 340 degrees, for red is one's own: those that
    # stand beside each other in the list are far apart.
    return {
        name: f"hsl({20 + place * 197.77 % 320:.0f} 70% {_LIGHTNESS[place % 3]}%)"
        for place, name in enumerate(ordered)
    }


def _rows(
    standings: Sequence[Standing], entries: Sequence[Entry], colors: Mapping[str, str]
) -> list[dict[str, object]]:
    """Return what plots and table show of each entry; one's own come first, as in the table."""
    # A page with many curves shows nothing: some of the neighbours of each are chosen.
    num_each = max(_MOST_CURVES // max(len(standings), 1), 1)
    chosen = {other.name for standing in standings for other in standing.neighbours[:num_each]}
    own = [_row(standing.own, RED) | {"round": YOURS, "is_own": True} for standing in standings]
    rows = own + [_row(entry, colors[entry.family]) for entry in entries]
    return [row | {"chosen": row["name"] in chosen} for row in rows]


def _row(entry: Entry, color: str) -> dict[str, object]:
    twin = entry.same_logs_as
    runs = zip(entry.run_samples, entry.run_minutes, strict=True)
    return {
        "name": entry.name,
        "round": entry.round,
        "family": entry.family,
        "color": color,
        "division": entry.division,
        "framework": entry.framework or "",
        "frameworks": entry.frameworks,
        "accelerators": entry.accelerators,
        "batch": entry.global_batch_size,
        "minutes": entry.minutes,
        "samples": entry.samples_mean,
        "rate": entry.samples_per_second_per_accelerator,
        "per_watt": entry.samples_per_joule,
        "caveat": entry.caveat or (f"same runs as {twin}" if twin and entry.round else ""),
        "departs": bool(entry.departures),
        "rcp": entry.rcp or "",
        "rcp_unaided": entry.rcp_unaided or "",
        "is_own": False,
        "runs": [{"samples": samples, "minutes": minutes} for samples, minutes in runs if samples],
        "curve": entry.curve,
    }
