"""Dropping the file caches is done or explained."""

from mlperf_bert.mlperf import caches


def test_done_once_what_is_dirty_is_written(tmp_path, monkeypatch):
    control = tmp_path / "drop_caches"
    control.touch()
    written = []
    monkeypatch.setattr(caches.os, "sync", lambda: written.append(control.read_text()))
    assert caches.drop(control) is None
    assert (written, control.read_text()) == ([""], "3\n")


def test_explained(tmp_path, monkeypatch):
    monkeypatch.setattr(caches.os, "sync", lambda: None)
    assert "this is no Linux host" in caches.drop(tmp_path / "nothing")
    assert "Is a directory" in caches.drop(tmp_path)
    monkeypatch.setattr(caches.os, "access", lambda path, mode: False)
    assert "is not writable: run as root on the host" in caches.drop(tmp_path)
