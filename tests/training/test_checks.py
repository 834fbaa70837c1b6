"""The preflight: every finding, all at once, and no data read.

Long because the preflight has a test for every finding.
"""

import dataclasses
import hashlib
import json
import math
import re
import shutil
import time
import types
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

import run_pretraining
from mlperf_bert.checkpoints import names
from mlperf_bert.convert.saving import weights_by_tf1_name, write_name_based
from mlperf_bert.convert.tf1_tf2 import convert
from mlperf_bert.data import parts, published
from mlperf_bert.input import checked
from mlperf_bert.input.pipeline import ExampleShape
from mlperf_bert.mlperf import caches, rules
from mlperf_bert.model.config import BertConfig
from mlperf_bert.model.pretrainer import build_pretrainer, trained_variables
from mlperf_bert.optimization.config import OptimizerConfig
from mlperf_bert.optimization.optimizers import WarmupPolynomialDecay
from mlperf_bert.training import checks, inspection
from mlperf_bert.training.config import Cluster, DeviceConfig
from mlperf_bert.training.devices import Devices, with_runtime
from mlperf_bert.training.inspection import inspect_closely
from mlperf_bert.training.output import Origin, OutputDirectory, read_record
from mlperf_bert.training.setup import Findings, Setup
from tests.training.configurations import TINY, large_model, record, write_records

OFFICIAL = ExampleShape(max_seq_length=512, max_predictions_per_seq=76)


def texts(config, level, **changed) -> list[str]:
    """What the preflight finds, of one level, if these options are changed."""
    setup = checks.inspect(dataclasses.replace(config, **changed))
    with setup.findings.collecting():
        checks.check_saving(setup)
    return [finding.text for finding in setup.findings if finding.level == level]


def close_look(config, **changed) -> Findings:
    """What --check finds, without an evaluation of the initial weights."""
    changed = dataclasses.replace(config, **changed)
    return inspect_closely(changed, measure_initial_accuracy=False).findings


def record_parts(folder, *, sizes=(("part-0", 9), ("part-1", 9)), **parameters):
    official = {"max_seq_length": 16, "max_predictions_per_seq": 4, "examples_per_part": 0}
    (folder / parts.NAME).unlink(missing_ok=True)
    files = {name: parts.File(bytes=size, md5="") for name, size in sizes}
    data_set = parts.DataSet(parameters=official | parameters, inputs={}, files=files)
    parts.write(folder, parts.PARTS, data_set)


def test_the_evaluation_interval_follows_the_effective_batch(config):
    aggregating = dataclasses.replace(
        config, train_batch_size=112, steps_per_update=4, num_train_steps=40
    )
    assert aggregating.global_batch_size == 448
    assert aggregating.evaluation_interval_samples == rules.evaluation_interval_samples(448)
    given = dataclasses.replace(aggregating, eval_interval_samples=500)
    assert given.evaluation_interval_samples == 2 * 448  # whole updates


@pytest.mark.parametrize(
    ("changed", "others"),
    [
        ({"learning_rate": 2e-3}, True),
        ({"train_batch_size": 8}, True),
        ({"num_warmup_steps": 5}, True),
        ({"precision": "bfloat16"}, True),
        ({"pack_sequences": True}, True),
        ({"recompute": "attention"}, True),
        ({"recompute": "blocks"}, True),
        ({"num_parallel_files": 7}, True),
        ({"cluster": Cluster(2, 0, 2, 1, 0)}, True),
        ({"device": DeviceConfig(use_tpu=True)}, True),
        ({"device": DeviceConfig(tpu_name="made-again", tpu_zone="z", gcp_project="p")}, False),
        ({"bert_config_file": "moved", "input_file": "moved", "eval_input_file": "moved"}, False),
        ({"init_checkpoint": "moved"}, False),
        ({"eval_interval_samples": 448}, False),
        ({"time_budget": 60.0}, False),
        ({"target_accuracy": 0.5}, False),
        ({"output_dir": "elsewhere"}, False),
        ({"eval_batch_size": 2}, False),
        ({"log_every_steps": 3}, False),
        ({"save_checkpoints_steps": 4}, False),
        ({"keep_checkpoint_max": 9}, False),
        ({"compilation_cache_dir": "cache"}, False),
        ({"power_watts": 250.0, "drop_caches": True, "iterations_per_loop": 1}, False),
        (
            {"tf_xla_flags": "a", "jax_compilation_cache_dir": "b", "cuda_visible_devices": "c"},
            False,
        ),
    ],
)
def test_what_changes_the_computation_makes_another_run(config, changed, others):
    begun = OutputDirectory.of(config)
    begun.path.mkdir()
    begun.record(status="running", seed=1)
    config = dataclasses.replace(config, **changed)
    again = OutputDirectory(begun.path, config.parameters(), may_change=config.may_change)
    with pytest.raises(ValueError, match="holds another run") if others else nullcontext():
        again.require_same_run()


def in_folder(config, folder):
    """The same run, with its files in another folder."""
    names = ("bert_config_file", "input_file", "eval_input_file", "init_checkpoint")
    moved = {n: str(folder / Path(getattr(config, n)).name) for n in names if getattr(config, n)}
    return dataclasses.replace(config, **moved)


@pytest.fixture(name="begun")
def a_run_that_was_begun(config, tmp_path):
    """Its configuration, its directory and a copy of its files in another folder."""
    (tmp_path / "model.ckpt-0.index").write_bytes(b"an index")
    config = dataclasses.replace(config, init_checkpoint=str(tmp_path / "model.ckpt-0"))
    output = OutputDirectory.of(config)
    output.path.mkdir()
    found = checks.inspect(config, has_checkpoint=True)
    inputs = Origin(found, output, seed=1).inputs
    output.record(status="running", seed=1, inputs=inputs)
    output.claim()
    output.release()
    shutil.copytree(tmp_path, copied := tmp_path / "copied", ignore=lambda *_: ["copied", "out"])
    return config, output, copied


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_a_run_goes_on_with_the_same_files_elsewhere(begun, monkeypatch, has_checkpoint):
    config, output, copied = begun
    monkeypatch.chdir(copied.parent)
    for folder in (copied, Path("copied")):
        found = checks.inspect(in_folder(config, folder), has_checkpoint=True)
        origin = Origin(dataclasses.replace(found, has_checkpoint=has_checkpoint), output, seed=1)
        assert origin.inputs == read_record(output.path).inputs
        # What the log says, though the evaluation data have not been read yet.
        assert origin.summary.keys() == {"commit", "image", *origin.inputs}
        assert "sha256" in origin.summary["eval_input_file"]
    (copied / "part-1").rename(copied / "part-9")
    with pytest.raises(ValueError, match=r"^--input_file: not what the run in"):
        Origin(checks.inspect(in_folder(config, copied), has_checkpoint=True), output, seed=1)


def test_a_run_goes_on_with_the_evaluation_that_it_began_with(begun, tmp_path):
    """By content, whatever the file's name: its sizes alone do not tell."""
    config, output, _ = begun
    path = tmp_path / "eval"
    path.write_bytes(b"one")
    config = dataclasses.replace(config, eval_input_file=str(path))

    def again(name: str, content: bytes) -> None:
        (tmp_path / name).write_bytes(content)
        changed = dataclasses.replace(config, eval_input_file=str(tmp_path / name))
        output.earlier_record = None if name == "eval" else read_record(output.path)
        found = checks.inspect(changed, has_checkpoint=True)
        Origin(found, output, seed=1).begin()

    again("eval", b"one")
    assert read_record(output.path).inputs["eval_input_file"].startswith("1 files, 3 bytes, sha256")
    again("renamed", b"one")
    for content, told in ((b"two", r"sha256:.*; now .*sha256:"), (b"three", "3 bytes; now 1 fi")):
        with pytest.raises(ValueError, match=rf"--eval_input_file: not what .*{told}.*give the sa"):
            again("other", content)


def test_the_initial_checkpoint_is_needed_until_there_is_another(begun):
    config, output, copied = begun
    (copied / "model.ckpt-0.index").unlink()
    for changed in (in_folder(config, copied), dataclasses.replace(config, init_checkpoint=None)):
        found = checks.inspect(changed, has_checkpoint=True)
        origin = Origin(found, output, seed=1)
        assert origin.inputs == read_record(output.path).inputs
    with pytest.raises(
        ValueError, match=r"--init_checkpoint: .* \(then sha256:.*; now none\): give"
    ):
        Origin(dataclasses.replace(found, has_checkpoint=False), output, seed=1)


def test_a_run_goes_on_with_as_many_devices(begun):
    """Of a CPU they are virtual ones, of which no flag says how many."""
    config, output, _ = begun
    output.require_same_devices(2)  # it has no log yet
    # The first was killed before it logged a number.
    for name, number in (("bert.log", None), ("bert.resumed-1.log", 4), ("bert.resumed-2.log", 2)):
        of_run = {"num_replicas": number, "run_start": None}
        events = [
            {"time_ms": 17 * 10**11, "key": key, "value": value, "metadata": {}}
            for key, value in of_run.items()
        ]
        lines = [f":::MLLOG {json.dumps(event)}\n" for event in events]
        (output.path / name).write_text("".join(lines))
    output.require_same_devices(4)
    refused = (
        r"^--output_dir=.* holds another run \(devices: 4 there, 2 here\); .*device_count=4\)$"
    )
    with pytest.raises(ValueError, match=refused):
        output.require_same_devices(2)
    errors = close_look(config).errors
    assert any("devices: 4 there, 1 here" in text for text in errors)


@pytest.mark.parametrize(("ahead_seconds", "is_told"), [(60, True), (-60, False)])
def test_a_clock_before_the_last_line_of_the_run_is_told(begun, capsys, ahead_seconds, is_told):
    config, output, _ = begun
    began = time.time()
    line = {"time_ms": round((began + ahead_seconds) * 1000), "key": "run_stop"}
    (output.path / "bert.log").write_text(f":::MLLOG {json.dumps(line)}\n")
    Origin(checks.inspect(config, has_checkpoint=True), output, seed=1).begin()
    told = re.findall(
        r"warning: the host's clock is ([\d.]+) s before .* bert.log", capsys.readouterr().out
    )
    assert len(told) == is_told
    assert all(59.9 - (time.time() - began) < float(seconds) < 60.1 for seconds in told)


def test_a_run_says_what_it_took_and_a_resumed_one_what_its_last_start_did(begun, capsys):
    config, output, _ = begun
    for name, joules in (("bert.log", 100), ("bert.resumed-1.log", 7)):
        about = {"of": "run", "about": "of the system"}
        event = {"time_ms": 1, "key": "energy", "value": {"joules": joules}, "metadata": about}
        (output.path / name).write_text(f":::MLLOG {json.dumps(event)}\n")
    origin = Origin(checks.inspect(config, has_checkpoint=True), output, seed=1)
    origin.end("aborted")
    taken = "7.0 J = 1.944e-06 kWh of the system\n"
    assert capsys.readouterr().out == f"energy since the run was resumed: {taken}"
    recorded = read_record(output.path)
    assert recorded.status == "aborted" and not recorded.energy
    output.earlier_record = None
    origin.end("aborted")
    assert capsys.readouterr().out == f"energy: {taken}"
    assert read_record(output.path).energy == {"joules": 7.0, "about": "of the system"}


@pytest.mark.parametrize(
    "content", [None, ':::MLLOG {"key": "ener', ""], ids=["gone", "cut", "without energy"]
)
def test_a_log_without_energy_costs_no_run(begun, capsys, content):
    config, output, _ = begun
    if content is not None:
        (output.path / "bert.log").write_text(content)
    Origin(checks.inspect(config, has_checkpoint=True), output, seed=1).end("aborted")
    assert capsys.readouterr().out.startswith("energy since the run was resumed: unknown (")
    assert read_record(output.path).status == "aborted"


@pytest.mark.parametrize(
    ("flag", "name"),
    [
        ("input_file", "part-1"),
        ("input_file", "part-2"),
        ("eval_input_file", "eval"),
        ("bert_config_file", "bert_config.json"),
        ("init_checkpoint", "model.ckpt-0.index"),
    ],
)
def test_a_run_does_not_go_on_with_other_files(begun, flag, name):
    config, _, copied = begun
    with (copied / name).open("ab") as file:
        file.write(b" ")
    found = close_look(in_folder(config, copied)).errors
    assert [e for e in found if e.startswith(f"--{flag}: not what the run in ")]


@pytest.mark.parametrize(
    "changed, samples",
    [({}, 12), ({"eval_input_file": None}, 4 * 5), ({"steps_per_update": 2}, 16)],
    ids=["online", "offline", "by whole updates"],
)
def test_what_is_evaluated_offline_is_evaluated_as_often_as_it_is_saved(config, changed, samples):
    often = dataclasses.replace(config, eval_interval_samples=12, **changed)
    [departure] = [
        i for i in often.departures(TINY) if i.parameter == "evaluation_interval_samples"
    ]
    assert departure.actual == samples


@pytest.mark.parametrize(
    ("changed", "issue"),
    [
        ({"emulate_step_seconds": 0.5, "eval_input_file": None},
         "emulate_step_seconds: the rules require computed steps, this run has sleeps of 0.5 s"),
        ({"shuffle": False},
         "shuffle: the rules require a random order, this run has sorted files"),
        ({"init_checkpoint": None},
         "init_checkpoint: the rules require the official one, this run has random weights"),
        ({"max_eval_steps": 3},
         "max_eval_steps: the rules require all examples evaluated, this run has 3"),
        ({"seed": 5}, "seed: the rules require a random one, drawn by the run, this run has one "
         "fixed by the user"),
        ({"poly_power": 2.0}, "poly_power: the rules require 1.0, this run has 2.0"),
        ({"optimizer": OptimizerConfig(name="adamw")},
         "optimizer: the rules require lamb, this run has adamw"),
        *(({"shape": dataclasses.replace(OFFICIAL, **{name: value})},
           f"{name}: the rules require {getattr(OFFICIAL, name)}, this run has {value}")
          for name, value in (("max_seq_length", 128), ("max_predictions_per_seq", 20))),
    ],
)  # fmt: skip
def test_each_departure_from_the_rules_is_told_alone(config, changed, issue):
    """Of a run that is otherwise the benchmark's."""
    fits = {"shape": OFFICIAL, "seed": None, "init_checkpoint": "model.ckpt-28252"}
    fits |= {"train_batch_size": 448, "eval_interval_samples": None}
    of_rules = dataclasses.replace(config, **fits)
    model = BertConfig(**rules.BERT_LARGE)
    assert of_rules.departures(model) == []
    found = dataclasses.replace(of_rules, **changed).departures(model)
    assert [str(each) for each in found if "samples" not in each.parameter] == [issue]


def test_a_time_budget_departs_from_no_rule(config):
    timed = dataclasses.replace(config, time_budget=5400.0)
    assert timed.departures(TINY) == config.departures(TINY)


def test_all_problems_come_at_once(config, tmp_path):
    broken = dataclasses.replace(
        config,
        input_file=str(tmp_path / "nothing"),
        init_checkpoint=str(tmp_path / "model.ckpt-1"),
        shape=ExampleShape(max_seq_length=32, max_predictions_per_seq=4),
        eval_input_file=str(tmp_path / "none"),
    )
    with pytest.raises(ValueError, match=r"^4 problems:") as error:
        checks.inspect(with_runtime(broken)).findings.require_none()
    for flag in ("--input_file: no file", "--eval_input_file: no file"):
        assert f"{flag} matches" in str(error.value)
    for part in ("max_position_embeddings=16", "no such checkpoint"):
        assert part in str(error.value)


def test_parts_are_compared_with_their_record_by_name_and_size(config, tmp_path):
    assert any("no parts.json of these files" in text for text in texts(config, "warning"))
    record_parts(tmp_path, sizes=[("part-0", 9), ("part-1", 8), ("part-2", 9)])
    assert any("part-1: 9 bytes, parts.json says 8" in text for text in texts(config, "error"))
    assert any("leaves out 1 of 3 parts" in text for text in texts(config, "warning"))
    record_parts(tmp_path, max_seq_length=512)
    assert any("was made with max_seq_length=512" in text for text in texts(config, "error"))
    (tmp_path / "parts.json").write_text("{")
    assert any("parts.json: damaged" in text for text in texts(config, "error"))


def test_other_data_than_the_published_are_no_submission(config, tmp_path):
    (tmp_path / "part-00000-of-00500").write_bytes(b"no record")
    files = f"{tmp_path}/part-00000-of-00500,{tmp_path}/part-1"
    changed = dataclasses.replace(config, input_file=files)
    sizes = [("part-00000-of-00500", 9), ("part-00001-of-00500", 9), ("part-1", 9)]
    made = {"random_seed": 1, "dupe_factor": 5, "masked_lm_prob": 0.2, "short_seq_prob": 0.1}
    record_parts(tmp_path, sizes=sizes, **made, examples_per_part=6000)
    departures = checks.departures(checks.inspect(changed))
    found = [str(issue) for issue in departures]
    random = "init_checkpoint: the rules require the official one, this run has random weights"
    assert random in found
    of_data = [line for line in found if line.startswith("input_file") or "of the data" in line]
    assert of_data == [
        "input_file: the rules require all examples of every part, this run has the first 6000 of "
        "each",
        "input_file: the rules require the 500 published parts, this run has 1 of them in "
        f"{tmp_path}",
        "random_seed of the data: the rules require 12345, this run has 1",
        "dupe_factor of the data: the rules require 10, this run has 5",
        "masked_lm_prob of the data: the rules require 0.15, this run has 0.2",
    ]


def test_data_that_are_named_twice_are_told(config, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "part-1")
    part, evaluation = str(tmp_path / "part-1"), str(tmp_path / "eval")

    def told(**changed) -> list[str]:
        found = texts(config, "warning", **changed)
        return [text for text in found if text.startswith(("--input_file:", "--eval_input_file:"))]

    assert not told()
    once = "; a name counts once, but what a link leads to is read twice: name each file once"
    assert told(input_file=f"{config.input_file},{part}") == [
        f"--input_file: {part} is named twice{once}"
    ]
    [linked] = told(input_file=f"{config.input_file},{tmp_path}/link")
    assert linked == f"--input_file: {tmp_path}/link is the same file as {part}{once}"
    assert told(eval_input_file=f"{evaluation},{evaluation}") == [
        f"--eval_input_file: {evaluation} is named twice{once}"
    ]
    [both] = told(eval_input_file=str(tmp_path / "link"))
    assert both.startswith(f"--eval_input_file: {tmp_path}/link is a file of --input_file too; the")


@pytest.fixture(scope="module")
def variables():
    """The weights of TINY."""
    return trained_variables(build_pretrainer(TINY, seed=1))


@pytest.fixture(scope="module")
def tensors(variables):
    """The same, by TF1 name."""
    return weights_by_tf1_name(variables)


@pytest.fixture
def initial(tensors, tmp_path) -> str:
    """The prefix of a checkpoint of TINY that a test may damage."""
    prefix = str(tmp_path / "model.ckpt-1")
    write_name_based(prefix, tensors)
    return prefix


def test_checkpoint_must_be_complete(config, tensors, initial):
    assert not any(initial in text for text in texts(config, "error", init_checkpoint=initial))
    data = Path(f"{initial}.data-00000-of-00001")
    size = sum(4 * tensor.size for tensor in tensors.values())
    for kept in (size - 1, 100):
        data.write_bytes(data.read_bytes()[:kept])
        found = texts(config, "error", init_checkpoint=initial)
        [problem] = [text for text in found if "its index lists" in text]
        assert f"hold {kept:,} bytes, its index lists about {size:,}; copy it" in problem


def test_the_output_of_a_run_is_not_an_initial_checkpoint(config, initial):
    Path(initial).with_name("graph.pbtxt").touch()
    message = f"--init_checkpoint={initial} is an output of a training run"
    assert any(message in text for text in texts(config, "error", init_checkpoint=initial))


@pytest.fixture(scope="module")
def checkpoints(tensors, tmp_path_factory):
    """Layout -> prefix of a checkpoint of TINY."""
    folder = tmp_path_factory.mktemp("checkpoints")
    found = {layout: str(folder / layout / "model.ckpt-1") for layout in ("TF1", "TF2")}
    write_name_based(found["TF1"], tensors)
    convert(found["TF1"], found["TF2"], config=TINY)
    return found


def test_shapes_of_the_table_are_those_of_the_model(variables):
    found = {names.our_name(variable.name): tuple(variable.shape) for variable in variables}
    assert found == {w.our_name: w.our_shape(TINY) for w in names.weights(2)}
    num_bytes = 4 * sum(map(math.prod, found.values()))  # of each copy; so many of each weight:
    copies = [names.checkpoint_bytes(TINY, steps_per_update=n) / num_bytes for n in (1, 2)]
    assert copies == [3, 4]


@pytest.mark.parametrize("layout", ["TF1", "TF2"])
@pytest.mark.parametrize(
    "changed, message",
    [
        ({"vocab_size": 72}, "2 of 46 weights do not fit: .*word_embeddings.* \\(64, 8\\), .*72"),
        ({"type_vocab_size": 16}, "1 of 46 weights do not fit: .*type.* \\(2, 8\\), .*\\(16, 8\\)"),
        ({"max_position_embeddings": 32}, "1 of 46 .*position_embedding.*, expected \\(32, 8\\)"),
        ({"hidden_size": 16}, "42 of 46 weights do not fit: .*; and 34 more; give the --bert_conf"),
        ({"intermediate_size": 32}, "6 of 46 weights do not fit: .*expected \\(8, 32\\)"),
        ({"num_hidden_layers": 3}, "16 of 62 weights do not fit: .*layer_2/"),
        ({"num_hidden_layers": 1}, "0 of 30 weights do not fit: it has 2 layers, expected 1"),
    ],
)
def test_a_checkpoint_of_other_sizes_is_found_before_it_is_read(
    config, tmp_path, checkpoints, layout, changed, message
):
    other = dataclasses.replace(TINY, **changed)
    (tmp_path / "bert_config.json").write_text(json.dumps(dataclasses.asdict(other)))
    found = texts(config, "error", init_checkpoint=checkpoints[layout])
    [problem] = [text for text in found if "architecture" in text]
    assert re.search(message, problem), problem
    assert problem.endswith(
        "belongs to it, or leave --init_checkpoint out to train this model from random weights"
    )


def test_a_head_that_the_initial_checkpoint_lacks_is_drawn_and_told(config, tensors, tmp_path):
    write_records(tmp_path, config)
    held = {name: each for name, each in tensors.items() if "seq_relationship" not in name}
    write_name_based(str(tmp_path / "some"), held)
    found = close_look(config, init_checkpoint=str(tmp_path / "some"))
    assert found.errors == []
    told = f"{tmp_path}/some: has no next-sentence head; what is missing is drawn from the seed"
    assert any(each.level == "warning" and each.text.startswith(told) for each in found)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_close_look_reads_the_weights(config, tmp_path, tensors, initial, value):
    write_records(tmp_path, config)
    assert close_look(config, init_checkpoint=initial).errors == []
    name, bad = "bert/pooler/dense/bias", str(tmp_path / "bad")
    write_name_based(bad, tensors | {name: np.full(8, value, np.float32)})
    [error] = close_look(config, init_checkpoint=bad).errors
    assert f"bad: {name} holds NaN or infinity" in error
    data = Path(f"{initial}.data-00000-of-00001")
    data.write_bytes(data.read_bytes()[:-4] + b"\1\2\3\4")
    [error] = close_look(config, init_checkpoint=initial).errors
    assert "model.ckpt-1: cannot be read (" in error and "copy it here again" in error


def test_a_close_look_at_a_run_that_goes_on_reads_its_own_checkpoint(
    config, checkpoints, tmp_path, monkeypatch
):
    def refuse(*_, **__):
        raise ValueError("the budget is used up")

    write_records(tmp_path, config)
    given = dataclasses.replace(config, init_checkpoint=str(tmp_path / "is gone"))
    shutil.copytree(Path(checkpoints["TF2"]).parent, config.output_dir)
    for path in Path(config.output_dir).glob("model.ckpt-1.*"):
        path.rename(path.with_name(path.name.replace("-1.", "-5.", 1)))
    OutputDirectory(config.output_dir, given.parameters()).record(status="running", seed=1)
    assert close_look(given).errors == []
    with monkeypatch.context() as patched:  # its initial checkpoint is not looked for then either
        patched.setattr(OutputDirectory, "beginning", refuse)
        [error] = close_look(given).errors
        assert error == "the budget is used up"
    other = dataclasses.replace(TINY, vocab_size=72)
    (tmp_path / "bert_config.json").write_text(json.dumps(dataclasses.asdict(other)))
    [error] = close_look(given).errors
    assert f"{config.output_dir}/model.ckpt-5: not a checkpoint of this architecture" in error


def test_a_close_look_finds_a_place_that_cannot_be_written(config, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for place in ("/proc/none/run", f"{tmp_path}/file/run"):
        errors = close_look(config, output_dir=place).errors
        assert any(f"--output_dir={place}: cannot be written to (" in error for error in errors)
    close_look(config)
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".check-*"))


@pytest.mark.parametrize(
    ("free", "changed", "level"),
    [
        (2, {}, "error"),  # two are kept while the third is written
        (3, {}, None),
        (3, {"keep_checkpoint_max": 0}, "error"),
        (9, {"keep_checkpoint_max": 0, "time_budget": 60.0}, "warning"),  # it may end before
        (10, {"keep_checkpoint_max": 0}, None),
        # At the steps 2, 4 and 5.
        (2, {"num_train_steps": 5, "save_checkpoints_steps": 2, "keep_checkpoint_max": 0}, "error"),
        (2, {"time_budget": 60.0}, "error"),
        (2, {"eval_input_file": None}, "error"),
        (10, {"eval_input_file": None}, "warning"),  # all wait for their evaluation, step 0 too
        (11, {"eval_input_file": None}, None),
        (0, {"num_train_steps": 3, "saved": 3}, None),  # of the run that goes on
        (0, {"num_train_steps": 3, "saved": 2}, "error"),
    ],
)
def test_the_disk_must_hold_the_checkpoints(config, monkeypatch, tmp_path, free, changed, level):
    each = names.checkpoint_bytes(TINY, steps_per_update=config.steps_per_update)
    usage = type("Usage", (), {"free": free * each})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    (tmp_path / "out").mkdir()
    flags = {"save_checkpoints_steps": 1, "keep_checkpoint_max": 2, **changed}
    held = bytes(flags.pop("saved", 0) * each)
    (tmp_path / "out" / "model.ckpt-1.data-00000-of-00001").write_bytes(held)
    given = dataclasses.replace(config, **flags)
    told = [
        each for each in ("error", "warning") if any("are free" in t for t in texts(given, each))
    ]
    assert told == [level] * bool(level)
    # The exporter of a step inspects too, and writes none.
    assert not any("are free" in finding.text for finding in checks.inspect(given).findings)


def test_as_many_files_may_be_open_as_the_system_allows(config, monkeypatch):
    """Or as before, where the hard limit exceeds the system's."""

    def refuse(kind, both):
        raised.append(both)
        raise ValueError("not allowed to raise maximum limit")

    raised = []
    monkeypatch.setattr(checks.resource, "getrlimit", lambda kind: (1024, 4096))
    monkeypatch.setattr(checks.resource, "setrlimit", refuse)
    checks.inspect(config)
    assert raised == [(4096, 4096)]


@pytest.mark.parametrize(
    "is_large, changed, told",
    [
        (True, {"train_batch_size": 24},
         "batch size 24: .*judged by batch 448: mean 2,414,421 samples, at least 2,274,732.*"
         "configs/ has a preset for each batch size with an RCP"),
        # A preset's batch is not sent to the presets.
        (True, {"train_batch_size": 8192},
         "batch size 8192: .*the reference has a point here, but the checker drops it$"),
        (False, {"drop_caches": True}, "not possible; not root"),
        (False, {"runtime": "tensorflow", "compilation_cache_dir": "kept"},
         "keeps what jax compiles"),
        (False, {"runtime": "jax", "jit_compile": "auto"},
         "--jit_compile=auto: makes no difference; jax compiles the whole step"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit_are_told(config, monkeypatch, is_large, changed, told):
    monkeypatch.setattr(caches, "obstacle", lambda: "not root")
    config = large_model(config) if is_large else config
    new = {*texts(config, "warning", **changed)} - {*texts(config, "warning")}
    assert len([text for text in new if re.search(told, text)]) == 1


def test_a_batch_without_an_rcp_is_told_for_the_real_model_only(config):
    assert not any("RCP" in text for text in texts(config, "warning"))
    with_point = large_model(config, train_batch_size=448)
    assert not any("RCP" in text for text in texts(with_point, "warning"))


def test_a_precision_of_other_devices_is_told(config):
    on_tpu = dataclasses.replace(config, precision="tf32", device=DeviceConfig(use_tpu=True))
    found = checks.inspect(on_tpu, connected=Devices()).findings
    [warning] = [f.text for f in found if f.level == "warning" and "--precision" in f.text]
    assert "on NVIDIA GPUs only" in warning


@pytest.mark.parametrize(
    ("num_warmup_steps", "start_warmup_step", "num_train_steps", "ends_within"),
    [
        (10_000, 0, 6, True),
        (10, 0, 1, True),
        (10, 0, 10, True),
        (9, 0, 10, False),
        (800, -700, 100, True),
        (800, -700, 101, False),
        (0, -700, 10, False),
    ],
)
def test_a_run_that_ends_within_its_warm_up_is_told_its_highest_rate(
    config, num_warmup_steps, start_warmup_step, num_train_steps, ends_within
):
    steps = {"num_warmup_steps": num_warmup_steps, "num_train_steps": num_train_steps}
    steps["start_warmup_step"] = start_warmup_step
    told = [text for text in texts(config, "warning", **steps) if "warm" in text]
    assert len(told) == ends_within
    if ends_within:
        rates = WarmupPolynomialDecay(learning_rate=config.learning_rate, **steps)
        highest = max(float(rates.at_step(step)) for step in range(num_train_steps))
        assert f"its highest learning rate is {highest:.3g} of 0.001; lower" in told[0]
        assert told[0].startswith(f"--num_warmup_steps={num_warmup_steps}")


def publish(monkeypatch, **content: tuple[bytes, bytes]) -> None:
    """Index and data of the published checkpoints, by folder."""
    for folder, (index, data) in content.items():
        name = f"{folder}/model.ckpt-28252.index"
        monkeypatch.setitem(published.MD5S, name, hashlib.md5(index).hexdigest())
        monkeypatch.setitem(published.CHECKPOINT_DATA_BYTES, folder, len(data))


@pytest.mark.parametrize(
    ("index", "data", "departs"),
    [
        (b"index of 1", b"12345", False),
        (b"index of two", b"123", False),
        (b"another  1", b"12345", True),
        (b"index of 1", b"1234", True),
        (b"index of 1", b"123", True),
        (b"index of 1", None, True),
    ],
)
def test_weights_that_are_not_published_depart_from_the_rules(
    config, monkeypatch, tmp_path, index, data, departs
):
    publish(monkeypatch, tf1_ckpt=(b"index of 1", b"12345"), tf2_ckpt=(b"index of two", b"123"))
    prefix = str(tmp_path / "own-7")
    Path(f"{prefix}.index").write_bytes(index)
    if data:
        Path(f"{prefix}.data-00000-of-00001").write_bytes(data)
    of_run = dataclasses.replace(config, init_checkpoint=prefix)
    for model, is_told in ((rules.BERT_LARGE, departs), (dataclasses.asdict(TINY), False)):
        setup = Setup(config=of_run)
        opened = types.SimpleNamespace(prefix=prefix)
        made = {"data_sets": {}, "bert_config": BertConfig(**model), "initial_checkpoint": opened}
        vars(setup).update(made)
        named = [
            str(each) for each in checks.departures(setup) if each.parameter == "init_checkpoint"
        ]
        assert len(named) == is_told
        assert all(f"this run has {prefix}, another by size or MD5" in text for text in named)


def test_weights_that_cannot_be_compared_are_no_published_ones(config, monkeypatch):
    """A run ends, and its log is not that of the closed division; --check tells the rest too."""

    def unreadable(prefix):
        raise OSError(f"{prefix}.index: Input/output error")

    monkeypatch.setattr(checks, "_departure_of_weights", unreadable)
    setup = Setup(config=dataclasses.replace(config, init_checkpoint="model.ckpt-0"))
    opened = types.SimpleNamespace(prefix="model.ckpt-0")
    parts = {"bert_config": BertConfig(**rules.BERT_LARGE), "initial_checkpoint": opened}
    vars(setup).update(parts)
    with pytest.raises(OSError, match=r"^model.ckpt-0.index: Input/output error$"):
        checks.departures(setup)
    found = []
    for list_departures in checks.DEPARTURES:
        with setup.findings.collecting():
            found += list_departures(setup)
    assert found and setup.findings.errors == ["model.ckpt-0.index: Input/output error"]


def test_close_look_counts_examples_and_says_what_is_active(config, tmp_path):
    found = inspect_closely(config, measure_initial_accuracy=True)
    lines = [str(finding) for finding in found.findings]
    assert any(line.startswith("error: ") and "eval" in line for line in lines)  # it is no TFRecord
    assert any(line.startswith("note: energy: ") for line in lines)
    found = close_look(config, power_watts=300.0)
    assert "energy: of the whole system, computed from the given 300 W" in [
        finding.text for finding in found
    ]
    (tmp_path / "eval").write_bytes(b"")
    assert any("is empty" in text for text in checks.inspect(config).findings.errors)


def test_close_look_reads_the_first_record_of_every_file(config, tmp_path):
    good = record(config.shape)
    damaged = good[:-8] + bytes(8)
    longer = record(dataclasses.replace(config.shape, max_seq_length=32))
    foreign = record(config.shape, input_ids=np.full(16, 64))
    for name, content in (("part-0", good), ("part-1", damaged), ("eval", longer)):
        (tmp_path / name).write_bytes(content)
    assert [error.replace(f"{tmp_path}/", "") for error in close_look(config).errors] == [
        "part-1: record 0 at byte 0 is damaged (the checksum of the data is wrong); "
        "copy or make the file again",
        "eval: record 0 at byte 0 holds 32 values in input_ids, but the run has "
        "--max_seq_length=16; give --max_seq_length=32 or make the file again with "
        "create_pretraining_data.py",
    ]
    (tmp_path / "eval").write_bytes(good)
    for number in range(1, 7):
        (tmp_path / f"part-{number}").write_bytes(foreign)
    *named, last = close_look(config).errors
    assert len(named) == 5 and all("holds 64 in input_ids, at 0" in error for error in named)
    assert last == "1 more files are bad in their first record"


@pytest.mark.parametrize(
    "gigabytes, changed, takes",
    [
        (3, {}, 4.0),
        (3, {"runtime": "jax"}, 4.0),
        (5, {"steps_per_update": 2, "num_train_steps": 8}, 5.4),
        (5, {}, None),
        (1, {"async_checkpoint": False}, None),
    ],
)
def test_a_copy_of_the_state_that_does_not_fit_is_told(
    config, monkeypatch, gigabytes, changed, takes
):
    monkeypatch.setattr(checks, "memory_bytes", lambda: int(gigabytes * 10**9))
    given = large_model(config, init_checkpoint=None, **changed)
    setup = checks.inspect(given)
    assert not any("memory" in finding.text for finding in setup.findings)
    checks.check_saving(setup)
    told = [str(finding) for finding in setup.findings if "memory" in finding.text]
    assert told == [
        f"warning: --async_checkpoint: a copy of the state takes {takes} GB of memory, and "
        f"{gigabytes}.0 GB are available here; give --noasync_checkpoint"
    ] * bool(takes)


@pytest.mark.parametrize(
    "own, limit",
    [
        (None, "memory.max"),  # in a container
        ("0::/slurm/job_1/step_0", "slurm/job_1/step_0/memory.max"),
        ("0::/slurm/job_1/step_0", "slurm/job_1/memory.max"),  # of a group above
        ("0::/slurm/job_1/step_0", "slurm/job_1/memory.high"),
        ("3:cpu,memory:/slurm/job_1", "memory/slurm/job_1/memory.limit_in_bytes"),
        ("3:cpu:/other\n7:memory:/slurm/a:b\n0::/", "memory/slurm/memory.limit_in_bytes"),
        ("7:memory:/docker/of_the_host", "memory/memory.limit_in_bytes"),  # seen from inside
    ],
)
def test_the_limit_of_a_container_or_job_bounds_the_memory(monkeypatch, tmp_path, own, limit):
    groups = tmp_path / "groups"
    for place in ("slurm/job_1/step_0", "memory/slurm/job_1", "memory/slurm/a:b", "memory/other"):
        (groups / place).mkdir(parents=True)
    if own:
        (tmp_path / "own").write_text(f"1:name=systemd:/init\n{own}\n")
    monkeypatch.setattr(checks, "_GROUPS", groups)
    monkeypatch.setattr(checks, "_OWN_GROUPS", tmp_path / "own")
    (groups / "memory/other/memory.limit_in_bytes").write_text("5\n")
    for no_limit in ("max\n", "9223372036854771712\n"):  # in version 1
        (groups / limit).write_text(no_limit)
        assert 1000 < checks.memory_bytes() < 2**60
    (groups / limit).write_text("1000\n")
    assert checks.memory_bytes() == 1000


def test_on_a_tpu_saving_while_training_has_to_be_asked_for(config):
    on_tpu = dataclasses.replace(config, device=DeviceConfig(use_tpu=True))
    assert config.saves_while_training and not on_tpu.saves_while_training
    assert dataclasses.replace(on_tpu, async_checkpoint=True).saves_while_training


def test_initial_accuracy_is_measured_when_asked(config, tmp_path):
    write_records(tmp_path, config)
    told = "the initial accuracy needs --init_checkpoint and --eval_input_file"
    [error] = inspect_closely(config, measure_initial_accuracy=True).findings.errors
    assert error == told
    given = types.SimpleNamespace(init_checkpoint="model.ckpt-0")
    with pytest.raises(ValueError, match=f"^{told}$"):
        inspection._measure_initial_accuracy(types.SimpleNamespace(config=given, eval_files=[]))


def test_a_close_look_counts_the_evaluation_examples_of_all_files(config, tmp_path):
    write_records(tmp_path, config)
    two = (tmp_path / "eval").read_bytes() * 2
    (tmp_path / "more").write_bytes(two)
    found = close_look(config, eval_input_file=f"{tmp_path}/eval,{tmp_path}/more")
    told = "not a submission to the closed division: evaluation examples: the rules require "
    [text] = [each.text for each in found if each.text.startswith(told)]
    assert text.endswith("run has 3; make --eval_input_file with pick_eval_samples.py")


@pytest.mark.parametrize(
    "difference, level",
    [(0.0009, "note"), (-0.0009, "note"), (0.0011, "warning"), (-0.0011, "warning")],
)
def test_an_initial_accuracy_unlike_the_official_one_is_a_doubt(monkeypatch, difference, level):
    evaluator = types.SimpleNamespace(
        evaluate=lambda _: types.SimpleNamespace(masked_lm_accuracy=0.34085 + difference)
    )
    replaced = {
        inspection.offline: {"model_to_evaluate": lambda *_: (None, evaluator)},
        inspection.reading: {"refuse_output_of_a_run": id, "load_initial_weights": lambda *_: None},
        inspection.pretrainer: {"trained_variables": lambda _: []},
        inspection.checked: {"checked_input": lambda *_: nullcontext()},
        inspection.build: {"evaluation_batches": lambda _: None},
    }
    for module, functions in replaced.items():
        for name, function in functions.items():
            monkeypatch.setattr(module, name, function)
    setup = types.SimpleNamespace(
        config=types.SimpleNamespace(init_checkpoint="given"), eval_files=["eval"],
        bert_config=None, devices=None, initial_checkpoint=object(), limits=None,
        findings=Findings(),
    )  # fmt: skip
    inspection._measure_initial_accuracy(setup)
    assert [str(finding) for finding in setup.findings] == [
        f"{level}: the initial checkpoint has masked-LM accuracy {0.34085 + difference:.5f}; the "
        "official one on the official evaluation examples has 0.34085"
    ]


def test_a_close_look_from_one_of_several_processes_counts_the_devices_of_all(config):
    found = close_look(config, cluster=Cluster(3, 0, 3, 1, 0))
    assert {
        "--train_batch_size=4 cannot be shared by 3 replicas; try 3 or 6",
        "--eval_batch_size=4 cannot be shared by 3 replicas; try 3 or 6",
        "checked in one of 3 processes, without the others; a run first compares flags, data and "
        "software of all",
    } <= {finding.text for finding in found}


def test_only_the_first_of_several_processes_checks(config, monkeypatch, capsys):
    other = dataclasses.replace(config, cluster=Cluster(2, 1, 2, 1, 0))
    monkeypatch.setattr(run_pretraining, "_config", lambda: other)
    run_pretraining._check()
    assert capsys.readouterr().out == "process 1: --check is answered by process 0\n"


def test_examples_without_any_weight_are_told(config, tmp_path, capsys):
    write_records(tmp_path, config)  # of zeros
    with checked.checked_input([str(tmp_path / "part-0")], config.shape.for_model(TINY)):
        told = capsys.readouterr().err
    message = "its first 1 examples have no masked_lm_weights above 0: nothing masked counts"
    assert told.startswith(f"hint: {tmp_path}/part-0: {message}")
    found = close_look(config)
    assert [f.text.split(": ")[0] for f in found if message in f.text] == [
        str(tmp_path / name) for name in ("part-0", "eval")
    ]
    some = record(config.shape, masked_lm_weights=np.float32([0, 0, 0, 0.5]))
    (tmp_path / "part-0").write_bytes(record(config.shape) + some)
    assert checked.hint_of_weights(str(tmp_path / "part-0")) is None
