"""All runs of a command: tasks, learning rates, seeds; their table and average."""

import dataclasses
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from mlperf_bert.files import locks, paths
from mlperf_bert.files.json_text import read_record, write_record
from mlperf_bert.finetuning import glue, weights
from mlperf_bert.finetuning.config import ALL_OF_GLUE, TASKS, FinetuningConfig, Task
from mlperf_bert.finetuning.run import TaskRun, read_split
from mlperf_bert.finetuning.splits import TRAIN, Split
from mlperf_bert.options import flags_of
from mlperf_bert.signals import StopRequest
from mlperf_bert.training.devices import runtime_of

RESULTS_NAME, PREDICTIONS_NAME = "results.json", "predictions"
_LOCK_NAME, _PATIENCE_SECONDS = ".results.lock", 60


def best_of(runs: Sequence[TaskRun]) -> TaskRun:
    """The first of the best runs."""
    return max(runs, key=lambda run: run.score)


def record_of(task: Task, runs: Sequence[TaskRun]) -> dict:
    """The task's entry in results.json: the learning rate with the best median over its seeds."""
    rates: dict[float, list[TaskRun]] = {}
    for run in runs:
        rates.setdefault(run.setting.learning_rate, []).append(run)
    medians = {rate: statistics.median(run.score for run in own) for rate, own in rates.items()}
    rate = max(medians, key=medians.__getitem__)
    # GLUE averages the mean over dev sets and metrics, the median over the seeds.
    means = [statistics.mean(run.epochs[-1].values()) for run in rates[rate]]
    best = best_of(runs)
    return {
        "main_metric": best.main_metric,
        "learning_rate": rate,
        "median": medians[rate],
        "best": best.score,
        "best_setting": dataclasses.asdict(best.setting),
        "task_score": statistics.median(means) if task.name in glue.NAMES else None,
        "runs": [{**dataclasses.asdict(run.setting), "epochs": run.epochs} for run in runs],
    }


def average_of(records: Mapping[str, Mapping]) -> float | None:
    """The mean of the task scores; None unless all tasks of GLUE were trained."""
    if not all(name in records for name in glue.NAMES):
        return None
    return statistics.mean(records[name]["task_score"] for name in glue.NAMES)


def table(records: Mapping[str, Mapping]) -> str:
    """The results in lines, in percent; a star marks the best median."""
    rows = [["task", "metric", "learning rate", "seeds", "median", "best"]]
    for name, record in records.items():
        metric = record["main_metric"]
        scores: dict[float, list[float]] = {}
        for run in record["runs"]:
            scores.setdefault(run["learning_rate"], []).append(run["epochs"][-1][metric])
        for rate, own in scores.items():
            mark = "*" if rate == record["learning_rate"] and len(scores) > 1 else ""
            numbers = [f"{number:.2f}" for number in (statistics.median(own), max(own))]
            rows.append([name, _short(metric), f"{rate:g}{mark}", str(len(own)), *numbers])
    if (average := average_of(records)) is not None:
        rows.append(["glue", "average", "", "", f"{average:.2f}", ""])
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows
    )


def line(records: Mapping[str, Mapping]) -> str:
    """The results in one line."""
    if (average := average_of(records)) is not None:
        return f"RESULT,glue,average,{average:.3f}"
    [(name, record)] = records.items()
    return (
        f"RESULT,{name},{_short(record['main_metric'])},{record['median']:.3f},"
        f"learning_rate={record['learning_rate']:g},runs={len(record['runs'])}"
    )


def _short(metric: str) -> str:
    """The name of a metric without that of the split."""
    return metric.rpartition("/")[2]


def run(config: FinetuningConfig) -> tuple[dict[str, dict], list[Path]]:
    """Trains every task with every setting; what is finished already is not trained again.

    The results of a task are written when it is done.

    Returns: the tasks as in results.json, and the files with predictions.

    Raises:
      ValueError: bad input; nothing is written.
      FloatingPointError, KeyboardInterrupt: as `TaskRun.train`.
    """
    for flag, about in flags_of(FinetuningConfig).items():
        if about.path:
            paths.require_local(getattr(config, flag), flag=flag)
    config = dataclasses.replace(config, runtime=runtime_of(config.runtime, config.device))
    if config.runtime == "jax":
        from mlperf_bert.finetuning import by_jax  # no other runtime loads jax

        by_jax.mesh_of(config)  # refuses a missing device at once
    names = glue.NAMES if config.task == ALL_OF_GLUE else (config.task,)
    tasks = [config.create(name) for name in names]
    source = weights.find(config, tasks)
    folder = Path(config.output_dir)
    _read(folder / RESULTS_NAME)  # refuses a damaged file before the training
    # A bad file of any task is found before the first is trained; a single one is read below.
    for task in tasks if len(tasks) > 1 else ():
        for split in _splits_needed(task, config):
            task.read(split)
    records: dict[str, dict] = {}
    files: list[Path] = []
    for task in tasks:
        splits = {name: read_split(task, source, name) for name in _splits_needed(task, config)}
        runs = [TaskRun(config, task, source, splits, setting) for setting in config.settings]
        _train(runs)
        record = records[task.name] = record_of(task, runs)
        _write(folder, task.name, record)
        if config.do_predict:
            files += _predict(folder / PREDICTIONS_NAME, task, splits, best_of(runs))
            _write(folder, task.name, {"predictions_of": record["best_setting"]})
    return records, files


def _splits_needed(task: Task, config: FinetuningConfig) -> tuple[str, ...]:
    """The names of the splits that the command will use."""
    return (TRAIN, *task.eval_splits, *(task.predicted_splits if config.do_predict else ()))


def _train(runs: Sequence[TaskRun]) -> None:
    """Trains the runs that are not finished; only the best run keeps its checkpoint."""
    trained: list[TaskRun] = []
    for number, run in enumerate(runs, start=1):
        if run.is_finished():
            print(f"finished before: {run.folder}", file=sys.stderr)
            continue
        with StopRequest() as stop:
            run.train(stop)
        trained.append(run)
        for other in trained:
            if other is not best_of(runs[:number]):
                other.remove_checkpoints()


def _predict(folder: Path, task: Task, splits: Mapping[str, Split], best: TaskRun) -> list[Path]:
    """Writes the answers of the best run; GLUE's tasks share a folder, as its server takes them."""
    if task.name not in glue.NAMES:
        folder /= task.name
    folder.mkdir(parents=True, exist_ok=True)
    return [
        task.write_predictions(splits[name], outputs, name=name, folder=folder)
        for name, outputs in best.predictions(task.predicted_splits)
    ]


def _write(folder: Path, name: str, record: dict) -> None:
    """Writes results.json; entries of other tasks and of earlier predictions stay in it."""
    path = folder / RESULTS_NAME
    # A command for another task may write at the same time.
    with locks.held(folder, file_name=_LOCK_NAME, patience_seconds=_PATIENCE_SECONDS):
        known = _read(path)
        known[name] = known.get(name, {}) | record
        listed = {name: known[name] for name in TASKS if name in known}
        write_record(path, {"tasks": listed, "glue_average": average_of(known)})


def _read(path: Path) -> dict[str, dict]:
    """The tasks in results.json; raises ValueError if it is damaged."""
    remedy = "remove it: the results of finished runs are in their folders too"
    return read_record(path, lambda content: dict(content["tasks"]), remedy=remedy) or {}
