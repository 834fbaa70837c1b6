"""What a run reports: metrics.jsonl, TensorBoard summaries, its start-up times, its result."""

import dataclasses
import getpass
import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import tensorflow as tf

from mlperf_bert.files import errors, json_text, paths
from mlperf_bert.files.whole import write_whole
from mlperf_bert.messages import WARNING, Finding
from mlperf_bert.mlperf import caches, rules
from mlperf_bert.mlperf.log import NO_PARALLELISM, MlperfLog, SubmissionInfo
from mlperf_bert.mlperf.log_reader import RECORD_NAME
from mlperf_bert.training import checks
from mlperf_bert.training.config import DeviceConfig
from mlperf_bert.training.output import METRICS_NAME
from mlperf_bert.training.setup import Setup
from mlperf_bert.training.workers import Team

if TYPE_CHECKING:  # only jax's runtime loads it
    from jax.sharding import Mesh


class MetricsWriter:
    """Appends one JSON object per line to metrics.jsonl and writes the same for TensorBoard."""

    def __init__(self, output_dir: Path | None, *, resumed_step: int | None = None):
        """Opens both; drops lines of steps after `resumed_step`, which are trained again.

        Without an `output_dir` (None) nothing is written.
        """
        self._file: TextIO | None = None
        if output_dir is None:
            return
        self._path = output_dir / METRICS_NAME
        if resumed_step is not None and self._path.exists():
            self._drop_after(resumed_step)
        self._file = self._path.open("a", encoding="utf-8")
        self._summaries = tf.summary.create_file_writer(str(output_dir))

    def write(self, kind: str, *, step: int, samples: int, **values: float) -> None:
        """Writes a line; float32 values keep 9 significant digits.

        The `kind` is train or eval; readers ignore other kinds.
        """
        if self._file is None:
            return
        rounded = {name: float(f"{value:.9g}") for name, value in values.items()}
        line = {"kind": kind, "step": step, "samples": samples, **rounded}
        with paths.failures_named(self._path):
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()  # a killed process loses no line
        with paths.failures_named(self._path.parent), self._summaries.as_default(step=step):
            for name, value in values.items():
                tf.summary.scalar(f"{kind}/{name}", value)

    def flush(self) -> None:
        """Puts all written lines onto the disk, because results are read from them."""
        if self._file is not None:
            with paths.failures_named(self._path):
                os.fsync(self._file.fileno())
            with paths.failures_named(self._path.parent):
                self._summaries.flush()

    def close(self) -> None:
        """Flushes and closes both."""
        if self._file is not None:
            self._file.close()
            with paths.failures_named(self._path.parent):
                self._summaries.close()

    def _drop_after(self, step: int) -> None:
        kept = []
        # A last line without an end was cut by a kill.
        for number, line in enumerate(self._path.read_bytes().split(b"\n")[:-1], start=1):
            with errors.named(f"{self._path} line {number}", damaged="remove the line"):
                is_kept = json_text.parse_object(line)["step"] <= step
            if is_kept:
                kept.append(line.decode() + "\n")
        write_whole(self._path, "".join(kept))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended."""

    status: str
    """In MLPerf's words: success if the target was reached, else aborted, after all steps too."""
    accuracy: float | None
    """Masked-LM accuracy of the last evaluation."""
    samples: int

    def in_words(self, target: float) -> str:
        """A sentence: how the run ended, and what the status in the RESULT line means."""
        if self.status == "success":
            return f"the run reached its target, masked-LM accuracy {target}"
        accuracy = "not evaluated" if self.accuracy is None else f"last: {self.accuracy:.4f}"
        return (
            f"the run ended without reaching its target, masked-LM accuracy {target} "
            f"({accuracy}); MLPerf calls this aborted"
        )

    def line(self, *, seed: int, start_time: float, seconds: float) -> str:
        """The RESULT line: benchmark, seed, seconds, user, start, status, accuracy, samples."""
        start = time.strftime("%Y-%m-%d %I:%M:%S %p", time.localtime(start_time))
        accuracy = "" if self.accuracy is None else f"{self.accuracy:.5f}"
        fields = ["bert", seed, round(seconds), _user(), start]
        return ",".join(map(str, ["RESULT", *fields, self.status, accuracy, self.samples]))


def process_age() -> float:
    """Seconds since this process began: the imports before `main` count too.

    psutil's answer can be a second off, because it adds to the boot time in whole seconds, and the
    host's clock may have been set meanwhile.
    """
    # The name of the process is in brackets, and may hold spaces and brackets itself. What follows
    # begins with field 3; field 22 is the start, in ticks since the boot. Source: proc(5).
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


class StartUp:
    """The seconds of each part from the process's start to the first training step."""

    def __init__(self) -> None:
        """Counts the imports: a user waits for them too."""
        self.start_time = time.time() - process_age()
        """The start of the process, in seconds since 1970."""
        self._last = 0.0
        self._seconds: dict[str, float] = {}
        self.done("imports")

    def done(self, part: str) -> None:
        """Counts the time since the last call, or since the start, for `part`."""
        age = process_age()
        self._seconds[part] = age - self._last
        self._last = age

    def __str__(self) -> str:
        parts = ", ".join(f"{part} {seconds:.1f}" for part, seconds in self._seconds.items())
        return f"started in {self._last:.1f} s: {parts}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user id without a name
        return str(os.getuid())


def clock_shift_in_words(seconds: float) -> Finding:
    """A sentence: the host's clock was set while the run trained."""
    direction = "forward" if seconds > 0 else "back"
    return Finding(
        WARNING,
        f"the host's clock was set {direction} by {abs(seconds):,.1f} s in the run, or the host "
        "slept; the log counts on by a monotonic clock",
    )


def log_header(log: MlperfLog, setup: Setup, team: Team, provenance: Mapping[str, str]) -> None:
    """Empties the file caches if asked to, then logs everything that the checkers require.

    `provenance` is `Origin.summary`.
    """
    config, devices = setup.config, setup.devices
    submission = _submission(setup, team, provenance)
    precision = precision_of_products(config.precision, config.device, devices.mesh)
    log.init_start(cache_cleared=caches.drop() is None if config.drop_caches else None)
    log.events(submission.events())
    values = config.hyperparameters(seed=team.seed) | {
        "lowest_numerical_precision_in_linear": precision,
        "lowest_numerical_precision_in_attn": precision,  # of its products; the softmax is fp32
        "lowest_numerical_precision_in_comm": "fp32",  # gradients have the type of the weights
        **NO_PARALLELISM,  # except that of the data
        "micro_batch_size": setup.replica_batch_size,
        "config_filename": RECORD_NAME,
        "gradient_normalization": config.normalization,
        "num_replicas": setup.num_replicas,
        "devices": str(devices),
    }
    log.events(values)
    if config.emulate_step_seconds is not None:
        log.event("emulated_step_seconds", config.emulate_step_seconds)
    if config.time_budget is not None:
        log.event("time_budget_seconds", config.time_budget)
    log.event("provenance", provenance)


def precision_of_products(precision: str, device: DeviceConfig, mesh: "Mesh | None" = None) -> str:
    """The precision that matrix products really have, as MLPerf spells it.

    TensorFloat-32 is bfloat16 on a TPU, and float32 on processors and on GPUs older than Ampere or
    of another maker. Source: tf.config.experimental.enable_tensor_float_32_execution; XLA's
    programs say it too.
    """
    if precision != "tf32":
        return {"float32": "fp32", "bfloat16": "bfloat16"}[precision]
    if device.use_tpu:
        return "bfloat16"
    if mesh:  # jax says 9.0 for an H100, gfx942 for an MI300X
        named = [getattr(each, "compute_capability", "") for each in mesh.devices.flat]
        return "tf32" if any(re.match(r"([89]|\d\d)\.\d", name) for name in named) else "fp32"
    return "fp32"  # TensorFlow computes on CPUs alone


def _submission(setup: Setup, team: Team, provenance: Mapping[str, str]) -> SubmissionInfo:
    departures, submission = checks.departures(setup), setup.config.submission
    if team.has_checkpoint and provenance.get("init_checkpoint"):  # need not be named again
        departures = [each for each in departures if each.parameter != "init_checkpoint"]
    if team.was_started_before:
        departures.append(rules.Departure("run", "one from start to end", "one that was resumed"))
    if not departures:
        return submission
    team.say(rules.open_division(departures))
    return dataclasses.replace(submission, division="open")
