"""The published sample: small, of no particular machine, and its figures follow from its tables."""

import json
import re
import runpy
import shutil
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


def test_the_scripts_figures_are_the_summarys(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["main_figures.py"])
    figures = runpy.run_path(str(SAMPLE / "main_figures.py"))
    summary = json.loads((SAMPLE / "summary.json").read_text())
    for (name, kind), found in figures["classes"].iterrows():
        told = summary["file_classes"][name]
        past = "read" if kind == "read" else "written"
        assert (found["calls"], found["bytes"]) == (told[f"num_{kind}s"], told[f"{past}_bytes"])
        latency = told[f"{kind}_latency_us"]
        medians = told[f"{kind}_size_bytes"]["p50"], pytest.approx(latency["p50"], abs=1e-3)
        assert (found["median_bytes"], found["median_us"]) == medians
        assert found["p99_us"] == pytest.approx(latency["p99"], abs=1e-3)
    for found, told in zip(figures["phases"].to_dict("records"), summary["phases"], strict=True):
        assert found["name"] == told["name"]
        assert found["seconds"] == pytest.approx(told["seconds"], abs=1e-3)
        assert found["tfrecords_read_bytes"] == told["read_bytes"].get("tfrecords", 0)
        saved = told["written_bytes"].get("checkpoints", 0)
        assert found["checkpoints_write_bytes"] == saved
    # The summary's has that of two children too that were waited for between two samples.
    assert figures["cpu_seconds"] == pytest.approx(summary["usage"]["cpu_seconds"], abs=0.2)
    assert figures["peak_bytes"] == summary["usage"]["peak_resident_bytes"]
    printed = capsys.readouterr().out
    assert re.search(" name +seconds +tfrecords_read_bytes +checkpoints_write_bytes\n", printed)
    used = f"{figures['cpu_seconds']:.2f} s, peak memory {figures['peak_bytes']:,} bytes\n"
    assert printed.endswith(f"processor time of what was sampled {used}")


def test_calls_that_failed_are_not_in_the_scripts_figures(tmp_path, monkeypatch):
    """Of the trace whose folder is named."""
    for table in ("files", "spans", "processes"):
        shutil.copy(SAMPLE / f"{table}.parquet", tmp_path)
    calls = tables.read_table(SAMPLE, "file_ops")
    reads = calls[calls["kind"] == "read"][:3].assign(error=[None, "EIO", None])
    reads.to_parquet(tmp_path / "file_ops.parquet")
    monkeypatch.setattr(sys, "argv", ["main_figures.py", str(tmp_path)])
    figures = runpy.run_path(str(SAMPLE / "main_figures.py"))
    assert figures["classes"]["calls"].sum() == 2
