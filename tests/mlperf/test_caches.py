"""Dropping the file caches is done or explained."""

import os

from mlperf_bert.mlperf import caches


def test_done(tmp_path, monkeypatch):
    """Dirty pages are written before, as none of them can be dropped."""
    control, before = tmp_path / "drop_caches", []
    control.touch()
    monkeypatch.setattr(caches.os, "sync", lambda: before.append(control.read_text()))
    assert caches.obstacle(control) is None
    assert caches.drop(control) is None
    assert (before, control.read_text()) == ([""], "3\n")


def test_in_a_container_the_hosts_control_is_where_the_launcher_mounts_it(tmp_path, monkeypatch):
    host, mounted = tmp_path / "host", tmp_path / "mounted"
    monkeypatch.setattr(caches, "DROP_CACHES", host)
    monkeypatch.setattr(caches, "_IN_CONTAINER", mounted)
    for control in (host, mounted):
        control.touch()
        assert caches.obstacle() is caches.drop() is None and control.read_text() == "3\n"
        control.write_text("")
    assert host.read_text() == ""


def test_explained(tmp_path):
    assert "this is no Linux host" in caches.drop(tmp_path / "nothing")
    assert "Is a directory" in caches.drop(tmp_path)


def test_not_writable(tmp_path, monkeypatch):
    monkeypatch.setattr(caches.os, "access", lambda path, mode: mode != os.W_OK)
    assert "is not writable: run as root on the host" in caches.obstacle(tmp_path)
