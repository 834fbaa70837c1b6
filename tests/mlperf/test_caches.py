"""Dropping the file caches is done or explained."""

from mlperf_bert.mlperf import caches


def test_done(tmp_path):
    control = tmp_path / "drop_caches"
    control.touch()
    assert caches.obstacle(control) is None
    assert caches.drop(control) is None
    assert control.read_text() == "3\n"


def test_explained(tmp_path):
    assert "this is no Linux host" in caches.drop(tmp_path / "nothing")
    assert "Is a directory" in caches.drop(tmp_path)


def test_not_writable(tmp_path, monkeypatch):
    monkeypatch.setattr(caches.os, "access", lambda path, mode: False)
    assert "is not writable: run as root on the host" in caches.obstacle(tmp_path)
