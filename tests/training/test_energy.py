"""The energy of real runs, at a given power; and what precision a device really computes in."""

import dataclasses
import json
import re
import signal
import types

import numpy as np
import pytest
import tensorflow as tf

from mlperf_bert.mlperf import energy, logs
from mlperf_bert.mlperf.logs import energy_of_pieces
from mlperf_bert.training.config import Cluster, DeviceConfig
from mlperf_bert.training.reporting import precision_of_products
from tests.helpers import starts
from tests.training.small_runs import command, run_seconds, wait_for_step

TASK, WATTS = {"num_hidden_layers": 1}, 250


@pytest.mark.all
def test_a_run_takes_its_power_times_its_seconds(task, tmp_path):
    output = tmp_path / "out"
    flags = {"num_train_steps": 40, "power_watts": WATTS, "precision": "bfloat16"}
    done = starts.run(command(task, output, **flags), check=True)
    found = logs.read_run(output / "bert.log")
    least, most = run_seconds(output / "bert.log")
    assert WATTS * least <= found.energy.joules <= WATTS * most
    # Two clocks, read one after the other; between them a busy machine may do something else.
    assert found.energy.joules == pytest.approx(WATTS * sum(found.seconds.values()), abs=25)
    assert found.energy.parts == {"system": found.energy.joules}
    said = re.search(r"^energy: ([\d,]+\.\d) J = .* kWh of the system; .*$", done.stdout, re.M)
    assert float(said[1].replace(",", "")) == pytest.approx(found.energy.joules, abs=0.05)
    assert said[0].endswith("; at the given 250 W")
    lines = done.stdout.splitlines()
    assert lines.index(said[0]) == 1 + next(
        number for number, line in enumerate(lines) if line.startswith("where the time went: ")
    )
    assert "since the run was first started" not in done.stdout
    record = json.loads((output / "run.json").read_text())["energy"]
    assert record["joules"] == pytest.approx(found.energy.joules)
    assert record["notes"] == ["at the given 250 W"]
    logged = found.hyperparameters
    assert logged["lowest_numerical_precision_in_linear"] == "bfloat16"
    assert logged["lowest_numerical_precision_in_attn"] == "bfloat16"
    assert logged["lowest_numerical_precision_in_comm"] == "fp32"
    assert logged["micro_batch_size"] == 8
    log = (output / "bert.log").read_text()
    assert '"config_filename", "value": "run.json"' in log


@pytest.mark.all
def test_the_parts_of_a_resumed_run_add_up(task, tmp_path):
    output = tmp_path / "out"
    process = starts.Start(command(task, output, power_watts=WATTS), errors_in_output=True)
    wait_for_step(process, output, 90)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=300)
    assert "energy" not in json.loads((output / "run.json").read_text())
    done = starts.run(command(task, output, power_watts=2 * WATTS), check=True)  # as it may
    first, second = output / "bert.log", output / "bert.resumed-1.log"
    parts = zip(run_seconds(first), run_seconds(second))
    least, most = (WATTS * one + 2 * WATTS * other for one, other in parts)
    said = re.search(r"^energy since the run was first started: ([\d,.]+) J", done.stdout, re.M)
    assert least <= float(said[1].replace(",", "")) <= most
    record = json.loads((output / "run.json").read_text())["energy"]
    assert least <= record["joules"] <= most
    assert record["notes"] == ["at the given 250 W", "at the given 500 W"]


def test_a_damaged_log_of_an_earlier_part_costs_the_sum_and_not_the_run(tmp_path):
    log = tmp_path / "bert.log"
    log.write_text(":::MLLOG {cut\n")
    found = energy_of_pieces([log])
    assert found.joules is None and "bert.log line 1: cut or damaged" in found.unknown


@pytest.mark.parametrize(
    "precision, device, capability, expected",
    [
        ("float32", {"num_gpus": 1}, (9, 0), "fp32"),
        ("float32", {"use_tpu": True}, None, "fp32"),
        ("bfloat16", {}, None, "bfloat16"),
        ("tf32", {"num_gpus": 1}, (9, 0), "tf32"),
        ("tf32", {"num_gpus": 1}, None, "tf32"),
        ("tf32", {"num_gpus": 1}, (7, 0), "fp32"),
        ("tf32", {}, (9, 0), "fp32"),
        ("tf32", {"use_tpu": True}, None, "bfloat16"),
    ],
)
def test_the_precision_that_a_device_computes_in(
    monkeypatch, precision, device, capability, expected
):
    details = {"compute_capability": capability} if capability else {}
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [object()])
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu: details)
    assert precision_of_products(precision, DeviceConfig(**device)) == expected


@pytest.mark.parametrize(
    "capability, expected",
    [("9.0", "tf32"), ("8.0", "tf32"), ("10.0", "tf32"), ("7.0", "fp32"), ("gfx942", "fp32")],
)
def test_the_precision_that_a_gpu_of_jax_computes_in(capability, expected):
    gpu = types.SimpleNamespace(compute_capability=capability)
    mesh = types.SimpleNamespace(devices=np.array([gpu]))
    assert precision_of_products("tf32", DeviceConfig(num_gpus=1), mesh) == expected


def test_gpus_of_all_processes_on_the_chiefs_host_are_used(config, monkeypatch):
    given = []
    monkeypatch.setattr(energy, "meter", lambda **of: given.append(of))
    own = dataclasses.replace(config, device=DeviceConfig(num_gpus=2), cuda_visible_devices="6,7")
    for addresses in (("a:1",), ("a:1", "a:2", "b:1")):
        dataclasses.replace(own, cluster=Cluster(addresses, 0)).energy_meter()
    own.energy_meter()
    assert [(of["num_gpus"], of["num_hosts"]) for of in given] == [(2, 1), (4, 2), (2, 1)]
    # Which GPUs another process sees is not known here.
    assert [of["visible"] for of in given] == ["6,7", None, "6,7"]
