"""The published sample: small, of no particular machine, and its figures follow from its tables."""

import json
import re
import runpy
import sys

import pytest

from tests.fixtures import REPOSITORY
from tracing import tables

SAMPLE = REPOSITORY / "tracing" / "sample"
FOLDERS = r"/(dev|etc|lib|proc|srv|sys|tmp|usr)(/|$)|(anon_inode|pipe|socket):"


@pytest.fixture(scope="module")
def summary() -> dict:
    return json.loads((SAMPLE / "summary.json").read_text())


@pytest.fixture(scope="module")
def figures() -> dict:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["main_figures.py"])
        return runpy.run_path(str(SAMPLE / "main_figures.py"))


def test_it_is_small_and_its_paths_are_of_no_particular_machine(summary):
    assert sum(path.stat().st_size for path in SAMPLE.iterdir()) < 3e6
    assert len((SAMPLE / "main_figures.py").read_text().splitlines()) < 40
    assert summary["folder"] == "/srv/bert"
    assert summary["machine"]["kernel"].replace(".", "").isdigit()
    for table in ("file_ops", "files", "open_files"):
        paths = tables.read_table(SAMPLE, table, ["path"])["path"].unique()
        assert all(re.match(FOLDERS, path) for path in paths)


def test_the_scripts_classes_of_files_are_the_summarys(figures, summary):
    for (name, kind), found in figures["classes"].iterrows():
        told = summary["file_classes"][name]
        past = "read" if kind == "read" else "written"
        assert (found["calls"], found["bytes"]) == (told[f"num_{kind}s"], told[f"{past}_bytes"])
        assert found["median_bytes"] == told[f"{kind}_size_bytes"]["p50"]
        latency = told[f"{kind}_latency_us"]
        assert found["median_us"] == pytest.approx(latency["p50"], abs=1e-3)
        assert found["p99_us"] == pytest.approx(latency["p99"], abs=1e-3)
    told = {(n, k) for n, f in summary["file_classes"].items() for k in ("read", "write")
            if f[f"num_{k}s"]}  # fmt: skip
    assert set(figures["classes"].index) == told


def test_the_scripts_phases_and_usage_are_the_summarys(figures, summary):
    phases = figures["phases"].to_dict("records")
    assert [p["name"] for p in phases] == [p["name"] for p in summary["phases"]]
    for found, told in zip(phases, summary["phases"]):
        assert found["seconds"] == pytest.approx(told["seconds"], abs=1e-3)
        assert found["tfrecords_read_bytes"] == told["read_bytes"].get("tfrecords", 0)
        assert found["checkpoints_write_bytes"] == told["written_bytes"].get("checkpoints", 0)
    assert figures["cpu_seconds"] == summary["usage"]["cpu_seconds"]
    assert figures["peak_bytes"] == summary["usage"]["peak_resident_bytes"]
