"""MLPerf logs as rows of the tables mllog and spans."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

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
        raise TypeError("a name is no text")
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


def ledger_shares(events: pd.DataFrame) -> Iterator[tuple[int, int, dict[str, float]]]:
    """(begin, end, percent of each kind) of every block; monotonic nanoseconds.

    Vendors log figures of other names under the same key: these are passed over.
    """
    for event in events[events["key"] == LEDGER].itertuples():
        value, metadata = json.loads(event.value), json.loads(event.metadata)
        if not isinstance(value, dict) or not isinstance(metadata, dict):
            continue
        seconds = {
            name.removesuffix("_seconds").replace("_", " "): number
            for name, number in value.items()
            if name.endswith("_seconds") and isinstance(number, int | float)
        }
        total = sum(seconds.values())
        if metadata.get("of") == "block" and total > 0:
            shares = {name: 100 * number / total for name, number in seconds.items()}
            yield event.monotonic_ns - round(total * 1e9), event.monotonic_ns, shares
