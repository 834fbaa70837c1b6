"""Campaigns of one real, tiny training: evaluated while it trains, and afterwards. A minute."""

import json
import os

import pytest

from mlperf_bert.submission import campaign
from tests.training import generated_task

FLAGS = """--do_train --max_seq_length=32 --max_predictions_per_seq=6 --optimizer=lamb
    --learning_rate=1e-4 --num_warmup_steps=0 --num_train_steps=30 --save_checkpoints_steps=10
    --train_batch_size=8 --eval_batch_size=9 --eval_interval_samples=80 --target_accuracy=0.01
    """.split()


@pytest.mark.gate
@pytest.mark.parametrize(
    "offline", [False, pytest.param(True, marks=pytest.mark.all)], ids=["online", "offline"]
)
def test_a_training_becomes_a_submission(tmp_path, offline, capfd):
    task = tmp_path / "task"
    generated_task.write_task(task, num_hidden_layers=1)
    data = f"{task / 'eval.tfrecord'}"
    status = campaign.main(
        [
            *["--org=o", "--system=s", "--runs=1", f"--output_dir={tmp_path / 'campaign'}"],
            *([f"--offline_eval_input_file={data}"] if offline else []),
            "--",
            *FLAGS,
            f"--bert_config_file={task / 'bert_config.json'}",
            f"--init_checkpoint={task / 'init' / 'model.ckpt-0'}",
            f"--input_file={task / 'train.tfrecord'}",
            *([] if offline else [f"--eval_input_file={data}"]),
        ]
    )
    printed = capfd.readouterr().out
    verdict = printed[printed.index("\nsubmission: ") :].splitlines()
    assert status == 1
    record = json.loads((tmp_path / "campaign" / "runs" / "0" / "run.json").read_text())
    emptied = "emptied" if os.access("/proc/sys/vm/drop_caches", os.W_OK) else "NOT emptied"
    [run] = [line for line in verdict if line.startswith("run 0: success")]
    assert run.endswith(f"80 samples, seed {record['seed']}, caches {emptied}")
    assert "compliance checker: 1 of 1 logs accepted" in verdict
    assert (
        "division open: each run departs from the closed rules, as it said at its start" in verdict
    )
    assert "problem: 1 log, the rules require 10" in verdict
    assert verdict[-1] == "NOT PASSED under ruleset 5.0.0"
    result = tmp_path / "campaign" / "submission" / "o" / "results" / "s" / "bert" / "result_0.txt"
    name = "bert.offline.log" if offline else "bert.log"
    assert result.read_bytes() == (tmp_path / "campaign" / "runs" / "0" / name).read_bytes()
