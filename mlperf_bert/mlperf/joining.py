"""Joins the log of a training and later evaluations of its checkpoints into one result.

The rules let the clock stop at the time of the first checkpoint that reaches the target, whenever
it is evaluated. Source: MLPerf training rules, section on run time; the benchmark's README.
"""

import itertools
from collections.abc import Mapping, Sequence

from mlperf_bert.files import paths
from mlperf_bert.files.whole import written_beside
from mlperf_bert.mlperf import energy, rules
from mlperf_bert.mlperf.energy import Energy
from mlperf_bert.mlperf.log import MlperfLog
from mlperf_bert.mlperf.logs import Record, energy_of_run, read_records


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

    Raises:
      ValueError: a file is not a log, or an earlier checkpoint has not been evaluated.
    """
    pieces = [read_records(log) for log in logs]
    records = [record for piece in pieces for record in piece]
    start = next((record for record in records if record.key == "run_start"), None)
    if start is None:
        raise ValueError(f"{logs[0]}: no run_start, so no run to join evaluations with")
    saved_ms = _saved_ms(records, logs[0])
    if not saved_ms:
        raise ValueError(f"{logs[0]}: the training saved no checkpoint")
    passing = [step for step in saved_ms if accuracies.get(step, 0.0) >= target_accuracy]
    counted = [step for step in sorted(saved_ms) if step <= min(passing, default=max(saved_ms))]
    if missing := [step for step in counted if step not in accuracies]:
        raise ValueError(f"the checkpoint of step {missing[0]} has not been evaluated")
    batch_size = _micro_batch_size(records, logs[0])
    log = MlperfLog(None)
    for line in _header(logs):
        log.copy_line(line)
    if rules.departure_of_evaluation(num_eval_samples):
        log.declare_open()
    # Every line has a time of the training, none that of this call.
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
        # The run here has no meter: this is the energy of the training's own logs.
        if taken := _energy_until(counted[-1], pieces):
            run.log_energy(taken, of="run")
        stop = run.succeed if passing else run.abort
        stop()
    with written_beside(output) as file:
        file.write("".join(log.held).encode())
    return "success" if passing else "aborted", run.samples


def _energy_until(step: int, pieces: Sequence[Sequence[Record]]) -> Energy | None:
    """The energy up to a checkpoint: of whole pieces, and of the last one that saved it."""

    def at_checkpoint(piece: Sequence[Record]) -> Energy | None:
        of_step = [record for record in piece if record.metadata.get("step_num") == step]
        events = [record for record in of_step if record.key == energy.LOG_KEY]
        return Energy.from_event(events[-1].value, events[-1].metadata) if events else None

    def saved(piece: Sequence[Record]) -> bool:
        stops = (record for record in piece if record.key == "checkpoint_stop")
        return any(record.metadata.get("step_num") == step for record in stops)

    last = max(number for number, piece in enumerate(pieces) if saved(piece))
    whole = [energy_of_run(piece) for piece in pieces[:last]]
    return energy.total([*whole, at_checkpoint(pieces[last])])


def _saved_ms(records: Sequence[Record], log: paths.Location) -> dict[int, float]:
    """Step -> when its checkpoint was saved."""
    saved_ms = {}
    # In the order of the logs: a step that was trained again after a kill counts the last time.
    for record in records:
        if record.key == "checkpoint_stop":
            step = record.metadata.get("step_num")
            if type(step) is not int:
                raise ValueError(f"{log}: checkpoint_stop without step_num; copy the log again")
            # That of step 0 was saved before anything was trained.
            if step > 0:
                saved_ms[step] = record.time_ms
    return saved_ms


def _header(logs: Sequence[paths.Location]) -> list[str]:
    """The lines before run_start, with the division of the last log.

    A resumed training is division open, which only its later logs say.
    """
    first, last = (_lines_before_run(log) for log in (logs[0], logs[-1]))
    division = next((line for line in last if _DIVISION in line), None)
    if division is None:
        raise ValueError(f"{logs[-1]}: no submission_division before run_start; copy the log again")
    return [division if _DIVISION in line else line for line in first]


_DIVISION = '"key": "submission_division"'


def _lines_before_run(log: paths.Location) -> list[str]:
    try:
        lines = paths.read_bytes(log).decode().split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{log}: no UTF-8 ({error.reason}); copy the log again") from error
    run_start = next((n for n, line in enumerate(lines) if '"key": "run_start"' in line), None)
    if run_start is None:
        raise ValueError(f"{log}: no run_start; copy the log again")
    return lines[:run_start]


def _micro_batch_size(records: Sequence[Record], log: paths.Location) -> int:
    values = {record.key: record.value for record in records}
    sizes = [values.get(key) for key in ("global_batch_size", "gradient_accumulation_steps")]
    counts = [value for value in sizes if type(value) is int and 0 < value < 2**31]
    if len(counts) < len(sizes):
        raise ValueError(
            f"{log}: global_batch_size or gradient_accumulation_steps is not a number of samples; "
            "copy the log again"
        )
    batch_size, accumulated = counts
    return batch_size // accumulated
