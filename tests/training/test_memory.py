"""BERT-large trains within 12 GiB at batch 2. CPU, some minutes."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from benchmarks import random_task
from benchmarks.training_throughput import NUM_EXAMPLES, SHAPE
from mlperf_bert.mlperf.rules import BERT_LARGE
from tests.training import generated_task

MOST_BYTES = 12 * 2**30
NUM_STEPS = 3


@pytest.mark.soak
@pytest.mark.parametrize(
    "options",
    [
        pytest.param([], id="float32"),
        pytest.param(["--precision=bfloat16", "--jit_compile=auto"], id="bfloat16"),
        pytest.param(
            ["--precision=bfloat16", "--jit_compile=auto", "--pack_sequences"], id="packed"
        ),
    ],
)
def test_bert_large_at_batch_2_stays_within_12_gib(repository, tmp_path, options):
    (tmp_path / "bert_config.json").write_text(json.dumps(dict(BERT_LARGE)))
    generated_task.write_initial_checkpoint(
        tmp_path / "model.ckpt-0", BERT_LARGE, np.random.RandomState(1)
    )
    lengths = random_task.published_lengths(NUM_EXAMPLES)
    random_task.write(tmp_path, BERT_LARGE, SHAPE, lengths)
    command = [
        *[sys.executable, "run_pretraining.py", "--do_train", "--optimizer=lamb"],
        f"--bert_config_file={tmp_path}/bert_config.json",
        f"--init_checkpoint={tmp_path}/model.ckpt-0",
        f"--input_file={tmp_path}/train.tfrecord",
        f"--output_dir={tmp_path}/out",
        *["--max_seq_length=512", "--max_predictions_per_seq=76", "--train_batch_size=2"],
        *[f"--num_train_steps={NUM_STEPS}", "--num_warmup_steps=0", "--log_every_steps=1"],
        *[
            "--save_checkpoints_steps=2",
            "--keep_checkpoint_max=1",
            "--noasync_checkpoint",
            *options,
        ],
    ]
    output = tmp_path / "output.txt"
    with output.open("w") as file:
        process = subprocess.Popen(command, cwd=repository, stdout=file, stderr=file)
        _, status, used = os.wait4(process.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, output.read_text()
    lines = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == NUM_STEPS
    peak_bytes = used.ru_maxrss * 1024
    print(f"{peak_bytes / 2**30:.2f} GiB")
    assert peak_bytes < MOST_BYTES
