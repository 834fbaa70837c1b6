"""TF1 to TF2, bit by bit, and loaded by tf-models itself. CPU, 40 s."""

import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from official.nlp.modeling import layers, models, networks

import tf2_encoder_checkpoint_converter
from mlperf_bert import command_line
from mlperf_bert.checkpoints import names
from mlperf_bert.convert import saving, tf1_tf2
from mlperf_bert.convert.tf1_tf2 import convert
from mlperf_bert.model.pretrainer import build_pretrainer
from tests.checkpoints.stored_weights import encoder_of_tf_models
from tests.helpers import starts


@pytest.fixture(scope="module")
def tf2(start, tmp_path_factory) -> str:
    prefix = str(tmp_path_factory.mktemp("converted") / "new" / "tf2_ckpt" / "model.ckpt-28252")
    report = convert(start.checkpoint, prefix, config=start.config)
    assert report == f"46 weights converted to TF2 (pretrainer): {prefix}"
    assert [path.name for path in sorted(Path(prefix).parent.iterdir())] == [
        "model.ckpt-28252.data-00000-of-00001",
        "model.ckpt-28252.index",
    ]
    return prefix


def pretrainer_of_tf_models(config) -> models.BertPretrainerV2:
    head = layers.ClassificationHead(config.hidden_size, 2, name="next_sentence")
    model = models.BertPretrainerV2(
        encoder_of_tf_models(config, networks.BertEncoderV2), classification_heads=[head]
    )
    model(model.inputs)
    return model


def assert_encoder_has(encoder, weights: dict[str, np.ndarray]) -> None:
    """All of them, bit by bit: the encoder's share of the checkpoint, with the pooler."""
    found = {names.our_name(variable.name): variable for variable in encoder.variables}
    table = [w for w in names.weights(2) if w.tf1_name.startswith("bert/")]
    assert len(found) == len(table) == 5 + 16 * 2 + 2
    for weight in table:
        (name,) = found.keys() & set(weight.tf2_names)
        value = weight.to_tf1(found[name].numpy())
        assert value.tobytes() == weights[weight.tf1_name].tobytes(), name


@pytest.mark.parametrize("network", [networks.BertEncoder, networks.BertEncoderV2])
def test_tf_models_encoder_loads_it_and_the_encoder_alone(start, tf2, tmp_path, network):
    alone = str(tmp_path / "bert")
    convert(start.checkpoint, alone, config=start.config, converted_model="encoder")
    encoder = encoder_of_tf_models(start.config, network)
    for prefix, name in ((tf2, "encoder"), (alone, "model"), (alone, "encoder")):
        for variable in encoder.variables:
            variable.assign(tf.zeros_like(variable))
        status = tf.train.Checkpoint(**{name: encoder}).read(prefix)
        status.assert_existing_objects_matched().expect_partial()
        assert_encoder_has(encoder, start.weights)


@pytest.mark.parametrize(
    "kept", ["bert/", pytest.param(("bert/", "cls/predictions/"), marks=pytest.mark.all)]
)
def test_an_encoder_without_heads_is_converted(start, tmp_path, kept):
    names_kept = [name for name in start.weights if name.startswith(kept)]
    given, tf2 = str(tmp_path / "given"), str(tmp_path / "tf2")
    saving.write_name_based(given, {name: start.weights[name] for name in names_kept})
    report = convert(given, tf2, config=start.config, converted_model="encoder")
    of_encoder = [name for name in names_kept if name.startswith("bert/")]
    assert report == f"{len(of_encoder)} weights converted to TF2 (encoder): {tf2}"
    encoder = encoder_of_tf_models(start.config, networks.BertEncoderV2)
    status = tf.train.Checkpoint(encoder=encoder).read(tf2)
    status.assert_existing_objects_matched().expect_partial()
    assert_encoder_has(encoder, start.weights)

    message = "no next-sentence head; --converted_model=encoder converts its encoder, and a run"
    with pytest.raises(ValueError, match=message):
        convert(tf2, str(tmp_path / "new"), config=start.config)
    assert not list(tmp_path.glob("new*"))


def test_tf_models_pretrainer_loads_it_and_computes_what_ours_does(start, tf2):
    ours = build_pretrainer(start.config, seed=2)
    theirs = pretrainer_of_tf_models(start.config)
    for model in (ours, theirs):
        tf.train.Checkpoint(model=model).restore(tf2).assert_consumed().expect_partial()
    random = np.random.RandomState(5)
    inputs = {
        "input_word_ids": tf.constant(random.randint(0, start.config.vocab_size, (3, 16))),
        "input_mask": tf.ones([3, 16], tf.int32),
        "input_type_ids": tf.constant(random.randint(0, 2, (3, 16))),
        "masked_lm_positions": tf.constant(random.randint(0, 16, (3, 4))),
    }
    for found, expected in zip(theirs.variables, ours.variables):
        np.testing.assert_array_equal(found.numpy(), expected.numpy())
    found = theirs(inputs)["next_sentence"]
    np.testing.assert_allclose(found, ours(inputs)["next_sentence"], rtol=0, atol=1e-6)
    assert np.abs(found).max() > 0.01


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("there", "is a folder; name a checkpoint in it, such as there/model.ckpt-0$"),
        ("new/", "is a folder; name a checkpoint in it, such as new/model.ckpt-0$"),
        ("model", "model.data-00000-of-00001 exists; choose another path, or remove that"),
        ("gs://bucket/new", "^gs://bucket/new: give a local path, and copy it from or to the buck"),
    ],
)
def test_what_is_there_and_a_bucket_are_refused(generated, tmp_path, monkeypatch, name, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "model.data-00000-of-00001").touch()
    with pytest.raises(ValueError, match=message):
        convert(generated.checkpoint, name, config=generated.config)
    assert len([*tmp_path.rglob("*")]) == 2


def test_what_is_no_bert_is_not_said_to_lack_heads(generated, tmp_path):
    given = str(tmp_path / "other")
    saving.write_name_based(given, {"conv/kernel": np.zeros([3], np.float32)})
    with pytest.raises(ValueError, match="not a checkpoint of this architecture, 46 of 46 weights"):
        convert(given, str(tmp_path / "new"), config=generated.config)


@pytest.mark.parametrize(("converted_model", "number"), [("pretrainer", 46), ("encoder", 39)])
def test_the_converter_takes_what_its_flags_say(
    generated, tmp_path, monkeypatch, capsys, converted_model, number
):
    given = {
        "bert_config_file": str(generated.config_file),
        "checkpoint_to_convert": generated.checkpoint,
        "converted_checkpoint_path": str(tmp_path / "new"),
        "converted_model": converted_model,
    }
    monkeypatch.setattr(command_line, "read", lambda options: options(**given))
    tf2_encoder_checkpoint_converter.main()
    said = f"{number} weights converted to TF2 ({converted_model}): {tmp_path}/new\n"
    assert capsys.readouterr().out == said and (tmp_path / "new.index").exists()


def test_failures_while_writing_leave_nothing(generated, tmp_path, monkeypatch):
    def fill_disk(self, prefix):
        Path(f"{prefix}.data-00000-of-00001").write_bytes(b"half")
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    monkeypatch.setattr(tf.train.Checkpoint, "save", fill_disk)
    with pytest.raises(OSError, match="No space left on device; make room"):
        convert(generated.checkpoint, f"{tmp_path}/model.ckpt-1", config=generated.config)
    assert list(tmp_path.iterdir()) == []


# SHA-256 of what the reference's script writes from the generated checkpoint under TensorFlow
# 1.15.5, data file and index; its third file, the .meta graph, is not needed to read them.
REFERENCE_SHA256 = {
    "data-00000-of-00001": "c6e15abd76fec5ad7e6c3e3ab08e3a6124d99eed23abe6dff565fb57d1513d0f",
    "index": "2b989256e2d3a6578a24ca8834ac7928ab0e9c1832a0cb821219de3574e015ad",
}


def test_files_equal_the_reference(generated, tmp_path, monkeypatch):
    """What a killed process has left is replaced, and the index appears last."""
    (tmp_path / ".model.ckpt-28252.partial").mkdir()
    (tmp_path / ".model.ckpt-28252.partial" / "checkpoint.index").touch()
    renamed, rename = [], Path.rename
    monkeypatch.setattr(Path, "rename", lambda *paths: renamed.append(paths[1]) or rename(*paths))
    added = tf1_tf2.add_accumulators(generated.checkpoint, str(tmp_path / "model.ckpt-28252"))
    assert added == 46 * 3 + 1
    for kind, expected in REFERENCE_SHA256.items():
        content = (tmp_path / f"model.ckpt-28252.{kind}").read_bytes()
        assert hashlib.sha256(content).hexdigest() == expected, kind
    assert renamed == [tmp_path / f"model.ckpt-28252.{kind}" for kind in REFERENCE_SHA256]
    assert sorted(tmp_path.iterdir()) == sorted(renamed)


def test_refusals(generated, tmp_path):
    accumulating = str(tmp_path / "model.ckpt-1")
    tf1_tf2.add_accumulators(generated.checkpoint, accumulating)
    with pytest.raises(ValueError, match=r"already has accumulators, such as .*; use it as it is"):
        tf1_tf2.add_accumulators(accumulating, str(tmp_path / "model.ckpt-2"))
    with pytest.raises(ValueError, match=r"model\.ckpt-1\.index exists; choose another path"):
        tf1_tf2.add_accumulators(generated.checkpoint, accumulating)
    tf2 = str(tmp_path / "model.ckpt-3")
    convert(generated.checkpoint, tf2, config=generated.config)
    with pytest.raises(ValueError, match=r"is a TF2 checkpoint, .*; give a TF1 checkpoint$"):
        tf1_tf2.add_accumulators(tf2, str(tmp_path / "model.ckpt-4"))
    assert not list(tmp_path.glob("*model.ckpt-[24]*"))


FILES = ("--bert_config_file={config_file}", "--vocab_file={vocabulary}")


@pytest.mark.parametrize(
    ("script", "flags", "done"),
    [
        ("checkpoint_add_gradacc.py", ["--old={old}", "--new={new}"], "139 accumulators added"),
        (
            "mlperf_bert/convert/to_hugging_face.py",
            ["--checkpoint={old}", *FILES, "--output_dir={new}"],
            "46 weights exported",
        ),
        pytest.param(
            "tf2_encoder_checkpoint_converter.py",
            [FILES[0], "--checkpoint_to_convert={old}", "--converted_checkpoint_path={new}"],
            "46 weights converted to TF2 (pretrainer)",
            marks=pytest.mark.gate,
        ),
    ],
)
def test_it_says_what_it_has_done_or_refuses(generated, vocabulary, tmp_path, script, flags, done):
    def run(old) -> tuple[int, str, str]:
        places = {"old": old, "new": tmp_path / "out" / "new", "vocabulary": vocabulary}
        given = [flag.format(config_file=generated.config_file, **places) for flag in flags]
        ended = starts.run([sys.executable, script, *given])
        return ended.returncode, ended.stdout, ended.stderr

    code, output, errors = run(tmp_path / "none")
    assert (code, output, errors.count("\n")) == (1, "", 1) and not list(tmp_path.iterdir())
    name = script.rpartition("/")[2]
    assert errors.startswith(f"{name}: {tmp_path}/none: no such checkpoint")
    assert run(generated.checkpoint) == (0, f"{done}: {tmp_path}/out/new\n", "")
