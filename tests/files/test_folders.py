"""Whole folders: there with all that is in them, or not at all."""

import pytest

from mlperf_bert.files import folders
from mlperf_bert.files.whole import partial


def test_a_folder_appears_with_all_that_is_in_it(tmp_path):
    with folders.written_beside(tmp_path / "new") as folder:
        (folder / "a").write_text("1")
        assert not (tmp_path / "new").exists()
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == [
        "new", "new/a"
    ]  # fmt: skip


def test_a_failure_leaves_nothing(tmp_path):
    with pytest.raises(KeyError), folders.written_beside(tmp_path / "new") as folder:
        (folder / "a").write_text("1")
        raise KeyError
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_has_left_is_not_part_of_it(tmp_path):
    left = partial(tmp_path / "new")
    left.mkdir()
    (left / "old").write_text("half")
    with folders.written_beside(tmp_path / "new") as folder:
        (folder / "a").write_text("1")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a"] and not left.exists()
