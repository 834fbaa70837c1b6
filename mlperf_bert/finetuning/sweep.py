"""All runs of a command: tasks, learning rates, seeds; their table and average."""

import dataclasses
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from mlperf_bert.files import locks, paths
from mlperf_bert.files.json_text import read_record, write_record
from mlperf_bert.files.whole import written_beside
from mlperf_bert.finetuning import glue, weights
from mlperf_bert.finetuning.config import ALL_OF_GLUE, TASKS, FinetuningConfig, Setting, Task
from mlperf_bert.finetuning.glue import TRAIN
from mlperf_bert.finetuning.run import Prepared, TaskRun, TaskRunResult
from mlperf_bert.signals import Interrupted, StopRequest
from mlperf_bert.training.devices import create_strategy, replica_batch_size
from pages import charts

RESULTS_NAME, PICTURE_NAME, PREDICTIONS_NAME = "results.json", "results.png", "predictions"
_LOCK_NAME, _PATIENCE_SECONDS = ".results.lock", 60


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskResult:
    """All runs of a task."""

    task: Task
    runs: list[TaskRunResult]

    def score(self, run: TaskRunResult) -> float:
        """What runs are compared by: the main metric after the last epoch, on the first dev set."""
        return run.metrics[self.task.eval_splits[0]][self.task.main_metric]

    @property
    def best(self) -> TaskRunResult:
        """The first of the best runs."""
        return max(self.runs, key=self.score)

    @property
    def by_learning_rate(self) -> dict[float, list[TaskRunResult]]:
        """Learning rate -> runs over the seeds."""
        runs: dict[float, list[TaskRunResult]] = {}
        for run in self.runs:
            runs.setdefault(run.setting.learning_rate, []).append(run)
        return runs

    def median_of(self, learning_rate: float) -> float:
        """The median over the seeds."""
        return statistics.median(map(self.score, self.by_learning_rate[learning_rate]))

    @property
    def learning_rate(self) -> float:
        """The learning rate with the best median."""
        return max(self.by_learning_rate, key=self.median_of)

    @property
    def task_score(self) -> float | None:
        """What GLUE averages: the mean over dev sets and metrics, the median over the seeds."""
        if self.task.name not in glue.NAMES:
            return None
        return statistics.median(
            statistics.mean(value for split in run.metrics.values() for value in split.values())
            for run in self.by_learning_rate[self.learning_rate]
        )

    def as_json(self) -> dict:
        """For results.json."""
        return {
            "main_metric": f"{self.task.eval_splits[0]}/{self.task.main_metric}",
            "learning_rate": self.learning_rate,
            "median": self.median_of(self.learning_rate),
            "best": self.score(self.best),
            "best_setting": dataclasses.asdict(self.best.setting),
            "task_score": self.task_score,
            "runs": [
                {**dataclasses.asdict(run.setting), "epochs": run.epochs} for run in self.runs
            ],
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Results:
    """What the command has found."""

    tasks: list[TaskResult]
    prediction_files: list[paths.Location]

    @property
    def glue_average(self) -> float | None:
        """The mean of the task scores; None unless all tasks of GLUE were trained."""
        return _average([result.task_score for result in self.tasks])

    def table(self) -> str:
        """The results in lines, in percent."""
        rows = [["task", "metric", "learning rate", "seeds", "median", "best"]]
        for result in self.tasks:
            by_rate, task = result.by_learning_rate, result.task
            for rate, runs in by_rate.items():
                mark = "*" if rate == result.learning_rate and len(by_rate) > 1 else ""
                numbers = result.median_of(rate), max(map(result.score, runs))
                written = [f"{number:.2f}" for number in numbers]
                name = f"{rate:g}{mark}"
                rows.append([task.name, task.main_metric, name, str(len(runs)), *written])
        if self.glue_average is not None:
            rows.append(["glue", "average", "", "", f"{self.glue_average:.2f}", ""])
        widths = [max(map(len, column)) for column in zip(*rows)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
            for row in rows
        )

    def line(self) -> str:
        """The result in one line."""
        if self.glue_average is not None:
            return f"RESULT,glue,average,{self.glue_average:.3f}"
        [result] = self.tasks
        return (
            f"RESULT,{result.task.name},{result.task.main_metric},"
            f"{result.median_of(result.learning_rate):.3f},"
            f"learning_rate={result.learning_rate:g},runs={len(result.runs)}"
        )


def _average(task_scores: Sequence[float | None]) -> float | None:
    scores = [score for score in task_scores if score is not None]
    return statistics.mean(scores) if len(scores) == len(glue.NAMES) else None


def run(config: FinetuningConfig) -> Results:
    """Trains every task with every setting; what is finished already is not trained again.

    The results of a task are written when it is done.

    Raises:
      ValueError: bad input; nothing is written.
      FloatingPointError, signals.Interrupted: as `TaskRun.train`.
    """
    folder = paths.require_local(config.output_dir, flag="output_dir")
    strategy = create_strategy(config.device)
    for flag in ("train_batch_size", "eval_batch_size"):
        replica_batch_size(getattr(config, flag), strategy.num_replicas_in_sync, flag=flag)
    source = weights.find(config)
    names = glue.NAMES if config.task == ALL_OF_GLUE else (config.task,)
    tasks = [config.create(name) for name in names]
    weights.check(source, needs_pooler=any(name in glue.NAMES for name in names))
    _read(folder / RESULTS_NAME)  # so that a damaged file is found before the training
    # A bad file of any task is found before the first is trained; a single one is read below.
    for task in tasks if len(tasks) > 1 else ():
        for split in _splits_needed(task, config):
            task.read(split)
    results, files = [], []
    for task in tasks:
        ready = Prepared(task, source)
        for split in _splits_needed(task, config):
            ready.split(split)  # before the first run, so that a bad file is found at once
        result = _run_task(config, ready)
        results.append(result)
        _write(folder, result)
        if config.do_predict:
            files += _predict(config, ready, result)
            _write(folder, result, is_predicted=True)
    return Results(tasks=results, prediction_files=files)


def _splits_needed(task: Task, config: FinetuningConfig) -> tuple[str, ...]:
    """Those that the command will use."""
    return (TRAIN, *task.eval_splits, *(_predicted_splits(task) if config.do_predict else ()))


def _predicted_splits(task: Task) -> tuple[str, ...]:
    """The test sets; of a task that publishes none, the dev set."""
    return task.test_splits or task.eval_splits


def _run_task(config: FinetuningConfig, ready: Prepared) -> TaskResult:
    """Trains and scores one task; only the best of the runs trained here keeps its checkpoint."""
    trained: list[TaskRun] = []
    result = TaskResult(task=ready.task, runs=[])
    for setting in config.settings:
        run = _run_of(config, ready, setting)
        if ended := run.finished():
            print(f"finished before: {run.folder}", file=sys.stderr)
        else:
            with StopRequest() as stop:
                ended = run.train(stop)
            if stop.signal_name:
                raise Interrupted(
                    f"{stop.signal_name} at the end of {run.folder}: run the same command again to "
                    "resume"
                )
            trained.append(run)
        result.runs.append(ended)
        for other in trained:
            if other.folder != result.best.folder:
                other.remove_checkpoints()
    return result


def _run_of(config: FinetuningConfig, ready: Prepared, setting: Setting) -> TaskRun:
    folder = Path(config.output_dir) / ready.task.name / setting.folder
    return TaskRun(config, ready, setting, folder=folder)


def _predict(config: FinetuningConfig, ready: Prepared, result: TaskResult) -> list[paths.Location]:
    """Writes the answers of the best run: of GLUE together, as its server takes them."""
    folder = Path(config.output_dir) / PREDICTIONS_NAME
    if ready.task.name not in glue.NAMES:
        folder /= ready.task.name
    folder.mkdir(parents=True, exist_ok=True)
    best = _run_of(config, ready, result.best.setting)
    files: list[paths.Location] = []
    for split, outputs in best.predictions(_predicted_splits(ready.task)):
        files += ready.task.write_predictions(
            ready.split(split), outputs, name=split, folder=folder
        )
    return files


def _write(folder: Path, result: TaskResult, *, is_predicted: bool = False) -> None:
    """Writes results.json; tasks of other commands stay in it."""
    path, name = folder / RESULTS_NAME, result.task.name
    # Another task's command may write now.
    with locks.held(folder, file_name=_LOCK_NAME, patience_seconds=_PATIENCE_SECONDS):
        found = _read(path)
        before = found.get(name, {}).get("predictions_of")
        predictions_of = dataclasses.asdict(result.best.setting) if is_predicted else before
        found[name] = result.as_json()
        if predictions_of:  # the answers of an earlier command stay too
            found[name]["predictions_of"] = predictions_of
        average = _average([found.get(name, {}).get("task_score") for name in glue.NAMES])
        listed = {name: found[name] for name in TASKS if name in found}
        write_record(path, {"tasks": listed, "glue_average": average})
        draw(listed, folder / PICTURE_NAME)


def draw(tasks: Mapping[str, dict], path: Path) -> None:
    """Draws each task of results.json: the main metric of its runs after each epoch."""
    num_columns = min(len(tasks), 4)
    num_rows = math.ceil(len(tasks) / num_columns)
    size_inches = (max(5.0, 3.2 * num_columns), 3.4 * num_rows)
    with (
        written_beside(path) as file,
        charts.png(file, size_inches, rows=num_rows, columns=num_columns) as grid,
    ):
        for unused in grid.flat[len(tasks) :]:
            unused.set_visible(False)
        for axes, (name, result) in zip(grid.flat, tasks.items()):
            split, _, metric = result["main_metric"].partition("/")
            for run in result["runs"]:
                values = [epoch[split][metric] for epoch in run["epochs"]]
                label = f"{run['learning_rate']:g}, seed {run['seed']}"
                axes.plot(range(1, len(values) + 1), values, "o-", markersize=3, label=label)
            axes.set(title=f"{name}, {metric}", xlabel="epochs", ylabel="percent")
            axes.xaxis.get_major_locator().set_params(integer=True)
            if len(result["runs"]) <= 8:  # a sweep has twenty: their names would cover them
                axes.legend()


def _read(path: Path) -> dict[str, dict]:
    """The tasks in results.json; raises ValueError if it is damaged."""
    remedy = "remove it: the results of finished runs are in their folders too"
    return read_record(path, lambda content: dict(content["tasks"]), remedy=remedy) or {}
