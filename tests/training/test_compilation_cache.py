"""What XLA compiled is kept in a folder and used by the next start. CPU, a minute."""

import os
import subprocess
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import tensorflow as tf

import run_pretraining
from mlperf_bert.programs import jax_trainer, program
from mlperf_bert.programs.jax_step import Part
from mlperf_bert.programs.program import kept
from mlperf_bert.training import build
from tests.training import generated_task
from tests.training.small_runs import command, metrics

TASK = generated_task.SMALL
FLAGS = {"num_train_steps": 4, "steps_per_update": 1, "log_every_steps": 1, "eval_input_file": ""}


def losses(folder) -> list[float]:
    return [line["loss"] for line in metrics(folder, "train")]


@pytest.mark.all
@pytest.mark.parametrize("runtime, num_entries", [("tensorflow", 11), ("jax", 2)])
def test_the_second_start_reads_what_the_first_compiled(
    repository, task, tmp_path, runtime, num_entries
):
    cache = tmp_path / "the cache"  # whose name has a space
    flags = {**FLAGS, "runtime": runtime, "jit_compile": "auto", "compilation_cache_dir": cache}

    def start(name: str):
        # Not a fork: TensorFlow reads its flags for XLA once in a process.
        words = command(task, tmp_path / name, **flags)
        return subprocess.run(words, cwd=repository, capture_output=True, text=True)

    first = start("first")
    assert first.returncode == 0, first.stderr
    entries = {path: path.stat().st_mtime_ns for path in cache.glob("*/*")}
    assert len(entries) >= num_entries
    second = start("second")
    assert second.returncode == 0, second.stderr
    assert entries == {path: path.stat().st_mtime_ns for path in cache.glob("*/*")}
    assert "XlaSerializedCacheEntry" not in second.stderr
    assert losses(tmp_path / "first") == losses(tmp_path / "second")

    damaged = sorted(entries)[-1]
    damaged.write_bytes(damaged.read_bytes()[:500])
    third = start("third")
    assert third.returncode == 1 and "Traceback" not in third.stderr
    assert f"--compilation_cache_dir={cache}: if one of its files is damaged" in third.stderr
    assert not (tmp_path / "third").exists() or not any((tmp_path / "third").iterdir())


@pytest.mark.parametrize("before, kept", [(None, ""), ("--tf_xla_auto_jit=2", "{} ")])
def test_what_else_xla_is_told_stays(monkeypatch, tmp_path, before, kept):
    environment = {} if before is None else {"TF_XLA_FLAGS": before}
    monkeypatch.setattr(os, "environ", dict(environment))
    flags = SimpleNamespace(compilation_cache_dir="")
    monkeypatch.setattr(run_pretraining, "FLAGS", flags)
    run_pretraining._use_compilation_cache()
    assert os.environ == environment
    flags.compilation_cache_dir = str(tmp_path)
    run_pretraining._use_compilation_cache()
    [folder] = tmp_path.iterdir()
    cache = f'--tf_xla_persistent_cache_directory="{folder}"'
    assert os.environ == {"TF_XLA_FLAGS": kept.format(before) + cache}


@pytest.mark.parametrize("does", ["reading", "writing"])  # of an entry of which a file is gone
def test_a_cache_that_jax_cannot_use_is_told_in_one_line(does):
    with (
        pytest.raises(ValueError, match=r"^--compilation_cache_dir=c: .*remove the fol") as told,
        build.reading_compilation_cache("c"),
    ):
        warnings.warn(f"Error {does} persistent compilation cache entry: gone", stacklevel=2)
    assert "\n" not in str(told.value)


def test_an_exported_program_is_kept_for_what_it_depends_on(tmp_path):
    weight = {"name": "w", "shape": [2], "dtype": "float32", "role": "weight"}
    made = Part(b"ML\n\nR", {"inputs": [weight], "outputs": [weight | {"feeds": 0}]})
    calls = []

    def make() -> Part:
        calls.append(1)
        return made

    assert kept(None, "a", make) == kept(None, "a", make) == made and len(calls) == 2
    for depends_on, num_calls in (("a", 3), ("a", 3), ("b", 4), ("a", 4)):
        assert kept(tmp_path, depends_on, make) == made
        assert len(calls) == num_calls
    for file in tmp_path.iterdir():
        file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"\.stablehlo: is damaged, its digest .*; remove it$"):
        kept(tmp_path, "a", make)


def test_another_step_is_another_program(tmp_path, monkeypatch):
    """Also one of other shapes, of another kind, with other flags, and by other code."""
    calls = []

    def step(*_) -> Part:
        calls.append("step")
        return Part(b"ML", {})

    def update(*given) -> Part:
        return step(*given)

    monkeypatch.setattr(
        jax_trainer.jax, "config", SimpleNamespace(jax_compilation_cache_dir=f"{tmp_path}/one")
    )
    wide = {"ids": tf.zeros([2, 4], tf.int32)}
    for described, kind, batch in (
        ("flags", step, wide), ("flags", update, wide), ("others", step, wide),
        ("flags", step, {"ids": tf.zeros([4, 4], tf.int32)}),
        ("flags", step, {"ids": tf.zeros([2, 4])}),
    ):  # fmt: skip
        for _ in range(2):
            jax_trainer._exported(described, kind, None, batch)
    assert len(calls) == 5 == len(list(tmp_path.glob("*.stablehlo")))
    monkeypatch.setattr(program, "_digest_of_code", lambda: "other code")
    jax_trainer._exported("flags", step, None, wide)
    assert len(calls) == 6
    for _ in range(2):  # nothing says what decides it
        jax_trainer._exported("", step, None, wide)
    assert len(calls) == 8


@pytest.mark.parametrize(
    "file", ["encoder.py", "norm_forward.mlir", "optimizers.py", "steps.py", "config.py"]
)
def test_a_program_of_other_code_is_not_used(monkeypatch, file):
    before, read = program._digest_of_code(), Path.read_bytes
    changed = lambda path: read(path) + b"#" * (path.name == file)  # noqa: E731
    monkeypatch.setattr(Path, "read_bytes", changed)
    assert program._digest_of_code.__wrapped__() != before
