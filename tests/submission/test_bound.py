"""The compilers' bound: which rows of a table count, and what is refused."""

import json

import pytest

from mlperf_bert.mlperf.rules import BERT_LARGE
from mlperf_bert.submission import bound
from tests.conftest import REPOSITORY

COMPILED = REPOSITORY / "benchmarks" / "compiled.json"


@pytest.fixture(name="row")
def a_row_of_compile_step():
    rows = json.loads(COMPILED.read_text(encoding="utf-8"))
    [found] = [r for r in rows if (r["device"], r["num_devices"]) == ("h100", 8)]
    return {**found, "step": "step"}


def write(path, rows):
    path.write_text(json.dumps({"versions": {}, "rows": rows}), encoding="utf-8")
    return path


def test_the_best_training_step_of_a_device_is_its_bound():
    found = bound.bound_of(bound.read_bounds(COMPILED), "H100", source=COMPILED)
    rows = json.loads(COMPILED.read_text(encoding="utf-8"))
    rates = {
        r["num_examples"]: r["samples_per_second_bound"]
        for r in rows
        if (r["device"], r["num_devices"]) == ("h100", 1)
    }
    assert found.samples_per_second == max(rates.values()) == rates[found.num_examples]


def test_evaluations_and_what_does_not_fit_have_none(tmp_path):
    rows = json.loads(COMPILED.read_text(encoding="utf-8"))
    for row in rows:
        if row["device"] == "v100":
            row["result"] = "does not fit"
    changed = tmp_path / "compiled.json"
    changed.write_text(json.dumps(rows), encoding="utf-8")
    found = bound.read_bounds(changed)
    assert "v100" in {each.device for each in bound.read_bounds(COMPILED)}
    assert "v100" not in {each.device for each in found}
    assert not {5, 80} & {each.num_examples for each in found}  # evaluations


def test_a_device_counts_before_its_family():
    found = bound.read_bounds(COMPILED)
    small, large = (bound.bound_of(found, f"A100-{n}", source="") for n in (40, 80))
    assert (small.device, large.device) == ("a100-40", "a100-80")
    assert bound.bound_of(found, "A100", source="") == max(
        small, large, key=lambda each: each.samples_per_second
    )


def test_a_table_is_the_rows_of_several_devices(tmp_path, row):
    [found] = bound.read_bounds(write(tmp_path / "t.json", [row]))
    assert found.samples_per_second == row["samples_per_second_bound"] / 8
    assert found.num_examples == 56


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"product_flop": 12e12}, "another model or length, an evaluation, or packed"),
        ({"samples_per_second_bound": float("nan")}, "samples_per_second_bound of h100 is nan"),
        ({"num_devices": 0}, "ZeroDivisionError"),
        ({"product_flop": 10**400}, "OverflowError"),
        ({"product_flop": "many"}, "TypeError"),
    ],
)
def test_a_row_of_something_else_is_one_line(tmp_path, row, changed, message):
    with pytest.raises(ValueError, match=message) as error:
        bound.read_bounds(write(tmp_path / "t.json", [row | changed]))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "[", "7", "{}", '{"rows": 3}', '["h100"]', "[{}]"])
def test_a_damaged_table_is_one_line(tmp_path, text):
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(ValueError, match=r"t.json: not a table of compile_step.py") as error:
        bound.read_bounds(tmp_path / "t.json")
    assert "\n" not in str(error.value)


def exported(folder, *, tokens=512, **model):
    """The part of signature.json that says what a step is of."""
    programs = [{"kind": "training", "num_rows": 8, "num_tokens": tokens, "num_examples": 8,
                 "file": "step.stablehlo", "inputs": [], "outputs": []}]  # fmt: skip
    signature = {"format": 2, "bert_config": {**BERT_LARGE, **model}, "programs": programs,
                 "recorded": {"training": []}, "precision": "bfloat16"}  # fmt: skip
    (folder / "signature.json").write_text(json.dumps(signature))
    return folder


@pytest.mark.parametrize("changed", [{"tokens": 128}, {"num_hidden_layers": 12}])
def test_a_step_of_another_model_or_length_is_not_compiled(tmp_path, changed):
    with pytest.raises(ValueError, match="not a training step of BERT-large with 512 tokens"):
        bound.compile_bounds(exported(tmp_path, **changed), "h100")


@pytest.mark.parametrize("text", [None, "{}", "[]", '{"bert_config": 1}'])
def test_a_folder_that_is_not_a_step_is_one_line(tmp_path, text):
    if text:
        (tmp_path / "signature.json").write_text(text)
    with pytest.raises(ValueError, match=r"not an exported step .*mlperf_bert.portable.export"):
        bound.compile_bounds(tmp_path, "h100")


@pytest.mark.parametrize(
    ("accelerator", "message"),
    [("A100", "--devices=a100: not known; choose of"), ("TPU v5e", "tpu-v5e: ")],
)
def test_a_compiler_that_fails_is_one_line(tmp_path, accelerator, message):
    """The folder holds no program, so that TPU v5e fails with its compiler and without it."""
    with pytest.raises(ValueError, match=message) as error:
        bound.compile_bounds(exported(tmp_path), accelerator)
    assert "\n" not in str(error.value)
