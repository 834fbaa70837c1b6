"""What a run by jax says of memory before it executes a step: the numbers of the compiler."""

import dataclasses
import re
import types

import jax
import pytest

from mlperf_bert.input import pipeline
from mlperf_bert.messages import ERROR
from mlperf_bert.programs.jax_trainer import JaxTrainer
from mlperf_bert.training import build, checks, fit, memory, run
from mlperf_bert.training.inspection import inspect_closely
from tests.training.configurations import write_records

GIB = 2**30
OF_AN_EXAMPLE = {"none": 10, "attention": 7.5, "blocks": 5}  # GiB
TPU_REFUSES = "RESOURCE_EXHAUSTED: the total memory required (39.5G) exceeds available HBM (30G)."
TOO_MANY = "; multiply the flags that count steps too (docs/training.md)"


@pytest.fixture
def by_jax(config):
    return dataclasses.replace(config, runtime="jax", num_train_steps=8)


class Compiled:
    """A trainer or an evaluator whose compiler is not asked, on a device with a limit."""

    def __init__(self, config, *, limit_gib=None, evaluation_gib=2, refuses=None):
        self.state_bytes, self._config, self._refuses = GIB // 2, config, refuses
        self._limit_gib, self._evaluation_gib = limit_gib, evaluation_gib

    def usable_bytes(self):
        return self._limit_gib and int(self._limit_gib * GIB)

    def compile(self, given):
        if isinstance(given, tuple):  # the shapes of an evaluation
            return int(self._evaluation_gib * GIB)
        if self._refuses and self._config.recompute == "none":
            raise jax.errors.JaxRuntimeError(self._refuses)
        each = OF_AN_EXAMPLE[self._config.recompute]
        return int(max(len(batch["input_ids"]) for batch in given) * each * GIB)


def programs_of(setup, compiled):
    """A run's programs, of which only the shapes of their batches are there."""
    config = setup.config
    batches = pipeline.synthetic_batches(
        config.shape, batch_size=config.train_batch_size, pack_sequences=False
    )
    evaluation = batches.map(lambda batch: (batch, 1.0)) if setup.eval_files else None
    made = {"rates": None, "trainer": compiled, "evaluator": compiled}
    return build.Programs(**made, batches=batches, evaluation=evaluation)


@pytest.fixture
def told(by_jax, monkeypatch):
    """Returns what a run says of 4 examples a step, by such a compiler."""

    def tell(*, changed=(), **of_compiler) -> str:
        setup = checks.inspect(dataclasses.replace(by_jax, **dict(changed))).setup()

        def without_compiler(setup, *, seed):
            return programs_of(setup, Compiled(setup.config, **of_compiler))

        monkeypatch.setattr(build, "build_programs", without_compiler)
        return str(fit.finding_of(setup, build.build_programs(setup, seed=0)))

    return tell


def test_what_fits_is_told_with_the_limit_of_the_device(told):
    takes = "note: a step takes 40.0 of 76.9 GiB of this cpu"
    assert told(limit_gib=76.9) == f"{takes}; an evaluation 2.5 GiB"
    assert told(limit_gib=76.9, changed={"eval_input_file": None}) == takes


@pytest.mark.parametrize(
    "limit_gib, changed, tried",
    [
        (39, {}, "--recompute=attention takes 30.0"),
        (25, {}, "--recompute=attention takes 30.0, --recompute=blocks takes 20.0"),
        (25, {"recompute": "attention"}, "--recompute=blocks takes 20.0"),
        (
            12,
            {"recompute": "blocks", "steps_per_update": 2},
            "--recompute=blocks --train_batch_size=2 --steps_per_update=4 takes 10.0" + TOO_MANY,
        ),
        (
            4,
            {"recompute": "blocks"},
            "--recompute=blocks --train_batch_size=2 --steps_per_update=2 takes 10.0, "
            "--recompute=blocks --train_batch_size=1 --steps_per_update=4 takes 5.0, "
            "and nothing smaller is left",
        ),
        (9, {"recompute": "blocks", "train_batch_size": 3}, "--recompute=blocks --train_batch_size"
         "=1 --steps_per_update=3 takes 5.0" + TOO_MANY),
    ],
)  # fmt: skip
def test_a_step_that_does_not_fit_is_refused_with_what_does(told, limit_gib, changed, tried):
    of_one = OF_AN_EXAMPLE[changed.get("recompute", "none")]
    takes = changed.get("train_batch_size", 4) * of_one
    assert told(limit_gib=limit_gib, changed=changed) == (
        f"error: does not fit: a step takes {takes:.1f} of {limit_gib:.1f} GiB of this cpu; {tried}"
    )


@pytest.mark.parametrize(
    "refusal, takes",
    [
        (TPU_REFUSES, "40.0 of 30.5"),  # and the state of 0.5
        (
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 2 bytes",
            "more than the 30.5",
        ),
    ],
)
def test_a_compiler_that_refuses_for_lack_of_memory_says_that_it_does_not_fit(told, refusal, takes):
    assert told(limit_gib=30.5, refuses=refusal) == (
        f"error: does not fit: a step takes {takes} GiB of this cpu; --recompute=attention takes "
        "30.0"
    )


def test_a_compiler_that_refuses_for_another_reason_is_no_lack_of_memory(told):
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"^INTERNAL: ptxas"):
        told(limit_gib=76.9, refuses="INTERNAL: ptxas has failed")


def test_an_evaluation_that_does_not_fit_beside_the_state_of_the_training_is_refused(told):
    assert told(limit_gib=41, evaluation_gib=40.6) == (
        "error: does not fit: an evaluation takes 41.1 of 41.0 GiB of this cpu; lower "
        "--eval_batch_size"
    )


def test_on_a_cpu_it_is_a_warning_and_nothing_else_is_compiled(told, monkeypatch):
    monkeypatch.setattr(memory, "memory_bytes", lambda: 30 * GIB)
    assert told() == (
        "warning: does not fit: a step takes 40.0 of 30.0 GiB available to this cpu; give "
        "--recompute=attention, then blocks, then fewer examples (docs/training.md)"
    )


def test_a_run_that_does_not_fit_ends_before_a_step_is_executed(by_jax, monkeypatch):
    setup = checks.inspect(by_jax).setup()
    executed, said = [], []
    team = types.SimpleNamespace(goes_on=False, say=said.append)

    def compile_with(**of_compiler):
        compiled = Compiled(by_jax, **of_compiler)
        compiled.warm_up = lambda *_, **__: executed.append("steps")
        compiled.evaluate = lambda *_: executed.append("evaluation")
        programs = programs_of(setup, compiled)
        of_run = {"setup": setup, "config": by_jax, "team": team, "programs": programs}
        run._compile(types.SimpleNamespace(**of_run))

    with pytest.raises(ValueError, match=r"does not fit: an evaluation takes 41\.1 of 41"):
        compile_with(limit_gib=41, evaluation_gib=40.6)
    assert not executed and not said
    compile_with(limit_gib=41)
    assert executed == ["steps", "evaluation"]
    assert said == ["a step takes 40.0 of 41.0 GiB of this cpu; an evaluation 2.5 GiB"]


@pytest.mark.gate
def test_the_check_asks_the_compiler_and_executes_nothing(by_jax, tmp_path, monkeypatch):
    """A step of few examples: the compiler's own numbers, on this CPU."""
    write_records(tmp_path, by_jax)
    monkeypatch.setattr(JaxTrainer, "put_state", lambda _: pytest.fail("a step was executed"))
    found = inspect_closely(by_jax, measure_initial_accuracy=False).findings
    [line] = [str(finding) for finding in found if "a step takes" in finding.text]
    assert re.fullmatch(
        r"note: a step takes under 0\.1 of \d+\.\d GiB available to this cpu; an evaluation under "
        r"0\.1 GiB",
        line,
    )
    told = []
    monkeypatch.setattr(fit, "_gib", lambda number: told.append(number) or "some")
    monkeypatch.setattr(JaxTrainer, "usable_bytes", lambda _: 1)
    smaller = dataclasses.replace(
        by_jax, train_batch_size=2, recompute="blocks", eval_input_file=None
    )
    found = inspect_closely(smaller, measure_initial_accuracy=False).findings
    [line] = [finding.text for finding in found if finding.level == ERROR]
    assert line == (
        "does not fit: a step takes some of some GiB of this cpu; --recompute=blocks "
        "--train_batch_size=1 --steps_per_update=2 takes some, and nothing smaller is left"
    )
    limit, step, half = told
    assert limit == 1 < half < step
