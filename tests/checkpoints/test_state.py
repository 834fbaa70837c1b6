"""Which checkpoint a run goes on from, whatever the directory is called. CPU, seconds."""

import errno
import pathlib
import shutil

import pytest
import tensorflow as tf

from mlperf_bert.checkpoints.state import (
    RunState,
    complete_checkpoints,
    newest_checkpoint,
    saved_checkpoints,
)


@pytest.fixture
def value():
    return tf.Variable(0.0)


def state_in(directory: str, value: tf.Variable, **options) -> RunState:
    return RunState(directory, parts={"value": value}, **{"keep_checkpoint_max": 2} | options)


def save(state: RunState, value: tf.Variable, *steps: int) -> None:
    for step in steps:
        value.assign(float(step))
        state.save(step)


@pytest.mark.parametrize("name", ["out", "./deep/out/", "ABSOLUTE"])
def test_the_newest_is_restored_also_after_a_move(tmp_path, monkeypatch, value, name):
    monkeypatch.chdir(tmp_path)
    directory = str(tmp_path / "absolute") if name == "ABSOLUTE" else name
    save(state_in(directory, value), value, 5, 10, 20)
    assert list(complete_checkpoints(directory)) == [10, 20]
    for place in (directory, str(tmp_path / "moved")):
        if place != directory:
            shutil.move(directory, place)
        value.assign(0.0)
        state = state_in(place, value)
        step, path = newest_checkpoint(place)
        assert step == 20 and path == tf.train.latest_checkpoint(place)
        state.restore(path)
        assert float(value) == 20.0


def test_one_that_was_cut_short_does_not_count(tmp_path, value):
    save(state_in(str(tmp_path), value), value, 10)
    for path in tmp_path.glob("model.ckpt-10.*"):  # killed before the file `checkpoint` was written
        (tmp_path / path.name.replace("-10", "-20")).write_bytes(path.read_bytes()[:20])
    assert list(saved_checkpoints(str(tmp_path))) == [10, 20]
    assert newest_checkpoint(str(tmp_path)) == (10, f"{tmp_path}/model.ckpt-10")


def test_without_the_files_of_the_newest_the_one_before_is_taken(tmp_path, value, capsys):
    save(state_in(str(tmp_path), value), value, 10, 20)
    for path in tmp_path.glob("model.ckpt-20.*"):
        path.unlink()
    state = state_in(str(tmp_path), value)
    step, path = newest_checkpoint(str(tmp_path))
    assert step == 10
    state.restore(path)
    assert float(value) == 10.0
    assert capsys.readouterr().out == f"Resuming from {tmp_path}/model.ckpt-10\n"


@pytest.mark.parametrize("copies", [True, False])
def test_what_a_killed_process_has_left_is_removed_and_the_state_fetched(tmp_path, value, copies):
    half = tmp_path / "model.ckpt-10_temp"
    half.mkdir()
    (half / "part.data-00000-of-00001.tempstate123").write_bytes(b"half")
    state = state_in(str(tmp_path), value, fetch=lambda: value.assign(3.0))
    state.save(10, state.copy() if copies else None)
    assert not half.exists() and newest_checkpoint(str(tmp_path))[0] == 10
    value.assign(0.0)
    state.restore(f"{tmp_path}/model.ckpt-10")
    assert float(value) == 3.0


def lines_of(*files: pathlib.Path):
    """An iterator over the lines of files, which are read as in a training."""
    names = tf.data.Dataset.from_tensor_slices([str(file) for file in files])
    return iter(names.interleave(tf.data.TextLineDataset, cycle_length=1))


def test_the_input_goes_on_where_it_was_unless_its_files_were_moved(tmp_path, value):
    file, other, directory = tmp_path / "file", tmp_path / "other", str(tmp_path / "out")
    file.write_text("a\nb\n")
    state, given = state_in(directory, value), lines_of(file)
    assert state.restore_input(given) and next(given) == b"a"  # there is nothing to restore
    state.attach_input(given)
    path = state.save(1)
    state, given = state_in(directory, value), lines_of(file)
    state.restore(path)
    assert state.restore_input(given) and next(given) == b"b"
    file.rename(other)
    assert not state.restore_input(lines_of(other))
    data = pathlib.Path(f"{path}.data-00000-of-00001")
    data.unlink()
    with pytest.raises(ValueError, match=r"-1: cannot be restored .* resume from the one before"):
        state.restore_input(lines_of(other))


def test_a_copy_does_not_change(tmp_path, value):
    state = state_in(str(tmp_path), value)
    value.assign(1.0)
    copied = state.copy()
    value.assign_add(1.0)
    state.restore(state.save(10, copied))
    assert float(value) == 1.0


def test_old_ones_go_once_the_new_one_is_listed(tmp_path, value, monkeypatch):
    """Whenever the process is killed, what is listed is there, and what has an index is whole."""
    directory, remove, listed = str(tmp_path), tf.io.gfile.remove, {}

    def stand_in(path):
        state = tf.train.get_checkpoint_state(directory)
        listed[path] = [pathlib.Path(path).name for path in state.all_model_checkpoint_paths]
        remove(path)

    state = state_in(directory, value, keep_checkpoint_max=1)
    save(state, value, 10)
    monkeypatch.setattr(tf.io.gfile, "remove", stand_in)
    glob = tf.io.gfile.glob  # in no order
    monkeypatch.setattr(tf.io.gfile, "glob", lambda pattern: sorted(glob(pattern)))
    save(state, value, 20)
    old = {path: names for path, names in listed.items() if "/model.ckpt-10." in path}
    index, _ = old
    assert index.endswith(".index") and all(names == ["model.ckpt-20"] for names in old.values())


@pytest.mark.parametrize("limit, kept", [(0, [0, 10, 20, 30]), (1, [20, 30])])
def test_without_a_limit_all_stay_and_with_one_what_is_not_disposable(tmp_path, value, limit, kept):
    options = {"keep_checkpoint_max": limit, "disposable": lambda steps: {0, 10} & {*steps}}
    save(state_in(str(tmp_path), value, **options), value, 0, 10, 20, 30)
    assert list(complete_checkpoints(str(tmp_path))) == kept


@pytest.mark.parametrize(
    ("module", "name"),
    [(tf.compat.v1.train, "update_checkpoint_state"), (tf.raw_ops, "MergeV2Checkpoints")],
)
def test_of_one_that_cannot_be_written_or_listed_nothing_is_left(
    tmp_path, value, monkeypatch, module, name
):
    state = state_in(str(tmp_path), value)
    save(state, value, 10)
    before = sorted(tmp_path.iterdir())

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, name, full)
    with pytest.raises(OSError, match=r"No space left on device.*model.ckpt-20"):
        save(state, value, 20)
    assert sorted(tmp_path.iterdir()) == before


LISTS = {
    "lost": None,
    "empty": b"",
    "no text": b"\xff\xfe\x00",
    "no list": b"all of them {{{",
    "of another directory": b'model_checkpoint_path: "other"\nall_model_checkpoint_paths: "a-7"\n',
}


@pytest.mark.parametrize("case", LISTS)
def test_without_a_list_the_files_that_are_whole_count(tmp_path, value, case):
    save(state_in(str(tmp_path), value), value, 10, 20)
    if LISTS[case] is None:
        (tmp_path / "checkpoint").unlink()
    else:
        (tmp_path / "checkpoint").write_bytes(LISTS[case])
    assert newest_checkpoint(str(tmp_path))[0] == 20
    data = tmp_path / "model.ckpt-20.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:3])
    assert newest_checkpoint(str(tmp_path))[0] == 10
    (tmp_path / "model.ckpt-10.index").write_bytes(b"no index")
    with pytest.raises(ValueError, match=r"none of its 2 checkpoints can be read, such as .*-20;"):
        newest_checkpoint(str(tmp_path))
    for path in tmp_path.glob("model.ckpt-20*"):  # a first checkpoint that was cut short
        path.unlink()
    assert newest_checkpoint(str(tmp_path)) == (None, "")


def test_a_listed_one_that_is_damaged_is_named_with_the_way_out(tmp_path, value):
    state = state_in(str(tmp_path), value)
    save(state, value, 10, 20)
    data = tmp_path / "model.ckpt-20.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:-3])
    step, path = newest_checkpoint(str(tmp_path))
    assert step == 20
    with pytest.raises(ValueError, match=r"-20: cannot be restored .* resume from the one before"):
        state.restore(path)


def test_a_state_that_lacks_a_part_is_refused(tmp_path, value):
    path = state_in(str(tmp_path), value).save(30)
    parts = {"value": value, "optimizer": tf.Variable(1.0)}
    with pytest.raises(ValueError, match=r"-30: cannot be restored \(.*; remove its files"):
        RunState(str(tmp_path), parts=parts, keep_checkpoint_max=2).restore(path)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_state_with_a_number_that_is_not_finite_is_refused(tmp_path, number):
    path = state_in(str(tmp_path), tf.Variable([0.0, number])).save(30)
    with pytest.raises(ValueError, match=r"-30: cannot be restored \(.* holds NaN or infinity\);"):
        state_in(str(tmp_path), tf.Variable([0.0, 0.0])).restore(path)
