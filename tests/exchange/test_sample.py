"""The published samples: small, whole, and what their page says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from exchange import chakra
from tests.conftest import REPOSITORY
from tracing import export

SAMPLE = REPOSITORY / "exchange" / "sample"
FILES = sorted(SAMPLE.glob("*.et.gz"))


def nodes_of(path: Path) -> list:
    return list(chakra.read(path)[1])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_sample_is_small_and_whole(path):
    assert path.stat().st_size < 100_000
    assert not list(chakra.violations(nodes_of(path)))


def test_the_page_names_every_sample_and_its_figures():
    page = (SAMPLE / "README.md").read_text()
    assert all(f"`{path.name}`" in page for path in FILES) and len(FILES) == 3
    storage = nodes_of(SAMPLE / "storage.et.gz")
    assert f"{sum(node.HasField('storage') for node in storage)} calls" in page
    metadata, nodes = chakra.read(SAMPLE / "step.et.gz")
    kernels = sum(node.type == chakra.value_of("NodeType", "COMP_NODE") for node in nodes)
    reduced = chakra.attributes_of(metadata)["gradient_bytes"]
    assert f"{kernels} kernels" in page and f"{reduced:,} bytes" in page


@pytest.mark.parametrize("name", ["storage", "combined"])
def test_they_are_what_the_published_trace_gives_today(name, tmp_path):
    page = (SAMPLE / "README.md").read_text()
    [words] = re.findall(rf"^\| `{name}.*`tracing.export (.*)` \|$", page, re.M)
    (tmp_path / "step.0.et").write_bytes((SAMPLE / "step.et.gz").read_bytes())
    words = words.replace("--step=step", f"--step={tmp_path}").split()
    export.main([str(REPOSITORY / words[0]), *words[1:], f"--output={tmp_path / 'made'}"])
    made = tmp_path / "made" / "trace.0.et" if name == "combined" else tmp_path / "made"
    assert nodes_of(made) == nodes_of(SAMPLE / f"{name}.et.gz")


def test_the_script_is_short_and_prints_every_sample(tmp_path):
    script = SAMPLE / "figures.py"
    assert len(script.read_text().splitlines()) < 25
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("violations: none") == len(FILES)
    assert "'COMM_COLL_NODE': 2, 'COMP_NODE': 531" in done.stdout
