"""From random weights in two phases, short sequences and long ones, as documented. CPU, 30 s."""

import json
import sys

import numpy as np
import pytest
import tensorflow as tf

from mlperf_bert.convert.tf1_tf2 import convert
from mlperf_bert.input.pipeline import ExampleShape
from mlperf_bert.model.config import BertConfig
from tests.checkpoints.stored_weights import read_weights
from tests.helpers import starts
from tests.training import generated_task


@pytest.fixture
def tasks(tmp_path, monkeypatch):
    """Folders with examples of 16 and of 32 tokens for the same model."""
    for length in (16, 32):
        shape = ExampleShape(max_seq_length=length, max_predictions_per_seq=6)
        monkeypatch.setattr(generated_task, "SHAPE", shape)
        generated_task.write_task(tmp_path / f"tokens_{length}")
    return tmp_path


def train(tasks, preset: str, length: int, **changed) -> str:
    folder = tasks / f"tokens_{length}"
    flags = {
        "flagfile": f"configs/{preset}.flags",
        "bert_config_file": folder / "bert_config.json",
        "input_file": folder / "train.tfrecord",
        "output_dir": tasks / preset,
        "max_seq_length": length,
        "max_predictions_per_seq": 6,
        "train_batch_size": 8,
        "log_every_steps": 1,
    } | changed
    command = [f"--{name}={value}" for name, value in flags.items()]
    return starts.run([sys.executable, "run_pretraining.py", *command], check=True).stdout


@pytest.mark.all
def test_phase_2_starts_at_step_0_from_the_weights_of_phase_1(tasks):
    printed = train(tasks, "phase1_128", 16, num_train_steps=16, num_warmup_steps=2)
    assert "init_checkpoint: the rules require the official one, this run has random" in printed
    start = f"{tasks}/phase1_end/model.ckpt-16"
    command = ["tf2_encoder_checkpoint_converter.py"]
    command += [f"--bert_config_file={tasks}/tokens_16/bert_config.json"]
    command += [f"--checkpoint_to_convert={tasks}/phase1_128/model.ckpt-16"]
    command += [f"--converted_checkpoint_path={start}"]
    starts.run([sys.executable, *command], check=True)

    # The rate of the first update is 0, that of the beginning of the warm-up.
    short = {"num_train_steps": 1, "num_warmup_steps": 1, "steps_per_update": 1}
    printed = train(tasks, "phase2_512", 32, init_checkpoint=start, **short)
    assert f"Initial weights: 46 from {start} (TF1, by name)" in printed
    assert printed.count("not a submission to the closed division") == 1

    end, weights = f"{tasks}/phase2_512/model.ckpt-1", f"{tasks}/end/model.ckpt-1"
    convert(end, weights, config=BertConfig(**generated_task.CONFIG))
    found, expected = read_weights(weights), read_weights(start)
    assert sorted(found) == sorted(expected) and len(found) == 46
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    step = tf.train.load_checkpoint(end).get_tensor("step/.ATTRIBUTES/VARIABLE_VALUE")
    first = (tasks / "phase2_512" / "metrics.jsonl").read_text().splitlines()[0]
    assert step == json.loads(first)["step"] == 1
