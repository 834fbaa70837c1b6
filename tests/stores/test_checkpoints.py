"""A store that fails while a checkpoint is read: no damage is named, and what may pass can."""

import pytest
import tensorflow as tf

from mlperf_bert.checkpoints import state
from mlperf_bert.checkpoints.reading import StoredCheckpoint
from mlperf_bert.checkpoints.state import RunState
from mlperf_bert.files import paths


def _save(directory: str) -> None:
    variable = tf.Variable(tf.fill([300, 300], 2.5))
    RunState(directory, parts={"variable": variable}, keep_checkpoint_max=2).save(20)


def _read(directory: str, what: str) -> None:
    """The first request is that of the checkpoint."""
    path = f"{directory}/model.ckpt-20"
    if what == "restore":
        run = RunState(directory, parts={"variable": tf.Variable(tf.zeros([300, 300]))},
                       keep_checkpoint_max=2)  # fmt: skip
        run.restore(path)
    elif what == "look":
        state._is_whole(path)
    else:
        StoredCheckpoint(path)


@pytest.mark.parametrize("what", ["restore", "look", "open"])
@pytest.mark.parametrize(
    ("status", "kind", "told"),
    [
        (503, paths.StoreUnavailable, "the store does not answer, or"),
        (403, PermissionError, "the store refuses these credentials"),
    ],
)
def test_what_a_store_refuses_is_no_damage(store, bucket, what, status, kind, told):
    store.call(_save, f"gs://{bucket}/run")
    store.call(_read, f"gs://{bucket}/run", what)
    store.fail(1.0, status)
    with pytest.raises(kind, match=told) as error:
        store.call(_read, f"gs://{bucket}/run", what)
    assert type(error.value) is kind
    assert "remove" not in str(error.value) and "copy it here" not in str(error.value)
