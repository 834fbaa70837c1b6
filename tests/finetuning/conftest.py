"""The tiny GLUE and its model, made once."""

import functools
import json
import shutil

import pytest

from mlperf_bert.tensorflow_import import tensorflow

tensorflow()  # quietly, before other modules import it

from mlperf_bert.convert.exporting import export
from mlperf_bert.model.config import BertConfig
from mlperf_bert.programs import jax_step, on_devices
from tests.finetuning import generated_glue


@pytest.fixture(scope="session", autouse=True)
def _compiled_quickly():
    """What jax compiles within a test then computes slower, and the same."""

    @functools.cache
    def compiled(content, entry, mesh):
        parts = [jax_step.Part(content, json.loads(entry))]
        lowered = jax_step.lowered(parts, [*mesh.devices.flat])
        return lowered.compile({"xla_backend_optimization_level": 0})

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(on_devices, "_compiled", compiled)
        yield


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
