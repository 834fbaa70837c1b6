"""Commit and versions of a process, as records name them."""

import platform
from importlib import metadata

import pytest

from mlperf_bert.data import software


def test_what_a_process_is_made_with_is_asked_once(monkeypatch):
    """Git takes up to a second."""
    for name in ("COMMIT", "IMAGE"):
        monkeypatch.delenv(f"MLPERF_BERT_{name}", raising=False)
    known = software.made_with()
    monkeypatch.setattr(software, "printed_by", pytest.fail)
    monkeypatch.setattr(software.metadata, "version", pytest.fail)
    assert software.made_with() == known
    assert (known["image"], known["python"]) == ("", platform.python_version())
    monkeypatch.setenv("MLPERF_BERT_COMMIT", "an image's")
    monkeypatch.setenv("MLPERF_BERT_IMAGE", "of:1")
    assert software.made_with() == known | {"commit": "an image's", "image": "of:1"}


def test_changes_that_are_not_committed_are_told(monkeypatch):
    monkeypatch.setattr(software, "printed_by", lambda *words: " ".join(words[3:]))
    told = software._commit_of_checkout.__wrapped__()
    assert told == "describe --always --abbrev=40 --dirty"


def test_tensorflow_for_cpus_is_known_and_what_is_missing_is_unknown(monkeypatch):
    installed = {"numpy": "1.26.4", "tensorflow-cpu": "2.21.0"}

    def version(package):
        if package not in installed:
            raise metadata.PackageNotFoundError(package)
        return installed[package]

    monkeypatch.setattr(software.metadata, "version", version)
    monkeypatch.setattr(software, "_version", software._version.__wrapped__)
    found = software.made_with()
    names = ("numpy", "tensorflow", "numba")
    assert [found[name] for name in names] == ["1.26.4", "2.21.0", "unknown"]
