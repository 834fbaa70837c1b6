"""What a store refuses is named by the type of the client's error, and is no damage of a file."""

import pytest
import tensorflow as tf

from mlperf_bert.checkpoints import state
from mlperf_bert.checkpoints.reading import StoredCheckpoint
from mlperf_bert.checkpoints.state import RunState
from mlperf_bert.files import errors, locks, paths
from tests.stores.rig import Store

REFUSALS = {
    401: (PermissionError, "the store refuses these credentials; give their account the role"),
    403: (PermissionError, "the store refuses these credentials; give their account the role"),
    404: (FileNotFoundError, "no such bucket or object; check the path"),
    429: (errors.StoreUnavailable, "the store does not answer, or asks to try later; repeat"),
    503: (errors.StoreUnavailable, "the store does not answer, or asks to try later; repeat"),
    "cut": (errors.StoreUnavailable, "the store does not answer, or asks to try later; repeat"),
}
PATH = "gs://bucket/x"


def _by_tensorflow() -> None:
    with paths.failures_named(PATH):
        paths.location(PATH).write_bytes(b"x")


def _by_google() -> None:
    with paths.failures_named(PATH):
        blob = locks.client().bucket("bucket").blob("x")
        blob.upload_from_string(b"x", retry=None)


@pytest.mark.parametrize("client", [_by_tensorflow, _by_google])
@pytest.mark.parametrize("status", REFUSALS)
def test_a_refusal_is_named(store, bucket, client, status):
    store.fail(1.0, status)
    kind, text = REFUSALS[status]
    with pytest.raises(kind) as error:
        store.call(client)
    assert str(error.value).startswith(f"{PATH}: {text}") and type(error.value) is kind


def test_an_object_is_read_in_few_requests_from_anywhere_in_it(store: Store, bucket):
    content = bytes(range(256)) * 2**17  # 32 MiB
    store.put(bucket, "x", content)
    assert store.call(_parts) == [content[:4], content[10**7 : 10**7 + 4], content[-4:]]
    assert store.kinds()["read"] < 8


def _parts() -> list[bytes]:
    with paths.opened(PATH) as file:
        first = file.read(4)
        file.seek(10**7)
        middle = file.read(4)
        file.seek(-4, 2)
        return [first, middle, file.read()]


def _save(directory: str) -> None:
    variable = tf.Variable(tf.fill([300, 300], 2.5))
    RunState(directory, parts={"variable": variable}, keep_checkpoint_max=2).save(20)


def _read_checkpoint(directory: str, what: str) -> None:
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
        (503, errors.StoreUnavailable, "the store does not answer, or"),
        (403, PermissionError, "the store refuses these credentials"),
    ],
)
def test_what_a_store_refuses_is_no_damage(store, bucket, what, status, kind, told):
    store.call(_save, f"gs://{bucket}/run")
    store.call(_read_checkpoint, f"gs://{bucket}/run", what)
    store.fail(1.0, status)
    with pytest.raises(kind, match=told) as error:
        store.call(_read_checkpoint, f"gs://{bucket}/run", what)
    assert type(error.value) is kind
    assert "remove" not in str(error.value) and "copy it here" not in str(error.value)
