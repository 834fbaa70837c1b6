"""The published sample: small, of no particular machine, and its figures follow from its tables."""

import json
import re
import runpy
import sys

import pytest

from tests.fixtures import REPOSITORY
from tracing import tables

SAMPLE = REPOSITORY / "tracing" / "sample"
FOLDERS = r"/(dev|etc|lib|proc|srv|sys|tmp|usr)(/|$)|(anon_inode|pipe|socket|TCPv6|UNIX-STREAM):"


def test_it_is_small_and_its_paths_are_of_no_particular_machine():
    assert sum(path.stat().st_size for path in SAMPLE.iterdir()) < 3e6
    for table in ("file_ops", "files", "open_files"):
        paths = tables.read_table(SAMPLE, table, ["path"])["path"].unique()
        assert all(re.match(FOLDERS, path) for path in paths)


def test_the_scripts_figures_are_the_summarys(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["main_figures.py"])
    figures = runpy.run_path(str(SAMPLE / "main_figures.py"))
    summary = json.loads((SAMPLE / "summary.json").read_text())
    for (name, kind), found in figures["classes"].iterrows():
        told = summary["file_classes"][name]
        past = "read" if kind == "read" else "written"
        assert (found["calls"], found["bytes"]) == (told[f"num_{kind}s"], told[f"{past}_bytes"])
        latency = told[f"{kind}_latency_us"]
        assert found["p99_us"] == pytest.approx(latency["p99"], abs=1e-3)
    for found, told in zip(figures["phases"].to_dict("records"), summary["phases"], strict=True):
        assert found["name"] == told["name"]
        assert found["seconds"] == pytest.approx(told["seconds"], abs=1e-3)
        assert found["tfrecords_read_bytes"] == told["read_bytes"].get("tfrecords", 0)
    # The summary's has that of two children too that were waited for between two samples.
    assert figures["cpu_seconds"] == pytest.approx(summary["usage"]["cpu_seconds"], abs=0.2)
    assert figures["peak_bytes"] == summary["usage"]["peak_resident_bytes"]
