"""The generated checkpoint and the real one, vocabularies, a model in Hugging Face's layout."""

from pathlib import Path

import pytest

from mlperf_bert.convert import exporting, importing, tf1_tf2
from mlperf_bert.convert.exporting import export
from mlperf_bert.model.pretrainer import build_pretrainer
from tests.checkpoints.conftest import Start, generated  # noqa: F401 - fixtures


def write_vocabulary(path, size: int) -> str:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"token{n}" for n in range(5, size))]
    path.write_text("".join(f"{token}\n" for token in tokens))
    return str(path)


@pytest.fixture(scope="session", autouse=True)
def models_built_once():
    """Half a second each; whoever asks for one again gets it with the weights it was built with."""
    models = {}

    def build(config, *, seed):
        if (config, seed) not in models:
            model = build_pretrainer(config, seed=seed)
            models[config, seed] = model, model.get_weights()
        model, weights = models[config, seed]
        model.set_weights(weights)
        return model

    with pytest.MonkeyPatch.context() as patched:
        for module in (exporting, importing, tf1_tf2):
            patched.setattr(module, "build_pretrainer", build)
        yield


@pytest.fixture(
    scope="session", params=["generated", pytest.param("golden", marks=pytest.mark.all)]
)
def start(request) -> Start:
    if request.param == "generated":
        return request.getfixturevalue("generated")
    folder = request.getfixturevalue("shared") / "golden"
    return Start(str(folder / "init" / "model.ckpt-28252"), folder / "bert_config.json")


@pytest.fixture(scope="session")
def vocabulary(generated, tmp_path_factory) -> str:  # noqa: F811 - a fixture
    return write_vocabulary(
        tmp_path_factory.mktemp("words") / "vocab.txt", generated.config.vocab_size
    )


@pytest.fixture(scope="session")
def exported(generated, vocabulary, tmp_path_factory) -> Path:  # noqa: F811 - a fixture
    """The generated checkpoint in Hugging Face's layout; only to be read."""
    folder = tmp_path_factory.mktemp("hugging_face") / "exported"
    num_weights = export(
        generated.checkpoint, str(folder), config=generated.config, vocab_file=vocabulary
    )
    assert num_weights == 46
    return folder
