"""The standing of systems as an HTML page: what pages/templates/standing.html shows."""

from collections.abc import Mapping, Sequence

import pages
from mlperf_bert.mlperf import convergence
from mlperf_bert.submission import published, standing_charts
from mlperf_bert.submission.comparison import Standing, official_words, unlike
from mlperf_bert.submission.entry import CPU, Entry
from pages import Card

_NEIGHBOUR_COLUMNS = ("system", "minutes", "samples", "samples/s each", "unlike yours")


def page(
    standings: Sequence[Standing],
    entries: Sequence[Entry],
    *,
    ruleset: str,
    conditions: Sequence[str] = (),
) -> str:
    """Return the page on one's systems among published ones.

    Args:
      standings: of one's own systems; may be empty.
      entries: the published ones.
      ruleset: whose reference convergence points are drawn.
      conditions: by which the entries were chosen.
    """
    points = convergence.reference_points(ruleset)
    limits = f", only {', '.join(conditions)}" if conditions else ""
    return pages.render(
        "standing.html",
        title="Where do I stand?",
        subtitle=f"MLPerf Training BERT: {len(entries)} published results of rounds "
        f"{published.ROUNDS[0]} to {published.ROUNDS[-1]}{limits}; reference convergence points "
        f"of ruleset {ruleset}",
        columns=_NEIGHBOUR_COLUMNS,
        systems=[_shown(standing) for standing in standings],
        drawn=standing_charts.draw(standings, entries, points),
        about=published.provenance(),
    )


def _shown(standing: Standing) -> Mapping[str, object]:
    own = standing.own
    return {
        "name": own.name,
        "caveat": standing.caveat,
        "published_as": own.same_logs_as,
        "facts": _facts(own),
        "figures": [Card(*figure) for figure in standing.figures()],
        "words": official_words(own),
        "neighbours": [_cells(own, other) for other in standing.neighbours],
    }


def _facts(own: Entry) -> str:
    """Return what the system is, in one line."""
    number = "unknown number of" if own.accelerators is None else f"{own.accelerators:,}"
    accelerators = f"{number} accelerators: {own.accelerator_model_name or own.family}"
    if own.family == CPU:
        accelerators = own.host_processor_model_name or "processors, no accelerators"
    found = [accelerators, own.framework, own.precision, own.division]
    if own.max_sequence_length:
        found.append(f"sequences of {own.max_sequence_length} tokens")
    if own.global_batch_size:
        found.append(f"batch {own.global_batch_size:,}")
    return "; ".join(filter(None, found))


def _cells(own: Entry, other: Entry) -> list[str]:
    rate = other.samples_per_second_per_accelerator
    return [
        other.name,
        "-" if other.minutes is None else f"{other.minutes:,.4g}",
        "-" if other.samples_mean is None else f"{other.samples_mean:,.0f}",
        "-" if rate is None else f"{rate:,.4g}",
        "; ".join(unlike(own, other)) or "nothing that logs name",
    ]
