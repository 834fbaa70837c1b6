"""A checkpoint to convert and load."""

import dataclasses
import functools
from pathlib import Path

import numpy as np
import pytest

from mlperf_bert.tensorflow_import import tensorflow

tensorflow()  # quietly, before other modules import it

from mlperf_bert.convert import saving
from mlperf_bert.model.config import BertConfig
from tests.checkpoints.stored_weights import read_weights
from tests.training import generated_task


@dataclasses.dataclass(frozen=True)
class Start:
    """A TF1 checkpoint with LAMB's slots and a step, as the published one, and its architecture."""

    checkpoint: str
    config_file: Path

    @functools.cached_property
    def config(self) -> BertConfig:
        return BertConfig.from_json_file(self.config_file)

    @functools.cached_property
    def weights(self) -> dict[str, np.ndarray]:
        """TF1 name -> value."""
        return read_weights(self.checkpoint)


@pytest.fixture(scope="session")
def generated(tmp_path_factory) -> Start:
    folder = tmp_path_factory.mktemp("checkpoints") / "task"
    generated_task.write_task(folder, num_examples=1, num_eval_examples=1)
    weights = read_weights(str(folder / "init" / "model.ckpt-0"))
    random = np.random.RandomState(28252)
    slots = {
        f"{name}/{slot}": random.standard_normal(weights[name].shape).astype(np.float32)
        for name in sorted(weights)
        for slot in ("LAMB", "LAMB_1")
    }
    prefix = str(folder / "init" / "model.ckpt-28252")
    saving.write_name_based(prefix, weights | slots | {"global_step": np.int64(28252)})
    return Start(prefix, folder / "bert_config.json")
