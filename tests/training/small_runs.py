"""Runs on a tiny task: commands, kills, what they logged, whether they end alike."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from mlperf_bert.mlperf.ledger import LOG_KEY
from mlperf_bert.mlperf.log_reader import read_records
from tests.helpers import starts, waiting

NUM_STEPS = 200


def command(task: Path, output_dir: Path, **changed) -> list[str]:
    flags = {
        "bert_config_file": task / "bert_config.json",
        "init_checkpoint": task / "init" / "model.ckpt-0",
        "input_file": task / "train.tfrecord",
        "eval_input_file": task / "eval.tfrecord",
        "output_dir": output_dir,
        "max_seq_length": 32,
        "max_predictions_per_seq": 6,
        "optimizer": "lamb",
        "learning_rate": 0.001,
        "num_warmup_steps": 10,
        "num_train_steps": NUM_STEPS,
        "train_batch_size": 8,
        "eval_batch_size": 20,
        "eval_interval_samples": 8 * 25,
        "save_checkpoints_steps": 22,
        "steps_per_update": 4,
        "log_every_steps": 3,
        "seed": 7,
    } | changed
    given = [f"--{name}={value}" for name, value in flags.items()]
    return [sys.executable, "run_pretraining.py", "--do_train", *given]


def held(command: list[str], last: int | str, go: Path) -> list[str]:
    """The command as held.py runs it: after the last step it waits until `go` is there."""
    return [command[0], "tests/training/held.py", str(last), str(go), *command[1:]]


def start(task, output, *, last: tuple | None = None, **changed) -> starts.Start:
    """Starts a run; `last` are those of `held`."""
    words = command(task, output, **changed)
    return starts.Start(held(words, *last) if last else words, errors_in_output=True)


def metrics(output: Path, kind: str) -> list[dict]:
    lines = map(json.loads, (output / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


def last_logged_step(output: Path) -> int:
    path = output / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    steps = re.findall(r'"step": (\d+)', lines[-1]) if lines else []
    return int(steps[0]) if steps else 0


def wait_for_step(process, output: Path, step: int) -> None:
    waiting.until(
        lambda: last_logged_step(output) >= step or process.poll() is not None, every_seconds=0.002
    )


def assert_same_end(found: Path, expected: Path, *, num_steps: int = NUM_STEPS) -> None:
    name = f"model.ckpt-{num_steps}"
    readers = [tf.train.load_checkpoint(str(folder / name)) for folder in (found, expected)]
    tensors = readers[0].get_variable_to_dtype_map()
    # Not compared: the count of saves, and the input pipeline's own encoding of its position.
    passed_over = ("save_counter", "iterator")
    compared = [t for t in tensors if tensors[t] != tf.string and not t.startswith(passed_over)]
    assert len(compared) > 100
    for tensor in compared:
        assert np.array_equal(*(reader.get_tensor(tensor) for reader in readers)), tensor
    lines = [
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (found, expected)
    ]
    for line in lines[0] + lines[1]:
        for name in [name for name in line if "second" in name]:
            del line[name]
    assert lines[0] == lines[1]


def run_stops(output: Path) -> list[list[str]]:
    """Of every log of the run: the statuses of its run_stops."""
    logs = [output / "bert.log", *sorted(output.glob("bert.resumed-*.log"))]
    pattern = re.compile(r'"run_stop".*"status": "(\w+)"')
    return [pattern.findall(log.read_text()) for log in logs]


def run_seconds(log: Path) -> tuple[float, float]:
    """How long the run took at the least and at the most, by the stamps of its log.

    Clocks start just after the stamp of run_start, and stop before what is logged of the whole run.
    """
    records = read_records(log)
    [first] = [number for number, record in enumerate(records) if record.key == "run_start"]
    [last] = [number for number, record in enumerate(records) if record.key == "run_stop"]
    late = ("energy", LOG_KEY, "train_samples")
    inner = [r.time_ms for r in records[first + 1 : last] if r.key not in late]
    least, most = inner[-1] - inner[0], records[last].time_ms - records[first].time_ms
    return (least - 1) / 1000, (most + 1) / 1000  # stamps are whole milliseconds


_OFFLINE = ["--max_seq_length=32", "--max_predictions_per_seq=6"]


def training_to_evaluate(task, output, *extra) -> list[str]:
    """Trains 30 steps and saves steps 0, 10, 20 and 30."""
    return [
        sys.executable, "run_pretraining.py", "--do_train", *_OFFLINE, "--noshuffle",
        f"--bert_config_file={task}/bert_config.json", "--optimizer=lamb",
        f"--init_checkpoint={task}/init/model.ckpt-0", "--num_warmup_steps=0",
        f"--input_file={task}/train.tfrecord", f"--output_dir={output}", "--learning_rate=1e-4",
        "--num_train_steps=30", "--save_checkpoints_steps=10", "--train_batch_size=8", *extra,
    ]  # fmt: skip


def offline_evaluation(task, output, *extra) -> list[str]:
    return [
        sys.executable, "run_pretraining.py", "--do_eval", "--nodo_train", *_OFFLINE,
        f"--bert_config_file={task}/bert_config.json", "--eval_batch_size=7",
        f"--input_file={task}/eval.tfrecord", f"--output_dir={output}", *extra,
    ]  # fmt: skip
