"""The output directory of a run: one directory, one run."""

import contextlib
import dataclasses
import fcntl
import getpass
import json
import os
import time
from pathlib import Path
from typing import TextIO

from mlperf_bert.writing import write_whole

LOG_NAME = "bert.log"
RESUMED_LOGS = "bert.resumed-*.log"
RESULT_LOG = "bert.offline.log"
RECORD_NAME = "run.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """How a run ended."""

    status: str
    """success: the target was reached; aborted: it was not."""
    accuracy: float | None
    samples: int
    seed: int
    start_time: float
    seconds: float

    def line(self) -> str:
        """The RESULT line: benchmark, seed, seconds, user, start, status, accuracy, samples."""
        start = time.strftime("%Y-%m-%d %I:%M:%S %p", time.localtime(self.start_time))
        accuracy = "" if self.accuracy is None else f"{self.accuracy:.5f}"
        fields = ["bert", self.seed, round(self.seconds), _user(), start]
        return ",".join(map(str, ["RESULT", *fields, self.status, accuracy, self.samples]))


def process_start_time() -> float:
    """When this process began, in seconds since 1970: the imports before `main` count too."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age


class StartUp:
    """Where the time goes from the process's start to the first training step."""

    def __init__(self, start_time: float):
        """Counts from `start_time`, in seconds since 1970."""
        self._began = self._last = start_time
        self._seconds: dict[str, float] = {}

    def done(self, part: str) -> None:
        """All since the last call, or the start, was for `part`."""
        now = time.time()
        self._seconds[part] = now - self._last
        self._last = now

    def __str__(self) -> str:
        parts = ", ".join(f"{part} {seconds:.1f}" for part, seconds in self._seconds.items())
        return f"started in {self._last - self._began:.1f} s: {parts}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a number without a name
        return str(os.getuid())


def _lock(file: TextIO) -> bool:
    """False if another process has it; where the file system knows no locks, nobody does."""
    with contextlib.suppress(OSError):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


class OutputDirectory:
    """Claims a directory for a run, fresh or resumed, and records whose it is in run.json."""

    def __init__(self, path: str, parameters: dict):
        """Looks at the directory; writes nothing.

        Args:
          path: the directory, which need not exist.
          parameters: what determines the computation; a run goes on only with the same.

        Raises:
          ValueError: the directory holds another run, a finished one, or foreign checkpoints.
        """
        self.path = Path(path)
        self._record = self.path / RECORD_NAME
        self._parameters = json.loads(json.dumps(parameters))
        self._held: TextIO | None = None
        self.resumes = self._record.exists()
        if self.resumes:
            self._require_same_unfinished_run()
        elif self._has_foreign_files():
            raise ValueError(
                f"--output_dir={path} holds files of another run; choose a new or empty directory"
            )

    @property
    def recorded_seed(self) -> int:
        """The seed of the run that is resumed."""
        return self._read()["seed"]

    def log_path(self) -> Path:
        """Where this process writes its MLPerf log; a resumed run leaves the older ones alone."""
        path, number = self.path / LOG_NAME, 0
        while path.exists():
            number += 1
            path = self.path / RESUMED_LOGS.replace("*", str(number))
        return path

    def record(self, *, status: str, seed: int) -> None:
        """Writes run.json, complete or not at all, and holds it until this process ends.

        Raises:
          ValueError: another process holds it: it trains into the directory.
        """
        if self._held is None and self._record.exists():
            with self._record.open("r+") as file:
                if not _lock(file):
                    raise ValueError(
                        f"--output_dir={self.path}: another process trains into it; wait for it, "
                        "or stop it"
                    )
        content = {"status": status, "seed": seed, "parameters": self._parameters}
        write_whole(self._record, json.dumps(content, indent=1) + "\n")
        self._held = self._record.open("r+")
        _lock(self._held)

    def _read(self) -> dict:
        return json.loads(self._record.read_text(encoding="utf-8"))

    def _has_foreign_files(self) -> bool:
        patterns = ("model.ckpt*", "checkpoint", "metrics.jsonl", LOG_NAME)
        return any(next(self.path.glob(pattern), None) for pattern in patterns)

    def _require_same_unfinished_run(self) -> None:
        found = self._read()
        if found["status"] != "running":
            raise ValueError(
                f"--output_dir={self.path} holds a finished run (status {found['status']}); "
                "choose a new directory, or remove this one to train again"
            )
        recorded = found["parameters"]
        names = sorted(recorded.keys() | self._parameters.keys())
        differing = [n for n in names if recorded.get(n) != self._parameters.get(n)]
        if differing:
            details = ", ".join(
                f"{n}: {recorded.get(n)} there, {self._parameters.get(n)} here" for n in differing
            )
            raise ValueError(
                f"--output_dir={self.path} holds another run ({details}); choose a new directory, "
                "or give the same flags to go on with that run"
            )
