"""Joins the log of a training and later evaluations of its checkpoints into one result.

The rules let the clock stop at the time of the first checkpoint that reaches the target, whenever
it is evaluated. Source: MLPerf training rules, section on run time; the benchmark's README.
"""

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from mlperf_bert.files import errors, paths
from mlperf_bert.files.whole import written_beside
from mlperf_bert.mlperf import rules
from mlperf_bert.mlperf.log import MlperfLog
from mlperf_bert.mlperf.log_reader import LogRecord, read_records

_DIVISION = '"key": "submission_division"'


def join(
    logs: Sequence[paths.Location],
    accuracies: Mapping[int, float],
    *,
    num_eval_samples: int,
    target_accuracy: float,
    output: paths.Location,
) -> tuple[str, int]:
    """Writes the log that an evaluation at each checkpoint's time would have left.

    Args:
      logs: of the training, the first one first; more than one if it was resumed.
      accuracies: step of a checkpoint -> masked-LM accuracy.
      num_eval_samples: of each evaluation.
      target_accuracy: the first checkpoint that reaches it stops the clock.
      output: where to; replaced if it exists.

    Returns: status "success" or "aborted", and the samples trained up to run_stop.
    """
    with errors.named(logs[0], damaged="copy the log of a training of this project again"):
        records = [record for log in logs for record in read_records(log)]
        start = next(record for record in records if record.key == "run_start")
        saved_ms = _saved_ms(records)
        batch_size = _micro_batch_size(records)
        header = _header(logs)
    if not saved_ms:
        raise ValueError(f"{logs[0]}: the training saved no checkpoint")
    passing = [step for step in saved_ms if accuracies.get(step, 0.0) >= target_accuracy]
    counted = _counted(saved_ms, passing, accuracies)
    log = MlperfLog(None)
    for line in header:
        log.copy_line(line)
    if rules.departure_of_evaluation(num_eval_samples):
        log.declare_open()
    # Every line has a time of the training, not the time of this call.
    log.time_ms = start.time_ms
    with log.run() as run:
        run.eval_samples(num_eval_samples)
        for before, step in itertools.pairwise([0, *counted]):
            samples = step * batch_size
            run.block_start(before * batch_size, num_samples=(step - before) * batch_size)
            log.time_ms = saved_ms[step]
            run.block_stop(samples)
            # As if the evaluation took no time: the rules stop the clock at the checkpoint.
            run.eval_start(samples)
            run.eval_stop(samples)
            run.eval_accuracy(accuracies[step], samples, step)
        (run.succeed if passing else run.abort)()
    with written_beside(output) as file:
        file.write(log.held.encode())
    return "success" if passing else "aborted", run.samples


def _counted(
    saved: Collection[int], passing: Sequence[int], accuracies: Mapping[int, float]
) -> list[int]:
    """The steps up to the first that passes; raises ValueError if one has not been evaluated."""
    counted = [step for step in sorted(saved) if step <= min(passing, default=max(saved))]
    if missing := [step for step in counted if step not in accuracies]:
        raise ValueError(f"the checkpoint of step {missing[0]} has not been evaluated")
    return counted


def _saved_ms(records: Sequence[LogRecord]) -> dict[int, float]:
    """Step -> when its checkpoint was saved."""
    # In the order of the logs: of a step that was trained again after a kill, the last time counts.
    saved_ms = {
        record.metadata["step_num"]: record.time_ms
        for record in records
        if record.key == "checkpoint_stop"
    }
    # The checkpoint of step 0 was saved before anything was trained.
    return {step: time_ms for step, time_ms in saved_ms.items() if step > 0}


def _micro_batch_size(records: Sequence[LogRecord]) -> int:
    """Samples per step, which turn the steps of checkpoints into samples."""
    values: dict[str, Any] = {record.key: record.value for record in records}
    return values["global_batch_size"] // values["gradient_accumulation_steps"]


def _header(logs: Sequence[paths.Location]) -> list[str]:
    """The lines before run_start, with the division of the last log.

    A resumed training is division open, which only its later logs say.
    """
    first, last = _lines_before_run(logs[0]), _lines_before_run(logs[-1])
    division = next(line for line in last if _DIVISION in line)
    return [division if _DIVISION in line else line for line in first]


def _lines_before_run(log: paths.Location) -> list[str]:
    lines = paths.read_bytes(log).decode(errors="replace").split("\n")
    return lines[: next(n for n, line in enumerate(lines) if '"key": "run_start"' in line)]
