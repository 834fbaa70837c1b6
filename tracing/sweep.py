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
import enum
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
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
from tracing.tables import written_beside

LAUNCHER = "start_training.sh"
DONE, KILLED, FAILED, SKIPPED = "done", "killed", "failed", "skipped"
_KILLED_CODES = (128 + signal.SIGKILL, -signal.SIGKILL)
_GIVEN = ("memory_bytes", "batch", "workers", "compute", "cache")
"""What runs.parquet has of a point, under the same names."""


class Compute(enum.StrEnum):
    """What a step does."""

    REAL = "real"
    SLEEP = "sleep"


class Cache(enum.StrEnum):
    """Where the data are when a point begins."""

    COLD = "cold"
    WARM = "warm"


@dataclass(frozen=True, kw_only=True)
class Point:
    """What one run of the command is given; None leaves the command as it is."""

    memory: str | None = None
    """As it was given: 512m, 1g, none."""
    batch: int | None = None
    workers: int | None = None
    compute: Compute = Compute.REAL
    cache: Cache | None = None

    @property
    def name(self) -> str:
        """A folder's name."""
        named = {"memory": self.memory, "batch": self.batch, "workers": self.workers}
        parts = [f"{name}-{value}" for name, value in named.items() if value is not None]
        return "_".join([*parts, self.compute, *([self.cache] if self.cache else [])])

    @property
    def memory_bytes(self) -> int | None:
        """The limit; None without one."""
        return None if self.memory is None else limits.parse_bytes(self.memory)


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The command, its data, and where the points go."""

    command: tuple[str, ...]
    data: tuple[str, ...]
    """The training's files; empty if they are unknown."""
    output: Path
    step_seconds: dict[int | None, float] = field(default_factory=dict)
    """Batch size -> how long its steps sleep; empty: as measured."""
    backend: str | None = None
    timeout_s: float | None = None

    @property
    def is_launcher(self) -> bool:
        """Whether the command makes a container, whose engine limits memory."""
        return Path(self.command[0]).name == LAUNCHER

    def folder(self, point: Point) -> Path:
        """Where a finished point lies."""
        return self.output / "points" / point.name

    def sleep_of(self, point: Point, before: Sequence[dict]) -> float | None:
        """Given, or measured where the same batch was computed with the most memory."""
        if point.compute != Compute.SLEEP:
            return None
        if self.step_seconds:
            return self.step_seconds[point.batch]
        measured = [
            row["step_seconds"]
            for row in before
            if (row["compute"], row["batch"], row["status"]) == (Compute.REAL, point.batch, DONE)
        ]
        return next((seconds for seconds in measured if seconds is not None), None)


def points(given: argparse.Namespace) -> list[Point]:
    """All combinations: computed ones first, and most memory first."""
    memories = sorted(given.memory or [None], key=_most_first)
    names = ("compute", "memory", "batch", "workers", "cache")
    # Sleeping steps last as long as computed ones, which come first, and with most memory first,
    # where they wait the least.
    grid = itertools.product(
        sorted(given.compute), memories, given.batch, given.workers, given.cache
    )
    found = (Point(**dict(zip(names, values))) for values in grid)
    return list(dict.fromkeys(found))  # a value that was given twice is one


def _most_first(memory: str | None) -> float:
    number = None if memory is None else limits.parse_bytes(memory)
    return float("-inf") if number is None else -number


def data_files(given: str | None, command: Sequence[str]) -> tuple[str, ...]:
    """The files of --data, of the command's --input_file, or of DATA_DIR for the launcher."""
    patterns = option_of(command, "input_file") if given is None else given
    if given is None and not patterns and Path(command[0]).name == LAUNCHER:
        patterns = f"{os.environ.get('DATA_DIR', './data')}/part-*"
    found = matching(patterns)
    if given and not found:
        raise ValueError(f"--data={given}: no file matches; name the TFRecords to train on")
    return tuple(path for path in found if Path(path).is_file())


def command_of(
    sweep: Sweep, point: Point, run: Path, step_s: float | None
) -> tuple[list[str], dict[str, str]]:
    """(words, environment) of the command at one point; the run's output goes into `run`."""
    words, environment = list(sweep.command), {}
    if sweep.is_launcher:
        environment["OUTPUT_DIR"] = str(run)
        if point.memory_bytes is not None:
            environment["MEMORY"] = str(point.memory_bytes)
    elif any(Path(word).name == "run_pretraining.py" for word in words):
        words.append(f"--output_dir={run}")
    if point.batch is not None:
        words.append(f"--train_batch_size={point.batch}")
    if point.workers is not None:
        words.append(f"--num_parallel_files={point.workers}")
    if point.compute == Compute.SLEEP:
        words += [f"--emulate_step_seconds={step_s}", "--eval_input_file="]
    return words, environment


def run_all(sweep: Sweep, grid: Sequence[Point], notes: Sequence[str]) -> list[dict]:
    """Runs what is not finished; returns a row for each point.

    After each the table of all and the page with the notes are written again.

    Raises:
      ValueError: the very first point failed, so that the others would too.
    """
    folder = sweep.output / "points"
    folder.mkdir(parents=True, exist_ok=True)
    # A half point is not gone on with: its cache and its trace would be those of two parts.
    for unfinished in folder.glob("*.unfinished"):
        shutil.rmtree(unfinished)
    rows: list[dict] = []
    for number, point in enumerate(grid, 1):
        step_s = sweep.sleep_of(point, rows)
        row = sweep_figures.read_row(sweep.folder(point) / "point.json")
        # It is kept if it slept for as long as it would now.
        is_kept = row.get("status") in (DONE, KILLED) and (
            step_s in (None, row["emulated_step_seconds"])
        )
        if not is_kept:
            shutil.rmtree(sweep.folder(point), ignore_errors=True)
            _say(f"point {number} of {len(grid)}: {point.name}")
            row = _run(sweep, point, step_s)
        kept = ", kept from before" if is_kept else ""
        _say(f"point {number} of {len(grid)}: {point.name}: {_in_short(row)}{kept}")
        if row["status"] == FAILED and not any(r["status"] == DONE for r in rows):
            output = sweep.folder(point).rename(folder / "failed.unfinished") / "output.txt"
            raise ValueError(f"the first point failed, {row['reason']}; {output} holds its output")
        rows.append(row)
        sweep_figures.write_table(sweep.output / "runs.parquet", rows)
        with written_beside(sweep.output / "sweep.html") as file:
            file.write(sweep_page.page(sweep.command, rows, notes))
    return rows


def _in_short(row: dict) -> str:
    if row["status"] != DONE:
        return f"{row['status']}, {row['reason']}"
    rate, storage = row["samples_per_second"], row["storage_bytes"]
    speed = "no samples known" if rate is None else f"{rate:,.0f} samples/s"
    of_storage = "unknown" if storage is None else f"{storage / 1e6:,.0f} MB"
    return f"{speed}, {of_storage} from storage"


def _run(sweep: Sweep, point: Point, step_s: float | None) -> dict:
    """Runs one point into a folder that gets its name when all is there; returns its row."""
    unfinished = sweep.output / "points" / f"{point.name}.unfinished"
    unfinished.mkdir()
    outcome: tuple[str, str | None, int | None]
    outcome = SKIPPED, "no step time was measured; give --step_seconds", None
    if point.compute == Compute.REAL or step_s is not None:
        outcome = _traced(sweep, point, unfinished, step_s)
    given = {name: getattr(point, name) for name in ("name", *_GIVEN)}
    given |= dict(zip(("status", "reason", "exit_code"), outcome))
    given["emulated_step_seconds"] = step_s
    given["data_bytes"] = sum(Path(path).stat().st_size for path in sweep.data) or None
    row = sweep_figures.row(unfinished, given)
    with written_beside(unfinished / "point.json") as file:
        file.write(json.dumps(row, indent=1) + "\n")
    shutil.rmtree(unfinished / "run", ignore_errors=True)  # checkpoints: nobody reads them again
    # Last of all: a folder under the point's own name is whole.
    unfinished.rename(sweep.folder(point))
    return row


def _traced(
    sweep: Sweep, point: Point, folder: Path, step_s: float | None
) -> tuple[str, str | None, int | None]:
    """(status, reason, exit code) of the command under the tracing."""
    words, environment = command_of(sweep, point, folder / "run", step_s)
    with contextlib.ExitStack() as opened:
        group: limits.MemoryGroup | None = None
        prefixed: Callable[[list[str]], list[str]] = list
        if point.memory_bytes is not None and not sweep.is_launcher:
            group = opened.enter_context(limits.memory_group("mlperf-bert-sweep"))
            group.limit(point.memory_bytes)
            prefixed = group.joined
        if point.cache:
            limits.drop_from_cache(sweep.data)
        if point.cache == Cache.WARM:  # within the group, whose pages they then are
            subprocess.run(prefixed(["/bin/cat", *sweep.data]), stdout=subprocess.DEVNULL)
        code = _call(sweep, folder, prefixed(words), environment)
        num_kills = group.num_kills if group else 0
    if code is None:
        return FAILED, f"it took more than {sweep.timeout_s:g} s", code
    if num_kills or (code in _KILLED_CODES and point.memory_bytes is not None):
        return KILLED, f"out of memory: it needs more than {point.memory}", code
    if code:
        return FAILED, f"exit code {code}: {_last_line(folder / 'output.txt')}", code
    return DONE, None, code


def _call(sweep: Sweep, folder: Path, words: Sequence[str], environment: dict) -> int | None:
    """The exit code under the tracing; None after the time limit."""
    backend = [f"--backend={sweep.backend}"] if sweep.backend else []
    trace = [sys.executable, "-m", "tracing", f"--output={folder / 'trace'}", *backend, "--"]
    # A command that joins a group needs the rights that it was given; the trace would drop sudo's.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SUDO_")}
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            [*trace, *words], env=kept | environment, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            return process.wait(timeout=sweep.timeout_s)
        except subprocess.TimeoutExpired:
            return None
        finally:  # after Ctrl-C too
            # The tracing passes it on to the command, and closes the trace.
            process.terminate()
            process.wait()


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    own = [line for line in lines if not line.startswith("trace: ")]
    return (own or lines or ["it printed nothing"])[-1][:300]


def _record(sweep: Sweep, notes: Sequence[str]) -> None:
    """Writes sweep.json, by which a later call knows that it goes on with the same sweep.

    Raises:
      ValueError: the folder holds something else.
    """
    path = sweep.output / "sweep.json"
    # From another working folder the same words may mean other files.
    data = [str(Path(each).resolve()) for each in sweep.data]
    same = {"command": list(sweep.command), "data": data, "backend": sweep.backend}
    if sweep.output.exists() and (not sweep.output.is_dir() or any(sweep.output.iterdir())):
        try:
            found = json.loads(path.read_text())
        except (OSError, ValueError):
            found = None
        if not isinstance(found, dict) or found != found | same:
            raise ValueError(
                f"--output={sweep.output} holds no sweep of this command, its data and --backend; "
                "name a new folder"
            )
    sweep.output.mkdir(parents=True, exist_ok=True)
    with written_beside(path) as file:
        file.write(json.dumps({**same, "notes": list(notes)}, indent=1) + "\n")


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
    given.cache = given.cache or ([Cache.COLD] if given.memory else [None])


def _listed(kind: Callable, what: str) -> Callable[[str], list]:
    """What argparse calls on several values with commas between them."""

    def parse(text: str) -> list:
        try:
            return [kind(part) for part in text.split(",")]
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text[:80]!r}: give {what}") from None

    return parse


def _whole(text: str) -> int:
    if int(text) < 1:
        raise ValueError
    return int(text)


def _seconds(text: str) -> float:
    if not 0 <= float(text) < float("inf"):  # NaN too
        raise ValueError
    return float(text)


def _memory(text: str) -> str:
    limits.parse_bytes(text)
    return text


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("sweep", __doc__)
    parser.add_argument(
        "--output", type=path_with_home, required=True, help="an interrupted sweep goes on in it"
    )
    parser.add_argument(
        "--memory", type=_listed(_memory, "sizes such as 512m,4g,none"), help="such as 1g,none"
    )
    numbers = _listed(_whole, "whole numbers from 1")
    parser.add_argument("--batch", type=numbers, default=[None], help="--train_batch_size")
    parser.add_argument("--workers", type=numbers, default=[None], help="--num_parallel_files")
    parser.add_argument(
        "--compute", type=_listed(Compute, "real, sleep or both"), default=[Compute.REAL]
    )
    parser.add_argument("--cache", type=_listed(Cache, "cold, warm or both"),
        help="cold if memory is limited, else as it was found")  # fmt: skip
    parser.add_argument("--step_seconds", type=_listed(_seconds, "seconds"), default=[],
        help="of --compute=sleep; one, or one for each batch size")  # fmt: skip
    parser.add_argument("--data", help="the training's files, if the command does not name them")
    parser.add_argument("--backend", choices=backends.NAMES, help="as of python -m tracing")
    parser.add_argument("--timeout_s", type=_seconds, help="ends a point that takes longer")
    parser.add_argument("command", nargs="+", help="behind --")
    return parser


def _checked(given: argparse.Namespace) -> Sweep:
    if shutil.which(given.command[0]) is None:
        raise ValueError(f"{given.command[0]}: no such command")
    if len(given.step_seconds) not in (0, 1, len(given.batch)):
        raise ValueError("--step_seconds: give one, or one for each of --batch")
    seconds = given.step_seconds * (len(given.batch) if len(given.step_seconds) == 1 else 1)
    return Sweep(
        command=tuple(given.command),
        data=data_files(given.data, given.command),
        output=given.output.absolute(),
        step_seconds=dict(zip(given.batch, seconds)),
        backend=given.backend,
        timeout_s=given.timeout_s,
    )


def _say(line: str) -> None:
    print(f"sweep: {line}", file=sys.stderr, flush=True)


@ends_in_one_line("sweep")
def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a sweep, or goes on with one."""
    # As Ctrl-C does, it leaves a sweep that can be gone on with.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    given = _parser().parse_args(arguments)
    sweep = _checked(given)
    notes = list(_adjusted(sweep, given))
    for note in notes:
        _say(note)
    _record(sweep, notes)
    try:
        with FileLock(sweep.output / ".lock", timeout=0):
            rows = run_all(sweep, points(given), notes)
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
