"""Real Wikipedia text through the public commands to a trained step count. CPU, a minute."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from mlperf_bert.submission import compliance


@pytest.mark.all
def test_sample_to_tfrecords_to_fifty_steps(repository, shared, tmp_path):
    work = shutil.copytree(shared / "data" / "wiki_sample", tmp_path / "wiki")
    environment = {
        **os.environ,
        "PYTHON": sys.executable,
        "PUNKT": str(shared / "data" / "nltk_data" / "tokenizers" / "punkt_tab" / "english"),
        "NUM_TEST_ARTICLES": "10",
        "BLOCK_SIZE": "1.5",
    }

    def run(*command):
        subprocess.run(list(map(str, command)), cwd=repository, env=environment, check=True)

    subprocess.run(
        [repository / "cleanup_scripts" / "process_wiki.sh", "wiki_??"],
        cwd=work,
        env=environment,
        check=True,
    )
    lengths = ["--max_seq_length=512", "--max_predictions_per_seq=76"]
    for name in ("part-00000-of-00500", "part-00001-of-00500", "eval.txt"):
        run(
            sys.executable, "create_pretraining_data.py", *lengths,
            f"--input_file={work}/results/{name}", f"--output_file={tmp_path}/{name}",
            f"--vocab_file={shared}/data/vocab.txt",
        )  # fmt: skip
    run(
        sys.executable, "pick_eval_samples.py", f"--input_tfrecord={tmp_path}/eval.txt",
        f"--output_tfrecord={tmp_path}/eval_100", "--num_examples_to_pick=100",
    )  # fmt: skip
    run(
        sys.executable, "run_pretraining.py", "--do_train", *lengths,
        f"--bert_config_file={shared}/golden/bert_config.json",
        f"--init_checkpoint={shared}/golden/init/model.ckpt-28252",
        f"--input_file={tmp_path}/part-*", f"--eval_input_file={tmp_path}/eval_100",
        f"--output_dir={tmp_path}/out", "--optimizer=lamb", "--learning_rate=0.004",
        "--num_warmup_steps=5", "--num_train_steps=50", "--train_batch_size=8",
        "--eval_batch_size=20", "--eval_interval_samples=200", "--log_every_steps=1",
    )  # fmt: skip

    lines = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    metrics = [json.loads(line) for line in lines]
    losses = [line["loss"] for line in metrics if line["kind"] == "train"]
    assert len(losses) == 50
    assert np.mean(losses[-10:]) < np.mean(losses[:10]) - 0.05
    assert [line["samples"] for line in metrics if line["kind"] == "eval"] == [200, 400]
    for ruleset in ("1.0.0", "3.1.0", "4.1.0", "5.0.0"):
        verdict = compliance.check_log(tmp_path / "out" / "bert.log", ruleset)
        assert verdict.passed, verdict
