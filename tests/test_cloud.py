"""Every command of cloud/ against a stand-in that records it; nothing was run on real hardware.

The golden file holds what a dry run prints: the commands, each as a shell would take it.

Long because the stand-in for gcloud and Slurm serves all of its tests.
"""

import configparser
import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from mlperf_bert.messages import EXIT_TRY_AGAIN
from mlperf_bert.mlperf.rules import evaluation_interval_samples
from mlperf_bert.training.workers import read_cluster
from tests.fixtures import REPOSITORY
from tests.helpers import known_flags, programs

GOLDEN = Path(__file__).with_name("cloud_dry_runs.json")
VERBS = ["train", "logs", "delete"]
SETTINGS = {
    "GCP_PROJECT": "my-project",
    "GCP_ZONE": "europe-west4-a",
    "BUCKET": "gs://my-bucket/bert",
    "TMPDIR": "/tmp",
    "PAUSE": "0",
}
DRY_RUNS = {
    **{verb: (verb, {}) for verb in VERBS},
    "train, v5litepod-8 spot": (
        "train",
        {"TPU_TYPE": "v5litepod-8", "CREATE": "--spot --valid-until-duration=6h",
         "FLAGS": "--train_batch_size=256 --steps_per_update=32"},
    ),
}  # fmt: skip
NOT_FOUND = (
    "ERROR: (gcloud.compute.tpus.describe) NOT_FOUND: Resource "
    "'projects/my-project/locations/europe-west4-a/x' was not found"
)
DOWN = "ERROR: the network is down"
QUOTA = "ERROR: (gcloud) RESOURCE_EXHAUSTED: Quota limit 'TPUV3sPerZone' has been exceeded."
SIGNED_OUT = "ERROR: (gcloud) no active account selected.\nPlease run:\n\n  $ gcloud auth login"
# Writes down its arguments, then answers. ANSWERS: for a pattern in its arguments, what it says
# the first, the second, ... time; the last answer stays. An answer that begins with ERROR fails.
STAND_IN = f"""#!{sys.executable} -IS
import json, os, re, sys
words = " ".join(sys.argv[1:])
with open(os.environ["RECORD"], "a+") as record:
    record.seek(0)
    before = [" ".join(json.loads(line)[1:]) for line in record]
    record.write(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]) + "\\n")
there = {{"resources describe": ["ACTIVE\\t"], "is-active": ["inactive"]}}
for pattern, answers in [*json.loads(os.environ.get("ANSWERS", "{{}}")).items(), *there.items()]:
    if re.search(pattern, words):
        turn = sum(bool(re.search(pattern, words)) for words in before)
        answer = answers[min(turn, len(answers) - 1)]
        print(answer, file=sys.stderr if answer.startswith("ERROR") else sys.stdout)
        sys.exit(answer.startswith("ERROR"))
"""


@pytest.fixture
def recorded(tmp_path):
    """Runs a script of cloud/ among stand-ins; returns its end and what they were told."""
    folder, record = tmp_path / "bin", tmp_path / "record"
    for name in ("gcloud", "srun", "scontrol", "sleep"):
        programs.stand_in(folder / name, STAND_IN)

    def run(*command, **environment):
        record.write_text("")
        path = f"{folder}:{os.environ['PATH']}"
        given = {"PATH": path, "RECORD": str(record), "TMPDIR": str(tmp_path), **environment}
        done = programs.run(*command, env=given, timeout=300)
        return done, [json.loads(line) for line in record.read_text().splitlines()]

    return run


def changes(told: list[list[str]]) -> list[str]:
    """The commands that change or start something, without project, zone and archive."""
    lines = [" ".join(words[3:]) for words in told if words[0] == "gcloud"]
    return [
        re.sub(r" --(project|zone)=\S+|\S*bert-checkout\.[^/]+", "", line)
        for line in lines
        if not re.search(r"describe|is-active", line)
    ]


def dry_run(verb: str, **settings) -> list[str]:
    given = {"PATH": os.environ["PATH"], "CDPATH": ".", **SETTINGS, **settings}  # and no gcloud
    done = programs.run("cloud/gcp_tpu.sh", verb, "--dry-run", env=given)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout.replace(str(REPOSITORY), "CHECKOUT").splitlines()


def words_of(script: str) -> list[list[str]]:
    """What a script of bash calls gcloud with; only bash reads $'...', where a line breaks."""
    stand_in = "gcloud() { printf '%s\\0' gcloud \"$@\"; printf '\\1'; }\n"
    environment = {"PATH": os.environ["PATH"], **SETTINGS}
    done = programs.run("bash", "-c", stand_in + script, env=environment)
    assert done.stderr == ""
    return [part.split("\0")[:-1] for part in done.stdout.split("\1")[:-1]]


def printed_words(lines: list[str]) -> list[list[str]]:
    """The words of printed commands."""
    return words_of("\n".join(line[2:] for line in lines if line.startswith("$ gcloud")))


def remote(having: str, **settings) -> str:
    """The command for a host that a dry run of train prints, the one with this text."""
    words = [word for line in printed_words(dry_run("train", **settings)) for word in line]
    [command] = [word for word in words if word.startswith("--command=") and having in word]
    return command.removeprefix("--command=")


def start_script(**settings) -> str:
    """What the service runs on each host."""
    return remote("START", **settings).partition("<<'START'\n")[2].partition("START\n")[0]


def remote_flags(**settings) -> list[str]:
    words = shlex.split(start_script(**settings).splitlines()[-1])
    return words[words.index("run_pretraining.py") + 1 :]


@pytest.mark.parametrize("name", DRY_RUNS)
def test_dry_run_prints_the_golden_commands(name):
    verb, settings = DRY_RUNS[name]
    assert dry_run(verb, **settings) == json.loads(GOLDEN.read_text())[name]


def test_the_flags_are_those_of_run_pretraining_and_the_rules():
    flags = remote_flags()
    names = [re.match(r"--(\w+)", flag)[1] for flag in flags]
    assert set(names) - {"flagfile"} <= known_flags.flags_of("run_pretraining.py") - {"tpu_name"}
    assert "--flagfile=configs/tpu_v3_128_bs8192.flags" in flags
    steps = -(-evaluation_interval_samples(8192) // 8192)
    assert f"--save_checkpoints_steps={steps}" in flags
    assert remote_flags(BUCKET=f"{SETTINGS['BUCKET']}/") == flags
    flags = remote_flags(FLAGS="\n--train_batch_size=4096\n\t--steps_per_update=2\n")
    assert flags[-3:] == ["--num_tpu_cores=128", "--train_batch_size=4096", "--steps_per_update=2"]


# Type, the devices that jax sees (cores of v2 and v3, chips of later ones), the software.
TYPES = [
    ("v2-8", 8, "tpu-ubuntu2204-base"),
    ("v4-64", 32, "tpu-ubuntu2204-base"),
    ("v5litepod-32", 32, "v2-alpha-tpuv5-lite"),
    ("v5p-128", 64, "v2-alpha-tpuv5"),
    ("v6e-8", 8, "v2-alpha-tpuv6e"),
]


@pytest.mark.parametrize("tpu_type, devices, software", TYPES)
def test_the_type_says_how_many_devices_and_which_software(tpu_type, devices, software):
    assert f"--num_tpu_cores={devices}" in remote_flags(TPU_TYPE=tpu_type)
    settings = {"TPU_TYPE": tpu_type, "TPU_NAME": "mine"}
    [made] = [line for line in dry_run("train", **settings) if "resources create" in line]
    assert (
        f" mine --node-id=mine --accelerator-type={tpu_type} --runtime-version={software} " in made
    )


def test_the_service_restarts_what_can_go_on_and_nothing_else(tmp_path):
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(REPOSITORY / "cloud" / "bert@.service")
    service = unit["Service"]
    ends = {int(code) for code in service["RestartPreventExitStatus"].split()}
    # 1: another host may be lost, and come back; so the number of starts has a limit.
    assert service["Restart"] == "always" and {0, 2, 126, 127} <= ends
    assert not ends & {1, EXIT_TRY_AGAIN, 134, 128 + 9}
    starts, within = (int(unit["Unit"][f"StartLimit{name}"]) for name in ("Burst", "IntervalSec"))
    assert starts * int(service["RestartSec"]) < within / 10
    # Not as root; with memory for the driver; with time to save; and after a start of the host.
    assert (service["User"], service["LimitMEMLOCK"]) == ("%i", "infinity")
    assert int(service["TimeoutStopSec"]) >= 300
    assert dict(unit["Install"]) == {"WantedBy": "multi-user.target"}
    # What the host may lack, it may lack; the second needs root.
    assert service["EnvironmentFile"] == "-/etc/environment"
    pages = "/sys/kernel/mm/transparent_hugepage/enabled"
    assert service["ExecStartPre"] == f"-+/bin/sh -c 'echo always >{pages}'"
    if verify := shutil.which("systemd-analyze"):
        copy = tmp_path / "bert@root.service"
        shutil.copy(REPOSITORY / "cloud" / "bert@.service", copy)
        done = programs.run(verify, "verify", copy)
        assert done.returncode == 0 and done.stderr == "", done.stderr


def test_the_service_runs_the_training_and_ends_as_it_does(tmp_path):
    programs.stand_in(tmp_path / "bert/.venv/bin/python", 'echo "$@"\nexit 75')
    (tmp_path / "bert" / "start.sh").write_text(start_script())
    unit = (REPOSITORY / "cloud" / "bert@.service").read_text()
    assert "\nWorkingDirectory=~\n" in unit
    words = re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)[1].split()
    done = programs.run(*words, cwd=tmp_path, env={})
    assert done.returncode == EXIT_TRY_AGAIN
    assert done.stdout == " ".join(["run_pretraining.py", *remote_flags()]) + "\n"


@pytest.mark.parametrize(
    "started, state, found",
    [
        ({}, "active", "active"),
        ({"RUN": "another"}, "active", "other"),
        ({"FLAGS": "--seed=7"}, "activating", "absent"),  # it fails again and again
        (None, "inactive", "absent"),
    ],
)
def test_a_host_says_whether_it_runs_this_very_command(tmp_path, started, state, found):
    (tmp_path / "bert").mkdir()
    if started is not None:
        (tmp_path / "bert" / "start.sh").write_text(start_script(**started))
    programs.stand_in(tmp_path / "bin/systemctl", f"echo {state}\n[ {state} = active ]")
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    done = programs.run("bash", "-c", remote("is-active"), cwd=tmp_path, env={"PATH": path})
    assert done.stdout.split()[-1] == found and done.stderr == ""


REFUSED = [
    *(({name: ""}, f"set {name};") for name in ("GCP_PROJECT", "GCP_ZONE")),
    *(({"BUCKET": name}, f"BUCKET={name}: give gs://") for name in ("", "mine", "gs://b/a b")),
    *(({"TPU_TYPE": name}, f"TPU_TYPE={name}: give v2-N, v3-N, v4-N or v5p-N with N TensorCores")
      for name in ("v7-8", "v3-0")),
]  # fmt: skip


@pytest.mark.parametrize("settings, message", REFUSED)
def test_what_cannot_work_is_refused_in_one_line_and_nothing_runs(recorded, settings, message):
    done, told = recorded("cloud/gcp_tpu.sh", "train", **SETTINGS | settings)
    assert done.returncode == 2 and told == []
    assert done.stderr.startswith(f"gcp_tpu.sh: {message}") and done.stderr.count("\n") == 1


CREATE, SCP, SSH = "queued-resources create", "tpu-vm scp", "tpu-vm ssh"
START = [SCP, SSH, SSH]
DELETE = ["queued-resources delete"]
REQUEST, RUN = "queued-resources describe", "is-active"
LOST = ["ACTIVE\t"] * 4 + ["SUSPENDING\t", *["SUSPENDED\t"] * 2, NOT_FOUND]
COSTS = "bert is ACTIVE; it may cost money until: cloud/gcp_tpu.sh delete"
# What happens: the verb, what gcloud answers, the exit code, what is changed, and some of the
# lines that are printed, in their order: by standard output, then by standard error.
STORIES = {
    "requested, preempted and made again, the run goes on to its end": (
        "train",
        {REQUEST: [NOT_FOUND, "ACCEPTED\t", DOWN, *LOST, "WAITING_FOR_RESOURCES\t", "ACTIVE\t"],
         RUN: ["absent", "active", "unreachable", "failed", "ssh: warning\nabsent", "activating",
               "inactive"]},
        0, [CREATE, *START, *DELETE, CREATE, *START],
        ["bert: NOT_FOUND", "bert: ACCEPTED", f"bert: UNKNOWN ({DOWN})", "bert: absent",
         "bert: SUSPENDED", "bert: WAITING_FOR_RESOURCES", "bert: the run has ended", COSTS],
    ),
    "repeated, it only watches": (
        "train", {RUN: ["active", "inactive"]}, 0, [], ["bert: the run has ended", COSTS],
    ),
    "a run that failed is started again, once": (
        "train", {RUN: ["failed", "active", "failed"], "journalctl": ["the reason"]}, 1,
        [*START, SSH],
        ["the reason", "gcp_tpu.sh: the run on bert has failed, for good; the lines above say why",
         COSTS],
    ),
    "another command runs there": (
        "train", {RUN: ["other"]}, 1, [],
        ["gcp_tpu.sh: bert runs another command; docs/clusters.md says how to stop it"],
    ),
    "ssh is broken for a while, twice": (
        "train",
        {"tpu-vm ssh bert --worker=all": [*[DOWN] * 4, "", "", DOWN, DOWN, ""],
         RUN: [*["absent"] * 5, "active", *["absent"] * 3, "inactive"]},
        0, [*[SCP, SSH] * 4, *START, *[SCP, SSH] * 2, *START],
        ["bert: absent", "bert: active", "bert: absent", "bert: the run has ended"],
    ),
    "ssh stays broken": (
        "train", {"tpu-vm ssh bert --worker=all": [DOWN], RUN: ["absent"]}, 1, [SCP, SSH] * 5,
        ["gcp_tpu.sh: bert does not run; the lines above say why; then: cloud/gcp_tpu.sh train"],
    ),
    "a preempted TPU that cannot be deleted": (
        "train", {REQUEST: ["SUSPENDED\t"], "resources delete": [DOWN]}, 1, DELETE,
        ["gcp_tpu.sh: bert is not deleted; the lines above say why", "bert is SUSPENDED; it may"],
    ),
    "not requested": (
        "train", {REQUEST: [NOT_FOUND], "resources create": [QUOTA]},
        1, [CREATE], [f"gcp_tpu.sh: bert was not requested: {QUOTA}"],
    ),
    "not granted": (
        "train", {REQUEST: ["FAILED\tno more capacity in the zone"]}, 1, [],
        ["gcp_tpu.sh: bert is not granted: FAILED?no more capacity in the zone; "
         "cloud/gcp_tpu.sh delete, then try again", "bert is FAILED"],
    ),
    "nobody is signed in": (
        "train", {"describe": [SIGNED_OUT]}, 1, [],
        ["gcp_tpu.sh: cannot look for bert: UNKNOWN (ERROR: (gcloud) no active account selected.)"],
    ),
    "the connection of logs breaks": (
        "logs", {"journalctl": [DOWN]}, 1, [SSH],
        ["gcp_tpu.sh: the connection has ended, the run continues; then: cloud/gcp_tpu.sh logs"],
    ),
    "a TPU that is deleted": ("delete", {REQUEST: [NOT_FOUND]}, 0, DELETE, []),
    "what cannot be deleted": (
        "delete", {"resources delete": [DOWN]}, 1, DELETE,
        ["gcp_tpu.sh: bert is not deleted; the lines above say why", COSTS],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STORIES)
def test_stories(recorded, tmp_path, name):
    """Where a story says nothing of it, the TPU is there and the run has ended."""
    verb, answers, code, changed, said = STORIES[name]
    given = SETTINGS | {"TMPDIR": str(tmp_path), "ANSWERS": json.dumps(answers)}
    done, told = recorded("cloud/gcp_tpu.sh", verb, **given)
    assert done.returncode == code, done.stderr
    assert [" ".join(line.split()[:2]) for line in changes(told)] == changed
    printed = iter((done.stdout + done.stderr).splitlines())
    assert all(any(text in line for line in printed) for text in said), done.stdout + done.stderr
    assert said or not done.stderr
    assert not list(tmp_path.glob("bert-checkout*"))  # the archive goes, however it ends


def test_it_looks_twice_a_minute_if_nothing_else_is_said(recorded):
    settings = {name: SETTINGS[name] for name in ("GCP_PROJECT", "GCP_ZONE", "BUCKET")}
    settings["ANSWERS"] = json.dumps({RUN: ["active", "inactive"]})
    assert ["sleep", "30"] in recorded("cloud/gcp_tpu.sh", "train", **settings)[1]


@pytest.mark.parametrize("arguments", [[], ["start"], ["train", "--dry"], ["train --dry-run"]])
def test_usage(recorded, arguments):
    done, told = recorded("cloud/gcp_tpu.sh", *arguments, **SETTINGS)
    assert done.returncode == 2 and told == []
    assert done.stderr.startswith("  cloud/gcp_tpu.sh train | logs | delete  [--dry-run]")
    assert "  GCP_PROJECT, GCP_ZONE  " in done.stderr and "set -euo" not in done.stderr


PLACES = {
    "bert_config_file": "wiki/bert_config.json",
    "init_checkpoint": "wiki/tf1_ckpt/model.ckpt-28252",
    "input_file": "tfrecords/part-*",
    "eval_input_file": "tfrecords/eval_10k",
}
SLURM = {"DATA": "/data", "OUTPUT": "/run", "SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "4"}
BATCH = ["bash", "cloud/slurm.sbatch", "configs/batch_1536.flags"]


def test_slurm_starts_one_process_a_node(recorded):
    done, told = recorded(*BATCH, "--seed=1", **SLURM)
    assert done.returncode == 0, done.stderr
    assert told == [shlex.split(done.stdout)]
    assert told[0][:3] == ["srun", "--kill-on-bad-exit=0", "--ntasks-per-node=1"]
    assert told[0][3:5] == [".venv/bin/python", "run_pretraining.py"]
    flags = told[0][5:]
    assert flags[0] == "--flagfile=configs/batch_1536.flags" and flags[-1] == "--seed=1"
    places = {f"--{flag}=/data/{place}" for flag, place in PLACES.items()}
    assert {"--num_gpus=4", "--output_dir=/run"} | places <= set(flags)
    names = [re.match(r"--(\w+)", flag)[1] for flag in flags]
    assert set(names) - {"flagfile"} <= known_flags.flags_of("run_pretraining.py")
    dry, nothing = recorded(*BATCH, "--seed=1", **SLURM, DRY_RUN="1")
    assert dry.stdout == done.stdout and nothing == []
    others = SLURM | {"PYTHON": "mine", "SLURM_GPUS_ON_NODE": ""}
    _, [told] = recorded(*BATCH, **others)
    assert told[3] == "mine" and "--num_gpus=8" in told


def test_slurm_is_asked_for_a_job_that_saves_and_goes_on():
    text = (REPOSITORY / BATCH[1]).read_text()
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", text.partition("\nset ")[0], re.M))
    # The signal is the processes', not the batch script's; a later start keeps the log.
    wanted = {"signal": "TERM@120", "requeue": "", "open-mode": "append", "exclusive": ""}
    assert asked.items() >= (wanted | {"ntasks-per-node": "1", "gpus-per-node": "8"}).items()


def test_slurm_queues_a_run_again_that_can_be_resumed(recorded, tmp_path):
    for code, restarts, queues in (
        (75, "9", True), (134, "", True), (134, "3", True), (1, "0", True), (1, "4", False),
    ):  # fmt: skip
        programs.stand_in(tmp_path / "bin" / "srun", f"exit {code}")
        done, told = recorded(*BATCH, **SLURM, SLURM_RESTART_COUNT=restarts)
        assert done.returncode == code
        assert told == [["scontrol", "requeue", "7"]] * queues, (code, restarts)


@pytest.mark.parametrize(
    "command, changed, message",
    [
        *((BATCH, {name: ""}, f"set {name};") for name in ("DATA", "OUTPUT")),
        (BATCH[:2], {}, "preset '': name one, such as"),
        ([*BATCH[:2], "configs/none.flags"], {}, "preset 'configs/none.flags': name one, such as"),
    ],
)
def test_slurm_bad_input_is_told(recorded, command, changed, message):
    done, told = recorded(*command, **SLURM | changed)
    assert done.returncode == 2 and told == [] and message in done.stderr


def test_the_jobset_starts_run_pretraining_and_gives_each_pod_its_tf_config():
    """JobSet names pod n of job 0: jobset-replicatedJob-0-n.subdomain."""
    yaml = pytest.importorskip("yaml")
    account, job = yaml.safe_load_all((REPOSITORY / "cloud" / "jobset.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    [jobs] = job["spec"]["replicatedJobs"]
    spec = jobs["template"]["spec"]
    pod = spec["template"]["spec"]
    assert jobs["replicas"] == 1 and spec["completionMode"] == "Indexed"
    assert spec["parallelism"] == spec["completions"] == 4
    assert pod["serviceAccountName"] == account["metadata"]["name"]
    [container] = pod["containers"]
    assert container["command"] == ["python", "run_pretraining.py"]
    flags = dict(arg.removeprefix("--").split("=", 1) for arg in container["args"])
    assert set(flags) <= known_flags.flags_of("run_pretraining.py") | {"flagfile"}
    places = PLACES | {"output_dir": "run"}
    assert flags == {name: f"gs://BUCKET/bert/{place}" for name, place in places.items()} | {
        "flagfile": BATCH[2], "num_gpus": "8", "precision": "bfloat16",
    }  # fmt: skip
    # A pod that ends ends all, which are started again, after the time to save.
    assert job["spec"]["failurePolicy"]["maxRestarts"] > 0 == spec["backoffLimit"]
    assert pod["restartPolicy"] == "Never" and pod["terminationGracePeriodSeconds"] >= 120
    assert job["spec"]["network"]["enableDNSHostnames"]
    assert container["volumeMounts"] == [{"name": "shared-memory", "mountPath": "/dev/shm"}]
    assert pod["volumes"] == [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    index, config = container["env"]  # a variable is known to those after it
    [port] = container["ports"]
    annotation = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    assert index["valueFrom"] == {"fieldRef": {"fieldPath": annotation}}
    names = f"{job['metadata']['name']}-{jobs['name']}-0-"
    where = f".{job['spec']['network']['subdomain']}:{port['containerPort']}"
    for number in range(spec["completions"]):
        text = config["value"].replace(f"$({index['name']})", str(number))
        cluster = read_cluster({config["name"]: text})
        assert cluster.index == number
        assert cluster.addresses == tuple(f"{names}{n}{where}" for n in range(4))
