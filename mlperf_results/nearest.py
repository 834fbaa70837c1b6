"""What a system is compared with among published ones, and what is unlike.

Division, hardware, model and data may differ: what is open, a miniature or of another sequence
length is shown, and never ranked.
"""

import math
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlperf_bert.mlperf import convergence
from mlperf_bert.mlperf.logs import SAMPLES_UNKNOWN
from mlperf_bert.mlperf.rules import MAX_SEQ_LENGTH
from mlperf_bert.submission.official import UNAIDED
from mlperf_results.published import (
    COPIES,
    FAR_OFF,
    LEFT_OUT,
    UNKNOWN,
    Entry,
    comparable,
    with_twins,
)

NUM_NEIGHBOURS = 8
# Name in a condition -> what it is of an entry.
_NUMBERS: dict[str, Callable[[Entry], int | None]] = {
    "accelerators": lambda entry: entry.accelerators,
    "batch": lambda entry: entry.global_batch_size,
}
_TEXTS: dict[str, Callable[[Entry], str]] = {
    "round": lambda entry: entry.round,
    "org": lambda entry: entry.org,
    "system": lambda entry: entry.system,
    "division": lambda entry: entry.division or "",
    "accelerator": lambda entry: f"{entry.family} {entry.accelerator_model_name}",
    "framework": lambda entry: entry.framework or "",
}


@dataclass(frozen=True)
class Standing:
    """One system and what it is compared with."""

    own: Entry
    bound: convergence.Bound | None
    """What the reference needs at its batch size; None if the log does not say the batch size."""
    neighbours: tuple[Entry, ...]
    """The published results most like it, the most like first."""
    minutes_place: tuple[int, int] | None
    """Its place by time to train, and of how many: those with as many accelerators, and it.

    None if it is not ranked.
    """
    rate_place: tuple[int, int] | None
    """The same by samples/s per accelerator, among all results."""
    family_rate: float | None
    """Median of samples/s per accelerator over results on its accelerator."""

    def lines(self) -> list[str]:
        """Return the standing for a terminal."""
        own = self.own
        lines = [f"{own.name}: {own.caveat or 'comparable with closed results'}"]
        lines += [f"  {label}: {value} ({note})" for label, value, note in self._figures()]
        if own.same_logs_as:
            lines.append(f"  published as {own.same_logs_as}")
        for label, words in official_words(own):
            lines.append(f"  {label}: {words}")
        lines.append("  most like it, and what is unlike as far as logs and descriptions say:")
        for other in self.neighbours:
            others = [f"{_number(other.minutes, '.4g')} min", *unlike(own, other)]
            lines.append(f"    {other.name}: {'; '.join(others)}")
        return lines

    def _figures(self) -> list[tuple[str, str, str]]:
        """Return each figure: label, value, note."""
        own = self.own
        runs = "1 run, no result" if own.runs == 1 else f"{own.runs} runs"
        for beginning in (COPIES, LEFT_OUT, FAR_OFF):
            if names := own.noted(beginning):
                runs += f", {beginning}{names}"
        if own.rcp_scaling_factor:
            runs += f", scaled by {own.rcp_scaling_factor:.4f}"
        return [
            ("Time to train", _number(own.minutes, ".4g", " min"),
             f"{runs}; {_place(self.minutes_place, f'on {own.accelerators} accelerators')}"),
            ("Samples to converge", _number(own.samples_mean, ",.0f"), self._convergence()),
            ("Samples/s per accelerator",
             _number(own.samples_per_second_per_accelerator, ",.4g"), self._rate()),
        ]  # fmt: skip

    def _convergence(self) -> str:
        if self.bound is None:
            return "batch size not logged"
        batch = f"batch {self.own.global_batch_size:,}"
        if self.own.departures:
            return f"{batch}; no reference for such a run"
        return f"{batch}; {self.bound}"

    def _rate(self) -> str:
        if why := self.own.noted(SAMPLES_UNKNOWN):
            return why
        if self.own.samples_per_second_median is None:
            return "no run reached the target, or the logs do not say its samples"
        if self.own.samples_per_second_per_accelerator is None:
            total = _number(self.own.samples_per_second_median, ",.4g", " /s in all")
            return f"{total}; no accelerator, or their number is unknown"
        text = _place(self.rate_place, "published results")
        if self.family_rate and not self.own.departures:
            text += f"; median of {self.own.family}: {self.family_rate:,.4g}"
        return text


def official_words(entry: Entry) -> list[tuple[str, str]]:
    """Return the verdicts on convergence, (whose, words): one, or two where they may differ."""
    if entry.rcp is None:
        return []
    if entry.rcp_unaided is None:
        return [("official RCP checker", entry.rcp)]
    return [
        ("RCP, counted by train_samples", entry.rcp),
        (UNAIDED, entry.rcp_unaided),
    ]


def recognised(own: Entry, entries: Sequence[Entry]) -> Entry:
    """Return the entry, marked with the name under which its runs were published, if they were."""
    return with_twins([*entries, own])[-1]


def _place(place: tuple[int, int] | None, among: str) -> str:
    return f"place {place[0]} of {place[1]} {among}" if place else "not ranked"


def _number(value: float | None, spec: str, unit: str = "") -> str:
    return "unknown" if value is None else f"{value:{spec}}{unit}"


def standing_of(own: Entry, entries: Sequence[Entry]) -> Standing:
    """Compare a system with published ones."""
    # Its own logs, as they were published, would be its nearest neighbour.
    others = [entry for entry in comparable(entries) if entry.name != own.same_logs_as]
    same_size = [entry for entry in others if entry.accelerators == own.accelerators]
    rates = [e.samples_per_second_per_accelerator for e in others]
    family = [
        e.samples_per_second_per_accelerator
        for e in others
        if e.family == own.family and e.samples_per_second_per_accelerator
    ]
    # Software gets faster from round to round: of equally near ones the latest says most.
    latest_first = others[::-1]  # sorting keeps the order of those that are equally like it
    batch = own.global_batch_size
    # What is open, a miniature or of another sequence length is shown, and never ranked.
    minutes = rate = None
    if not own.departures:  # it is ranked
        rate = own.samples_per_second_per_accelerator
        minutes = own.minutes if own.accelerators is not None else None
    return Standing(
        own=own,
        bound=convergence.bound_of(batch) if batch else None,
        neighbours=tuple(sorted(latest_first, key=lambda e: _distance(own, e))[:NUM_NEIGHBOURS]),
        minutes_place=_place_of(minutes, [e.minutes for e in same_size]),
        rate_place=_place_of(rate, rates, most_is_first=True),
        family_rate=statistics.median(family) if family else None,
    )


def _place_of(
    value: float | None, others: Sequence[float | None], *, most_is_first: bool = False
) -> tuple[int, int] | None:
    if value is None:
        return None
    known = [other for other in others if other is not None]
    before = [other for other in known if (other > value if most_is_first else other < value)]
    return len(before) + 1, len(known) + 1


def _distance(own: Entry, other: Entry) -> float:
    """Return how unlike two systems are: twice the accelerators, or others, count 1."""
    # Hardware counts most, then the batch, which decides the samples, then the framework.
    distance = _doublings(own.accelerators, other.accelerators)
    distance += _doublings(own.global_batch_size, other.global_batch_size) / 2
    distance += own.family != other.family
    return distance + _framework_differs(own, other) / 4


def _doublings(first: float | None, second: float | None) -> float:
    if first is None or second is None or first == second:
        return 0
    return abs(math.log2(first / second)) if first and second else 10  # processors alone


def _framework_differs(own: Entry, other: Entry) -> bool:
    return bool(own.frameworks and other.frameworks) and not (
        set(own.frameworks) & set(other.frameworks)
    )


def unlike(own: Entry, other: Entry) -> list[str]:
    """Return how a published system differs from one's own, in what is known of both."""
    differs = own.family not in (UNKNOWN, other.family)
    differences = [f"{other.family}, not {own.family}"] if differs else []
    # Few closed logs say their length, which the rules fix.
    tokens = other.max_sequence_length or (MAX_SEQ_LENGTH if other.division == "closed" else None)
    for name, mine, theirs in (
        ("accelerators", own.accelerators, other.accelerators),
        ("batch", own.global_batch_size, other.global_batch_size),
        ("tokens", own.max_sequence_length, tokens),
    ):
        if mine is not None and theirs is not None and mine != theirs:
            differences.append(f"{name} {theirs:,}, not {mine:,}")
    if _framework_differs(own, other):
        differences.append(f"{'/'.join(other.frameworks)}, not {'/'.join(own.frameworks)}")
    if own.division != other.division:
        differences.append(f"division {other.division}, not {own.division}")
    if own.num_weights and "miniature" in own.departures:
        differences.append("BERT-large, not a miniature")
    if other.rcp_scaling_factor:
        differences.append(f"its time is scaled by {other.rcp_scaling_factor:.4f}")
    if own.runs != other.runs:
        differences.append(f"{other.runs} runs, not {own.runs}")
    return differences


def chosen(entries: Sequence[Entry], conditions: Sequence[str]) -> list[Entry]:
    """Return the entries that meet all conditions.

    Args:
      entries: to choose from.
      conditions: NAME=TEXT, met by names that contain it, or NAME=N, NAME=FROM..TO for numbers.

    Raises:
      ValueError: a condition is none, or nothing meets them all.
    """
    met = list(entries)
    for condition in conditions:
        name, _, value = condition.partition("=")
        limits = re.fullmatch(r"(\d{1,18})|(\d{0,18})\.\.(\d{0,18})", value)
        if name in _TEXTS:
            met = [entry for entry in met if value.lower() in _TEXTS[name](entry).lower()]
        elif name in _NUMBERS and limits:
            least = int(limits[1] or limits[2] or 0)
            most = int(limits[1] or limits[3] or 10**18)
            numbers = [(entry, _NUMBERS[name](entry)) for entry in met]
            met = [entry for entry, n in numbers if n is not None and least <= n <= most]
        else:
            raise ValueError(
                f"--where={condition:.80}: give NAME=TEXT with {', '.join(_TEXTS)}, or a number or "
                f"FROM..TO with {', '.join(_NUMBERS)}"
            )
    if not met:
        raise ValueError(f"no published result meets {' and '.join(conditions)}; ask for less")
    return met
