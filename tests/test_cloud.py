"""Every command of cloud/ against a stand-in that records it; nothing was run on real hardware.

The golden files hold what a dry run prints: the commands, each as a shell would take it.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.test_cli import RUN_PRETRAINING_FLAGS

GOLDEN = Path(__file__).with_name("cloud_dry_runs.json")
ACTIONS = ["create", "setup", "train", "eval", "status", "delete"]
SETTINGS = {
    "GCP_PROJECT": "my-project",
    "GCP_ZONE": "europe-west4-a",
    "SHARE": "10.0.0.2:/share",
    "TMPDIR": "/tmp",
}
# Writes down its arguments, then does as FAIL and STATE say.
STAND_IN = f"""#!{sys.executable}
import json, os, sys
with open(os.environ["RECORD"], "a") as record:
    record.write(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]) + "\\n")
if "describe" in sys.argv:
    state = os.environ.get("STATE", "READY")
    if state == "NOT_FOUND":
        sys.exit("ERROR: NOT_FOUND: no such TPU")
    if state == "UNKNOWN":
        sys.exit("ERROR: the network is down")
    print(state)
sys.exit(3 if os.environ.get("FAIL", "nothing") in " ".join(sys.argv[1:]) else 0)
"""


@pytest.fixture
def recorded(tmp_path):
    """Runs a script of cloud/ among stand-ins; returns its end and what they were told."""
    folder, record = tmp_path / "bin", tmp_path / "record"
    folder.mkdir()
    for name in ("gcloud", "srun", "scontrol"):
        (folder / name).write_text(STAND_IN)
        (folder / name).chmod(0o755)

    def run(*command, **environment):
        record.write_text("")
        path = f"{folder}:{os.environ['PATH']}"
        given = {"PATH": path, "RECORD": str(record), "TMPDIR": str(tmp_path), **environment}
        done = subprocess.run(command, cwd=REPOSITORY, env=given, capture_output=True, text=True)
        return done, [json.loads(line) for line in record.read_text().splitlines()]

    return run


def dry_run(action: str) -> list[str]:
    done = subprocess.run(
        ["cloud/gcp_tpu.sh", action, "--dry-run"],
        cwd=REPOSITORY,
        env={"PATH": os.environ["PATH"], **SETTINGS},  # and no gcloud is needed
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout.replace(str(REPOSITORY), "CHECKOUT").splitlines()


@pytest.mark.parametrize("action", ACTIONS)
def test_dry_run_prints_the_golden_commands(action):
    assert dry_run(action) == json.loads(GOLDEN.read_text())[action]


@pytest.mark.parametrize("action", ACTIONS)
def test_what_runs_is_what_a_dry_run_prints(recorded, action):
    done, told = recorded("cloud/gcp_tpu.sh", action, **{**SETTINGS, "TMPDIR": "/tmp"})
    assert done.returncode == 0, done.stderr
    # printed as $'...' where a line breaks, which only bash reads
    printed = [line for line in done.stdout.splitlines() if line.startswith("$ gcloud")]
    words = subprocess.run(
        ["bash", "-c", "\n".join(f"printf '%s\\0' {line[2:]}; printf '\\1'" for line in printed)],
        capture_output=True,
        text=True,
    ).stdout
    expected = [part.split("\0")[:-1] for part in words.split("\1")[:-1]]
    looks = [words for words in told if "--format=value(state)" in words]
    assert [words for words in told if words not in looks] == expected
    assert len(looks) == (0 if action == "status" else 2)


def remote_command(action: str) -> list[str]:
    [line] = dry_run(action)
    [option] = [word for word in shlex.split(line) if word.startswith("--command=")]
    words = shlex.split(option.removeprefix("--command="))
    return words[words.index("run_pretraining.py") + 1 :]


@pytest.mark.parametrize("action", ["train", "eval"])
def test_remote_flags_are_those_of_run_pretraining(action):
    names = [re.match(r"--(?:no)?(\w+)", flag)[1] for flag in remote_command(action)]
    assert set(names) - {"flagfile"} <= set(RUN_PRETRAINING_FLAGS)
    assert "--flagfile=configs/tpu_v3_128_bs8192.flags" in remote_command(action)


@pytest.mark.parametrize("missing", ["GCP_PROJECT", "GCP_ZONE", "SHARE"])
def test_a_missing_setting_is_named_and_nothing_runs(recorded, missing):
    done, told = recorded("cloud/gcp_tpu.sh", "setup", **{**SETTINGS, missing: ""})
    assert done.returncode == 2 and told == []
    assert done.stderr.startswith(f"gcp_tpu.sh: set {missing};")


@pytest.mark.parametrize(
    "share",
    [
        "/only/a/folder",
        "-oexec:/x",
        "10.0.0.2:folder",
        "host",
    ],
)
def test_a_share_that_is_none_is_refused(recorded, share):
    done, told = recorded("cloud/gcp_tpu.sh", "setup", **{**SETTINGS, "SHARE": share})
    assert done.returncode == 2 and told == []
    assert done.stderr == f"gcp_tpu.sh: SHARE={share}: give host:/folder of an NFS share\n"


@pytest.mark.parametrize("share", ["h:/a b", "h:/a;touch x", "h:/$(touch x)", "h:/a\nb", "h:/*"])
def test_the_share_is_one_word_on_the_host(recorded, tmp_path, share):
    _, told = recorded("cloud/gcp_tpu.sh", "setup", **{**SETTINGS, "SHARE": share})
    [command] = {w.removeprefix("--command=") for words in told for w in words if "nfs" in w}
    mounting = command[command.index("mountpoint") : command.index("mkdir -p bert")]
    words = "sudo() { printf '<%s>' \"$@\"; }; mountpoint() { false; }; " + mounting
    found = subprocess.run(["bash", "-c", words], cwd=tmp_path, capture_output=True, text=True)
    assert found.stdout == f"<mount><-t><nfs><{share}></mnt/bert>"
    assert not (tmp_path / "x").exists()


def test_the_archive_has_a_new_name_each_time_and_goes(recorded, tmp_path):
    names = set()
    for fails in ("nothing", "scp"):
        given = {**SETTINGS, "TMPDIR": str(tmp_path), "FAIL": fails}
        done, told = recorded("cloud/gcp_tpu.sh", "setup", **given)
        assert (done.returncode != 0) == (fails == "scp")
        names |= {words[words.index("scp") + 1] for words in told if "scp" in words}
    assert len(names) == 2
    assert not list(tmp_path.glob("bert-checkout*"))


@pytest.mark.parametrize("arguments", [[], ["start"], ["create", "--dry"], ["create", "a", "b"]])
def test_usage(recorded, arguments):
    done, told = recorded("cloud/gcp_tpu.sh", *arguments, **SETTINGS)
    assert done.returncode == 2 and told == []
    assert done.stderr.startswith("usage: cloud/gcp_tpu.sh create | setup")


def test_no_gcloud_is_told(tmp_path):
    for tool in ("bash", "env", "dirname"):  # a machine that has no gcloud for certain
        (tmp_path / tool).symlink_to(shutil.which(tool))
    done = subprocess.run(
        ["cloud/gcp_tpu.sh", "create"],
        cwd=REPOSITORY,
        env={"PATH": str(tmp_path), **SETTINGS},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and done.stdout == "" and "no gcloud here" in done.stderr


@pytest.mark.parametrize(
    "action, fails", [("create", "bert-eval"), ("setup", "scp"), ("train", "ssh")]
)
def test_after_a_failure_whatever_runs_is_named(recorded, action, fails):
    done, told = recorded("cloud/gcp_tpu.sh", action, **SETTINGS, FAIL=fails)
    assert done.returncode != 0
    for name in ("bert-train", "bert-eval"):
        if name not in fails:
            assert f"{name} is READY and costs money until: cloud/gcp_tpu.sh delete" in done.stderr
    if action == "setup":
        assert not any("ssh" in words for words in told)  # it stopped there


def test_a_state_that_cannot_be_asked_is_told_and_an_absent_tpu_is_not(recorded):
    done, _ = recorded("cloud/gcp_tpu.sh", "train", **SETTINGS, STATE="UNKNOWN")
    assert "cannot tell whether bert-train still runs" in done.stderr
    done, _ = recorded("cloud/gcp_tpu.sh", "delete", **SETTINGS, STATE="NOT_FOUND")
    assert done.returncode == 0 and done.stderr == ""


def test_delete_tries_both(recorded):
    done, told = recorded("cloud/gcp_tpu.sh", "delete", **SETTINGS, FAIL="delete bert-train")
    assert done.returncode == 1
    assert [words[5] for words in told if words[4] == "delete"] == ["bert-train", "bert-eval"]
    assert "bert-train is READY and costs money" in done.stderr


SLURM = {"DATA": "/data", "OUTPUT": "/run", "SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "4"}
BATCH = ["bash", "cloud/slurm.sbatch", "configs/batch_1536.flags"]


def test_slurm_starts_one_process_a_node(recorded):
    done, told = recorded(*BATCH, "--seed=1", **SLURM)
    assert done.returncode == 0, done.stderr
    assert told == [shlex.split(done.stdout)]
    assert told[0][:3] == ["srun", "--kill-on-bad-exit=0", "--ntasks-per-node=1"]
    flags = told[0][5:]
    assert flags[0] == "--flagfile=configs/batch_1536.flags" and flags[-1] == "--seed=1"
    assert {"--num_gpus=4", "--output_dir=/run", "--input_file=/data/tfrecords/part-*"} <= set(
        flags
    )
    names = [re.match(r"--(\w+)", flag)[1] for flag in flags]
    assert set(names) - {"flagfile"} <= set(RUN_PRETRAINING_FLAGS)
    dry, nothing = recorded(*BATCH, "--seed=1", **SLURM, DRY_RUN="1")
    assert dry.stdout == done.stdout and nothing == []


def test_slurm_queues_a_saved_run_again(recorded, tmp_path):
    (tmp_path / "bin" / "srun").write_text("#!/bin/sh\nexit 75\n")
    done, told = recorded(*BATCH, **SLURM)
    assert done.returncode == 75 and told == [["scontrol", "requeue", "7"]]
    (tmp_path / "bin" / "srun").write_text("#!/bin/sh\nexit 1\n")
    done, told = recorded(*BATCH, **SLURM)
    assert done.returncode == 1 and told == []


@pytest.mark.parametrize(
    "command, changed, message",
    [
        (BATCH, {"DATA": ""}, "set DATA;"),
        (BATCH[:2], {}, "name a preset"),
        ([*BATCH[:2], "configs/none.flags"], {}, "cannot read the preset configs/none.flags"),
    ],
)
def test_slurm_bad_input_is_told(recorded, command, changed, message):
    done, told = recorded(*command, **SLURM | changed)
    assert done.returncode == 2 and told == [] and message in done.stderr


def test_the_tfjob_starts_run_pretraining_on_every_worker():
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load((REPOSITORY / "cloud" / "kubernetes.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "TFJob")
    [(kind, replicas)] = job["spec"]["tfReplicaSpecs"].items()
    assert kind == "Worker" and replicas["replicas"] == 4
    [container] = replicas["template"]["spec"]["containers"]
    assert container["name"] == "tensorflow"  # the operator sets TF_CONFIG in this one only
    assert container["command"] == ["python", "run_pretraining.py"]
    flags = dict(arg.removeprefix("--").split("=", 1) for arg in container["args"])
    assert (REPOSITORY / flags.pop("flagfile")).is_file()
    assert set(flags) <= set(RUN_PRETRAINING_FLAGS)
    assert int(flags["num_gpus"]) == container["resources"]["limits"]["nvidia.com/gpu"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in replicas["template"]["spec"]["volumes"]}
