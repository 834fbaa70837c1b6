"""What changed between two traces: seconds, calls, bytes and waits per phase, largest first.

    python -m tracing.compare traces/before traces/after

A call belongs to the innermost phase of the MLPerf log in which it began: init, block (training),
eval, checkpoint, run (what is left of it), or outside. Waits are the latencies of calls, summed; of
calls that overlap, both count. There is one trace of each, so nothing says how much is noise.

Exit codes: 0; 1 bad input.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tracing import backends, ends_in_one_line, parser_of, path_with_home
from tracing.loaded import Trace

OUTSIDE = "outside"
_MOST_ROWS = 15
_MOVING = ("read", "write", "receive", "send")
_USAGE = {
    "cpu_seconds": "processor seconds",
    "peak_resident_bytes": "peak memory, bytes",
    "storage_read_bytes": "read from storage, bytes",
    "storage_written_bytes": "sent to storage, bytes",
    "major_faults": "page faults with I/O",
}


@dataclass(frozen=True)
class Comparison:
    """Two traces; the tables have the largest change first, and columns A, B and B - A."""

    phases: pd.DataFrame
    """Seconds of each phase, those of the same name together."""
    calls: pd.DataFrame
    """By phase, file_class and kind: calls, bytes and seconds of waits of each trace (_a, _b), and
    how much longer B waits; empty if a trace has no single calls."""
    usage: pd.DataFrame
    """Of all processes, by the ratio."""
    remarks: list[str]
    """What makes the two differ besides, or is not known."""


def compare(a: Trace, b: Trace) -> Comparison:
    """Compare two finished traces.

    Raises:
      ValueError: they are one trace, or a table is damaged.
    """
    if a.folder.resolve() == b.folder.resolve():
        raise ValueError(f"A and B are both {a.folder}; give two traces")
    remarks = list(_remarks(a.summary, b.summary))
    calls = pd.DataFrame()
    if backends.PROC in (a.summary["backend"], b.summary["backend"]):
        remarks.append("single calls are not compared: proc records none")
    else:
        calls = _calls(a).add_suffix("_a").join(_calls(b).add_suffix("_b"), how="outer").fillna(0)
        calls = calls[[f"{name}_{of}" for name in ("calls", "bytes", "waits") for of in "ab"]]
        calls["longer"] = calls["waits_b"] - calls["waits_a"]
        calls = calls.sort_values("longer", key=lambda each: -each.abs(), kind="stable")
    both = {"A": a, "B": b}
    phases = pd.DataFrame({name: _phase_seconds(trace) for name, trace in both.items()}).fillna(0)
    used = {name: pd.Series(trace.summary.get("usage") or {}) for name, trace in both.items()}
    usage = pd.DataFrame(used).reindex(_USAGE).rename(_USAGE).dropna().astype(float)
    for table in (phases, usage):
        table["B - A"] = table["B"] - table["A"]
    # Of nothing there is no ratio: all are counted from one.
    ratios = np.log((usage["B"] + 1) / (usage["A"] + 1))
    return Comparison(
        phases=_largest_first(phases, phases["B - A"]), calls=calls,
        usage=_largest_first(usage, ratios), remarks=remarks,
    )  # fmt: skip


def _largest_first(table: pd.DataFrame, change: pd.Series) -> pd.DataFrame:
    return table.loc[change.abs().sort_values(ascending=False, kind="stable").index]


def _remarks(a: dict, b: dict) -> Iterator[str]:
    if a["backend"] != b["backend"]:
        names = f"{a['backend']} and {b['backend']}"
        yield f"ANOTHER BACKEND ({names}): each adds its own time to a call; waits do not compare"
    machines = [summary.get("machine") or {} for summary in (a, b)]
    for name in ("hostname", "kernel", "num_cpus", "memory_bytes"):
        of_a, of_b = (machine.get(name) for machine in machines)
        if of_a != of_b and None not in (of_a, of_b):
            yield f"ANOTHER MACHINE, or another state of it: {name} {of_b}, not {of_a}"
    of_a, of_b = (summary.get("command") or [] for summary in (a, b))
    if of_a and of_b and of_a != of_b:
        words = [f"{word!r} (A)" for word in of_a if word not in of_b]
        words += [f"{word!r} (B)" for word in of_b if word not in of_a]
        yield f"another command: {', '.join(words) or 'the same words in another order':.300}"
    for name, summary in (("A", a), ("B", b)):
        if lost := sum((summary.get("losses") or {}).values()):
            yield f"{name} has lost {lost:,} events or lines: its counts are too small"


def _phase_seconds(trace: Trace) -> pd.Series:
    seconds = trace.spans["end_seconds"] - trace.spans["seconds"]
    found = seconds.groupby(trace.spans["name"]).sum()
    found["the whole trace"] = float(trace.summary.get("seconds", 0))
    return found


def _calls(trace: Trace) -> pd.DataFrame:
    """Return number, bytes and seconds of calls by phase, class of file and kind."""
    trace.require_calls()
    calls = trace.operations
    stamps = calls["monotonic_ns"].to_numpy()
    phases = np.full(len(calls), OUTSIDE, dtype=object)
    for span in trace.spans.itertuples():  # an inner span begins after the one around it
        begin, end = np.searchsorted(stamps, [span.monotonic_ns, span.end_monotonic_ns])
        phases[begin:end] = span.name
    # A map moves no bytes yet, a seek or an open none at all.
    moved = calls["size_bytes"].where(calls["kind"].isin(_MOVING), 0)
    calls = calls.assign(phase=phases, bytes=moved, waits=calls["latency_ns"] / 1e9)
    by = calls.groupby(["phase", "file_class", "kind"])
    return by.agg(calls=("bytes", "size"), bytes=("bytes", "sum"), waits=("waits", "sum"))


def lines(compared: Comparison) -> list[str]:
    """Return one page for a terminal."""
    seconds, whole = "{:,.3f}".format, "{:,.0f}".format
    found = [*compared.remarks, "seconds of the phases, largest change first:"]
    found.append(compared.phases.to_string(float_format=seconds))
    if not compared.calls.empty:
        written = {f"{name}_{trace}": form for trace in "ab" for name, form in
                   (("calls", whole), ("bytes", whole), ("waits", seconds))}  # fmt: skip
        written["longer"] = "{:+,.3f}".format
        shown = compared.calls[:_MOST_ROWS]
        shown = shown.set_axis([" ".join(words) for words in shown.index])
        found.append("calls, by the change of their waits in seconds:")
        found.append(shown.to_string(formatters=written))
        rest = compared.calls["longer"][_MOST_ROWS:].abs()
        if len(rest):
            most = rest.max()
            found.append(f"and {len(rest)} more, none of which changed by more than {most:.3f} s")
    if len(compared.usage):
        found.append("all processes:")
        found.append(compared.usage.to_string(float_format="{:,.1f}".format))
    found.append("one trace of each: how much of this is noise is not known")
    return [line for text in found for line in text.splitlines()]


@ends_in_one_line("compare")
def main(arguments: Sequence[str] | None = None) -> None:
    """Prints what changed."""
    parser = parser_of("compare", __doc__)
    parser.add_argument("a", type=path_with_home, metavar="A", help="folder of a finished trace")
    parser.add_argument("b", type=path_with_home, metavar="B")
    given = parser.parse_args(arguments)
    print("\n".join(lines(compare(Trace(given.a), Trace(given.b)))))


if __name__ == "__main__":
    main()
