"""Compares traces of drawn programs with what these wrote down themselves.

`python -m tracing.tests.drawn --backend=bpftrace --seeds=200` prints how many records are equal,
hold a null, by which the trace says that it does not know, or differ; exit code 1 if one does.
"""

import argparse
import collections
import contextlib
import errno
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.helpers import programs
from tracing import backends, clocks, conversion, recording, strace
from tracing.loaded import Trace
from tracing.tests import conftest

PROGRAM = Path(__file__).with_name("drawn_program.py")
SLACK_NS = 30_000  # so exact are a trace's stamps
CAN_BE_NULL = ("path", "new_path", "final_path", "offset_bytes")


class Record(NamedTuple):
    """What a trace holds of one call, thread or process."""

    seed: str
    kind: str
    nulls: list[str] = []
    """Columns of which the trace says that it does not know."""
    differences: list[str] = []

    @property
    def outcome(self) -> str:
        return "differ" if self.differences else "hold a null" if self.nulls else "are equal"


def trace(folder: Path, backend: str, seeds: range) -> list[Record]:
    """What a trace of drawn programs holds."""
    (folder / "programs").mkdir()
    options = [f"--backend={backend}", "--keep_raw"]
    done = conftest.trace(folder / "trace", *_words(folder, seeds), options=options).done
    found = Trace(folder / "trace")
    if done.returncode or any(found.summary["losses"].values()):
        raise RuntimeError(done.stderr)
    return list(compared(found, folder / "programs"))


def trace_soon(folder: Path, seeds: range) -> list[Record]:
    """By strace alone: without samples, figures and a page."""
    (folder / "programs").mkdir()
    (raw := folder / "trace" / recording.RAW).mkdir(parents=True)
    options, began = strace.options(raw / "strace-0.txt"), clocks.read_pair()
    programs.run(*options, "--", *_words(folder, seeds), check=True)
    made = recording.Recording(
        command=[], folder=str(Path.cwd()), exit_code=0, ended_by=None, backend=backends.STRACE,
        notes=[], containers=[], raw_files=[recording.RawFile("strace-0.txt", None)],
        num_lost_lines=0, pairs=[began, clocks.read_pair()], machine={},
    )  # fmt: skip
    losses, _ = conversion.write_tables(folder / "trace", made)
    assert str(losses) == "nothing was lost"
    found = Trace(folder / "trace", {"begin_monotonic_ns": began.monotonic_ns})
    return list(compared(found, folder / "programs"))


def _words(folder: Path, seeds: range) -> list:
    words = ["env", "-u", "PYTHONPATH", sys.executable, "-I", "-S", PROGRAM]
    return [*words, folder / "programs", seeds.start, len(seeds)]


def compared(trace: Trace, folder: Path) -> Iterator[Record]:
    """Every record that a trace must hold by what the programs wrote, and what nobody made."""
    rows, events = trace.operations, trace.table("process_events")
    # By these a program looks at itself, just before a call.
    rows = rows[~rows["path"].str.match(r"/proc/(thread-self|\d+/task)/")]
    calls = {tid: part.to_dict("records") for tid, part in rows.groupby("tid")}
    made_by: dict[int, list[dict]] = collections.defaultdict(list)
    for row in (row for part in calls.values() for row in part):
        made_by[row["pid"]].append(row)
    lives = events.sort_values("monotonic_ns").to_dict("records")
    seen: set[int] = set()
    for journal in sorted(folder.glob("*.json"), key=lambda path: int(path.stem)):
        written = json.loads(journal.read_text())
        last = {int(n): path.removesuffix(" (deleted)") for n, path in written["last"].items()}
        for line in written["lines"]:
            if "failed" in line:
                raise RuntimeError(line["failed"])
            for wanted in line.get("rows", ()):
                near = (r for r in calls.get(line["tid"], ()) if _is_of(r, line, wanted))
                error = line["error"] and errno.errorcode[line["error"]]
                wanted |= {"pid": line["pid"], "error": error}
                if "file" in wanted:
                    wanted["final_path"] = last[wanted.pop("file")]
                yield _record(journal.stem, wanted, near, seen)
            if event := line.get("event"):
                near = (r for r in lives if r["event"] == event["event"] and _lives(r, line))
                yield _record(journal.stem, event, near, seen)
        within = f"{journal.with_suffix('')}/"
        pids = {line["pid"] for line in written["lines"]}
        for row in (row for pid in pids for row in made_by[pid] if id(row) not in seen):
            is_pythons = row["kind"] == "seek" and row["fd"] == 0  # when it begins
            if row["path"].startswith(within) and not is_pythons:
                yield Record(journal.stem, row["kind"], differences=[f"nobody made {row}"])


def _is_of(row: dict, line: dict, wanted: dict) -> bool:
    is_then = line["began"] - SLACK_NS <= row["monotonic_ns"] <= line["ended"] + SLACK_NS
    is_it = row["kind"] == wanted["kind"] and wanted.get("fd") in (None, row["fd"])
    return is_then and is_it


def _lives(row: dict, line: dict) -> bool:
    # Another thread than the first becomes the first by an exec.
    return row["pid"] == line["pid"] and (row["event"] == "exec" or row["tid"] == line["tid"])


def _record(seed: str, wanted: dict, near: Iterable[dict], seen: set[int]) -> Record:
    kind = wanted.get("kind") or wanted["event"]
    row = next((row for row in near if id(row) not in seen), None)
    if row is None:
        return Record(seed, kind, differences=[f"no row of {wanted}"])
    seen.add(id(row))
    found = Record(seed, kind, [], [])
    for column, value in wanted.items():
        is_null = row[column] != row[column] or str(row[column]).startswith(("unknown:", "None"))
        if is_null and value is not None and column in CAN_BE_NULL:
            found.nulls.append(column)
        elif (None if is_null else row[column]) != value:
            found.differences.append(f"{column} {row[column]!r}, not {value!r}: {wanted}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=[backends.STRACE, backends.BPFTRACE], required=True)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="is kept; default: a temporary one")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = given.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        seeds = range(given.first, given.first + given.seeds)
        records = trace(folder, given.backend, seeds)
    outcomes = collections.Counter(record.outcome for record in records)
    by_column = collections.Counter(name for record in records for name in record.nulls)
    print(f"{given.backend}: {given.seeds} programs, {len(records):,} records: {dict(outcomes)}")
    print(f"null by column: {dict(by_column)}; by kind: "
          f"{dict(collections.Counter(r.kind for r in records).most_common())}")  # fmt: skip
    for record in records:
        for difference in record.differences:
            print(f"program {record.seed}: {record.kind}: {difference}")
    sys.exit(1 if outcomes["differ"] else 0)


if __name__ == "__main__":
    main()
