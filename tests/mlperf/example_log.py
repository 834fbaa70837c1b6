"""A run's log through the API, as the training writes it; its clock, and its records."""

import json
import time
from pathlib import Path

from mlperf_bert.checkpoints import names
from mlperf_bert.mlperf import ledger
from mlperf_bert.mlperf.energy import Meter
from mlperf_bert.mlperf.log import NO_PARALLELISM, MlperfLog, SubmissionInfo
from mlperf_bert.optimization.config import OptimizerConfig

SUBMISSION = SubmissionInfo(org="example", platform="1xExample")
HYPERPARAMETERS = {
    "seed": 1234,
    "global_batch_size": 448,
    "gradient_accumulation_steps": 1,
    "max_sequence_length": 512,
    "max_predictions_per_seq": 76,
    "opt_name": "lamb",
    "opt_base_learning_rate": 4.25e-4,
    "opt_learning_rate_training_steps": 6700,
    "opt_learning_rate_warmup_steps": 0,
    "num_warmup_steps": 0,
    "start_warmup_step": 0,
    **OptimizerConfig(name="lamb").hyperparameters(poly_power=1.0),
}
NUM_EVAL_SAMPLES = {"eval_samples": 10_000}
COMPUTATION = {
    "lowest_numerical_precision_in_linear": "bfloat16",
    "lowest_numerical_precision_in_attn": "bfloat16",
    "lowest_numerical_precision_in_comm": "fp32",
    **NO_PARALLELISM,
    "micro_batch_size": 56,
    "config_filename": "run.json",
}
INTERVAL_SAMPLES = 150_080
EPOCH_MS = 1_700_000_000_000
"""The time 0 of the logs that are written here without a clock, since 1970."""


def initialise(log: MlperfLog, *, num_layers: int = 1, **changes: object) -> None:
    """Log everything that comes before run_start."""
    log.init_start(cache_cleared=True)
    log.events(SUBMISSION.events())
    log.events(HYPERPARAMETERS | NUM_EVAL_SAMPLES | changes)
    log.events(COMPUTATION)
    log.weights_initialization(weight.tf1_name for weight in names.weights(num_layers))
    log.init_stop()


def write_log(
    path: Path,
    accuracies: list[float],
    *,
    num_layers: int = 1,
    meter: Meter | None = None,
    **changes: object,
) -> Path:
    """Write the log of a run with one evaluation per accuracy; it succeeds from 0.720 on."""
    with MlperfLog(path) as log:
        initialise(log, num_layers=num_layers, **changes)
        with log.run(meter=meter) as run:
            for number, accuracy in enumerate(accuracies):
                run.block_start(number * INTERVAL_SAMPLES, num_samples=INTERVAL_SAMPLES)
                run.ledger.move(1, source=ledger.HOST, to=ledger.COMPUTE)  # all of it
                samples = (number + 1) * INTERVAL_SAMPLES
                run.block_stop(samples)
                run.eval_start(samples)
                run.eval_stop(samples)
                run.eval_accuracy(accuracy, samples, step=samples // 448)
                time.sleep(0.002)  # stamps are whole milliseconds, and a run takes some
                if accuracy >= 0.720:
                    run.succeed()
                    break
    return path


def write_submission(org_dir: Path, curves, **changes: object) -> Path:
    """Write a submitter's folder with the logs of the runs of a box, by their accuracies."""
    folder = org_dir / "results" / "box" / "bert"
    folder.mkdir(parents=True)
    for number, accuracies in enumerate(curves):
        write_log(folder / f"result_{number}.txt", accuracies, seed=number, **changes)
    return org_dir


class Clock:
    """A clock that only the test moves on."""

    now = 100.0

    def __call__(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


def write_log_of_minutes(path, *, minutes: float, saved: list[int]) -> None:
    """The log of a process that ran so long; `saved` are steps."""
    with MlperfLog(path) as log:
        initialise(log)
        log.time_ms = EPOCH_MS
        with log.run() as run:
            for step in saved:
                run.checkpoint_start(step)
            log.time_ms = EPOCH_MS + 60_000 * minutes
            run.abort()


def write_lines(path, *lines):
    """Write a log of (ms, key, value, metadata) lines, as another stack's rank 0 would."""
    text = []
    for ms, key, value, metadata in lines:
        time_ms = EPOCH_MS + ms if isinstance(ms, int) else ms
        record = {"time_ms": time_ms, "key": key, "value": value, "metadata": metadata}
        text.append(f"0: :::MLLOG {json.dumps(record)}\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(text))
    return path


def write_curve(path, points, *, ended=True, **changes):
    """Write the log of a run with (samples, accuracy) of each evaluation."""
    values = {"global_batch_size": 448, "max_sequence_length": 512} | changes
    lines = [(0, key, value, {}) for key, value in values.items()]
    lines.append((0, "run_start", None, {}))
    lines += [(n, "eval_accuracy", a, {"epoch_num": n}) for n, a in points]
    if ended:
        lines.append((points[-1][0] + 1, "run_stop", None, {"status": "aborted"}))
    return write_lines(path, *lines)


def read_log(path):
    """Return the records of a log; every line of it must be one."""
    lines = path.read_text(encoding="utf-8").splitlines()
    assert all(line.startswith(":::MLLOG ") for line in lines)

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    return [json.loads(line[len(":::MLLOG ") :], parse_constant=refuse) for line in lines]


def values(records, key):
    return [record["value"] for record in records if record["key"] == key]


def metadata(records, key):
    """Return the metadata of a key's lines without the call site."""
    return [without_site(record["metadata"]) for record in records if record["key"] == key]


def without_site(metadata):
    """Return metadata but for the line of the program that wrote it."""
    return {name: value for name, value in metadata.items() if name not in ("file", "lineno")}
