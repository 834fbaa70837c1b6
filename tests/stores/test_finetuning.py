"""Fine-tuning reads a task, a checkpoint and a vocabulary from a bucket. CPU, a minute."""

import os
import sys

import pytest

from tests.finetuning import generated_glue
from tests.helpers import starts


@pytest.mark.all
def test_a_task_and_a_model_in_a_bucket_give_the_same_result(store, bucket, tmp_path):
    generated_glue.write_glue(tmp_path / "glue")
    generated_glue.write_model(tmp_path / "model")
    store.upload(tmp_path, bucket)

    def run(place: str, name: str) -> str:
        command = [
            *[sys.executable, "run_finetuning.py", "--task=cola", f"--data_dir={place}/glue"],
            *[f"--checkpoint={place}/model/model.ckpt-0", "--max_seq_length=24"],
            *[f"--vocab_file={place}/model/vocab.txt", "--num_train_epochs=1"],
            f"--bert_config_file={place}/model/bert_config.json",
            f"--output_dir={tmp_path}/{name}",
        ]
        done = starts.run(command, env=os.environ | store.environment, check=True)
        return done.stdout.splitlines()[-1]

    assert run(f"gs://{bucket}", "a") == run(str(tmp_path), "b")
    metrics = [next((tmp_path / name).rglob("metrics.jsonl")).read_text() for name in ("a", "b")]
    assert metrics[0] == metrics[1]
