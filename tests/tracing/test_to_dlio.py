"""DLIO's workload from a trace of the example training."""

import importlib.util
import subprocess
import sys

import pytest
import yaml

from tests.tracing import example_training as example
from tracing import to_dlio

# What dlio_benchmark 2.0.0 reads (`LoadConfig`), of what is written here, and its type.
DOCUMENTED_KEYS = {
    "workflow": {"generate_data": bool, "train": bool, "evaluation": bool, "checkpoint": bool},
    "dataset": {
        "data_folder": str, "format": str, "num_files_train": int, "num_files_eval": int,
        "num_samples_per_file": int, "record_length": int, "record_length_stdev": int,
        "file_prefix": str,
    },
    "reader": {
        "data_loader": str, "batch_size": int, "batch_size_eval": int, "read_threads": int,
        "transfer_size": int, "file_shuffle": str,
    },
    "train": {
        "computation_time": float, "computation_time_stdev": float, "total_training_steps": int,
        "epochs": int,
    },
    "evaluation": {"eval_time": float},
    "checkpoint": {"checkpoint_folder": str, "steps_between_checkpoints": int, "model_size": int},
}  # fmt: skip


@pytest.fixture(scope="module")
def workload_file(with_calls_for_module, tmp_path_factory):
    path = tmp_path_factory.mktemp("dlio") / "bert.yaml"
    command = [sys.executable, "-m", "tracing.to_dlio", str(with_calls_for_module.folder)]
    done = subprocess.run([*command, f"--output={path}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return path


def test_measured_values(workload_file):
    found = yaml.safe_load(workload_file.read_text())
    samples = 2 * example.NUM_FILES * example.NUM_RECORDS
    assert found["dataset"] | {"data_folder": "", "file_prefix": ""} == {
        "data_folder": "",
        "format": "tfrecord",
        "num_files_train": example.NUM_FILES,
        "num_files_eval": 0,
        "num_samples_per_file": example.NUM_RECORDS,
        "record_length": example.RECORD_BYTES,
        "record_length_stdev": 0,
        "file_prefix": "",
    }
    assert found["reader"]["transfer_size"] == example.REQUEST_BYTES
    assert found["reader"]["batch_size"] == 448
    assert found["reader"]["read_threads"] == 2 * example.NUM_FILES
    assert found["train"]["total_training_steps"] == round(samples / 448)
    assert found["train"]["epochs"] == 2
    assert 0.2 < found["train"]["computation_time"] < 5  # a block of 1.2 s and more, 5 steps
    assert found["checkpoint"]["model_size"] == example.CHECKPOINT_BYTES + 700
    assert found["checkpoint"]["steps_between_checkpoints"] == 3


def test_keys_are_those_that_dlio_documents(workload_file):
    found = yaml.safe_load(workload_file.read_text())
    assert found.pop("model") == "bert"
    assert found.pop("framework") == "tensorflow"
    for section, values in found.items():
        for key, value in values.items():
            assert isinstance(value, DOCUMENTED_KEYS[section][key]), (section, key, value)


@pytest.mark.skipif(
    importlib.util.find_spec("dlio_benchmark") is None, reason="dlio_benchmark needs MPI and torch"
)
def test_dlio_loads_it(workload_file):
    from dlio_benchmark.utils.config import ConfigArguments, LoadConfig

    arguments = ConfigArguments.get_instance()
    LoadConfig(arguments, yaml.safe_load(workload_file.read_text()))
    assert arguments.num_files_train == example.NUM_FILES


def test_what_is_no_trace_is_refused(tmp_path):
    with pytest.raises(ValueError, match="is no finished trace"):
        to_dlio.workload(tmp_path)


def test_a_trace_without_calls_or_training_is_refused(traced, empty_trace):
    if traced.summary["backend"] == "proc":
        with pytest.raises(ValueError, match=r"no reads of TFRecords .* made with proc"):
            to_dlio.workload(traced.folder)
    with pytest.raises(ValueError, match="holds no training: no block_start"):
        to_dlio.workload(empty_trace.folder)
