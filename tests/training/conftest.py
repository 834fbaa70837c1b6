"""A configuration that can be inspected, and no file of which may be read."""

import dataclasses
import json

import pytest

from mlperf_bert.tensorflow_import import tensorflow

tensorflow()  # quietly, before other modules import it

from tests.training.configurations import TINY, run_config


@pytest.fixture
def config(tmp_path):
    """A run whose data files hold no records at all: nothing may read them."""
    (tmp_path / "bert_config.json").write_text(json.dumps(dataclasses.asdict(TINY)))
    for name in ("part-0", "part-1", "eval"):
        (tmp_path / name).write_bytes(b"no record")
    return run_config(
        bert_config_file=str(tmp_path / "bert_config.json"),
        input_file=str(tmp_path / "part-*"),
        eval_input_file=str(tmp_path / "eval"),
        output_dir=str(tmp_path / "out"),
        max_seq_length=16,
        max_predictions_per_seq=4,
        train_batch_size=4,
        eval_batch_size=4,
        optimizer="lamb",
        learning_rate=1e-3,
        num_train_steps=10,
        num_warmup_steps=0,
        save_checkpoints_steps=5,
        iterations_per_loop=5,
        log_every_steps=5,
        submission_org="example",
        submission_platform="box",
    )
