"""A model in Hugging Face's layout becomes an initial checkpoint, and the other way. CPU, a minute.

Oracles: transformers computes the same logits from the same files; the export writes them again.
transformers loads the PyTorch layout with TensorFlow here, so no torch is needed; another test
holds the bytes to those that passed the same comparison in torch.

Long because one layout has many forms to read and to refuse.
"""

import hashlib
import json
import os
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf
import transformers

from mlperf_bert import command_line
from mlperf_bert.checkpoints import reading
from mlperf_bert.checkpoints.reading import StoredCheckpoint
from mlperf_bert.convert import from_hugging_face, layout, to_hugging_face
from mlperf_bert.convert.exporting import export, write_safetensors
from mlperf_bert.convert.importing import import_model
from mlperf_bert.model.config import BertConfig
from mlperf_bert.model.pretrainer import build_pretrainer, trained_variables
from tests.checkpoints.stored_weights import assert_same_bits, read_weights
from tests.convert.conftest import write_vocabulary

WORDS = "bert.embeddings.word_embeddings.weight"
BIAS = "cls.predictions.bias"
KEY = "bert.encoder.layer.1.attention.self.key.weight"
NORM = "bert.embeddings.LayerNorm"


class Model:
    """A folder that a test may change, and the TF1 weights of the checkpoint it was made of."""

    def __init__(self, folder: Path, weights: dict[str, np.ndarray]):
        self.folder = folder
        self.weights = weights
        self.tensors = safetensors.numpy.load_file(folder / "model.safetensors")

    def write(self) -> None:
        write_safetensors(self.folder / "model.safetensors", self.tensors)

    def configure(self, **changed) -> None:
        path = self.folder / "config.json"
        values = json.loads(path.read_text()) | changed
        kept = {name: value for name, value in values.items() if value is not ...}
        path.write_text(json.dumps(kept))

    def imported(self, tmp_path: Path, *, seed: int = 0) -> tuple[dict[str, np.ndarray], list[str]]:
        """The weights of the checkpoint, and the lines after the first."""
        output = tmp_path / "imported"
        shutil.rmtree(output, ignore_errors=True)
        first, *lines = import_model(str(self.folder), str(output), seed=seed)
        assert first.endswith(f" weights imported from {self.folder}: {output}/model.ckpt-0")
        return read_weights(str(output / "model.ckpt-0")), lines

    def refusal(self, tmp_path: Path, *, output: str = "imported") -> str:
        before = sorted(tmp_path.iterdir())
        with pytest.raises((ValueError, OSError)) as error:
            import_model(str(self.folder), str(tmp_path / output), seed=0)
        assert sorted(tmp_path.iterdir()) == before
        assert "\n" not in str(error.value)
        return str(error.value)


@pytest.fixture
def model(generated, exported, tmp_path_factory) -> Model:
    folder = tmp_path_factory.mktemp("model") / "bert"
    return Model(shutil.copytree(exported, folder), generated.weights)


def test_export_after_import_gives_the_same_bytes(model, tmp_path):
    found, lines = model.imported(tmp_path)
    assert lines == []
    assert_same_bits(found, model.weights)
    imported, again = tmp_path / "imported", tmp_path / "again"
    config = BertConfig.from_json_file(str(imported / "bert_config.json"))
    vocabulary = str(imported / "vocab.txt")
    export(str(imported / "model.ckpt-0"), str(again), config=config, vocab_file=vocabulary)
    for path in model.folder.iterdir():
        assert (again / path.name).read_bytes() == path.read_bytes(), path.name
    (tmp_path / "x").touch()  # as readable as the umask lets files be
    modes = {path.stat().st_mode for path in [*again.iterdir(), tmp_path / "x"]}
    assert len(modes) == 1


def inputs() -> dict[str, tf.Tensor]:
    random = np.random.RandomState(9)
    mask = (np.arange(24) < [[24], [17], [9]]).astype(np.int32)
    ids, types = (random.randint(0, most, mask.shape).astype(np.int32) for most in (40, 2))
    return {"ids": tf.constant(ids), "mask": tf.constant(mask), "types": tf.constant(types)}


def our_outputs(folder: Path) -> dict[str, np.ndarray]:
    """What our model computes with an imported checkpoint."""
    config = BertConfig.from_json_file(str(folder / "bert_config.json"))
    ours = build_pretrainer(config, seed=3)
    stored = StoredCheckpoint(str(folder / "model.ckpt-0"))
    reading.refuse_output_of_a_run(stored)  # it must not be taken for one
    reading.load_initial_weights(trained_variables(ours), stored)
    given = inputs()
    outputs = ours(
        {
            "input_word_ids": given["ids"],
            "input_mask": given["mask"],
            "input_type_ids": given["types"],
            "masked_lm_positions": tf.tile(tf.range(24)[tf.newaxis], [3, 1]),
        }
    )
    return {
        "prediction_logits": outputs["mlm_logits"].numpy(),
        "seq_relationship_logits": outputs["next_sentence"].numpy(),
    }


def their_outputs(folder: Path, kind: str):
    theirs, report = getattr(transformers, f"TF{kind}").from_pretrained(
        folder, output_loading_info=True
    )
    # The heads that a model of this kind has not are left over.
    assert not report["missing_keys"] and not report["mismatched_keys"]
    assert kind != "BertForPreTraining" or not report["unexpected_keys"]
    given = inputs()
    return theirs(
        input_ids=given["ids"], attention_mask=given["mask"], token_type_ids=given["types"]
    )


@pytest.mark.parametrize(
    "activation",
    ["gelu", *(pytest.param(name, marks=pytest.mark.all) for name in ("gelu_new", "relu"))],
)
def test_transformers_computes_the_logits_of_a_pre_training_model(model, tmp_path, activation):
    model.configure(hidden_act=activation)
    model.imported(tmp_path)
    theirs = their_outputs(model.folder, "BertForPreTraining")
    ours = our_outputs(tmp_path / "imported")
    for name in ("prediction_logits", "seq_relationship_logits"):
        np.testing.assert_allclose(theirs[name].numpy(), ours[name], rtol=0, atol=1e-5)
    assert np.abs(ours["prediction_logits"]).max() > 0.1


def test_every_activation_has_a_name_there_and_goes_back_and_forth(model):
    """The tanh approximation of GELU has two names there, of which an export writes one."""
    values = json.loads((model.folder / "config.json").read_text())
    found = {}
    for theirs in ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "tanh", "linear"):
        config = layout.bert_config(values | {"hidden_act": theirs}, "config.json")
        found[theirs] = config.hidden_act, layout.their_config(config)["hidden_act"]
    assert found == {
        "gelu": ("gelu_exact", "gelu"),
        "gelu_new": ("gelu", "gelu_new"),
        "gelu_pytorch_tanh": ("gelu", "gelu_new"),
        **{name: (name, name) for name in ("relu", "tanh", "linear")},
    }


def test_a_masked_lm_model_gets_the_rest_from_the_seed(model, tmp_path):
    for name in [name for name in model.tensors if name.startswith(("bert.pooler", "cls.seq"))]:
        del model.tensors[name]
    model.write()
    found, lines = model.imported(tmp_path, seed=5)
    assert lines == ["Not in the model, so drawn from seed 5: pooler, next-sentence head"]
    theirs = their_outputs(model.folder, "BertForMaskedLM").logits.numpy()
    ours = our_outputs(tmp_path / "imported")["prediction_logits"]
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-5)

    assert_same_bits(model.imported(tmp_path, seed=5)[0], found)
    other = model.imported(tmp_path, seed=6)[0]
    kernel = "bert/pooler/dense/kernel"
    assert not np.array_equal(other[kernel], found[kernel])
    # A normal distribution that is cut off at two deviations of 0.02.
    assert 0.01 < found[kernel].std() < 0.02 and np.abs(found[kernel]).max() < 0.041
    assert not found["bert/pooler/dense/bias"].any()
    assert {name for name in found if not np.array_equal(found[name], other[name])} == {
        kernel,
        "cls/seq_relationship/output_weights",
    }


def test_old_names_buffers_and_copies_of_tied_weights(model, tmp_path):
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for current, then in old.items():
        for name in [name for name in model.tensors if name.endswith(current)]:
            model.tensors[name.replace(current, then)] = model.tensors.pop(name)
    model.tensors["bert.embeddings.position_ids"] = np.arange(48)[np.newaxis]
    model.tensors["bert.embeddings.token_type_ids"] = np.zeros([1, 48], np.int64)
    model.tensors["cls.predictions.decoder.weight"] = model.tensors[WORDS]
    model.tensors["cls.predictions.decoder.bias"] = model.tensors.pop(BIAS)
    model.write()
    found, lines = model.imported(tmp_path)
    assert lines == []
    assert_same_bits(found, model.weights)


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_becomes_float32(model, tmp_path, kind):
    kept = "bert.embeddings.LayerNorm.weight"
    model.tensors = {
        name: value if name == kept else value.astype(kind) for name, value in model.tensors.items()
    }
    model.write()
    found, _ = model.imported(tmp_path)
    rounded = {name: v.astype(kind).astype(np.float32) for name, v in model.weights.items()}
    whole = "bert/embeddings/LayerNorm/gamma"
    assert_same_bits(found, rounded | {whole: model.weights[whole]})


def test_a_cased_model_stays_one(model, tmp_path):
    tokenizer = model.folder / "tokenizer_config.json"
    tokenizer.write_text(json.dumps({"do_lower_case": False}))
    _, lines = model.imported(tmp_path)
    assert lines == ["A cased model: data and fine-tuning need --do_lower_case=False"]
    imported, again = tmp_path / "imported", tmp_path / "again"
    config, words = BertConfig.from_json_file(imported / "bert_config.json"), imported / "vocab.txt"
    export(str(imported / "model.ckpt-0"), str(again), config=config, vocab_file=str(words))
    assert json.loads((again / "tokenizer_config.json").read_text())["do_lower_case"] is False
    assert "32 wide, cased text. Converted with the MLPerf" in (again / "README.md").read_text()


@pytest.mark.parametrize(
    ("num_words", "files", "lines"),
    [
        (None, [], ["No vocab.txt there: take the one that the model was trained with"]),
        (40, ["vocab.txt"], []),
        (38, ["vocab.txt"], ["38 words, and 2 rows of the model without a word: padding, unless "
                             "words were added, which tokenizer.json would name"]),
    ],
)  # fmt: skip
def test_words_are_taken_as_far_as_the_model_has_them(model, tmp_path, num_words, files, lines):
    """It says nothing of its casing: then nothing is written of it."""
    (model.folder / "tokenizer_config.json").unlink()
    (model.folder / "vocab.txt").unlink()
    if num_words:
        write_vocabulary(model.folder / "vocab.txt", num_words)
    assert model.imported(tmp_path)[1] == lines
    written = {path.name for path in (tmp_path / "imported").glob("*.*") if "ckpt" not in path.name}
    assert written == {"bert_config.json", *files}
    for name in files:
        assert (tmp_path / "imported" / name).read_bytes() == (model.folder / name).read_bytes()


def test_the_command_imports_with_its_seed(model, tmp_path, monkeypatch, capsys):
    for name in [name for name in model.tensors if name.startswith("cls.seq")]:
        del model.tensors[name]
    model.write()
    given = {"model": str(model.folder), "output_dir": str(tmp_path / "new"), "seed": 7}
    monkeypatch.setattr(command_line, "read", lambda options: options(**given))
    from_hugging_face.main()
    assert capsys.readouterr().out.splitlines() == [
        f"44 weights imported from {model.folder}: {tmp_path}/new/model.ckpt-0",
        "Not in the model, so drawn from seed 7: next-sentence head",
    ]


def test_what_a_run_was_trained_with_is_exported(model, tmp_path, monkeypatch):
    """Its run.json beside the checkpoint decides, where nothing lies beside the vocabulary."""
    model.imported(tmp_path)
    imported = tmp_path / "imported"
    words = shutil.move(imported / "vocab.txt", tmp_path)
    config = BertConfig.from_json_file(str(imported / "bert_config.json"))
    (imported / "tokenizer_config.json").unlink()

    def exported(name: str, *, beside: str = "", **recorded) -> Path:
        (imported / "run.json").write_text(json.dumps({"vocabulary": recorded}))
        prefix, made = str(imported / "model.ckpt-0"), tmp_path / name
        export(prefix, str(made), config=config, vocab_file=str(words), beside=beside)
        return made

    made = exported("cased", do_lower_case="False")
    assert json.loads((made / "tokenizer_config.json").read_text())["do_lower_case"] is False
    with pytest.raises(ValueError, match=f"different vocabularies, .* of the run in {imported}; "):
        exported("other", vocab_md5="0" * 32)
    (model_beside := tmp_path / "model_beside").mkdir()
    lines = Path(words).read_text().splitlines(keepends=True)
    (model_beside / "vocab.txt").write_text("".join([*lines[:-2], lines[-1], lines[-2]]))
    told = f"different vocabularies, .* of {model_beside}/vocab.txt; "
    with pytest.raises(ValueError, match=told):
        exported("other", beside=str(model_beside / "bert_config.json"))
    given = {"bert_config_file": str(model_beside / "bert_config.json"), "vocab_file": str(words)}
    (imported / "bert_config.json").rename(given["bert_config_file"])
    given |= {"checkpoint": str(imported / "model.ckpt-0"), "output_dir": str(tmp_path / "other")}
    monkeypatch.setattr(command_line, "read", lambda options: options(**given))
    with pytest.raises(ValueError, match=told):
        to_hugging_face.main()
    assert not (tmp_path / "other").exists()


def test_other_tokenizers_than_berts_are_refused(model, tmp_path):
    theirs = transformers.BertTokenizer(str(model.folder / "vocab.txt"))
    theirs.add_tokens(["covid", "virus"])
    theirs.save_pretrained(str(model.folder))
    model.configure(vocab_size=42)
    named = "vocab.txt: lacks 2 tokens that were added to its tokenizer: 'covid' (40), 'virus' (41)"
    assert model.refusal(tmp_path).startswith(f"{model.folder}/{named}; give a model without them")
    config = model.folder / "tokenizer_config.json"
    config.write_text(json.dumps({"tokenizer_class": "BertJapaneseTokenizer"}))
    told = f"{config}: tokenizer_class is 'BertJapaneseTokenizer', and text is cut here by BERT's"
    assert model.refusal(tmp_path).startswith(told)
    (model.folder / "vocab.txt").unlink()  # as where the words are in spiece.model
    assert model.refusal(tmp_path).startswith(told)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model_type": "roberta"}, "model_type is 'roberta', expected 'bert'; give a BERT"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ({"is_decoder": True}, "is_decoder is True, but the model here has False; give a BERT"),
        ({"add_cross_attention": True}, "add_cross_attention is True"),
        ({"layer_norm_eps": 1e-5}, "layer_norm_eps is 1e-05, but the model here has 1e-12"),
        ({"hidden_act": "silu"}, "hidden_act is 'silu', which this project does not compute"),
        ({"type_vocab_size": ...}, "config.json: missing keys ['type_vocab_size']; add them"),
        ({"vocab_size": 39}, "vocab.txt has 40 words, but config.json says vocab_size=39"),
        ({"intermediate_size": 60}, "has shape (64, 32), expected (60, 32); "),
        ({"num_hidden_layers": 1}, "layer.1.attention.output.LayerNorm.bias is not a weight of it"),
        ({"num_hidden_layers": 3}, "layer.2.attention.self.query.weight is missing; "),
    ],
)
def test_another_architecture_is_refused(model, tmp_path, changed, message):
    model.configure(**changed)
    line = model.refusal(tmp_path)
    assert line.startswith(str(model.folder)) and message in line
    if "num_hidden_layers" in changed:
        assert line.endswith("; and 13 more; give the files that belong together")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (KEY, None, f"{KEY} is missing; give"),
        ("bert.pooler.dense.bias", None, "bert.pooler.dense.bias is missing; give"),
        (KEY, np.zeros((32, 32)), f"{KEY} is float64, expected one of float32, float16, bfl"),
        (KEY, np.full((32, 32), np.nan, np.float32), f"{KEY} holds NaN or infinity; "),
        (KEY, np.full((32, 32), -np.inf, np.float32), f"{KEY} holds NaN or infinity; "),
        ("classifier.weight", np.zeros(3, np.float32), "classifier.weight is not a weight of it"),
        (f"{NORM}.gamma", np.zeros(32, np.float32), f"holds {NORM}.weight twice"),
        ("cls.predictions.decoder.weight", np.ones((40, 32), np.float32), f"holds {WORDS} twice"),
    ],
)
def test_weights_that_do_not_fit_are_named(model, tmp_path, name, value, message):
    if value is None:
        del model.tensors[name]
    else:
        model.tensors[name] = value
    model.write()
    assert message in model.refusal(tmp_path)


def test_a_bare_model_is_refused(model, tmp_path):
    model.tensors = {
        name.removeprefix("bert."): value
        for name, value in model.tensors.items()
        if not name.startswith("cls.")
    }
    model.write()
    line = model.refusal(tmp_path)
    assert line.startswith(f"{model.folder}: not a whole BertForPreTraining or BertForMaskedLM of")


def test_damaged_files_and_other_weights_are_refused(model, tmp_path):
    weights, config = (model.folder / name for name in ("model.safetensors", "config.json"))
    whole = weights.read_bytes()
    for length in (0, 60, len(whole) - 1):
        weights.write_bytes(whole[:length])
        assert "model.safetensors: damaged (" in model.refusal(tmp_path)
    weights.unlink()
    os.mkfifo(weights)
    assert "is not a regular file; give one" in model.refusal(tmp_path)
    weights.unlink()
    line = model.refusal(tmp_path)
    assert "no model.safetensors; other weights, such as pytorch_model.bin or parts, are " in line
    assert "BertForPreTraining.from_pretrained(OLD).save_pretrained(NEW" in line
    config.unlink()
    message = (
        "no config.json; give a folder with it and model.safetensors, in Hugging Face's layout"
    )
    assert model.refusal(tmp_path) == f"{model.folder}: {message}"
    shutil.rmtree(model.folder)
    assert model.refusal(tmp_path) == f"{model.folder}: {message}"
    with pytest.raises(ValueError, match=r"^--model=gs://b/bert: give a local path, and copy it"):
        import_model("gs://b/bert", str(tmp_path / "new"), seed=0)


def test_what_exists_stays_and_a_full_disk_leaves_nothing(model, tmp_path, monkeypatch):
    (tmp_path / "there").touch()
    assert "there exists; choose another --output_dir" in model.refusal(tmp_path, output="there")

    def fill_disk(prefix, tensors):
        Path(f"{prefix}.data-00000-of-00001").write_bytes(b"half")
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    monkeypatch.setattr("mlperf_bert.convert.saving.write_name_based", fill_disk)
    assert "No space left on device; make room" in model.refusal(tmp_path)


# SHA-256 of model.safetensors from the generated checkpoint, with which transformers 5.23.0 on
# torch 2.13.0 computed our logits to 1e-5.
VERIFIED_SHA256 = "325fe2fb90e666c0e7a4d6b0983dc5e5300159447dc8420d02c8a35dd68e5c66"


def test_bytes_are_those_that_were_verified(generated, exported, vocabulary):
    content = (exported / "model.safetensors").read_bytes()
    assert hashlib.sha256(content).hexdigest() == VERIFIED_SHA256
    assert (exported / "vocab.txt").read_text() == Path(vocabulary).read_text()
    config = json.loads((exported / "config.json").read_text())
    expected = json.loads(generated.config_file.read_text())
    assert {name: config[name] for name in expected} == expected | {"hidden_act": "gelu_new"}
    assert config["architectures"] == ["BertForPreTraining"] and config["layer_norm_eps"] == 1e-12
    assert json.loads((exported / "tokenizer_config.json").read_text()) == {
        "do_lower_case": True,
        "model_max_length": 48,
        "tokenizer_class": "BertTokenizer",
    }


def test_refusals_and_failures_leave_nothing(generated, vocabulary, tmp_path, monkeypatch):
    other = write_vocabulary(tmp_path / "other.txt", 41)
    monkeypatch.chdir(tmp_path)

    def refusal(checkpoint=generated.checkpoint, output="out", vocab_file=vocabulary) -> str:
        before = sorted(tmp_path.iterdir())
        with pytest.raises((ValueError, OSError)) as error:
            export(checkpoint, output, config=generated.config, vocab_file=vocab_file)
        assert sorted(tmp_path.iterdir()) == before
        return str(error.value)

    assert "exists; choose another --output_dir" in refusal(output="other.txt")
    assert refusal(output="gs://b/new").startswith("--output_dir=gs://b/new: give a local path")
    assert "no such checkpoint" in refusal(checkpoint=str(tmp_path / "none"))
    assert "No such file or directory" in refusal(vocab_file=str(tmp_path / "none"))
    assert "has 41 words, but the configuration says vocab_size=40" in refusal(vocab_file=other)

    def fill_disk(path, tensors):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mlperf_bert.convert.exporting.write_safetensors", fill_disk)
    assert "No space left on device" in refusal()
