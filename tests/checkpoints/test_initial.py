"""Initial checkpoints of either layout load whole, and everything else is refused. CPU, 30 s."""

import functools
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from official.legacy.bert import configs
from official.nlp.modeling import models
from official.nlp.tools import tf2_bert_encoder_checkpoint_converter

from mlperf_bert.checkpoints import names, reading
from mlperf_bert.checkpoints.reading import StoredCheckpoint
from mlperf_bert.checkpoints.state import RunState
from mlperf_bert.convert import saving, tf1_tf2
from mlperf_bert.convert.tf1_tf2 import convert
from mlperf_bert.model.config import BertConfig
from mlperf_bert.model.pretrainer import build_pretrainer, trained_variables
from tests.checkpoints.stored_weights import assert_same_bits, encoder_of_tf_models


@pytest.fixture(scope="module")
def tf2(generated, tmp_path_factory) -> str:
    """The generated checkpoint in TF2's layout."""
    prefix = str(tmp_path_factory.mktemp("tf2") / "model.ckpt-28252")
    convert(generated.checkpoint, prefix, config=generated.config)
    return prefix


@functools.cache
def model_of(config: BertConfig) -> models.BertPretrainerV2:
    return build_pretrainer(config, seed=1)


def blank_variables(config: BertConfig) -> list[tf.Variable]:
    """The variables of a model that the tests share, with a value that no checkpoint has."""
    variables = trained_variables(model_of(config))
    for variable in variables:
        variable.assign(tf.fill(variable.shape, 12345.0))
    return variables


def load_initial(variables: list[tf.Variable], prefix: str) -> list[str]:
    """Loads as a run does, which opens and checks the checkpoint before it builds a model."""
    stored = StoredCheckpoint(prefix)
    reading.refuse_output_of_a_run(stored)
    return reading.load_initial_weights(variables, stored)


def load(prefix: str, config: BertConfig) -> dict[str, np.ndarray]:
    """The weights of a model after loading, by TF1 name."""
    variables = blank_variables(config)
    loaded = load_initial(variables, prefix)
    assert loaded == [weight.tf1_name for weight in names.weights(config.num_hidden_layers)]
    return saving.weights_by_tf1_name(variables)


def refusal(prefix: str, config: BertConfig) -> str:
    """The one line of the error; the model is as it was before."""
    variables = blank_variables(config)
    before = [variable.numpy() for variable in variables]
    with pytest.raises(ValueError) as error:
        load_initial(variables, prefix)
    for variable, value in zip(variables, before):
        np.testing.assert_array_equal(variable.numpy(), value)
    assert "\n" not in str(error.value)
    return str(error.value)


def copied(prefix: str, folder: Path) -> Path:
    """A copy of a checkpoint that a test may damage; returns its data file."""
    for path in Path(prefix).parent.glob(f"{Path(prefix).name}.*"):
        shutil.copyfile(path, folder / path.name)
    return folder / f"{Path(prefix).name}.data-00000-of-00001"


def test_tf1_with_and_without_slots_and_accumulators_and_tf2(generated, tf2, tmp_path, capsys):
    bare = str(Path(generated.checkpoint).with_name("model.ckpt-0"))
    accumulating = str(tmp_path / "model.ckpt-28252")
    tf1_tf2.add_accumulators(generated.checkpoint, accumulating)
    layouts = dict.fromkeys((bare, generated.checkpoint, accumulating), "TF1, by name")
    for prefix, layout in {**layouts, tf2: "TF2, by object"}.items():
        assert_same_bits(load(prefix, generated.config), generated.weights)
        assert f"Initial weights: 46 from {prefix} ({layout})\n" == capsys.readouterr().out


def test_tf2_of_tf_models_first_pretrainer(generated, tmp_path):
    """Both heads, under the names that tf-models' converter gives them."""
    config = generated.config
    encoder = encoder_of_tf_models(config)
    model = models.BertPretrainer(encoder, num_classes=2, num_token_predictions=6)
    by_name = {names.our_name(variable.name): variable for variable in model.variables}
    for weight in names.weights(config.num_hidden_layers):
        (name,) = by_name.keys() & set(weight.tf2_names)
        variable = by_name[name]
        value = weight.from_tf1(generated.weights[weight.tf1_name], tuple(variable.shape))
        variable.assign(value)
    prefix = tf.train.Checkpoint(model=model).save(str(tmp_path / "model.ckpt"))
    assert_same_bits(load(prefix, config), generated.weights)


POOLER, MASKED_LM, NEXT_SENTENCE = "pooler", "masked-LM head", "next-sentence head"


@pytest.mark.parametrize(
    "kind, lacking", [("encoder", [MASKED_LM, NEXT_SENTENCE]), ("pretrainer", [NEXT_SENTENCE])]
)
def test_heads_that_tf_models_converter_leaves_out_stay_as_drawn_and_are_named(
    generated, tmp_path, kind, lacking, capsys
):
    config = configs.BertConfig.from_json_file(str(generated.config_file))
    tf2_bert_encoder_checkpoint_converter.convert_checkpoint(
        config, str(tmp_path / "bert"), generated.checkpoint, "model", kind
    )
    assert_loads_but(lacking, str(tmp_path / "bert-1"), generated)
    assert f"(TF2, by object); drawn, for it lacks them: {', '.join(lacking)}\n" in (
        capsys.readouterr().out
    )


def assert_loads_but(lacking: list[str], prefix: str, generated) -> None:
    """All weights are those of the checkpoint, without the heads that it lacks."""
    variables = blank_variables(generated.config)
    load_initial(variables, prefix)
    for name, value in saving.weights_by_tf1_name(variables).items():
        is_lacking = name.startswith(tuple(names.HEADS[head] for head in lacking))
        assert (value == 12345.0).all() if is_lacking else (value == generated.weights[name]).all()


@pytest.mark.parametrize(
    "lacking", [[POOLER], [NEXT_SENTENCE], [POOLER, NEXT_SENTENCE], list(names.HEADS)], ids=str
)
def test_heads_that_a_tf1_checkpoint_lacks(generated, tmp_path, lacking, capsys):
    beginnings = tuple(names.HEADS[head] for head in lacking)
    held = {n: value for n, value in generated.weights.items() if not n.startswith(beginnings)}
    prefix = str(tmp_path / "some")
    saving.write_name_based(prefix, held)
    assert_loads_but(lacking, prefix, generated)
    assert f"; drawn, for it lacks them: {', '.join(lacking)}\n" in capsys.readouterr().out
    config = generated.config
    message = f"^{prefix}: has no {', no '.join(lacking)}; a training that is given it as --init"
    with pytest.raises(ValueError, match=message):  # through every other door
        reading.load_weights(blank_variables(config), StoredCheckpoint(prefix))
    with pytest.raises(ValueError, match="--converted_model=encoder converts its encoder, and a"):
        convert(prefix, str(tmp_path / "new"), config=config)


def test_a_part_of_a_head_is_damage(generated, tmp_path):
    held = dict(generated.weights)
    del held["cls/seq_relationship/output_bias"]
    saving.write_name_based(str(tmp_path / "some"), held)
    line = refusal(str(tmp_path / "some"), generated.config)
    assert "1 of 46 weights do not fit: cls/seq_relationship/output_bias is missing; give" in line
    del held["bert/embeddings/LayerNorm/beta"]
    del held["cls/seq_relationship/output_weights"]
    saving.write_name_based(str(tmp_path / "other"), held)
    line = refusal(str(tmp_path / "other"), generated.config)
    assert "weights do not fit: bert/embeddings/LayerNorm/beta is missing; give" in line


@pytest.mark.parametrize("kind", [np.float64, np.float16])
def test_weights_of_another_type_are_refused(generated, tmp_path, kind):
    name = "bert/pooler/dense/bias"
    held = {**generated.weights, name: generated.weights[name].astype(kind)}
    saving.write_name_based(str(tmp_path / "some"), held)
    line = refusal(str(tmp_path / "some"), generated.config)
    assert f"1 of 46 weights do not fit: {name} is {kind.__name__}, expected float32; give" in line


def test_what_is_no_checkpoint_but_holds_one(generated, tmp_path):
    (tmp_path / "bert.h5").write_bytes(b"\x89HDF")
    line = refusal(str(tmp_path / "bert.h5"), generated.config)
    assert "bert.h5 is one file, but a checkpoint of TensorFlow is PREFIX.index and" in line
    (tmp_path / "hub" / "variables").mkdir(parents=True)
    (tmp_path / "hub" / "variables" / "variables.index").touch()
    line = refusal(str(tmp_path / "hub"), generated.config)
    assert line.endswith(
        "hub is a SavedModel; give its checkpoint, " + str(tmp_path) + "/hub/variables/variables"
    )


def test_output_of_our_run_is_refused(generated, tmp_path):
    model = build_pretrainer(generated.config, seed=1)
    optimizer = tf_keras.optimizers.legacy.SGD(momentum=0.9)
    optimizer._create_all_weights(trained_variables(model))
    parts = {"model": model, "optimizer": optimizer, "step": tf.Variable(3, dtype=tf.int64)}
    prefix = RunState(str(tmp_path), parts=parts, keep_checkpoint_max=0).save(3)
    assert "is an output of a training run, not an initial checkpoint" in refusal(
        prefix, generated.config
    )
    initial_again = str(tmp_path / "start" / "model.ckpt-3")
    convert(prefix, initial_again, config=generated.config)
    expected = saving.weights_by_tf1_name(trained_variables(model))
    assert_same_bits(load(initial_again, generated.config), expected)


def test_output_of_the_references_run_is_refused_in_its_own_folder_too(
    generated, tmp_path, monkeypatch
):
    copied(generated.checkpoint, tmp_path)
    (tmp_path / "graph.pbtxt").touch()
    monkeypatch.chdir(tmp_path)
    name = Path(generated.checkpoint).name
    for prefix in (name, f"./{name}", str(tmp_path / name)):
        assert "is an output of a training run" in refusal(prefix, generated.config)


@pytest.mark.parametrize("layout", ["TF1", "TF2"])
@pytest.mark.parametrize("kept_bytes", [None, 5000])
def test_truncated_or_missing_data_file(generated, tf2, tmp_path, layout, kept_bytes):
    data = copied(generated.checkpoint if layout == "TF1" else tf2, tmp_path)
    if kept_bytes is None:
        data.unlink()
    else:
        data.write_bytes(data.read_bytes()[:kept_bytes])
    line = refusal(str(tmp_path / "model.ckpt-28252"), generated.config)
    assert "cannot be read (" in line and "copy it here again" in line
