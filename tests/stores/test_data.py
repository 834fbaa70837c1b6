"""Checkpoints made from and into a bucket equal those of local disks. CPU, a minute.

Oracle: the same commands with local paths, which other tests compare with the reference.
"""

from pathlib import Path

import pytest

from mlperf_bert.convert import exporting, importing, tf1_tf2
from mlperf_bert.model.config import BertConfig
from tests.checkpoints.conftest import generated
from tests.stores.rig import files_in

__all__ = ["generated"]


@pytest.mark.all
def test_checkpoints_and_exports_in_a_bucket_are_those_of_a_disk(
    store, bucket, generated, tmp_path
):
    folder = Path(generated.checkpoint).parent
    tokens = ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens += [f"token{number}" for number in range(4, generated.config.vocab_size)]
    vocab = "".join(f"{token}\n" for token in tokens)
    inputs = {f"init/{path.name}": path.read_bytes() for path in folder.iterdir()}
    inputs |= {"vocab.txt": vocab.encode(), "config.json": generated.config_file.read_bytes()}
    for name, content in inputs.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    store.upload(tmp_path, bucket)
    store.call(_convert_and_export, str(tmp_path))
    store.put(bucket, "tf2/.model.partial/checkpoint-1.index", b"of a process that was killed")
    store.call(_convert_and_export, f"gs://{bucket}")
    local = files_in(tmp_path)
    there = store.objects(bucket)
    assert len(local) > len(inputs) and there.keys() == local.keys()
    assert not [name for name in local if local[name] != there[name]]


def _convert_and_export(folder: str) -> None:
    """All from `folder` and into it, a bucket's root too."""
    config = BertConfig.from_json_file(f"{folder}/config.json")
    stored = f"{folder}/init/model.ckpt-28252"
    tf1_tf2.convert(stored, f"{folder}/tf2/model", config=config)
    tf1_tf2.add_accumulators(stored, f"{folder}/acc/model.ckpt")
    vocab = f"{folder}/vocab.txt"
    exporting.export(f"{folder}/tf2/model", f"{folder}/exported", config=config, vocab_file=vocab)
    importing.import_model(f"{folder}/exported", f"{folder}/imported", seed=0)
