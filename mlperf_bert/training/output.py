"""The output directory of a run: one directory, one run."""

import dataclasses
import getpass
import json
import os
import time
from pathlib import Path

from mlperf_bert import json_text
from mlperf_bert.locking import DirectoryLock
from mlperf_bert.mlperf.results import LOG_NAME, RECORD_NAME, is_end
from mlperf_bert.writing import write_whole

RESUMED_LOGS = "bert.resumed-*.log"
_FILES_OF_A_RUN = ("model.ckpt*", "checkpoint", "metrics.jsonl", LOG_NAME)


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
    """When this process began, in seconds since 1970: the imports before `main` count too.

    psutil's answer can be a second off: it adds to the boot time in whole seconds.
    """
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
        """Counts the time since the last call, or since the start, for `part`."""
        now = time.time()
        self._seconds[part] = now - self._last
        self._last = now

    def __str__(self) -> str:
        parts = ", ".join(f"{part} {seconds:.1f}" for part, seconds in self._seconds.items())
        return f"started in {self._last - self._began:.1f} s: {parts}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user id without a name
        return str(os.getuid())


class OutputDirectory:
    """A directory for one run, new or resumed; run.json in it says which run."""

    def __init__(self, path: str, parameters: dict):
        """Stores the path; reads and writes nothing.

        Args:
          path: the directory, which need not exist.
          parameters: what determines the computation; a run is resumed only with the same.
        """
        self.path = Path(path)
        self._record = self.path / RECORD_NAME
        self._parameters = json.loads(json.dumps(parameters))
        self._lock = DirectoryLock(self.path)

    def claim(self) -> None:
        """Locks the directory for this process, and checks that a run may write into it.

        Raises:
          ValueError: another process trains into it, or as `require_usable`.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"--output_dir={self.path} is no directory; choose another")
        try:
            free = self._lock.acquire()
        except OSError as error:
            raise ValueError(
                f"--output_dir={self.path}: cannot be written to ({error.strerror}); choose "
                "another, or change its permissions"
            ) from error
        if not free:
            raise self._taken()
        try:
            self.require_usable()
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Unlocks the directory; removes it if this process made it and wrote nothing into it."""
        self._lock.release()

    def require_available(self) -> None:
        """Checks as `claim` does, for --check; locks and writes nothing."""
        if self._lock.is_held_elsewhere():
            raise self._taken()
        self.require_usable()

    def require_usable(self) -> None:
        """Checks whether a run may start or resume here.

        Raises:
          ValueError: the directory holds another run, a finished one, or files of an unknown run.
        """
        if self.resumes:
            self._require_same_unfinished_run()
        elif any(next(self.path.glob(pattern), None) for pattern in _FILES_OF_A_RUN):
            raise ValueError(
                f"--output_dir={self.path} holds files of another run; choose a new or empty "
                "directory"
            )

    @property
    def resumes(self) -> bool:
        """Whether a run was started here before."""
        return self._record.exists()

    def log_path(self) -> Path:
        """Where this process writes its MLPerf log; a resumed run keeps the older ones."""
        path, number = self.path / LOG_NAME, 0
        while path.exists():
            number += 1
            path = self.path / RESUMED_LOGS.replace("*", str(number))
        return path

    def record(self, *, status: str, seed: int) -> None:
        """Writes run.json, complete or not at all."""
        content = {"status": status, "seed": seed, "parameters": self._parameters}
        write_whole(self._record, json.dumps(content, indent=1) + "\n")

    def _taken(self) -> ValueError:
        return ValueError(
            f"--output_dir={self.path}: another process trains into it; wait for it, or stop it"
        )

    def _require_same_unfinished_run(self) -> None:
        found = read_record(self.path)
        if is_end(found.status):
            raise ValueError(
                f"--output_dir={self.path} holds a finished run (status {found.status}); "
                "choose a new directory, or remove this one to train again"
            )
        recorded = found.parameters
        names = sorted(recorded.keys() | self._parameters.keys())
        differing = [n for n in names if recorded.get(n) != self._parameters.get(n)]
        if differing:
            details = ", ".join(
                f"{n}: {recorded.get(n)} there, {self._parameters.get(n)} here" for n in differing
            )
            raise ValueError(
                f"--output_dir={self.path} holds another run ({details}); choose a new directory, "
                "or give the same flags to resume that run"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The content of run.json."""

    status: str
    """running, success or aborted."""
    seed: int
    parameters: dict


def read_record(directory: Path) -> RunRecord:
    """Reads run.json.

    Raises:
      ValueError: it is damaged.
    """
    path = directory / RECORD_NAME
    try:
        record = RunRecord(**json_text.read_object(path))
        if record.status not in ("running", "success", "aborted"):
            raise ValueError(f"status {record.status!r}")
        if type(record.seed) is not int or not isinstance(record.parameters, dict):
            raise TypeError("seed must be an integer and parameters an object")
    except (ValueError, TypeError, OSError) as error:
        raise ValueError(
            f"{path}: damaged ({error}); copy it here again, or choose another --output_dir"
        ) from error
    return record


def run_logs(directory: Path) -> list[Path]:
    """The MLPerf logs of the run in a directory, oldest first."""
    numbers = {log.stem.rpartition("-")[2]: log for log in directory.glob(RESUMED_LOGS)}
    resumed = [numbers[number] for number in sorted(filter(str.isdecimal, numbers), key=int)]
    return [log for log in (directory / LOG_NAME, *resumed) if log.exists()]
