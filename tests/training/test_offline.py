"""Offline evaluation: each checkpoint once, oldest first, during or after training. A minute."""

import json
import subprocess
import sys

import pytest

from tests.training import generated_task

COMMON = ["--max_seq_length=32", "--max_predictions_per_seq=6"]


@pytest.fixture(scope="module")
def run(tmp_path_factory, repository):
    """A finished training of 30 steps that saved steps 0, 10, 20 and 30, and its task."""
    folder = tmp_path_factory.mktemp("offline")
    generated_task.write_task(folder / "task")
    trained = subprocess.run(
        [
            sys.executable, "run_pretraining.py", "--do_train", *COMMON, "--noshuffle",
            f"--bert_config_file={folder}/task/bert_config.json", "--optimizer=lamb",
            f"--init_checkpoint={folder}/task/init/model.ckpt-0", "--num_warmup_steps=0",
            f"--input_file={folder}/task/train.tfrecord", f"--output_dir={folder}/out",
            "--num_train_steps=30", "--save_checkpoints_steps=10", "--train_batch_size=8",
        ],
        cwd=repository, capture_output=True, text=True,
    )  # fmt: skip
    assert trained.returncode == 0, trained.stderr
    return folder


def evaluate(repository, folder, *extra) -> subprocess.CompletedProcess:
    return subprocess.run(
        [
            sys.executable, "run_pretraining.py", "--do_eval", "--nodo_train", *COMMON,
            f"--bert_config_file={folder}/task/bert_config.json", "--eval_batch_size=7",
            f"--input_file={folder}/task/eval.tfrecord", f"--output_dir={folder}/out", *extra,
        ],
        cwd=repository, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def results(folder) -> list[dict]:
    lines = (folder / "out" / "eval_results.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_every_checkpoint_once_and_all_examples(repository, run):
    one = evaluate(repository, run, "--num_train_steps=20")
    assert one.returncode == 0, one.stderr
    assert [line["step"] for line in results(run)] == [20]  # a finished run: just the named one
    done = evaluate(repository, run, "--num_train_steps=30")
    assert done.returncode == 0, done.stderr
    found = results(run)
    assert [line["step"] for line in found] == [20, 0, 10, 30]
    assert {line["num_examples"] for line in found} == {45}  # 7 does not divide them
    # The initial checkpoint's evaluation does not depend on the batch: the recorded one had 9.
    [first] = [line for line in found if line["step"] == 0]
    assert first["masked_lm_accuracy"] == pytest.approx(0.032, abs=1e-6)
    assert first["masked_lm_loss"] == pytest.approx(3.7194197, abs=1e-5)
    text = (run / "out" / "eval_results.txt").read_text().splitlines()
    assert text[0] == "global_step = 30" and text == sorted(text)
    again = evaluate(repository, run, "--num_train_steps=30")
    assert again.returncode == 0 and results(run) == found


def test_no_training_directory(repository, run, tmp_path):
    done = evaluate(repository, run, f"--output_dir={tmp_path}/none")
    assert done.returncode == 1
    [line] = done.stderr.strip().splitlines()
    assert "no such directory; start the training first" in line
