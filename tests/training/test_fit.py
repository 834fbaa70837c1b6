"""What a run by jax says of memory before it executes a step: the numbers of the compiler."""

import dataclasses
import json
import re
import types
from pathlib import Path

import jax
import numpy as np
import pytest
import tensorflow as tf

from mlperf_bert.input import pipeline
from mlperf_bert.programs.jax_trainer import JaxTrainer
from mlperf_bert.training import build, checks, fit, run
from mlperf_bert.training.inspection import inspect_closely
from tests.training.configurations import TINY, write_records

GIB = 2**30
LESS = "give --recompute=attention, then blocks, then fewer examples with more --steps_per_update"


@pytest.fixture
def config(config):
    """A run by jax."""
    return dataclasses.replace(config, runtime="jax", num_train_steps=8)


class Compiled:
    """A trainer or an evaluator whose compiler is not asked, on a device with a limit."""

    def __init__(self, *, limit_gib=None, evaluation_gib=2, refuses=None, num_devices=1):
        self.state_bytes, self._refuses = GIB // 2, refuses
        self._limit_gib, self._evaluation_gib = limit_gib, evaluation_gib
        devices = jax.devices("cpu")[:1] * num_devices
        self.mesh = types.SimpleNamespace(
            local_devices=devices, devices=np.array(devices), size=num_devices
        )

    def usable_bytes(self):
        return self._limit_gib and int(self._limit_gib * GIB)

    def compile(self, given):
        if isinstance(given, tuple):  # the shapes of an evaluation
            return int(self._evaluation_gib * GIB)
        if self._refuses:
            raise jax.errors.JaxRuntimeError(self._refuses)
        return max(len(batch["input_ids"]) for batch in given) * 10 * GIB


def programs_of(config, compiled):
    """A run's programs, of which only the shapes of their batches are there."""
    batch = pipeline.synthetic_batch(config.shape, batch_size=config.train_batch_size)
    evaluation = tf.data.Dataset.from_tensors((batch, 1.0)) if config.eval_input_file else None
    made = {"rates": None, "trainer": compiled, "evaluator": compiled}
    return build.Programs(**made, synthetic_batches=[batch], synthetic_evaluation_batch=evaluation)


@pytest.mark.parametrize(
    "of_compiler, said",
    [
        ({"limit_gib": 76.9}, "note: a step takes 40.0 of 76.9 GiB of this cpu; an evaluation 2.5 "
         "GiB"),
        ({"limit_gib": 39}, f"error: does not fit: a step takes 40.0 of 39.0 GiB of this cpu; "
         f"{LESS} (docs/training.md)"),
        ({"limit_gib": 41, "evaluation_gib": 40.6}, "error: does not fit: an evaluation takes 41.1 "
         "of 41.0 GiB of this cpu; lower --eval_batch_size"),
        ({"limit_gib": 30.5, "refuses": "RESOURCE_EXHAUSTED: Out of memory"}, "error: does not "
         f"fit: a step takes more than all of 30.5 GiB of this cpu; {LESS} (docs/training.md)"),
        ({}, "warning: does not fit: a step takes 40.0 of 30.0 GiB available to this cpu; "
         f"{LESS} (docs/training.md)"),
        ({"num_devices": 2}, "warning: does not fit: a step takes 40.0 of 15.0 GiB available to "
         f"each cpu; {LESS} (docs/training.md)"),
    ],
)  # fmt: skip
def test_what_the_compiler_says_is_compared_with_the_limit_of_the_device(
    config, monkeypatch, of_compiler, said
):
    monkeypatch.setattr(checks, "memory_bytes", lambda: 30 * GIB)
    assert str(fit.finding_of(programs_of(config, Compiled(**of_compiler)))) == said


def test_without_evaluation_only_the_step_is_told(config):
    alone = dataclasses.replace(config, eval_input_file=None)
    found = fit.finding_of(programs_of(alone, Compiled(limit_gib=76.9)))
    assert found.text == "a step takes 40.0 of 76.9 GiB of this cpu"


def test_a_compiler_that_refuses_for_another_reason_is_no_lack_of_memory(config):
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"^INTERNAL: ptxas"):
        fit.finding_of(programs_of(config, Compiled(refuses="INTERNAL: ptxas has failed")))


def test_a_run_that_does_not_fit_ends_before_a_step_is_executed(config, monkeypatch):
    setup = checks.inspect(config)
    executed, said = [], []
    team = types.SimpleNamespace(has_checkpoint=False, cluster=None, say=said.append)

    def compile_with(**of_compiler):
        compiled = Compiled(**of_compiler)
        compiled.warm_up = lambda *_, **__: executed.append("steps")
        compiled.evaluate = lambda *_: executed.append("evaluation")
        programs = programs_of(config, compiled)
        of_run = {"setup": setup, "config": config, "team": team, "programs": programs}
        run._compile(types.SimpleNamespace(**of_run))

    with pytest.raises(ValueError, match=r"does not fit: an evaluation takes 41\.1 of 41"):
        compile_with(limit_gib=41, evaluation_gib=40.6)
    steps_are = "computing in float32; XLA compiles the whole step: jax always compiles it"
    assert not executed and said == [steps_are]
    compile_with(limit_gib=41)
    assert executed == ["steps", "evaluation"]
    takes = "a step takes 40.0 of 41.0 GiB of this cpu; an evaluation 2.5 GiB"
    assert said == [steps_are, steps_are, takes]


@pytest.mark.parametrize(
    ("has_checkpoint", "initial", "keeps"),
    [(False, None, True), (True, None, False), (False, [], False), (False, ["a head"], True),
     (True, ["a head"], False)],
)  # fmt: skip
def test_trying_out_the_steps_keeps_what_no_checkpoint_will_give(has_checkpoint, initial, keeps):
    """Weights that are drawn, also of a head that the initial checkpoint lacks."""
    found: list[bool] = []
    lacking = initial if initial is None else types.SimpleNamespace(lacking_heads=initial)
    config = types.SimpleNamespace(emulate_step_seconds=0.1)
    setup = types.SimpleNamespace(config=config, initial_checkpoint=lacking)
    setup.devices = types.SimpleNamespace(mesh=None)
    config.precision = config.compilation = ""
    team = types.SimpleNamespace(has_checkpoint=has_checkpoint, cluster=None, say=len)
    programs = types.SimpleNamespace(warm_up=lambda *, keeps_weights: found.append(keeps_weights))
    run._compile(types.SimpleNamespace(setup=setup, team=team, programs=programs))
    assert found == [keeps]


@pytest.mark.gate
@pytest.mark.usefixtures("compiles_quickly")
def test_the_check_asks_the_compiler_and_executes_nothing(config, tmp_path, monkeypatch):
    """A step of few examples: the compiler's own numbers, on this CPU."""
    write_records(tmp_path, config)
    one_layer = dataclasses.asdict(TINY) | {"num_hidden_layers": 1}
    Path(config.bert_config_file).write_text(json.dumps(one_layer))
    monkeypatch.setattr(JaxTrainer, "put_state", lambda _: pytest.fail("a step was executed"))
    found = inspect_closely(config, measure_initial_accuracy=False).findings
    [line] = [str(finding) for finding in found if "a step takes" in finding.text]
    assert re.fullmatch(
        r"note: a step takes under 0\.1 of \d+\.\d GiB available to this cpu; an evaluation under "
        r"0\.1 GiB",
        line,
    )
