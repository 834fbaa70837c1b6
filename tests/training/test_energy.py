"""What precision a device really computes in, and whose energy a run asks for."""

import dataclasses
import types

import numpy as np
import pytest
import tensorflow as tf

from mlperf_bert.mlperf import energy
from mlperf_bert.mlperf.logs import energy_of_pieces
from mlperf_bert.training.config import Cluster, DeviceConfig
from mlperf_bert.training.reporting import precision_of_products


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
