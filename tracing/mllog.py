"""MLPerf logs as rows of the tables mllog and spans."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from tracing import files

MARK = ":::MLLOG"
_LONGEST_PREAMBLE_BYTES = 1 << 20
SPANS = ("init", "run", "block", "eval", "checkpoint")


def holds_log(path: str | Path) -> bool:
    """Whether the first megabyte of a file holds a line of an MLPerf log.

    A launcher's lines may come first, and a rank or a time may begin each line.
    """
    if not files.is_file(path):
        return False
    try:
        with Path(path).open("rb") as file:
            return MARK.encode() in file.read(_LONGEST_PREAMBLE_BYTES)
    except OSError:
        return False


def event_rows(path: str | Path, *, begin_ns: int, end_ns: int) -> Iterator[dict]:
    """The events of a log between two realtime stamps; earlier ones are an earlier session's."""
    with Path(path).open(encoding="utf-8", errors="replace") as file:
        # Two processes that write at once leave two events on a line.
        for text in (text for line in file for text in line.split(MARK)[1:]):
            try:
                event = _event(text)
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
                continue  # the line was cut by a kill, or is no line of a log
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
    event, _ = json.JSONDecoder().raw_decode(text.lstrip())  # colour codes may end a line
    if not isinstance(event, dict):
        raise TypeError("an event is an object")
    names = {name: event.get(name) for name in ("key", "event_type")}
    if not all(isinstance(name, str | None) for name in names.values()):
        raise TypeError("a name is not text")
    for name in filter(None, names.values()):
        name.encode()  # the tables hold no lone surrogates
    return event | names | {"time_ms": int(event["time_ms"])}


def span_rows(events: Iterable[dict], *, end_ns: int) -> list[dict]:
    """Pairs starts with stops; spans that a failed run left open end with the trace."""
    spans: list[dict] = []
    open_spans: dict[tuple[str, str], dict] = {}
    for event in events:
        name, _, end = (event["key"] or "").rpartition("_")
        if name not in SPANS:
            continue
        key = (event["file"], name)
        if end == "start":
            span = {key: event[key] for key in ("realtime_ns", "metadata", "file")}
            span |= {"name": name, "end_realtime_ns": end_ns, "is_closed": False}
            spans.append(span)
            open_spans[key] = span
        elif end == "stop" and key in open_spans:
            open_spans.pop(key).update(end_realtime_ns=event["realtime_ns"], is_closed=True)
    return sorted(spans, key=lambda span: span["realtime_ns"])


def value_of(events: pd.DataFrame, key: str) -> Any:
    """The last value of an event of the table mllog; None without one."""
    values = events.loc[events["key"] == key, "value"]
    return json.loads(values.iloc[-1]) if len(values) else None


def trained_samples(events: pd.DataFrame, span: Any) -> int:
    """The samples of a block; 0 if it has not ended, or in the log of another benchmark.

    Args:
      events: the table mllog.
      span: a row of spans.
    """
    is_stop = (events["key"] == "block_stop") & (events["file"] == span.file)
    stops = events.loc[is_stop & (events["realtime_ns"] == span.end_realtime_ns), "metadata"]
    try:
        stop = json.loads(stops.iloc[0])
        return int(stop["samples_count"]) - int(stop["first_epoch_num"])
    except (LookupError, TypeError, ValueError):
        return 0
