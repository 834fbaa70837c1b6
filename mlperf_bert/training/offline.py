"""Offline evaluation: every saved checkpoint of a run, oldest first, each exactly once.

It may run beside the training, in another process: then it waits for the next checkpoint.
"""

import dataclasses
import json
import time
from pathlib import Path

import tensorflow as tf

from mlperf_bert.checkpoints.state import saved_checkpoints
from mlperf_bert.data import input_pipeline
from mlperf_bert.data.input_pipeline import ExampleShape
from mlperf_bert.model import pretrainer
from mlperf_bert.model.config import BertConfig
from mlperf_bert.model.metrics import Evaluation
from mlperf_bert.progress import Progress
from mlperf_bert.training import strategy
from mlperf_bert.training.evaluation import Evaluator
from mlperf_bert.training.output import RECORD_NAME

SECONDS_BETWEEN_LOOKS = 2.0
RESULTS_TEXT = "eval_results.txt"
RESULTS_LINES = "eval_results.jsonl"


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfflineConfig:
    """An offline evaluation, as the flags of run_pretraining.py give it."""

    bert_config_file: str
    input_file: str
    """The evaluation examples."""
    output_dir: str
    """Where the training saves its checkpoints."""
    shape: ExampleShape
    eval_batch_size: int
    max_eval_steps: int | None
    num_train_steps: int
    target_accuracy: float
    device: strategy.DeviceConfig


def evaluate_checkpoints(config: OfflineConfig) -> dict[int, Evaluation]:
    """Evaluates until the target, the checkpoint of `num_train_steps`, or the end of the run.

    Results go to eval_results.txt (the newest, in the reference's format) and eval_results.jsonl
    (a line for each), both in the output directory.

    Returns: step -> evaluation, of this call.

    Raises:
      ValueError: bad configuration or input, or a directory without a run.
    """
    bert_config = BertConfig.from_json_file(config.bert_config_file)
    files = input_pipeline.expand_input(config.input_file, flag="input_file")
    directory = Path(config.output_dir)
    if not directory.is_dir():
        raise ValueError(f"--output_dir={directory}: no such directory; start the training first")
    devices = strategy.create_strategy(config.device)
    strategy.replica_batch_size(
        config.eval_batch_size, devices.num_replicas_in_sync, flag="eval_batch_size"
    )
    with devices.scope():
        model = pretrainer.build_pretrainer(bert_config, seed=0)
    evaluator = Evaluator(model=model, strategy=devices)
    dataset = input_pipeline.evaluation_batches(
        files,
        config.shape,
        batch_size=config.eval_batch_size,
        max_batches=config.max_eval_steps,
    )
    progress = Progress(total=config.num_train_steps, initial=0, unit="steps", description="eval")
    found = {}
    for step, path in _pending(directory, config.num_train_steps):
        tf.train.Checkpoint(model=model).restore(path).expect_partial()
        found[step] = evaluator.evaluate(dataset)
        _record(directory, step, found[step])
        accuracy = found[step].masked_lm_accuracy
        progress.line(
            f"step {step}: masked-LM accuracy {accuracy:.4f} (target {config.target_accuracy})"
        )
        if accuracy >= config.target_accuracy:
            break
    progress.close()
    return found


def evaluated_steps(directory: Path) -> set[int]:
    """The steps that have been evaluated in a directory."""
    path = directory / RESULTS_LINES
    if not path.exists():
        return set()
    return {json.loads(line)["step"] for line in path.read_text(encoding="utf-8").splitlines()}


def _pending(directory: Path, num_train_steps: int):
    """Yields (step, path) of unevaluated checkpoints, oldest first; waits for a running training.

    On a finished run `num_train_steps` may name one of its checkpoints: then just that one.
    """
    done = evaluated_steps(directory)
    saved = saved_checkpoints(str(directory))
    if not _is_running(directory) and num_train_steps in saved and num_train_steps < max(saved):
        yield num_train_steps, saved[num_train_steps]
        return
    while True:
        running = _is_running(directory)  # before the look: the last checkpoint comes first
        saved = saved_checkpoints(str(directory))
        pending = [step for step in saved if step not in done]
        if pending:
            done.add(pending[0])
            yield pending[0], saved[pending[0]]
            if pending[0] >= num_train_steps:
                return
        elif not running or num_train_steps in done:
            return
        else:
            time.sleep(SECONDS_BETWEEN_LOOKS)


def _is_running(directory: Path) -> bool:
    record = directory / RECORD_NAME
    if not record.exists():
        return not saved_checkpoints(str(directory))  # not begun yet
    return json.loads(record.read_text(encoding="utf-8"))["status"] == "running"


def _record(directory: Path, step: int, found: Evaluation) -> None:
    values = dataclasses.asdict(found)
    with (directory / RESULTS_LINES).open("a", encoding="utf-8") as lines:
        lines.write(json.dumps({"step": step, **values}) + "\n")
    listed = {"global_step": step, **values}
    text = "".join(f"{name} = {listed[name]}\n" for name in sorted(listed))
    partial = directory / f"{RESULTS_TEXT}.partial"
    partial.write_text(text, encoding="utf-8")
    partial.replace(directory / RESULTS_TEXT)
