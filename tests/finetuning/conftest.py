"""The tiny GLUE and its model, made once."""

import shutil

import pytest

from mlperf_bert.tensorflow_import import tensorflow

tensorflow()  # quietly, before other modules import it

from tests.finetuning import generated_glue


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A folder with glue/ and model/, not to be changed."""
    folder = tmp_path_factory.mktemp("made")
    generated_glue.write_glue(folder / "glue")
    generated_glue.write_model(folder / "model")
    return folder


@pytest.fixture
def own(made, tmp_path):
    """A copy of it, to be changed."""
    shutil.copytree(made, tmp_path / "own")
    return tmp_path / "own"
