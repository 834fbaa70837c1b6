"""What XLA compiled is kept in a folder and used by the next start. CPU, a minute."""

import contextlib
import io
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace

import pytest
import tensorflow as tf

from mlperf_bert.programs import jax_trainer, program, program_cache
from mlperf_bert.programs.jax_step import ExportedProgram
from mlperf_bert.programs.program import read_or_export
from tests.helpers import starts
from tests.training import generated_task
from tests.training.small_runs import command, metrics

TASK = generated_task.SMALL
FLAGS = {"num_train_steps": 4, "steps_per_update": 1, "log_every_steps": 1, "eval_input_file": ""}


def losses(folder) -> list[float]:
    return [line["loss"] for line in metrics(folder, "train")]


def flipped(content: bytes) -> bytes:
    """With another bit in the middle."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :]


@pytest.mark.all
def test_the_second_start_reads_what_the_first_compiled(task, tmp_path):
    cache = tmp_path / "the cache"  # whose name has a space
    flags = {**FLAGS, "runtime": "jax", "compilation_cache_dir": cache}

    def start(name: str):
        return starts.run(command(task, tmp_path / name, **flags))

    first = start("first")
    assert first.returncode == 0, first.stderr
    entries = {path: path.stat().st_mtime_ns for path in cache.glob("*/*")}
    assert len(entries) >= 2
    second = start("second")
    assert second.returncode == 0, second.stderr
    assert entries == {path: path.stat().st_mtime_ns for path in cache.glob("*/*")}
    assert losses(tmp_path / "first") == losses(tmp_path / "second")

    for path in entries:
        path.write_bytes(flipped(path.read_bytes()))
    third = start("third")
    assert third.returncode == 0, third.stderr
    for path in entries:
        assert f"warning: {path}: is damaged (its digest differs); it is comp" in third.stdout
    assert losses(tmp_path / "first") == losses(tmp_path / "third")
    assert entries.keys() == {*cache.glob("*/*")}


def test_an_exported_program_is_kept_for_what_it_depends_on(tmp_path):
    weight = {"name": "w", "shape": [2], "dtype": "float32", "role": "weight"}
    made = ExportedProgram(b"ML\n\nR", {"inputs": [weight], "outputs": [weight | {"feeds": 0}]})
    calls = []

    def make() -> ExportedProgram:
        calls.append(1)
        return made

    assert read_or_export(None, "a", make) == read_or_export(None, "a", make) == made
    assert len(calls) == 2
    for depends_on, num_calls in (("a", 3), ("a", 3), ("b", 4), ("a", 4)):
        assert read_or_export(tmp_path, depends_on, make) == made
        assert len(calls) == num_calls
    for file in tmp_path.iterdir():
        file.write_bytes(flipped(file.read_bytes()))
    for num_calls in (5, 5):
        assert read_or_export(tmp_path, "a", make) == made
        assert len(calls) == num_calls


def _a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda file: file.write_bytes(flipped(file.read_bytes())), "is damaged (its digest diff"),
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), "is damaged (its digest differs)"),
        (lambda file: file.write_bytes(b""), "is damaged (its digest differs); it is compiled a"),
        (_a_folder, "cannot be read (Is a directory); it is compiled again"),
        (Path.unlink, None),
    ],
    ids=["bit", "cut", "empty", "folder", "gone"],
)
def test_no_entry_of_jax_that_is_damaged_is_loaded(tmp_path, capsys, damage, said):
    cache = program_cache.CompiledPrograms(str(tmp_path))
    assert cache.get("jit") is None
    cache.put("jit", b"\nmachine\ncode")
    assert cache.get("jit") == b"\nmachine\ncode"
    [file] = tmp_path.iterdir()
    damage(file)
    assert capsys.readouterr().out == ""
    assert cache.get("jit") is cache.get("jit") is None
    out = capsys.readouterr().out
    assert (f"warning: {file}: {said}" in out and out.count("\n") == 1) if said else out == ""
    cache.put("jit", b"again")
    is_back = cache.get("jit") == b"again"
    assert is_back != file.is_dir() and [*tmp_path.iterdir()] == [file]


def test_a_folder_that_cannot_be_written_costs_no_run(tmp_path, capsys):
    cache = program_cache.CompiledPrograms(str(tmp_path / "gone"))
    cache.put("a", b"1")
    cache.put("b", b"2")
    folder = tmp_path / "gone"
    assert capsys.readouterr().out == (
        f"warning: {folder}: cannot be written to (No such file or directory); nothing is kept "
        "there\n"
    )


def _make_all(pipe: Connection, folder: Path) -> None:
    """Sends what it has said, beginning when it is told to."""
    made = ExportedProgram(b"ML" * 50_000, {"inputs": []})
    program._digest_of_code()
    pipe.send("ready")
    pipe.recv()
    with contextlib.redirect_stdout(io.StringIO()) as said:
        for number in range(100):
            assert read_or_export(folder, str(number // 4), lambda: made) == made
    pipe.send(said.getvalue())


def test_starts_at_the_same_time_share_a_folder(tmp_path):
    ours, theirs = zip(*(starts.FORKS.Pipe() for _ in range(8)))
    for pipe in theirs:
        starts.FORKS.Process(target=_make_all, args=(pipe, tmp_path), daemon=True).start()
        pipe.close()
    assert [pipe.recv() for pipe in ours] == ["ready"] * 8
    for pipe in ours:
        pipe.send("begin")
    assert [pipe.recv() for pipe in ours] == [""] * 8
    assert len([*tmp_path.iterdir()]) == 25


def test_jax_that_keeps_programs_otherwise_is_told(monkeypatch):
    monkeypatch.delattr("jax._src.compilation_cache.get_file_cache")
    with pytest.raises(
        ValueError, match=r"^--compilation_cache_dir: jax .* is not as expected; in"
    ):
        program_cache.replace_jax_cache()


def test_another_step_is_another_program(tmp_path, monkeypatch):
    """Also one of other shapes, of another kind, with other flags, and by other code."""
    calls = []

    def step(*_) -> ExportedProgram:
        calls.append("step")
        return ExportedProgram(b"ML", {})

    def update(*given) -> ExportedProgram:
        return step(*given)

    monkeypatch.setattr(
        jax_trainer.jax, "config", SimpleNamespace(jax_compilation_cache_dir=f"{tmp_path}/one")
    )
    wide = {"ids": tf.zeros([2, 4], tf.int32)}
    for step_identity, kind, batch in (
        ("flags", step, wide), ("flags", update, wide), ("others", step, wide),
        ("flags", step, {"ids": tf.zeros([4, 4], tf.int32)}),
        ("flags", step, {"ids": tf.zeros([2, 4])}),
    ):  # fmt: skip
        for _ in range(2):
            jax_trainer._exported(step_identity, kind, None, batch)
    assert len(calls) == 5 == len(list(tmp_path.glob("*.stablehlo")))
    monkeypatch.setattr(program, "_digest_of_code", lambda: "other code")
    jax_trainer._exported("flags", step, None, wide)
    assert len(calls) == 6
    for _ in range(2):  # nothing says what decides it
        jax_trainer._exported("", step, None, wide)
    assert len(calls) == 8


@pytest.mark.parametrize(
    "file", ["encoder.py", "norm_forward.mlir", "optimizers.py", "tf_trainer.py", "config.py"]
)
def test_a_program_of_other_code_is_not_used(monkeypatch, file):
    before, read = program._digest_of_code(), Path.read_bytes
    changed = lambda path: read(path) + b"#" * (path.name == file)  # noqa: E731
    monkeypatch.setattr(Path, "read_bytes", changed)
    assert program._digest_of_code.__wrapped__() != before
