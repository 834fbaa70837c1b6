"""One command at many points: memory, batch size, reader threads, computation, page cache.

    python -m tracing.sweep --output=build/sweep --memory=1g,4g,none --batch=16,64 \
      --compute=real,sleep --cache=cold,warm -- ./start_training.sh ...

Every point is a trace. The same command goes on where it was interrupted: finished points are kept,
a half or failed one is done again. runs.parquet has a row for each point, sweep.html their curves.

Exit codes: 0 every point is done, killed ones too; 1 bad input, or a point failed; 2 wrong usage;
130 interrupted.
"""

import argparse
import contextlib
import itertools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from tracing import (
    backends,
    ends_in_one_line,
    limits,
    matching,
    option_of,
    parser_of,
    path_with_home,
    sweep_figures,
    sweep_page,
)
from tracing.tables import RUNS, written_beside

LAUNCHER = "start_training.sh"
REAL, SLEEP = "real", "sleep"
COLD, WARM = "cold", "warm"
DONE, KILLED, FAILED, SKIPPED = "done", "killed", "failed", "skipped"
_LARGEST_BYTES = 2**63  # of a column of the table
_KILLED_CODES = (128 + signal.SIGKILL, -signal.SIGKILL)


@dataclass(frozen=True, kw_only=True)
class Point:
    """What one run of the command is given; None leaves the command as it is."""

    memory: str | None = None
    """As it was given: 512m, 1g, none."""
    batch: int | None = None
    workers: int | None = None
    compute: str = REAL
    cache: str | None = None

    @property
    def name(self) -> str:
        """A folder's name."""
        named = {"memory": self.memory, "batch": self.batch, "workers": self.workers}
        parts = [f"{name}-{value}" for name, value in named.items() if value is not None]
        return "_".join([*parts, self.compute, *([self.cache] if self.cache else [])])

    @property
    def memory_bytes(self) -> int | None:
        """The limit; None without one."""
        return limits.parse_bytes(self.memory or "none")


def points(given: argparse.Namespace) -> list[Point]:
    """All combinations: computed ones first, and most memory first."""
    memories = given.memory or [None]
    grid = itertools.product(given.compute, memories, given.batch, given.workers, given.cache)
    names = ("compute", "memory", "batch", "workers", "cache")
    every = (Point(**dict(zip(names, values))) for values in grid)
    # Sleeping steps last as long as computed ones, which come first, and with most memory first,
    # where they wait the least. A value that was given twice is one.
    return sorted(dict.fromkeys(every), key=lambda p: (p.compute, -(p.memory_bytes or math.inf)))


def data_files(given: str | None, command: Sequence[str]) -> list[str]:
    """The files of --data, of the command's --input_file, or of DATA_DIR for the launcher."""
    patterns = option_of(command, "input_file") if given is None else given
    if given is None and not patterns and Path(command[0]).name == LAUNCHER:
        patterns = f"{os.environ.get('DATA_DIR', './data')}/part-*"
    paths = matching(patterns)
    if given and not paths:
        raise ValueError(f"--data={given}: no file matches; name the TFRecords to train on")
    return [path for path in paths if Path(path).is_file()]


class Sweep:
    """Runs the command at points, into one folder."""

    def __init__(self, given: argparse.Namespace):
        """Takes the command's words.

        Raises:
          ValueError: no such command or data, or step times for other batches.
        """
        if shutil.which(given.command[0]) is None:
            raise ValueError(f"{given.command[0]}: no such command")
        if len(given.step_seconds) not in (0, 1, len(given.batch)):
            raise ValueError("--step_seconds: give one, or one for each of --batch")
        self.command = given.command
        self.data = data_files(given.data, given.command)
        self.output = given.output.absolute()
        self.is_launcher = Path(given.command[0]).name == LAUNCHER
        """Whether the command makes a container, whose engine limits memory."""
        self._backend = given.backend
        self._timeout_s = given.timeout_s
        # Batch size -> how long its steps sleep; empty: as measured.
        self._step_seconds = dict(zip(given.batch, itertools.cycle(given.step_seconds)))

    def begin(self, notes: Sequence[str]) -> None:
        """Writes sweep.json, by which a later call knows that it goes on with the same sweep.

        Raises:
          ValueError: the folder holds something else.
        """
        path = self.output / "sweep.json"
        # From another working folder the same words may mean other files.
        data = [str(Path(each).resolve()) for each in self.data]
        same = {"command": self.command, "data": data, "backend": self._backend}
        if self.output.exists() and (not self.output.is_dir() or any(self.output.iterdir())):
            found = _json(path)
            if found != found | same:
                raise ValueError(
                    f"--output={self.output} holds no sweep of this command, its data and "
                    "--backend; name a new folder"
                )
        (self.output / "points").mkdir(parents=True, exist_ok=True)
        with written_beside(path) as file:
            file.write(json.dumps({**same, "notes": list(notes)}, indent=1) + "\n")

    def run(self, grid: Sequence[Point], notes: Sequence[str]) -> list[dict]:
        """Runs what is not finished; returns a row for each point.

        After each the table of all and the page with the notes are written again.

        Raises:
          ValueError: the very first point failed, so that the others would too.
        """
        # A half point is not gone on with: its cache and its trace would be those of two parts.
        for unfinished in (self.output / "points").glob("*.unfinished"):
            shutil.rmtree(unfinished)
        rows: list[dict] = []
        for number, point in enumerate(grid, 1):
            folder, step_s = self.output / "points" / point.name, self._sleep_of(point, rows)
            row = _json(folder / "point.json")
            # It is kept if it slept for as long as it would now.
            is_kept = row.keys() == RUNS.keys() and row["status"] in (DONE, KILLED)
            is_kept = is_kept and step_s in (None, row["emulated_step_seconds"])
            told = f"point {number} of {len(grid)}: {point.name}"
            if not is_kept:
                shutil.rmtree(folder, ignore_errors=True)
                _say(told)
                row = self._run(point, step_s, folder)
            _say(f"{told}: {_in_short(row)}{', kept from before' if is_kept else ''}")
            if row["status"] == FAILED and not any(r["status"] == DONE for r in rows):
                output = folder.rename(folder.with_name("failed.unfinished")) / "output.txt"
                raise ValueError(
                    f"the first point failed, {row['reason']}; {output} holds its output"
                )
            rows.append(row)
            sweep_figures.write_table(self.output / "runs.parquet", rows)
            with written_beside(self.output / "sweep.html") as file:
                file.write(sweep_page.page(self.command, rows, notes))
        return rows

    def _sleep_of(self, point: Point, before: Sequence[dict]) -> float | None:
        """Given, or measured where the same batch was computed with the most memory."""
        if point.compute != SLEEP:
            return None
        if self._step_seconds:
            return self._step_seconds[point.batch]
        measured = [
            row["step_seconds"]
            for row in before
            if (row["compute"], row["batch"], row["status"]) == (REAL, point.batch, DONE)
        ]
        return next((seconds for seconds in measured if seconds is not None), None)

    def _run(self, point: Point, step_s: float | None, folder: Path) -> dict:
        """Runs one point into a folder that gets its name when all is there; returns its row."""
        unfinished = folder.with_name(f"{folder.name}.unfinished")
        unfinished.mkdir()
        outcome: tuple[str, str | None, int | None]
        outcome = SKIPPED, "no step time was measured; give --step_seconds", None
        if point.compute == REAL or step_s is not None:
            outcome = self._traced(point, unfinished, step_s)
        row = sweep_figures.row(
            unfinished, **dict(zip(("status", "reason", "exit_code"), outcome)), name=point.name,
            memory_bytes=point.memory_bytes, batch=point.batch, workers=point.workers,
            compute=point.compute, cache=point.cache, emulated_step_seconds=step_s,
            data_bytes=sum(Path(path).stat().st_size for path in self.data) or None,
        )  # fmt: skip
        with written_beside(unfinished / "point.json") as file:
            file.write(json.dumps(row, indent=1) + "\n")
        shutil.rmtree(unfinished / "run", ignore_errors=True)  # nobody reads its checkpoints again
        # Last of all: a folder under the point's own name is whole.
        unfinished.rename(folder)
        return row

    def command_of(
        self, point: Point, run: Path, step_s: float | None
    ) -> tuple[list[str], dict[str, str]]:
        """(words, environment) of the command at one point; the run's output goes into `run`."""
        words, environment = list(self.command), {}
        if self.is_launcher:
            environment["OUTPUT_DIR"] = str(run)
            if point.memory_bytes is not None:
                environment["MEMORY"] = str(point.memory_bytes)
        elif any(Path(word).name == "run_pretraining.py" for word in words):
            words.append(f"--output_dir={run}")
        if point.batch is not None:
            words.append(f"--train_batch_size={point.batch}")
        if point.workers is not None:
            words.append(f"--num_parallel_files={point.workers}")
        if point.compute == SLEEP:
            words += [f"--emulate_step_seconds={step_s}", "--eval_input_file="]
        return words, environment

    def _traced(
        self, point: Point, folder: Path, step_s: float | None
    ) -> tuple[str, str | None, int | None]:
        """(status, reason, exit code) of the command under the tracing."""
        words, environment = self.command_of(point, folder / "run", step_s)
        with contextlib.ExitStack() as opened:
            group: limits.MemoryGroup | None = None
            prefixed: Callable[[list[str]], list[str]] = list
            if point.memory_bytes is not None and not self.is_launcher:
                group = opened.enter_context(limits.memory_group("mlperf-bert-sweep"))
                group.limit(point.memory_bytes)
                prefixed = group.joined
            if point.cache:
                limits.drop_from_cache(self.data)
            if point.cache == WARM:  # within the group, whose pages they then are
                subprocess.run(prefixed(["/bin/cat", *self.data]), stdout=subprocess.DEVNULL)
            code = self._call(folder, prefixed(words), environment)
            num_kills = group.num_kills if group else 0
        if code is None:
            return FAILED, f"it took more than {self._timeout_s:g} s", code
        if num_kills or (code in _KILLED_CODES and point.memory_bytes is not None):
            return KILLED, f"out of memory: it needs more than {point.memory}", code
        if code:
            return FAILED, f"exit code {code}: {_last_line(folder / 'output.txt')}", code
        return DONE, None, code

    def _call(self, folder: Path, words: Sequence[str], environment: dict) -> int | None:
        """The exit code under the tracing; None after the time limit."""
        backend = [f"--backend={self._backend}"] if self._backend else []
        trace = [sys.executable, "-m", "tracing", f"--output={folder / 'trace'}", *backend, "--"]
        # A command that joins a group needs the rights that it was given; the trace would drop
        # sudo's.
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SUDO_")}
        with (folder / "output.txt").open("wb") as output:
            process = subprocess.Popen(
                [*trace, *words], env=kept | environment, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
            try:
                return process.wait(timeout=self._timeout_s)
            except subprocess.TimeoutExpired:
                return None
            finally:  # after Ctrl-C too
                # The tracing passes it on to the command, and closes the trace.
                process.terminate()
                process.wait()


def _json(path: Path) -> dict:
    """What a file of the sweep holds; nothing if it is not there, or damaged."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _in_short(row: dict) -> str:
    if row["status"] != DONE:
        return f"{row['status']}, {row['reason']}"
    rate, storage = row["samples_per_second"], row["storage_bytes"]
    speed = "no samples known" if rate is None else f"{rate:,.0f} samples/s"
    of_storage = "unknown" if storage is None else f"{storage / 1e6:,.0f} MB"
    return f"{speed}, {of_storage} from storage"


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    own = [line for line in lines if not line.startswith("trace: ")]
    return (own or lines or ["it printed nothing"])[-1][:300]


def _adjusted(sweep: Sweep, given: argparse.Namespace) -> Iterator[str]:
    """Takes out of the grid what cannot be done here; yields a line for each."""
    if not sweep.data:
        yield (
            "data: unknown, so there is no ratio of memory to them and the page cache stays as it "
            "is; --data=GLOB names them"
        )
        given.cache = [None]
    if given.memory and not sweep.is_launcher and (reason := limits.missing()):
        yield f"memory: cannot be limited here: {reason}; every point has all of it"
        given.memory = None
    # Pages that are cached already belong to the group that read them: no limit would hold.
    given.cache = given.cache or ([COLD] if given.memory else [None])


def _listed(kind: Callable, pattern: str, what: str) -> Callable[[str], list]:
    """What argparse calls on several values with commas between them."""

    def parse(text: str) -> list:
        parts = text.split(",")
        with contextlib.suppress(ValueError):
            if all(re.fullmatch(pattern, part, re.IGNORECASE) for part in parts):
                return [kind(part) for part in parts]
        raise argparse.ArgumentTypeError(f"{text[:80]!r}: give {what}")

    return parse


def _memory(text: str) -> str:
    # No limit of 0 bytes: an engine takes it for none at all.
    size = limits.parse_bytes(text)
    if size is not None and not 0 < size < _LARGEST_BYTES:
        raise ValueError
    return text


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= float(text) < float("inf"):  # NaN is not
            return float(text)
    raise argparse.ArgumentTypeError(f"{text[:80]!r}: give seconds")


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("sweep", __doc__)
    numbers = _listed(int, r"0*[1-9]\d*", "whole numbers from 1")
    parser.add_argument(
        "--output", type=path_with_home, required=True, help="an interrupted sweep goes on in it"
    )
    sizes = _listed(_memory, f"none|{limits.SIZE}", "sizes such as 512m,4g,none")
    parser.add_argument("--memory", type=sizes, help="such as 1g,none")
    parser.add_argument("--batch", type=numbers, default=[None], help="--train_batch_size")
    parser.add_argument("--workers", type=numbers, default=[None], help="--num_parallel_files")
    ways = _listed(str.lower, f"{REAL}|{SLEEP}", "real, sleep or both")
    parser.add_argument("--compute", type=ways, default=[REAL])
    states = _listed(str.lower, f"{COLD}|{WARM}", "cold, warm or both")
    parser.add_argument(
        "--cache", type=states, help="cold if memory is limited, else as it was found"
    )
    seconds = _listed(_seconds, ".*", "seconds")
    parser.add_argument("--step_seconds", type=seconds, default=[],
        help="of --compute=sleep; one, or one for each batch size")  # fmt: skip
    parser.add_argument("--data", help="the training's files, if the command does not name them")
    parser.add_argument("--backend", choices=backends.NAMES, help="as of python -m tracing")
    parser.add_argument("--timeout_s", type=_seconds, help="ends a point that takes longer")
    parser.add_argument("command", nargs="+", help="behind --")
    return parser


def _say(line: str) -> None:
    print(f"sweep: {line}", file=sys.stderr, flush=True)


@ends_in_one_line("sweep")
def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a sweep, or goes on with one."""
    # As Ctrl-C does, it leaves a sweep that can be gone on with.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    given = _parser().parse_args(arguments)
    sweep = Sweep(given)
    notes = list(_adjusted(sweep, given))
    for note in notes:
        _say(note)
    sweep.begin(notes)
    try:
        with FileLock(sweep.output / ".lock", timeout=0):
            rows = sweep.run(points(given), notes)
    except Timeout:
        raise ValueError(
            f"--output={given.output}: another sweep works in it; wait, or stop it"
        ) from None
    except KeyboardInterrupt:
        line = "interrupted; the same command goes on with what is left"
        raise KeyboardInterrupt(line) from None
    _say(f"look at {sweep.output / 'sweep.html'}")
    if failed := [row["name"] for row in rows if row["status"] == FAILED]:
        sys.exit(f"sweep: failed: {', '.join(failed)}; the same command tries them again")


if __name__ == "__main__":
    main()
