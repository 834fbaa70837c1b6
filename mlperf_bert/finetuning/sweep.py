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
from mlperf_bert.finetuning.glue import TRAIN
from mlperf_bert.finetuning.run import Prepared, TaskRun
from mlperf_bert.signals import Interrupted, StopRequest
from mlperf_bert.training.devices import runtime_of

RESULTS_NAME, PREDICTIONS_NAME = "results.json", "predictions"
_LOCK_NAME, _PATIENCE_SECONDS = ".results.lock", 60


def best_of(runs: Sequence[TaskRun]) -> TaskRun:
    """The first of the best runs."""
    return max(runs, key=lambda run: run.score)


def record_of(task: Task, runs: Sequence[TaskRun]) -> dict:
    """What results.json has of a task: the learning rate with the best median over its seeds."""
    rates: dict[float, list[TaskRun]] = {}
    for run in runs:
        rates.setdefault(run.setting.learning_rate, []).append(run)
    medians = {rate: statistics.median(run.score for run in own) for rate, own in rates.items()}
    rate = max(medians, key=medians.__getitem__)
    # GLUE averages the mean over dev sets and metrics, the median over the seeds.
    means = [
        statistics.mean(value for split in run.epochs[-1].values() for value in split.values())
        for run in rates[rate]
    ]
    best = best_of(runs)
    return {
        "main_metric": f"{task.eval_splits[0]}/{task.main_metric}",
        "learning_rate": rate,
        "median": medians[rate],
        "best": best.score,
        "best_setting": dataclasses.asdict(best.setting),
        "task_score": statistics.median(means) if task.name in glue.NAMES else None,
        "runs": [{**dataclasses.asdict(run.setting), "epochs": run.epochs} for run in runs],
    }


def average_of(records: Mapping[str, Mapping]) -> float | None:
    """The mean of the task scores; None unless all tasks of GLUE were trained."""
    scores = [records.get(name, {}).get("task_score") for name in glue.NAMES]
    known = [score for score in scores if score is not None]
    return statistics.mean(known) if len(known) == len(scores) else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Results:
    """What the command has found."""

    tasks: dict[str, dict]
    """As in results.json."""
    prediction_files: list[paths.Location]

    def table(self) -> str:
        """The results in lines, in percent."""
        rows = [["task", "metric", "learning rate", "seeds", "median", "best"]]
        for name, record in self.tasks.items():
            split, _, metric = record["main_metric"].partition("/")
            scores: dict[float, list[float]] = {}
            for run in record["runs"]:
                score = run["epochs"][-1][split][metric]
                scores.setdefault(run["learning_rate"], []).append(score)
            for rate, found in scores.items():
                mark = "*" if rate == record["learning_rate"] and len(scores) > 1 else ""
                numbers = [f"{number:.2f}" for number in (statistics.median(found), max(found))]
                rows.append([name, metric, f"{rate:g}{mark}", str(len(found)), *numbers])
        if (average := average_of(self.tasks)) is not None:
            rows.append(["glue", "average", "", "", f"{average:.2f}", ""])
        widths = [max(map(len, column)) for column in zip(*rows)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
            for row in rows
        )

    def line(self) -> str:
        """The result in one line."""
        if (average := average_of(self.tasks)) is not None:
            return f"RESULT,glue,average,{average:.3f}"
        [(name, record)] = self.tasks.items()
        return (
            f"RESULT,{name},{record['main_metric'].partition('/')[2]},{record['median']:.3f},"
            f"learning_rate={record['learning_rate']:g},runs={len(record['runs'])}"
        )


def run(config: FinetuningConfig) -> Results:
    """Trains every task with every setting; what is finished already is not trained again.

    The results of a task are written when it is done.

    Raises:
      ValueError: bad input; nothing is written.
      FloatingPointError, signals.Interrupted: as `TaskRun.train`.
    """
    folder = paths.require_local(config.output_dir, flag="output_dir")
    config = dataclasses.replace(config, runtime=runtime_of(config.runtime, config.device))
    if config.runtime == "jax":
        from mlperf_bert.finetuning import by_jax  # no other runtime loads jax

        by_jax.mesh_of(config)  # so that a device that is not there is found at once
    source = weights.find(config)
    names = glue.NAMES if config.task == ALL_OF_GLUE else (config.task,)
    tasks = [config.create(name) for name in names]
    weights.check(source, needs_pooler=any(name in glue.NAMES for name in names))
    _read(folder / RESULTS_NAME)  # so that a damaged file is found before the training
    # A bad file of any task is found before the first is trained; a single one is read below.
    for task in tasks if len(tasks) > 1 else ():
        for split in _splits_needed(task, config):
            task.read(split)
    records: dict[str, dict] = {}
    files: list[paths.Location] = []
    for task in tasks:
        ready = Prepared(task, source)
        for split in _splits_needed(task, config):
            ready.split(split)  # before the first run, so that a bad file is found at once
        runs = _run_task(config, ready)
        record = records[task.name] = record_of(task, runs)
        _write(folder, task.name, record)
        if config.do_predict:
            files += _predict(config, ready, best_of(runs))
            _write(folder, task.name, record | {"predictions_of": record["best_setting"]})
    return Results(tasks=records, prediction_files=files)


def _splits_needed(task: Task, config: FinetuningConfig) -> tuple[str, ...]:
    """Those that the command will use."""
    return (TRAIN, *task.eval_splits, *(task.predicted_splits if config.do_predict else ()))


def _run_task(config: FinetuningConfig, ready: Prepared) -> list[TaskRun]:
    """Trains and scores one task; only the best of the runs trained here keeps its checkpoint."""
    runs: list[TaskRun] = []
    trained: list[TaskRun] = []
    for setting in config.settings:
        folder = Path(config.output_dir) / ready.task.name / setting.folder
        run = TaskRun(config, ready, setting, folder=folder)
        if run.is_finished():
            print(f"finished before: {run.folder}", file=sys.stderr)
        else:
            with StopRequest() as stop:
                run.train(stop)
            if stop.signal_name:
                raise Interrupted(
                    f"{stop.signal_name} at the end of {run.folder}: run the same command again to "
                    "resume"
                )
            trained.append(run)
        runs.append(run)
        for other in trained:
            if other is not best_of(runs):
                other.remove_checkpoints()
    return runs


def _predict(config: FinetuningConfig, ready: Prepared, best: TaskRun) -> list[paths.Location]:
    """Writes the answers of the best run: of GLUE together, as its server takes them."""
    folder = Path(config.output_dir) / PREDICTIONS_NAME
    if ready.task.name not in glue.NAMES:
        folder /= ready.task.name
    folder.mkdir(parents=True, exist_ok=True)
    files: list[paths.Location] = []
    for split, outputs in best.predictions(ready.task.predicted_splits):
        files += ready.task.write_predictions(
            ready.split(split), outputs, name=split, folder=folder
        )
    return files


def _write(folder: Path, name: str, record: dict) -> None:
    """Writes results.json; tasks of other commands stay in it."""
    path = folder / RESULTS_NAME
    # Another task's command may write now.
    with locks.held(folder, file_name=_LOCK_NAME, patience_seconds=_PATIENCE_SECONDS):
        found = _read(path)
        before = found.get(name, {})
        found[name] = dict(record)
        if "predictions_of" in before:  # the answers of an earlier command stay too
            found[name].setdefault("predictions_of", before["predictions_of"])
        listed = {name: found[name] for name in TASKS if name in found}
        write_record(path, {"tasks": listed, "glue_average": average_of(found)})


def _read(path: Path) -> dict[str, dict]:
    """The tasks in results.json; raises ValueError if it is damaged."""
    remedy = "remove it: the results of finished runs are in their folders too"
    return read_record(path, lambda content: dict(content["tasks"]), remedy=remedy) or {}
