"""One command at many points: memory, batch size, reader threads, computation, page cache.

    python -m tracing.sweep --output=build/sweep --memory=1g,4g,none --batch=16,64 \
      --compute=real,sleep --cache=cold,warm -- ./start_training.sh ...

Every point is a trace. The same command goes on where it was interrupted: finished points are kept,
a half or failed one is done again. runs.parquet has a row for each point, sweep.html their curves.

Exit codes: 0 every point is done, killed ones too; 1 bad input, or a point failed; 130 interrupted.
"""

import argparse
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from tracing import (
    Parser,
    backends,
    ends_in_one_line,
    limits,
    matching,
    option_of,
    path_with_home,
    sweep_figures,
    sweep_page,
)
from tracing.tables import written_beside

LAUNCHER = "start_training.sh"
REAL, SLEEP = "real", "sleep"
COLD, WARM = "cold", "warm"
DONE, KILLED, FAILED, SKIPPED = "done", "killed", "failed", "skipped"
_KILLED_CODES = (128 + signal.SIGKILL, -signal.SIGKILL)
_NAMED_BY = ("memory", "batch", "workers")


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
        values = [(name, getattr(self, name)) for name in _NAMED_BY]
        parts = [f"{name}-{value}" for name, value in values if value is not None]
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
    step_seconds: Mapping[int | None, float] = field(default_factory=dict)
    """Batch size -> how long its steps sleep; empty: as measured."""
    backend: str | None = None
    timeout_s: float | None = None

    @property
    def data_bytes(self) -> int | None:
        """Size of the data; None if they are unknown."""
        return sum(Path(path).stat().st_size for path in self.data) or None

    @property
    def is_launcher(self) -> bool:
        """Whether the command makes a container, whose engine limits memory."""
        return Path(self.command[0]).name == LAUNCHER

    def folder(self, point: Point) -> Path:
        """Where a finished point lies."""
        return self.output / "points" / point.name


def points(given: argparse.Namespace) -> list[Point]:
    """All combinations: computed ones first, and most memory first."""
    memories = sorted(given.memory or [None], key=_most_first)
    grid = itertools.product(
        sorted(given.compute), memories, given.batch, given.workers, given.cache
    )
    names = ("compute", "memory", "batch", "workers", "cache")
    return [Point(**dict(zip(names, values))) for values in grid]


def _most_first(memory: str | None) -> float:
    number = None if memory is None else limits.parse_bytes(memory)
    return float("-inf") if number is None else -number


def data_files(given: str | None, command: Sequence[str]) -> tuple[str, ...]:
    """The files of --data, of the command's --input_file, or of DATA_DIR for the launcher."""
    patterns = option_of(command, "input_file")[2] if given is None else given
    if given is None and not patterns and Path(command[0]).name == LAUNCHER:
        patterns = f"{os.environ.get('DATA_DIR', './data')}/part-*"
    found = matching(patterns)
    if given and not found:
        raise ValueError(f"--data={given}: no file matches; name the TFRecords to train on")
    return tuple(path for path in found if Path(path).is_file())


def command_of(sweep: Sweep, point: Point, run: Path, step_s: float | None):
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
    if point.compute == SLEEP:
        words += [f"--emulate_step_seconds={step_s}", "--eval_input_file="]
    return words, environment


def run_all(sweep: Sweep, grid: Sequence[Point], notes: Sequence[str], say) -> list[dict]:
    """Runs what is not finished; returns a row for each point.

    After each the table of all and the page with the notes are written again.

    Raises:
      ValueError: the very first point failed, so that the others would too.
    """
    folder = sweep.output / "points"
    folder.mkdir(parents=True, exist_ok=True)
    for unfinished in folder.glob("*.unfinished"):
        shutil.rmtree(unfinished)
    rows: list[dict] = []
    for number, point in enumerate(grid, 1):
        place = sweep.folder(point) / "point.json"
        is_kept = _is_as_asked(sweep_figures.read_row(place), sweep, point, rows)
        if not is_kept:
            shutil.rmtree(place.parent, ignore_errors=True)
            say(f"point {number} of {len(grid)}: {point.name}")
            _run(sweep, point, rows, say)
        row = json.loads(place.read_text())
        say(f"point {number} of {len(grid)}: {point.name}: {_in_short(row, is_kept)}")
        if row["status"] == FAILED and not any(r["status"] == DONE for r in rows):
            output = sweep.folder(point).rename(folder / "failed.unfinished") / "output.txt"
            raise ValueError(f"the first point failed, {row['reason']}; {output} holds its output")
        rows.append(row)
        sweep_figures.write_table(sweep.output / "runs.parquet", rows)
        with written_beside(sweep.output / "sweep.html") as file:
            file.write(sweep_page.page(sweep.command, rows, notes))
    return rows


def _is_as_asked(row: dict, sweep: Sweep, point: Point, before: Sequence[dict]) -> bool:
    """Whether a point is finished, and slept as long in a step as it would now."""
    asked = _step_seconds(sweep, point, before) if point.compute == SLEEP else None
    return row.get("status") in (DONE, KILLED) and asked in (None, row["emulated_step_seconds"])


def _in_short(row: dict, is_kept: bool) -> str:
    kept = ", kept from before" if is_kept else ""
    if row["status"] != DONE:
        return f"{row['status']}, {row['reason']}{kept}"
    rate = row["samples_per_second"]
    speed = "no samples known" if rate is None else f"{rate:,.0f} samples/s"
    storage = row["storage_bytes"]
    of_storage = "unknown" if storage is None else f"{storage / 1e6:,.0f} MB"
    return f"{speed}, {of_storage} from storage{kept}"


def _run(sweep: Sweep, point: Point, before: Sequence[dict], say) -> None:
    """Runs one point into a folder that gets its name when all is there."""
    unfinished = sweep.output / "points" / f"{point.name}.unfinished"
    unfinished.mkdir()
    step_s = _step_seconds(sweep, point, before) if point.compute == SLEEP else None
    if point.compute == SLEEP and step_s is None:
        outcome = (SKIPPED, "no step time was measured; give --step_seconds", None)
    else:
        outcome = _traced(sweep, point, unfinished, step_s, say)
    row = sweep_figures.row(
        unfinished,
        given={
            "name": point.name, "memory_bytes": point.memory_bytes, "batch": point.batch,
            "workers": point.workers, "compute": point.compute, "cache": point.cache,
            "emulated_step_seconds": step_s, "data_bytes": sweep.data_bytes,
            **dict(zip(("status", "reason", "exit_code"), outcome)),
        },
    )  # fmt: skip
    with written_beside(unfinished / "point.json") as file:
        file.write(json.dumps(row, indent=1) + "\n")
    shutil.rmtree(unfinished / "run", ignore_errors=True)  # checkpoints: nobody reads them again
    unfinished.rename(sweep.folder(point))


def _step_seconds(sweep: Sweep, point: Point, before: Sequence[dict]) -> float | None:
    """Given, or measured where the same batch was computed with the most memory."""
    if sweep.step_seconds:
        return sweep.step_seconds[point.batch]
    measured = [
        row["step_seconds"]
        for row in before
        if row["compute"] == REAL and row["batch"] == point.batch and row["status"] == DONE
    ]
    return next((seconds for seconds in measured if seconds is not None), None)


def _traced(sweep: Sweep, point: Point, folder: Path, step_s: float | None, say):
    """(status, reason, exit code) of the command under the tracing."""
    words, environment = command_of(sweep, point, folder / "run", step_s)
    with contextlib.ExitStack() as opened:
        group = None
        if point.memory_bytes is not None and not sweep.is_launcher:
            group = opened.enter_context(limits.memory_group("mlperf-bert-sweep"))
            group.limit(point.memory_bytes)
        if point.cache:
            _prepare_cache(sweep, point, group)
        code = _call(sweep, folder, group.joined(words) if group else words, environment)
        num_kills = group.num_kills if group else 0
    if code is None:
        return FAILED, f"it took more than {sweep.timeout_s:g} s", code
    if num_kills or (code in _KILLED_CODES and point.memory_bytes is not None):
        return KILLED, f"out of memory: it needs more than {point.memory}", code
    if code:
        return FAILED, f"exit code {code}: {_last_line(folder / 'output.txt')}", code
    return DONE, None, code


def _prepare_cache(sweep: Sweep, point: Point, group: limits.MemoryGroup | None) -> None:
    """Drops the data from the page cache; for a warm one reads them from within the group."""
    limits.drop_from_cache(sweep.data)
    if point.cache == WARM:
        reading = ["/bin/cat", *sweep.data]
        subprocess.run(group.joined(reading) if group else reading, stdout=subprocess.DEVNULL)


def _call(sweep: Sweep, folder: Path, words: Sequence[str], environment: dict) -> int | None:
    """The exit code under the tracing; None after the time limit."""
    backend = [f"--backend={sweep.backend}"] if sweep.backend else []
    trace = [sys.executable, "-m", "tracing", f"--output={folder / 'trace'}"]
    command = [*trace, *backend, "--", *words]
    # A command that joins a group needs the rights that it was given; the trace would drop sudo's.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SUDO_")}
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=kept | environment,
        )
        try:
            return process.wait(timeout=sweep.timeout_s)
        except subprocess.TimeoutExpired:
            return None
        finally:  # after Ctrl-C too
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
    same = {
        "command": list(sweep.command),
        "data": [str(Path(p).resolve()) for p in sweep.data],
        "backend": sweep.backend,
    }
    if path.exists():
        try:
            found = json.loads(path.read_text())
            found = {name: found.get(name) for name in same}
        except (OSError, ValueError, AttributeError):
            found = None
        if found != same:
            raise ValueError(
                f"--output={sweep.output} holds the sweep of another command, other data or "
                "another --backend; name another folder"
            )
    elif sweep.output.exists() and (not sweep.output.is_dir() or any(sweep.output.iterdir())):
        raise ValueError(f"--output={sweep.output} is there and holds no sweep; name a new folder")
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
    given.cache = given.cache or ([COLD] if given.memory else [None])


def _listed(kind, name: str, *, may_repeat: bool = False):
    def parse(text: str) -> list:
        try:
            found = [kind(part) for part in text.split(",")]
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"--{name}={text}: {error}") from None
        return found if may_repeat else list(dict.fromkeys(found))

    return parse


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError("give whole numbers from 1")
    return int(text)


def _memory(text: str) -> str:
    limits.parse_bytes(text)
    return text


def _seconds(text: str) -> float:
    if not float(text) >= 0 or float(text) == float("inf"):
        raise ValueError("give seconds")
    return float(text)


def _one_of(*words: str):
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"give {' or '.join(words)}")
        return text

    return parse


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="tracing.sweep",
        usage="python -m tracing.sweep [options] -- COMMAND...",
        description="Runs a training at many points under the tracing.",
        exit_on_error=False,
    )
    parser.add_argument(
        "--output",
        type=path_with_home,
        required=True,
        help="folder; an interrupted sweep goes on in it",
    )
    parser.add_argument(
        "--memory", type=_listed(_memory, "memory"), help="limits, such as 1g,4g,none"
    )
    parser.add_argument(
        "--batch", type=_listed(_whole, "batch"), default=[None], help="--train_batch_size"
    )
    parser.add_argument(
        "--workers", type=_listed(_whole, "workers"), default=[None], help="--num_parallel_files"
    )
    parser.add_argument("--compute", type=_listed(_one_of(REAL, SLEEP), "compute"), default=[REAL])
    parser.add_argument(
        "--cache",
        type=_listed(_one_of(COLD, WARM), "cache"),
        help="cold,warm; cold if memory is limited, else as it was found",
    )
    parser.add_argument(
        "--step_seconds",
        type=_listed(_seconds, "step_seconds", may_repeat=True),
        default=[],
        help="of --compute=sleep; one, or one for each batch size",
    )
    parser.add_argument("--data", help="the training's files, if the command does not name them")
    parser.add_argument("--backend", choices=backends.NAMES, help="as of python -m tracing")
    parser.add_argument("--timeout_s", type=float, help="ends a point that takes longer")
    parser.add_argument("command", nargs="*", help=argparse.SUPPRESS)
    return parser


def _checked(given: argparse.Namespace) -> Sweep:
    command = given.command
    if not command:
        raise ValueError("name the command to run: -- COMMAND...")
    if shutil.which(command[0]) is None:
        raise ValueError(f"{command[0]}: no such command")
    if given.timeout_s is not None and not given.timeout_s > 0:  # NaN too
        raise ValueError(f"--timeout_s={given.timeout_s}: give seconds above 0, or leave it out")
    seconds = given.step_seconds
    if len(seconds) not in (0, 1, len(given.batch)):
        raise ValueError("--step_seconds: give one, or one for each of --batch")
    if len(seconds) == 1:
        seconds = seconds * len(given.batch)
    return Sweep(
        command=tuple(command),
        data=data_files(given.data, command),
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
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        given = _parser().parse_args(arguments)
        sweep = _checked(given)
        notes = list(_adjusted(sweep, given))
        for note in notes:
            _say(note)
        _record(sweep, notes)
        with FileLock(sweep.output / ".lock", timeout=0):
            rows = run_all(sweep, points(given), notes, _say)
    except Timeout:
        raise ValueError(
            f"--output={given.output}: another sweep works in it; wait, or stop it"
        ) from None
    except argparse.ArgumentError as error:
        raise ValueError(str(error)) from error
    except KeyboardInterrupt:
        line = "interrupted; the same command goes on with what is left"
        raise KeyboardInterrupt(line) from None
    _say(f"look at {sweep.output / 'sweep.html'}")
    if failed := [row["name"] for row in rows if row["status"] == FAILED]:
        sys.exit(f"sweep: failed: {', '.join(failed)}; the same command tries them again")


if __name__ == "__main__":
    main()
