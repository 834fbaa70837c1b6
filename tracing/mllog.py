"""MLPerf logs as rows of the tables mllog and spans."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

MARK = ":::MLLOG "
LEDGER = "tracked_stats"
"""Where the seconds of a block or of the run went, as this benchmark logs it."""
SPANS = ("init", "run", "block", "eval", "checkpoint")


def is_log(path: str | Path) -> bool:
    """Whether a file begins like an MLPerf log."""
    if not Path(path).is_file():  # a FIFO would be waited for
        return False
    try:
        with Path(path).open("rb") as file:
            return file.read(len(MARK)) == MARK.encode()
    except OSError:
        return False


def event_rows(path: str | Path, *, begin_ns: int, end_ns: int) -> Iterator[dict]:
    """The events of a log between two realtime stamps: earlier ones are of another session."""
    with Path(path).open(encoding="utf-8", errors="replace") as file:
        for line in file:
            _, mark, text = line.partition(MARK)
            if not mark:
                continue
            try:
                event = _event(text)
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
                continue  # cut by a kill, or no line of a log
            stamp_ns = event["time_ms"] * 10**6
            # The log's stamps are whole milliseconds.
            if not begin_ns - 10**6 <= stamp_ns <= end_ns + 10**6:
                continue
            yield {
                "realtime_ns": stamp_ns,
                "key": event["key"],
                "event_type": event["event_type"],
                "value": json.dumps(event.get("value")),
                "metadata": json.dumps(event.get("metadata")),
                "file": str(path),
            }


def _event(text: str) -> dict:
    event = json.loads(text)
    if not isinstance(event, dict):
        raise TypeError("an event is an object")
    names = {name: event.get(name) for name in ("key", "event_type")}
    if not all(isinstance(name, str | None) for name in names.values()):
        raise TypeError("a name is not text")
    for name in filter(None, names.values()):
        name.encode()  # the tables hold no lone surrogates
    return event | names | {"time_ms": int(event["time_ms"])}


def span_rows(events: Iterable[dict], *, end_ns: int) -> list[dict]:
    """Pairs starts with stops; what a failed run left open ends with the trace."""
    spans: list[dict] = []
    open_spans: dict[tuple[str, str], dict] = {}
    for event in events:
        name, _, end = (event["key"] or "").rpartition("_")
        if name not in SPANS:
            continue
        place = (event["file"], name)
        if end == "start":
            span = {key: event[key] for key in ("realtime_ns", "metadata", "file")}
            span |= {"name": name, "end_realtime_ns": end_ns, "is_closed": False}
            spans.append(span)
            open_spans[place] = span
        elif end == "stop" and place in open_spans:
            open_spans.pop(place).update(end_realtime_ns=event["realtime_ns"], is_closed=True)
    return sorted(spans, key=lambda span: span["realtime_ns"])


def value_of(events: pd.DataFrame, key: str, default: Any = None) -> Any:
    """The last value of an event of the table mllog."""
    found = events.loc[events["key"] == key, "value"]
    return json.loads(found.iloc[-1]) if len(found) else default


def stop_of(span, events: pd.DataFrame) -> pd.Series | None:
    """The event that ended a span, a row of the table spans; None if it has not ended."""
    found = events[
        (events["key"] == f"{span.name}_stop")
        & (events["file"] == span.file)
        & (events["realtime_ns"] == span.end_realtime_ns)
    ]
    return found.iloc[0] if span.is_closed and len(found) else None


def trained_samples(stop) -> int:
    """Samples of a block by the metadata of its block_stop; 0 for the log of another benchmark."""
    try:
        return int(stop["samples_count"]) - int(stop["first_epoch_num"])
    except (TypeError, KeyError, ValueError):
        return 0


def _ledgers(events: pd.DataFrame) -> Iterator[tuple[Any, dict[str, float], dict]]:
    """(event, seconds by kind, metadata) of every block.

    Vendors log figures of other names under the same key: these are passed over.
    """
    for event in events[events["key"] == LEDGER].itertuples():
        value, metadata = json.loads(event.value), json.loads(event.metadata)
        if isinstance(value, dict) and isinstance(metadata, dict) and metadata.get("of") == "block":
            numbers = {n: v for n, v in value.items() if isinstance(v, int | float)}
            seconds = {n: v for n, v in numbers.items() if n.endswith("_seconds")}
            if sum(seconds.values()) > 0:
                yield event, seconds, metadata


def ledger_of(block, events: pd.DataFrame) -> dict[str, float] | None:
    """The log's ledger of a block, a row of the table spans; None without one or an end."""
    if (stop := stop_of(block, events)) is None:
        return None
    counts = json.loads(stop.metadata) or {}
    for event, seconds, metadata in _ledgers(events[events["file"] == block.file]):
        same = all(metadata.get(n) == counts.get(n) for n in ("first_epoch_num", "samples_count"))
        if same and event.monotonic_ns >= stop.monotonic_ns and "saving_seconds" in seconds:
            return seconds
    return None


def saving_seconds(block, events: pd.DataFrame, spans: pd.DataFrame) -> float:
    """How long the training stood still for checkpoints in a block, a row of the table spans.

    By the log's ledger: checkpoints may be written while the training goes on. Without one, by the
    spans of checkpoints, as far as they lie in the block.
    """
    if ledger := ledger_of(block, events):
        return float(ledger["saving_seconds"])
    saves = spans[(spans["name"] == "checkpoint") & (spans["file"] == block.file)]
    ends = saves["end_monotonic_ns"].clip(upper=block.end_monotonic_ns)
    return float(
        (ends - saves["monotonic_ns"].clip(lower=block.monotonic_ns)).clip(lower=0).sum() / 1e9
    )


def ledger_shares(events: pd.DataFrame) -> Iterator[tuple[int, int, dict[str, float]]]:
    """(begin, end, percent of each kind) of every block; monotonic nanoseconds."""
    for event, seconds, _ in _ledgers(events):
        total = sum(seconds.values())
        shares = {
            name.removesuffix("_seconds").replace("_", " "): 100 * number / total
            for name, number in seconds.items()
        }
        yield event.monotonic_ns - round(total * 1e9), event.monotonic_ns, shares
