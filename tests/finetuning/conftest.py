"""The tiny GLUE and its model, made once."""

import shutil

import pytest

from mlperf_bert.tensorflow_import import tensorflow

tensorflow()  # quietly, before other modules import it

from mlperf_bert.convert.exporting import export
from mlperf_bert.model.config import BertConfig
from tests.finetuning import generated_glue


@pytest.fixture(scope="module", autouse=True)
def _compiled_quickly(compiles_quickly):
    """In every module of this folder."""


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A folder with glue/ and model/, not to be changed."""
    folder = tmp_path_factory.mktemp("made")
    generated_glue.write_glue(folder / "glue")
    generated_glue.write_model(folder / "model")
    return folder


@pytest.fixture(scope="session")
def hugging_face(made, tmp_path_factory):
    """The same model in Hugging Face's layout, not to be changed."""
    model, folder = made / "model", tmp_path_factory.mktemp("hf") / "hf"
    config = BertConfig.from_json_file(str(model / "bert_config.json"))
    vocab_file = str(model / "vocab.txt")
    export(str(model / "model.ckpt-0"), str(folder), config=config, vocab_file=vocab_file)
    return folder


@pytest.fixture
def own(made, tmp_path):
    """A copy of it, to be changed."""
    shutil.copytree(made, tmp_path / "own")
    return tmp_path / "own"
