"""The system description of a submission, filled from the machine.

Source: submission rules, "System Description JSON"; mlperf_logging.system_desc_checker.
"""

import os
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path

import psutil

from mlperf_bert.data import software
from mlperf_bert.files import json_text
from mlperf_bert.mlperf.log_reader import RECORD_NAME, read_own_record
from mlperf_bert.submission.plan import Campaign, description_path

FIELDS = tuple(
    """
    submitter division status system_name number_of_nodes host_processors_per_node
    host_processor_model_name host_processor_core_count host_processor_vcpu_count
    host_processor_frequency host_processor_caches host_processor_interconnect host_memory_capacity
    host_storage_type host_storage_capacity host_networking host_networking_topology
    host_memory_configuration accelerators_per_node accelerator_model_name
    accelerator_host_interconnect accelerator_frequency accelerator_on-chip_memories
    accelerator_memory_configuration accelerator_memory_capacity accelerator_interconnect
    accelerator_interconnect_topology cooling hw_notes framework other_software_stack
    operating_system sw_notes
    """.split()
)
"""All that the official checker requires; a value may be empty."""

STATUS_SINCE_4_0 = {
    "onprem": "Available on-premise",
    "cloud": "Available cloud",
    "research": "Research, Development, or Internal (RDI)",
    "preview": "Preview",
}

_GIB = 2**30


def describe(
    campaign: Campaign,
    run_dir: Path,
    *,
    division: str,
    ruleset: str,
    overrides: Mapping[str, object],
) -> dict[str, object]:
    """Returns the description of this machine with all required fields.

    Args:
      campaign: has the names; its folder lies on the storage that is described.
      run_dir: of a run, which may have recorded its nodes, GPUs and software; without a record,
        this machine's and this process's count.
      division: as in the logs.
      ruleset: for instance "5.0.0"; from 4.0.0 on the status is respelt.
      overrides: fields from the submitter, as `require_fields`: cooling, notes, other nodes.
    """
    num_nodes, num_gpus = recorded_devices(run_dir)
    status = campaign.status
    return {
        **dict.fromkeys(FIELDS, ""),
        "submitter": campaign.org,
        "division": division,
        "status": STATUS_SINCE_4_0[status] if int(ruleset[0]) >= 4 else status,
        "system_name": campaign.system,
        "number_of_nodes": str(num_nodes or 1),  # each node has one process of the run
        "host_memory_capacity": f"{psutil.virtual_memory().total / _GIB:.0f} GiB",
        "host_storage_capacity": f"{shutil.disk_usage(campaign.folder).total / _GIB:.0f} GiB",
        **_processors(),
        **accelerators(num_gpus),
        **_software(run_dir),
        **overrides,  # last: the submitter knows better than this host
    }


def require_fields(overrides: Mapping[str, object]) -> None:
    """Refuses names that are not fields of a description."""
    if unknown := sorted(set(overrides) - set(FIELDS)):
        unknown = [name[:80] if name.isprintable() else f"{name!r:.80}" for name in unknown]
        raise ValueError(
            f"system description: no such field {', '.join(unknown)}; "
            f"fields are {', '.join(FIELDS)}"
        )


def read_description(folder: Path) -> dict[str, object]:
    """Returns how ORG_DIR/systems describes the system of ORG_DIR/results/SYSTEM, if it does."""
    path = description_path(folder.parent.parent, folder.name)
    return json_text.read_object(path) if path.exists() else {}


def _processors() -> dict[str, str]:
    """What lscpu says; psutil does not know model, caches and sockets."""
    # lscpu is asked in English: other languages have other names.
    lines = software.printed_by("env", "LC_ALL=C", "lscpu").splitlines()
    said = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    says = {name: value for name, value in said.items() if value not in ("", "-")}  # "-": unknown
    caches = [f"{level} {says[level]}" for level in ("L2 cache", "L3 cache") if level in says]
    megahertz = says.get("CPU max MHz")
    return {
        "host_processors_per_node": says.get("Socket(s)", "1"),
        "host_processor_model_name": says.get("Model name", platform.machine()),
        # The field asks for the cores of one socket; virtual cores are those of all.
        "host_processor_core_count": says.get("Core(s) per socket", str(os.cpu_count())),
        "host_processor_vcpu_count": str(os.cpu_count()),
        "host_processor_frequency": f"{float(megahertz):.0f} MHz" if megahertz else "",
        "host_processor_caches": ", ".join(caches),
    }


def accelerators(num_gpus: int | None) -> dict[str, str]:
    """Returns what nvidia-smi says; other accelerators are left to the overrides."""
    if num_gpus == 0:  # a run on processors; the host may have GPUs
        return {"accelerators_per_node": "0"}
    query = "name,memory.total,clocks.max.sm"
    rows = software.printed_by(
        "nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"
    ).splitlines()
    if not rows:  # no driver of NVIDIA's
        return {"accelerators_per_node": str(num_gpus or 0)}
    name, memory, clock = (cell.strip() for cell in rows[0].split(","))
    return {
        "accelerators_per_node": str(num_gpus or len(rows)),
        "accelerator_model_name": name,
        "accelerator_memory_capacity": memory,
        "accelerator_frequency": clock,
    }


def _software(run_dir: Path) -> dict[str, str]:
    """The software that the run has recorded, because this process may have another."""
    recorded = read_own_record(run_dir / RECORD_NAME).get("made_with")
    made_with = recorded if isinstance(recorded, dict) and recorded else software.made_with()
    others = ("numpy", "numba", "jax", "image")
    stack = [f"{name} {made_with[name]}" for name in others if made_with.get(name)]
    release = platform.freedesktop_os_release() if Path("/etc/os-release").exists() else {}
    return {
        "framework": f"TensorFlow {made_with.get('tensorflow')}",
        "other_software_stack": ", ".join([f"Python {made_with.get('python')}", *stack]),
        "operating_system": release.get("PRETTY_NAME", platform.system()),
        "sw_notes": f"kernel {platform.release()}",
    }


def recorded_devices(output_dir: Path) -> tuple[int | None, int | None]:
    """Returns a run's processes, one a node, and the GPUs of each; None if it is not recorded.

    A TPU's processes say nothing about its hosts.
    """
    try:
        parameters = read_own_record(output_dir / RECORD_NAME)["parameters"]
        counts = parameters["num_workers"], parameters["device"]["num_gpus"]
        uses_tpu = parameters["device"]["use_tpu"]
    except (OSError, ValueError, KeyError, TypeError):  # another project's record, or none
        return None, None
    return (None, None) if uses_tpu or any(type(n) is not int for n in counts) else counts
