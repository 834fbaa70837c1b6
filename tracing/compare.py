"""What changed between two traces: seconds, calls, bytes and waits per phase, largest first.

    python -m tracing.compare traces/before traces/after

A call belongs to the innermost phase of the MLPerf log in which it began: init, block (training),
eval, checkpoint, run (what is left of it), or outside. Waits are the latencies of calls, summed; of
calls that overlap, both count. There is one trace of each, so nothing says how much is noise.

Exit codes: 0; 1 bad input.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tracing import backends, ends_in_one_line, files, parser_of, path_with_home
from tracing.exports.finished import Finished, readable
from tracing.loaded import final_paths

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
_CALL_COLUMNS = (
    "monotonic_ns", "kind", "path", "new_path", "file_class", "size_bytes", "latency_ns", "error",
)  # fmt: skip


@dataclass(frozen=True)
class Change:
    """One figure of both traces."""

    what: str
    a: float
    b: float

    @property
    def difference(self) -> float:
        """B minus A."""
        return self.b - self.a


@dataclass(frozen=True)
class Comparison:
    """Two traces; each list has the largest change first."""

    phases: tuple[Change, ...]
    """Seconds of each phase, those of the same name together."""
    calls: pd.DataFrame
    """Phase, file_class and kind, calls, bytes and seconds of waits of each trace (_a, _b), and how
    much longer B waits; empty if a trace has no single calls."""
    usage: tuple[Change, ...]
    """Of all processes, by the ratio."""
    remarks: tuple[str, ...]
    """What makes the two differ besides, or is not known."""


def compare(a: Finished, b: Finished) -> Comparison:
    """Compare two finished traces.

    Raises:
      ValueError: they are one trace, or a table is damaged.
    """
    if a.folder.resolve() == b.folder.resolve():
        raise ValueError(f"A and B are both {a.folder}; give two traces")
    remarks = list(_remarks(a, b))
    has_calls = all(trace.summary["backend"] != backends.PROC for trace in (a, b))
    calls = pd.DataFrame()
    if has_calls:
        for trace in (a, b):
            trace.require_calls()
        calls = _call_changes(_calls(a), _calls(b))
    else:
        remarks.append("single calls are not compared: proc records none")
    usage = [
        Change(words, float(a.summary["usage"][name]), float(b.summary["usage"][name]))
        for name, words in _USAGE.items()
        if all(isinstance(_usage(trace, name), int | float) for trace in (a, b))
    ]
    return Comparison(
        phases=tuple(_largest_first(_phase_changes(a, b), lambda each: each.difference)),
        calls=calls,
        usage=tuple(_largest_first(usage, lambda each: np.log((each.b + 1) / (each.a + 1)))),
        remarks=tuple(remarks),
    )


def _largest_first(changes: Iterable, size) -> list:
    return sorted(changes, key=lambda change: -abs(size(change)))


def _usage(trace: Finished, name: str) -> object:
    usage = trace.summary.get("usage")
    return usage.get(name) if isinstance(usage, dict) else None


def _remarks(a: Finished, b: Finished) -> Iterable[str]:
    found = [trace.summary for trace in (a, b)]
    if found[0]["backend"] != found[1]["backend"]:
        names = " and ".join(each["backend"] for each in found)
        yield f"ANOTHER BACKEND ({names}): each adds its own time to a call; waits do not compare"
    machines = [each.get("machine") or {} for each in found]
    for name in ("hostname", "kernel", "num_cpus", "memory_bytes"):
        of_a, of_b = (machine.get(name) for machine in machines)
        if of_a != of_b and None not in (of_a, of_b):
            yield f"ANOTHER MACHINE, or another state of it: {name} {of_b}, not {of_a}"
    of_a, of_b = (each.get("command") or [] for each in found)
    if of_a and of_b and of_a != of_b:
        words = [f"{_one_line(word)} (A)" for word in of_a if word not in of_b]
        words += [f"{_one_line(word)} (B)" for word in of_b if word not in of_a]
        yield f"another command: {', '.join(words) or 'the same words in another order':.300}"
    for name, summary in zip("AB", found, strict=True):
        losses = summary.get("losses") or {}
        if lost := sum(n for n in losses.values() if isinstance(n, int)):
            yield f"{name} has lost {lost:,} events or lines: its counts are too small"


def _one_line(word: object) -> str:
    return word if isinstance(word, str) and word.isprintable() else repr(word)


def _phase_changes(a: Finished, b: Finished) -> list[Change]:
    seconds = []
    for trace in (a, b):
        spans = trace.table("spans", ["monotonic_ns", "name", "end_monotonic_ns"])
        length = (spans["end_monotonic_ns"] - spans["monotonic_ns"]) / 1e9
        seconds.append(length.groupby(spans["name"]).sum().to_dict())
    whole = [trace.summary.get("seconds", 0) for trace in (a, b)]
    changes = [Change("the whole trace", *map(float, whole))]
    for name in dict.fromkeys([*seconds[0], *seconds[1]]):
        changes.append(Change(str(name), *(float(each.get(name, 0)) for each in seconds)))
    return changes


def _calls(trace: Finished) -> pd.DataFrame:
    """Return number, bytes and seconds of calls by phase, class of file and kind."""
    calls = trace.table("file_ops", _CALL_COLUMNS)
    stamps = calls["monotonic_ns"].to_numpy()
    phases = np.full(len(calls), OUTSIDE, dtype=object)
    spans = trace.table("spans", ["monotonic_ns", "name", "end_monotonic_ns"])
    for span in spans.itertuples():  # an inner span begins after the one around it
        begin, end = np.searchsorted(stamps, [span.monotonic_ns, span.end_monotonic_ns])
        phases[begin:end] = span.name
    # A checkpoint that is written under another name is a checkpoint.
    final = final_paths(calls)
    was_renamed = final != calls["path"]
    calls.loc[was_renamed, "file_class"] = final[was_renamed].map(files.classify)
    # A map moves no bytes yet, a seek or an open none at all.
    moved = calls["size_bytes"].where(calls["kind"].isin(_MOVING), 0)
    calls = calls.assign(phase=phases, bytes=moved, waits=calls["latency_ns"] / 1e9)
    by = calls.groupby(["phase", "file_class", "kind"])
    return by.agg(calls=("bytes", "size"), bytes=("bytes", "sum"), waits=("waits", "sum"))


def _call_changes(a: pd.DataFrame, b: pd.DataFrame) -> pd.DataFrame:
    both = a.add_suffix("_a").join(b.add_suffix("_b"), how="outer").fillna(0)
    both["longer"] = both["waits_b"] - both["waits_a"]
    return both.sort_values("longer", key=lambda each: -each.abs(), kind="stable").reset_index()


def lines(compared: Comparison) -> list[str]:
    """Return one page for a terminal."""
    found = [*compared.remarks, "seconds of the phases, largest change first:"]
    row = "  {:<28}{:>16}{:>16}{:>16}"
    found.append(row.format("", "A", "B", "B - A"))
    for change in compared.phases:
        found.append(row.format(change.what, *_cells(change, in_seconds=True)))
    if not compared.calls.empty:
        found.append("calls, by the change of their waits:")
        wide = "  {:<28}{:>10}{:>10}{:>15}{:>15}{:>10}{:>10}{:>10}"
        heads = "calls A", "calls B", "bytes A", "bytes B", "waits A", "waits B", "B - A s"
        found.append(wide.format("", *heads))
        for each in compared.calls[:_MOST_ROWS].itertuples():
            counts = (each.calls_a, each.calls_b, each.bytes_a, each.bytes_b)
            found.append(
                wide.format(
                    f"{each.phase} {each.file_class} {each.kind}",
                    *(f"{count:,.0f}" for count in counts),
                    *(f"{wait:.3f}" for wait in (each.waits_a, each.waits_b)),
                    f"{each.longer:+.3f}",
                )
            )
        rest = compared.calls["longer"][_MOST_ROWS:].abs()
        if len(rest):
            found.append(
                f"  and {len(rest)} more, none of which changed by more than {rest.max():.3f} s"
            )
    if compared.usage:
        found.append("all processes:")
        for change in compared.usage:
            found.append(row.format(change.what, *_cells(change)))
    return [*found, "one trace of each: how much of this is noise is not known"]


def _cells(change: Change, *, in_seconds: bool = False) -> tuple[str, str, str]:
    if in_seconds or not (change.a.is_integer() and change.b.is_integer()):
        return f"{change.a:,.3f}", f"{change.b:,.3f}", f"{change.difference:+,.3f}"
    return f"{change.a:,.0f}", f"{change.b:,.0f}", f"{change.difference:+,.0f}"


@ends_in_one_line("compare")
def main(arguments: Sequence[str] | None = None) -> None:
    """Prints what changed."""
    parser = parser_of("compare", __doc__)
    parser.add_argument("a", type=path_with_home, metavar="A", help="folder of a finished trace")
    parser.add_argument("b", type=path_with_home, metavar="B")
    given = parser.parse_args(arguments)
    with readable(given.a, given.b):
        print("\n".join(lines(compare(Finished(given.a), Finished(given.b)))))


if __name__ == "__main__":
    main()
