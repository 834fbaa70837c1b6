"""DLIO's workload of the whole trace, loaded by DLIO's own code; test_whole has its values.

dlio_benchmark 2.0.0 and what it needs come from PyPI.
"""

import json
import os
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

from tests.fixtures import lacking
from tests.helpers import programs
from tracing import export
from tracing.exports import dlio


@pytest.fixture(scope="module")
def workload_file(whole_trace, tmp_path_factory):
    path = tmp_path_factory.mktemp("dlio") / "bert.yaml"
    export.main([str(whole_trace), "--to=dlio", f"--output={path}"])
    return path


@pytest.mark.parametrize(
    ("num_steps", "samples", "of_epoch", "epochs"),
    [
        (5, 1000, 5, 1),
        (5, 49, 3, 2),  # half of the steps, rounded up: the data would give 4
        (9, 39, 3, 3),
        (5, 25, 2, 2),  # the data of an epoch give no more
        (2, 5, 1, 4),
    ],
)
def test_steps_of_an_epoch_are_rounded_up_as_far_as_the_data_go(
    num_steps, samples, of_epoch, epochs
):
    found = dlio.epochs(num_steps, 10, samples)
    assert found == {"total_training_steps": of_epoch, "epochs": epochs}


def test_a_single_checkpoint_is_saved_as_often_as_it_comes_and_several_by_their_middle():
    saved = [{"step": step, "written_bytes": size} for step, size in ((3, 70), (5, 20), (11, 30))]
    for num, steps, size in ((1, 3, 70), (2, 2, 45), (3, 4, 40)):
        found = dlio._checkpoint(saved[:num])
        assert (found["steps_between_checkpoints"], found["model_size"]) == (steps, size)


# hydra composes the workload with DLIO's own configuration, and DLIO loads it, as its main does.
# The rank is given as to a reader's process, so that no MPI is started. 2.0.0 looks for the tracer
# where the pydftracer of its day had it.
LOADER = """
import json, shutil, sys
import dftracer.python
sys.modules["dftracer.logger"] = dftracer.python
from hydra import compose, initialize_config_dir
from dlio_benchmark.utils.utility import DLIOMPI
DLIOMPI.get_instance().set_parent_values(0, 1)
from dlio_benchmark.utils.config import ConfigArguments, LoadConfig
source, workload, configs = sys.argv[1:]
shutil.copytree(f"{source}/dlio_benchmark/configs", configs)
shutil.copy(workload, f"{configs}/workload/traced.yaml")
with initialize_config_dir(config_dir=configs, version_base=None):
    whole = compose("config", overrides=["workload=traced"], return_hydra_config=True)
arguments = ConfigArguments.get_instance()
LoadConfig(arguments, whole["workload"])
names = "batch_size computation_time epochs model_size num_files_train num_samples_per_file"
names += " read_threads record_length record_length_stdev steps_between_checkpoints transfer_size"
found = {name: getattr(arguments, name) for name in names.split()}
found |= {"run_dir": whole.hydra.run.dir, "model": str(arguments.model)}
print(json.dumps(found))
"""
PACKAGES = ["antlr4-python3-runtime==4.9.3", "dlio_benchmark==2.0.0", "hydra-core==1.3.2",
            "mpi4py>=4.1", "omegaconf==2.3.0", "pydftracer==2.0.6"]  # fmt: skip


@pytest.fixture(scope="module")
def packages(tmp_path_factory) -> Path:
    """DLIO 2.0.0 and what it imports to load a workload, without TensorFlow's and torch's world."""
    folder = tmp_path_factory.mktemp("packages")
    words = ["install", "--quiet", "--no-deps", "--no-compile", f"--target={folder}", *PACKAGES]
    done = programs.run(sys.executable, "-m", "pip", *words)
    if done.returncode:
        lacking(f"dlio_benchmark cannot be had from PyPI: {done.stderr.strip()[-300:]}")
    return folder


@pytest.mark.all
def test_dlio_from_pypi_loads_it(packages, workload_file, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    words = [sys.executable, "-c", LOADER, packages, workload_file, tmp_path / "configs"]
    done = programs.run(*words, cwd=tmp_path, env=environment, check=True)
    loaded = json.loads(done.stdout.splitlines()[-1])
    given = yaml.safe_load(workload_file.read_text())
    for part in ("dataset", "reader", "train", "checkpoint"):
        known = {name: given[part][name] for name in loaded.keys() & given[part].keys()}
        assert known and known.items() <= loaded.items()
    assert loaded["run_dir"].startswith("./hydra_log/{'name': 'bert',")  # as docs/export.md says


def test_a_log_without_what_dlio_needs_is_refused(copied):
    calls = pd.read_parquet(copied / "file_ops.parquet")
    calls[calls["kind"] != "read"].to_parquet(copied / "file_ops.parquet")
    line = programs.refusal(export.main, copied, "--to=dlio")
    assert "holds no reads of TFRecords during training" in line
    (copied / "spans.parquet").unlink()
    line = programs.refusal(export.main, copied, "--to=dlio")
    assert line.endswith("holds no training: no block_start of an MLPerf log")
