"""The output directory of a run, which holds one run, and the record of the run's inputs."""

import contextlib
import dataclasses
import fnmatch
import hashlib
import json
import posixpath
import secrets
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from mlperf_bert.data import software
from mlperf_bert.files import json_text, paths, whole
from mlperf_bert.files.working import WorkingFolder
from mlperf_bert.messages import WARNING, Finding
from mlperf_bert.mlperf.energy import Energy
from mlperf_bert.mlperf.log import close_log, last_time_ms
from mlperf_bert.mlperf.log_reader import (
    LOG_NAME,
    METRICS_NAME,
    RECORD_NAME,
    RECORD_REMEDY,
    RESULT_LOG,
    RESUMED_LOGS,
    energy_of_run,
    is_end,
    logs_of_run,
    read_records,
    readable_runs,
    seconds_spent,
)
from mlperf_bert.options import duration
from mlperf_bert.training.config import RunConfig
from mlperf_bert.training.evaluations import data_of, size_in_words
from mlperf_bert.training.setup import Setup

_FILES_OF_A_RUN = (
    "model.ckpt*", "checkpoint", METRICS_NAME, LOG_NAME, RESUMED_LOGS, RESULT_LOG, "eval_results.*",
)  # fmt: skip

_CLOCK_IS_BEHIND = (
    "the host's clock is {:,.1f} s before the last line of {}: it was set back, or another host "
    "began the run; the times of the two logs overlap"
)


class OutputDirectory:
    """A directory for one run, new or resumed; run.json in it says which run.

    In a bucket only TensorFlow's checkpoints are written there directly. The other files are
    written to a local folder, `path`, and uploaded by `publish`.
    """

    def __init__(
        self,
        name: str,
        parameters: dict,
        *,
        may_change: Collection[str] = (),
        time_budget: float | None = None,
    ):
        """Stores the name; reads and writes nothing.

        Args:
          name: the directory, which need not exist.
          parameters: of the run, for run.json.
          may_change: names of parameters that do not determine the computation. A run is resumed
            only if the others are the same.
          time_budget: of the run in seconds, for run.json.
        """
        self.location = paths.location(name)
        self._name = f"--output_dir={self.location}"
        # Converted as in run.json, where a tuple becomes a list and would differ from itself.
        self._parameters = json.loads(json.dumps(parameters))
        self._may_change = frozenset(may_change)
        needed = (RECORD_NAME, LOG_NAME, RESUMED_LOGS, METRICS_NAME)
        self._folder = WorkingFolder(self.location, record=RECORD_NAME, needed=needed)
        self.path = self._folder.local
        self.time_budget = time_budget
        self.earlier_record: RunRecord | None = None
        """The record of the run that was started here before; read once, by `claim`."""

    @classmethod
    def of(cls, config: RunConfig) -> "OutputDirectory":
        """The directory of the run that a configuration describes."""
        return cls(
            config.output_dir,
            config.parameters(),
            may_change=config.may_change,
            time_budget=config.time_budget,
        )

    def claim(self) -> None:
        """Locks the directory for this process, and checks that a run may write into it."""
        try:
            with self._writing():
                if not self._folder.acquire():
                    raise self._in_use_error()
            self._require_usable()
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Unlocks the directory; removes it if this process made it and wrote nothing into it."""
        self._folder.lock.release()

    def require_available(self) -> None:
        """Checks as `claim` does, for --check; locks nothing, for it would disturb a training.

        It also checks that a file or an object can be written there and removed.
        """
        if self._folder.lock.is_held_elsewhere():
            raise self._in_use_error()
        with self._writing():
            self._folder.try_out()
        self._require_usable()

    def _in_use_error(self) -> ValueError:
        return ValueError(f"{self._name}: another process trains into it; wait for it, or stop it")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ValueError(
                f"{self._name}: cannot be written to ({error.strerror or error}); choose another, "
                "or change its permissions"
            ) from error

    def _require_usable(self) -> None:
        if (self.path / RECORD_NAME).exists():
            self.earlier_record = read_record(self.path)
            if is_end(status := self.earlier_record.status):
                raise ValueError(
                    f"{self._name} holds a finished run (status {status}); choose a new directory, "
                    "or remove this one to train again"
                )
            self.require_same_run()
            return
        # Files that no run has written, such as a user's notes, do no harm.
        names = sorted(path.name for path in self.location.glob("*"))
        of_a_run = [n for n in names if any(fnmatch.fnmatch(n, each) for each in _FILES_OF_A_RUN)]
        if of_a_run:
            raise ValueError(
                f"{self._name} holds files of another run, such as {of_a_run[0]}; choose a new or "
                "empty directory"
            )

    def require_same_run(self) -> None:
        """Checks the recorded parameters against those given; raises ValueError if they differ."""
        there, here = (self.earlier_record or read_record(self.path)).parameters, self._parameters
        compared = [n for n in here | there if n not in self._may_change]
        differing = [
            f"{name}: {there.get(name)} there, {here.get(name)} here"
            for name in compared
            if there.get(name) != here.get(name)
        ]
        if differing:
            raise ValueError(
                f"{self._name} holds another run ({', '.join(differing)}); choose a new directory, "
                "or give the same flags to resume that run"
            )

    def require_same_devices(self, num_replicas: int) -> None:
        """Raises ValueError if a resumed run had another number: its losses would change."""
        runs = readable_runs(logs_of_run(self.path)) if self.earlier_record else ()
        there = next((run.num_replicas for run in runs if run.num_replicas), None)
        if there not in (None, num_replicas):
            raise ValueError(
                f"{self._name} holds another run (devices: {there} there, {num_replicas} here); "
                "choose a new directory, or resume it with as many (of a CPU: XLA_FLAGS="
                f"--xla_force_host_platform_device_count={there})"
            )

    def log_path(self) -> Path:
        """The path of this process's MLPerf log; a resumed run keeps the older ones."""
        # A resumed run starts a new log: the checkers want one run_start and one run_stop in each.
        path, number = self.path / LOG_NAME, 0
        while path.exists():
            number += 1
            path = self.path / RESUMED_LOGS.replace("*", str(number))
        return path

    def record(self, *, status: str, seed: int, energy: Energy | None = None, **origin) -> None:
        """Writes run.json, complete or not at all; its values are those of `RunRecord`."""
        # Written whole each time: a reader of run.json sees the old one or the new one.
        record = RunRecord(status=status, seed=seed, parameters=self._parameters, **origin)
        content = dataclasses.asdict(record) | {"time_budget_seconds": self.time_budget}
        if self.time_budget is not None:
            content["time_budget_spent_seconds"] = seconds_spent(logs_of_run(self.path))
        if energy:
            value, about = energy.as_event()
            content["energy"] = value | about
        for name in ("energy", "vocabulary", "time_budget_seconds", "time_budget_spent_seconds"):
            if not content[name]:
                del content[name]
        json_text.write_record(self.path / RECORD_NAME, content)
        self.publish()

    def beginning(self, seed: int | None, *, latest_step: int | None) -> dict[str, Any]:
        """Where the run begins or resumes, as fields of `workers.Team`; draws a seed if it is None.

        A repeated command may find the time budget used up, because the run may have been killed
        after its last step: then the run only has to end in order.

        Args:
          seed: as the user gives it.
          latest_step: of the newest checkpoint of the run.
        """
        logs = logs_of_run(self.path) if self.earlier_record else []
        budget = self.time_budget
        spent = 0.0 if budget is None else seconds_spent(logs)
        if self.earlier_record:
            goes_to_its_end = latest_step and self.earlier_record.time_budget_seconds == budget
            if budget is not None and spent >= budget and not goes_to_its_end:
                raise ValueError(
                    f"--time_budget={duration(budget)}: the run in {self._name} has used "
                    f"{duration(spent)} already; give more, or leave it out"
                )
            # A drawn seed is kept: a resumed run must draw the same examples.
            seed = self.earlier_record.seed
        return {
            "seed": secrets.randbits(31) if seed is None else seed,
            "was_started_before": bool(self.earlier_record),
            "latest_step": latest_step,
            "spent_seconds": spent,
            "samples_at_target": next(
                (run.samples_to_converge for run in readable_runs(logs) if run.succeeded), None
            ),
        }

    def publish(self) -> None:
        """Uploads what was written since the last time, where the directory is in a bucket."""
        self._folder.publish()


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The content of run.json."""

    status: str
    """running, success or aborted."""
    seed: int
    parameters: dict
    inputs: dict = dataclasses.field(default_factory=dict)
    """Flag -> what identifies its files; as `Origin.inputs`."""
    made_with: dict = dataclasses.field(default_factory=dict)
    """Commit, image and versions of its last start."""
    vocabulary: dict = dataclasses.field(default_factory=dict)
    """What is known of the vocabulary; as `one_vocabulary.Known` has it."""
    energy: dict = dataclasses.field(default_factory=dict)
    """What the run took, if it has ended and was not resumed; as in its log."""
    time_budget_seconds: float | None = None
    time_budget_spent_seconds: float | None = None
    """What this start and those before it have used."""


def read_record(directory: paths.Location) -> RunRecord:
    """Reads run.json."""
    recorded = json_text.read_record(directory / RECORD_NAME, _record_of, remedy=RECORD_REMEDY)
    if recorded is None:
        raise ValueError(f"{directory / RECORD_NAME}: is missing; {RECORD_REMEDY}")
    return recorded


def _record_of(content: dict) -> RunRecord:
    record = RunRecord(**content)
    if record.status not in ("running", "success", "aborted"):
        raise ValueError(f"status {record.status!r}")
    kinds = {
        "seed": int,
        "parameters": dict,
        "inputs": dict,
        "made_with": dict,
        "vocabulary": dict,
    }
    for name, kind in kinds.items():
        if type(getattr(record, name)) is not kind:
            raise TypeError(f"{name} must be a {kind.__name__}")
    return record


class Origin:
    """The inputs of a run, and its record.

    Attributes:
      inputs: flag -> what identifies its files, wherever they are.
      summary: commit, image and `inputs`, as the log names them. Evaluation data are identified by
        names and sizes.
    """

    def __init__(self, setup: Setup, output: OutputDirectory, *, seed: int):
        """Asks for the sizes of all inputs.

        Args:
          setup: names the inputs. If the run has a checkpoint, the initial one may be gone or
            unnamed.
          output: of the run.
          seed: of the run.
        """
        config, earlier = setup.config, output.earlier_record
        self._vocabulary = setup.vocabulary
        self._eval_files, self._config = setup.eval_files, config
        self._output, self._seed = output, seed
        self._made_with = software.made_with()
        # A checkpoint's index has a checksum of every tensor: gigabytes need not be read for it.
        weights = f"{config.init_checkpoint}.index" if config.init_checkpoint else ""
        if setup.has_checkpoint and weights and not paths.is_file(weights):
            weights = ""
        evaluation_data = _names_and_sizes(setup.eval_files)
        self.inputs = {
            "input_file": _names_and_sizes(setup.files),
            # `read_evaluation_data` adds the content.
            "eval_input_file": evaluation_data.partition(", sha256")[0],
            "bert_config_file": _content(config.bert_config_file),
            "init_checkpoint": _content(weights) if weights else "",
        }
        if earlier:
            if setup.has_checkpoint and not weights:
                # A resumed run need not name its initial weights: run.json says what it began with.
                self.inputs["init_checkpoint"] = str(earlier.inputs.get("init_checkpoint", ""))
            self._require_same_inputs(earlier)
        code = {name: self._made_with[name] for name in ("commit", "image")}
        self.summary = code | self.inputs | {"eval_input_file": evaluation_data}

    def read_evaluation_data(self) -> None:
        """Reads the evaluation data: all evaluations of a run have the same content."""
        if self._eval_files:
            self.inputs["eval_input_file"] = data_of(self._config, self._eval_files)
            if self._output.earlier_record:
                self._require_same_inputs(self._output.earlier_record)

    def _require_same_inputs(self, before: RunRecord) -> None:
        for flag, now in self.inputs.items():
            then = str(before.inputs.get(flag, now))
            same = now == then
            if flag == "eval_input_file" and not all("sha256" in each for each in (now, then)):
                same = _size_alone(now) == _size_alone(then)  # the content of one has not been read
            if not same:
                differ = _size_alone(then) != _size_alone(now)
                then, now = (_size_alone(each) if differ else each for each in (then, now))
                raise ValueError(
                    f"--{flag}: not what the run in {self._output.location} began with (then "
                    f"{then}; now {now}): give the same, or choose a new --output_dir"
                )

    def begin(self) -> None:
        """Writes run.json, and closes the logs that killed processes have left open."""
        self.read_evaluation_data()
        self._write("running")
        for path in logs_of_run(self._output.path):  # the checkers want a run_stop in each
            close_log(path)
            last_seconds = last_time_ms(path.read_text(encoding="utf-8", errors="replace")) / 1000
            if (behind := last_seconds - time.time()) > 0:
                print(Finding(WARNING, _CLOCK_IS_BEHIND.format(behind, path.name)), flush=True)

    def end(self, status: str) -> None:
        """Writes run.json: how the run ended, and what it took.

        Prints the energy since this start.
        """
        taken = _energy_in(logs_of_run(self._output.path)[-1:])
        # A killed start has recorded no energy, so that a resumed run's energy is unknown.
        resumed = bool(self._output.earlier_record)
        print(f"energy{' since the run was resumed' if resumed else ''}: {taken}", flush=True)
        self._write(status, None if resumed else taken)

    def _write(self, status: str, energy: Energy | None = None) -> None:
        self._output.record(
            status=status,
            seed=self._seed,
            energy=energy,
            inputs=self.inputs,
            made_with=self._made_with,
            vocabulary=self._vocabulary,
        )


def _names_and_sizes(files: Sequence[str]) -> str:
    """Number, size and a digest of names and sizes, in the order in which they are read."""
    # Folders do not count: a run may resume with copies of the files elsewhere.
    sizes = paths.in_parallel(paths.size_bytes, files)
    names = "".join(f"{posixpath.basename(file)} {size}\n" for file, size in zip(files, sizes))
    digest = hashlib.sha256(names.encode()).hexdigest()
    return f"{size_in_words(len(files), sum(sizes))}, sha256:{digest}" if files else ""


def _content(file: str) -> str:
    return f"sha256:{whole.digest(file, 'sha256')}"


def _size_alone(files: str) -> str:
    """Leaves out the digest, where there is one."""
    return files.partition(", sha256")[0] or "none"


def _energy_in(logs: Sequence[Path]) -> Energy:
    """The energy in the last log of a run; empty if the log is gone or damaged."""
    try:
        said = energy_of_run([record for log in logs for record in read_records(log)])
    except (ValueError, OSError) as error:
        return Energy(joules=None, about=str(error))
    return said or Energy(joules=None, about="the log says nothing of it")
