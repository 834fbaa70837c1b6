"""start_training.sh and what it starts, with an engine that only writes down its words. Seconds.

Long because the stand-in for an engine serves all of its tests.
"""

import itertools
import os
import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.fixtures import lacking
from tests.helpers import programs, waiting

ENGINE = """#!/bin/sh
# Writes each call as a line of quoted words; the image is there unless NO_IMAGE is set.
{ for word in "$@"; do printf '<%s>' "$word"; done; echo; } >> "$RECORD"
case "$1 $2" in
  "image inspect") [ -z "$NO_IMAGE" ] && echo sha256:4711 ;;
  "build "*) exit "${BUILD_STATUS:-0}" ;;
  "info --format") echo "${SECURITY-[name=seccomp,profile=builtin name=cgroupns]}" ;;
  "--version ") echo "${VERSION:-Docker version 27.1.1, build 6312585}" ;;
  "inspect --format") case "$3" in *Pid*) echo 4242 ;; *) echo /the-name ;; esac ;;
  "run "*) case "$*" in *" --detach "*) echo c0ffee ;; esac; exit "${RUN_STATUS:-0}" ;;
esac
"""


SECURITY = "<info><--format><{{.SecurityOptions}}>"


@pytest.fixture
def host(tmp_path, repository):
    """Calls start_training.sh in a folder with data, whose paths have spaces."""
    folder = tmp_path / "a host"
    for name in ("data", "wiki"):
        (folder / name).mkdir(parents=True)
    (folder / "data" / "part-00000-of-00500").touch()
    (folder / "wiki" / "bert_config.json").touch()
    for name in ("docker", "podman"):
        programs.stand_in(folder / "bin" / name, ENGINE)
    record = folder / "record"

    def start(*arguments, **environment) -> subprocess.CompletedProcess:
        record.unlink(missing_ok=True)
        environment = {
            "PATH": f"{folder}/bin:{os.environ['PATH']}",
            "RECORD": str(record),
            "NAME": "the-name",
            **environment,
        }
        environment = {name: value for name, value in environment.items() if value is not None}
        options = {"cwd": folder, "env": environment, "stdin": subprocess.DEVNULL}
        return programs.run(start.script, *arguments, **options)

    start.folder, start.script = folder, repository / "start_training.sh"
    start.calls = lambda: record.read_text().splitlines() if record.exists() else []
    return start


def dry_run(host, *arguments, **environment) -> list[str]:
    """The words of the command that would be run."""
    return shlex.split(host("--dry-run", *arguments, **environment).stdout)


def after(words: list[str], option: str) -> list[str]:
    """The values of an option that may be given again."""
    return [value for name, value in itertools.pairwise(words) if name == option]


def refusal(host, *arguments, **environment) -> str:
    """The one line with which start_training.sh refuses."""
    done = host(*arguments, **environment)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert "<run>" not in "".join(host.calls())
    return line


def open_files() -> str:
    """The hard limit as --ulimit takes it."""
    hard = subprocess.check_output(["bash", "-c", "ulimit -Hn"], text=True).strip()
    return "nofile=" + ":".join(["-1" if hard == "unlimited" else hard] * 2)


def expected_run(
    host, *, mounts=("data", "wiki", "output"), user="", gpus=(), given=("NUM_GPUS=0",), more=()
):
    limits = ["--shm-size", "1g", "--stop-timeout", "300", "--ulimit", open_files()]
    places = [(name, "" if name == "output" else ",readonly") for name in mounts]
    return [
        *["docker", "run", "--rm", "--name", "the-name"],
        *["--user", user or f"{os.getuid()}:{os.getgid()}", "--read-only"],
        *["--tmpfs", "/tmp:rw,exec,nosuid,nodev", "--cap-drop", "ALL"],
        *["--security-opt", "no-new-privileges", *limits, *gpus],
        *[
            word
            for name, rest in places
            for word in ("--mount", f"type=bind,source={host.folder}/{name},target=/{name}{rest}")
        ],
        *[word for value in given for word in ("--env", value)],
        *more,
    ]


TRAINING = ["mlperf-bert:cpu", "./train_model.sh"]
DEMO = ["mlperf-bert:cpu", *"python -m demo --output_dir=/output/demo --seed=3".split()]
ROOTLESS = "[name=seccomp,profile=builtin name=rootless name=cgroupns]"
NO_DAEMON = {"SECURITY": "", "DOCKER_HOST": "unix:///run/user/1000/docker.sock"}
GPUS = ["--gpus", "all", "--ulimit", "memlock=-1", "--ulimit", "stack=67108864"]
HOSTS = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}'


@pytest.mark.parametrize(
    "arguments, environment, differs, ends",
    [
        (["--train_batch_size=8", "--org=My Lab"], {}, {},
         [*TRAINING, "--train_batch_size=8", "--org=My Lab"]),
        (["--eval"], {"SEED": "7", "EVAL_FILE": "", "NUM_GPUS": "4"},
         {"gpus": GPUS, "given": ["NUM_GPUS=4", "SEED=7", "EVAL_FILE="]},
         ["mlperf-bert:gpu", "./eval_model.sh"]),
        (["--finetune", "--task=rte"], {"INIT_CHECKPOINT": "/wiki/hf", "SEED": "2"},
         {"given": ["NUM_GPUS=0", "SEED=2", "INIT_CHECKPOINT=/wiki/hf"]},
         ["mlperf-bert:cpu", "./finetune_model.sh", "--task=rte"]),
        (["--demo"], {"SEED": "3", "DATA_DIR": "/nowhere"}, {"mounts": ["output"], "given": []},
         DEMO),
        ([], {name: f"~/{name[:-4].lower()}" for name in ("DATA_DIR", "WIKI_DIR", "OUTPUT_DIR")},
         {}, TRAINING),
        ([], {"SECURITY": ROOTLESS}, {"user": "0:0"}, TRAINING),
        # A dry run where no daemon answers.
        ([], NO_DAEMON, {"user": "0:0"}, TRAINING),
        ([], {"TF_CONFIG": HOSTS},
         {"given": ["NUM_GPUS=0", f"TF_CONFIG={HOSTS}"], "more": ["--network=host"]}, TRAINING),
        ([], {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"},
         {"given": ["NUM_GPUS=0", "SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2"],
          "more": ["--network=host"]}, TRAINING),
    ],
)  # fmt: skip
def test_dry_run_prints_the_exact_command(host, arguments, environment, differs, ends):
    words = dry_run(host, *arguments, HOME=str(host.folder), **environment)
    assert words == [*expected_run(host, **differs), *ends]
    assert host.calls()[0] == SECURITY and not (host.folder / "output").exists()


def test_folders_in_a_bucket_are_named_and_not_mounted(host):
    places = {"DATA_DIR": "gs://b/tfrecords", "OUTPUT_DIR": "gs://b/run"}
    data, output = (["--env", f"{name}={value}"] for name, value in places.items())
    expected = expected_run(host, mounts=["wiki"], given=[])
    at = expected.index("--mount")
    rest = [*expected[at:], *output, "--env", "NUM_GPUS=0", *TRAINING]
    assert dry_run(host, **places) == [*expected[:at], *data, *rest]
    assert not [path for path in host.folder.iterdir() if path.name.startswith("gs")]
    line = refusal(host, "--dry-run", "--finetune", OUTPUT_DIR="gs://b/run")
    assert "OUTPUT_DIR=gs://b/run: fine-tuning writes to a local folder; name one" in line
    line = refusal(host, "--demo", OUTPUT_DIR="gs://b/run")
    assert "OUTPUT_DIR=gs://b/run: the demo writes to a local folder; name one" in line


def test_a_key_is_mounted_for_what_is_in_a_bucket_alone(host):
    own, other = host.folder / ".config/gcloud/application_default_credentials.json", "key.json"
    for key in (own, host.folder / other):
        key.parent.mkdir(parents=True, exist_ok=True)
        key.touch()
    home = {"HOME": str(host.folder)}
    named = home | {"GOOGLE_APPLICATION_CREDENTIALS": "~/key.json"}
    relative = {"GOOGLE_APPLICATION_CREDENTIALS": "key.json"}
    for environment, source in ((home, own), (named, key), (relative, key)):
        mount = f"type=bind,source={source},target=/credentials.json,readonly"
        for flags, place in (
            ([], {"DATA_DIR": "gs://b/tfrecords"}),
            ([], {"INIT_CHECKPOINT": "gs://b/run"}),
            ([], {"EVAL_FILE": "gs://b/eval_10k"}),
            (["--init_checkpoint=gs://b/run"], {}),
        ):
            words = dry_run(host, *flags, **environment, **place)
            assert after(words, "--mount")[-1] == mount
            assert "GOOGLE_APPLICATION_CREDENTIALS=/credentials.json" in after(words, "--env")
        assert dry_run(host, **environment) == [*expected_run(host), *TRAINING]
    line = refusal(host, GOOGLE_APPLICATION_CREDENTIALS="none.json")
    assert "GOOGLE_APPLICATION_CREDENTIALS=none.json cannot be read; name a" in line


def test_an_evaluation_leaves_the_gpus_to_the_training(host):
    listing = "echo 'GPU 0: one'; echo 'GPU 1: another'"
    programs.stand_in(host.folder / "bin" / "nvidia-smi", listing)
    training = expected_run(host, gpus=GPUS, given=["NUM_GPUS=2"])
    assert dry_run(host) == [*training, "mlperf-bert:gpu", "./train_model.sh"]
    evaluation = [*expected_run(host), "mlperf-bert:gpu", "./eval_model.sh"]
    assert dry_run(host, "--eval") == evaluation


def test_the_image_has_what_accelerator_names(host):
    for kind in ("gpu-cuda13", "gpu-tensorflow", "gpu"):
        words = dry_run(host, ACCELERATOR=kind, NUM_GPUS="2")
        assert words[-2] == f"mlperf-bert:{kind}" and "--gpus" in words
    assert dry_run(host, ACCELERATOR="cpu", NUM_GPUS="0")[-2] == "mlperf-bert:cpu"
    assert dry_run(host, ACCELERATOR="gpu-cuda13", IMAGE="mine")[-2] == "mine"
    for kind in ("tpu", "rocm", "gpu2"):
        line = refusal(host, ACCELERATOR=kind)
        assert f"ACCELERATOR={kind}: give gpu, gpu-cuda13, gpu-tensorflow or cpu" in line
    line = refusal(host, ACCELERATOR="cpu", NUM_GPUS="1")
    assert "ACCELERATOR=cpu: this image has nothing for GPUs; give NUM_GPUS=0 too" in line
    host(NO_IMAGE="1", ACCELERATOR="gpu-cuda13")
    build = next(call for call in host.calls() if call.startswith("<build>"))
    assert "<mlperf-bert:gpu-cuda13><--build-arg><ACCELERATOR=gpu-cuda13>" in build


def gpus_of(host, *arguments, **environment) -> tuple[str, str, str]:
    """Docker's --gpus, podman's devices, and NUM_GPUS, which is the same with both."""
    docker, podman = (
        dry_run(host, *arguments, ENGINE=engine, **environment) for engine in ("docker", "podman")
    )
    devices = after(podman, "--device")
    [number] = [word for word in docker if word.startswith("NUM_GPUS=")]
    assert number in podman and docker[-2:] == podman[-2:]
    given = docker[docker.index("--gpus") + 1] if "--gpus" in docker else ""
    return given, " ".join(devices), number


ONE, OTHER = "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77", "GPU-0f7a1b1c-1111-2222-3333-444455556666"
SLICE = "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f"


@pytest.mark.parametrize(
    "environment, gpus",
    [
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, "2,3"),
        ({"CUDA_VISIBLE_DEVICES": "3, 2"}, "3,2"),
        ({"NVIDIA_VISIBLE_DEVICES": "5"}, "5"),
        ({"NVIDIA_VISIBLE_DEVICES": SLICE}, SLICE),
        ({"CUDA_VISIBLE_DEVICES": "2,3", "NUM_GPUS": "1"}, "2"),
        # Slurm without a control group, where CUDA's numbers are the host's, and in one.
        ({"SLURM_JOB_GPUS": "4,5"}, "4,5"),
        ({"SLURM_JOB_GPUS": "4,5,6,7", "SLURM_STEP_GPUS": "6,7"}, "6,7"),
        ({"SLURM_STEP_GPUS": "4,5", "CUDA_VISIBLE_DEVICES": "0,1"}, "4,5"),
        ({"SLURM_JOB_GPUS": "4,5,6", "CUDA_VISIBLE_DEVICES": "2,1"}, "6,5"),
        ({"SLURM_STEP_GPUS": "4,5", "NVIDIA_VISIBLE_DEVICES": "5"}, "5"),
    ],
)
def test_a_container_gets_the_gpus_that_its_job_was_given(host, environment, gpus):
    listing = 'for n in 0 1 2 3 4 5 6 7; do echo "GPU $n: one"; done'
    programs.stand_in(host.folder / "bin" / "nvidia-smi", listing)
    listed = gpus.split(",")
    wanted = (
        f'"device={gpus}"',
        " ".join(f"nvidia.com/gpu={gpu}" for gpu in listed),
        f"NUM_GPUS={len(listed)}",
    )
    assert gpus_of(host, **environment) == wanted
    assert gpus_of(host, "--finetune", "--task=rte", **environment) == wanted
    count = environment.get("NUM_GPUS")
    evaluation = gpus_of(host, "--eval", **environment)
    assert evaluation == (wanted if count else ("", "", "NUM_GPUS=0"))
    assert gpus_of(host, **environment | {"NUM_GPUS": "0"}) == ("", "", "NUM_GPUS=0")
    assert gpus_of(host) == ("all", "nvidia.com/gpu=all", "NUM_GPUS=8")


@pytest.mark.parametrize(
    "environment, message",
    [
        *[
            (
                {name: value},
                f"{name}={value} leaves this job no GPU: choose some, or give NUM_GPUS=0",
            )
            for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "SLURM_JOB_GPUS")
            for value in ("", "none", "-1")
        ],
        *[
            ({"CUDA_VISIBLE_DEVICES": value}, f"CUDA_VISIBLE_DEVICES={value}: give numbers of GPUs")
            for value in ("2;3", "2,", "0,-1", "07", f"2,{ONE}", "$(id)")
        ],
        ({"CUDA_VISIBLE_DEVICES": "2,3,2"}, "CUDA_VISIBLE_DEVICES=2,3,2 names a GPU twice"),
        (
            {"CUDA_VISIBLE_DEVICES": "2,3", "NUM_GPUS": "4"},
            "NUM_GPUS=4: CUDA_VISIBLE_DEVICES=2,3 leaves this job 2; give that many or fewer",
        ),
        (
            {"CUDA_VISIBLE_DEVICES": "0,1", "NVIDIA_VISIBLE_DEVICES": "2,3"},
            "NVIDIA_VISIBLE_DEVICES=2,3 and CUDA_VISIBLE_DEVICES=0,1 name different GPUs; leave",
        ),
        (
            {"SLURM_STEP_GPUS": "4,5", "NVIDIA_VISIBLE_DEVICES": "0"},
            "NVIDIA_VISIBLE_DEVICES=0 and SLURM_STEP_GPUS=4,5 name different GPUs",
        ),
        *[
            (
                {"SLURM_STEP_GPUS": of_step, "CUDA_VISIBLE_DEVICES": of_cuda},
                f"CUDA_VISIBLE_DEVICES={of_cuda}: which of SLURM_STEP_GPUS={of_step} are these? ",
            )
            # None of the step's; one of them by either count; the first or the second.
            for of_step, of_cuda in (("4,5", "2"), ("4,5", "0,5"), ("1,2", "1"))
        ],
    ],
)
def test_a_choice_of_gpus_that_is_not_clear_is_refused(host, environment, message):
    for engine in ("docker", "podman"):
        line = refusal(host, ENGINE=engine, **environment)
        assert line.startswith(f"start_training.sh: {message}"), line
    assert host("--dry-run", **environment | {"NUM_GPUS": "0"}).returncode == 0


def test_the_help_names_every_setting_that_is_passed_on(host, repository):
    """Whatever name in capitals the script has may be a variable that it passes on."""
    names = set(re.findall(r"[A-Z][A-Z_]{3,}", (repository / "start_training.sh").read_text()))
    environment = dict.fromkeys(names - {"PATH", "GOOGLE_APPLICATION_CREDENTIALS"}, "1")
    environment |= {"ENGINE": "docker", "RELABEL": "yes", "ACCELERATOR": "gpu"}
    environment |= {f"{kind}_DIR": "gs://b/folder" for kind in ("DATA", "WIKI", "OUTPUT")}
    given = [value.split("=")[0] for value in after(dry_run(host, **environment), "--env")]
    assert {"TF_XLA_FLAGS", "SEED", "TF_CONFIG", "SLURM_PROCID", "DATA_DIR"} <= set(given)
    told = host("--help").stdout
    assert "variables of srun" in told
    assert not [name for name in given if name not in told and not name.startswith("SLURM_")]


def test_podman_gets_limits_within_the_hosts_and_cdi_devices(host):
    words = dry_run(host, ENGINE="podman", NUM_GPUS="1")
    files, processes = after(words, "--ulimit")
    most, again = map(int, processes.removeprefix("nproc=").split(":"))
    assert files == open_files() and most == again
    assert most <= int(Path("/proc/sys/kernel/pid_max").read_text())
    assert after(words, "--device") == ["nvidia.com/gpu=all"] and "--gpus" not in words
    assert ("--userns=keep-id" in words) == (os.getuid() != 0)
    named = dry_run(host, NUM_GPUS="1", SECURITY="", VERSION="podman version 4.3.1")
    assert named == ["docker", *words[1:]]  # podman under the name of docker


@pytest.mark.parametrize("environment", [{"SECURITY": ROOTLESS}, NO_DAEMON])
def test_a_rootless_docker_has_the_limits_of_the_user(host, environment):
    hard = subprocess.check_output(["bash", "-c", "ulimit -Hl"], text=True).strip()
    memlock = -1 if hard in ("unlimited", "-1") else int(hard) * 1024
    limits = after(dry_run(host, NUM_GPUS="8", **environment), "--ulimit")
    assert limits == [open_files(), f"memlock={memlock}", "stack=67108864"]
    line = refusal(host, TF_CONFIG="{}", **environment)
    assert "several hosts need the host's network, which a rootless docker does not give; " in line


def with_selinux(host, mode: str) -> None:
    programs.stand_in(host.folder / "bin" / "getenforce", f"echo {mode}")


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_mounts_are_labelled_where_selinux_is_enforcing(host, engine):
    with_selinux(host, "Enforcing")
    folder = host.folder
    mounts = [f"{folder}/{name}:/{name}:ro,z" for name in ("data", "wiki")]
    mounts.append(f"{folder}/output:/output:z")
    words = dry_run(host, ENGINE=engine)
    assert after(words, "--volume") == mounts
    assert "--mount" not in words and "label=disable" not in words
    assert after(dry_run(host, "--demo", ENGINE=engine), "--volume") == mounts[-1:]
    key = folder / "key.json"
    key.touch()
    environment = {"DATA_DIR": "gs://b/data", "GOOGLE_APPLICATION_CREDENTIALS": "key.json"}
    words = dry_run(host, ENGINE=engine, **environment)
    assert after(words, "--volume") == [*mounts[1:], f"{key}:/credentials.json:ro,z"]
    (folder / "a:b").mkdir()
    line = refusal(host, ENGINE=engine, OUTPUT_DIR="a:b")
    assert "a:b: a mount with SELinux cannot have a colon in its path; use a link without" in line


def test_labels_may_stay_as_they_are_and_are_not_needed_where_nothing_is_enforced(host):
    with_selinux(host, "Enforcing")
    words = dry_run(host, RELABEL="no")
    assert after(words, "--security-opt") == ["no-new-privileges", "label=disable"]
    assert after(words, "--mount") == after(expected_run(host), "--mount")
    for mode in ("Permissive", "Disabled"):
        with_selinux(host, mode)
        assert dry_run(host) == [*expected_run(host), *TRAINING]


def test_the_hosts_output_folder_may_be_a_flag_too(host):
    """As a campaign gives it."""
    for value in ("/output", "/output/second", "gs://bucket/run"):
        passed_on = [f"--output_dir={value}"] * (value != "/output")
        words = dry_run(host, f"--output_dir={value}")
        assert words[-1 - len(passed_on) :] == ["./train_model.sh", *passed_on]
        assert after(words, "--mount") == after(expected_run(host), "--mount")
    output = f"{host.folder}/a run"
    words = dry_run(host, f"--output_dir={output}", OUTPUT_DIR=output)
    assert words[-1] == "./train_model.sh"
    assert after(words, "--mount")[-1] == f"type=bind,source={output},target=/output"
    for value in ("results/run", "/outputs", "/output_2/run"):
        line = refusal(host, f"--output_dir={value}")
        assert f"--output_dir={value}: only /output can be written in the container; give" in line
        assert line.endswith(f"OUTPUT_DIR={value} instead")


def test_the_page_cache_is_emptied_by_the_hosts_root(host):
    control = host.folder.parent / "drop_caches"  # without a space
    control.touch()
    text = host.script.read_text().replace("/proc/sys/vm/drop_caches", str(control))
    host.script = programs.stand_in(host.folder / "start_training.sh", text)
    mount = f"type=bind,source={control},target=/drop_caches"
    for root, flag, is_mounted in (
        ("0", "--drop_caches", True),
        ("0", "-drop_caches", True),
        ("0", "--drop_caches=true", True),
        ("0", "--nodrop_caches", False),
        ("0", "--seed=1", False),
        ("1000", "--drop_caches", False),
    ):
        programs.stand_in(host.folder / "bin" / "id", f"echo {root}")
        words = dry_run(host, flag)
        assert (mount in after(words, "--mount")) == is_mounted and words[-1] == flag
    programs.stand_in(host.folder / "bin" / "id", "echo 0")
    assert mount not in dry_run(host, "--drop_caches", **NO_DAEMON)


def test_the_image_is_built_when_it_is_missing(host, repository):
    assert host(NO_IMAGE="1", BUILD_OPTIONS="--network=host --pull").returncode == 0
    info, security, look, build, again, run = host.calls()
    assert (info, security) == ("<info>", SECURITY)
    assert look == again == "<image><inspect><--format><{{.Id}}><mlperf-bert:cpu>"
    assert build.startswith("<build><--tag><mlperf-bert:cpu><--build-arg><ACCELERATOR=cpu>")
    assert build.endswith(f"<--network=host><--pull><{repository}>")
    assert run.endswith("<mlperf-bert:cpu><./train_model.sh>")
    assert "<MLPERF_BERT_IMAGE=unknown>" in run
    assert host().returncode == 0 and "<MLPERF_BERT_IMAGE=sha256:4711>" in host.calls()[-1]
    done = host(NO_IMAGE="1", BUILD_STATUS="3")
    assert done.returncode == 1 and "could not be built" in done.stderr


def test_the_exit_code_of_the_container_is_passed_on(host):
    assert host(RUN_STATUS="75").returncode == 75
    assert host(RUN_STATUS="0").returncode == 0


def test_no_tty_is_asked_for_without_one_and_one_is_with_one(host, repository, terminal):
    assert "--tty" not in dry_run(host)
    leader, follower = terminal
    environment = {"PATH": f"{host.folder}/bin:{os.environ['PATH']}"}
    subprocess.run(
        [repository / "start_training.sh", "--dry-run"],
        cwd=host.folder, env=environment, stdin=follower, stdout=follower, check=True,
    )  # fmt: skip
    assert b"--tty --interactive" in os.read(leader, 10_000)


def test_detach_prints_the_name_and_the_pid_for_tracers(host):
    done = host("--detach")
    assert done.stdout == "container the-name  host PID 4242\n"
    assert "<--detach>" in host.calls()[3]


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"DATA_DIR": "/nowhere"}, "DATA_DIR=/nowhere: no such folder"),
        ({"DATA_DIR": "empty"}, "DATA_DIR=empty is empty"),
        ({"WIKI_DIR": "data"}, "WIKI_DIR=data: no bert_config.json"),
        ({"OUTPUT_DIR": "/proc/none"}, "cannot be made"),
        ({"OUTPUT_DIR": "a,b"}, "cannot have a comma"),
        ({"OUTPUT_DIR": "a\nb"}, "a?b: a mount cannot have a comma, quote or line break"),
        ({"DATA_DIR": "~none/data"}, "~none/data: give the whole path, or ./~none/data"),
        ({"NUM_GPUS": "abc"}, "NUM_GPUS=abc: give a number, 0 for the CPU, or leave it out"),
        ({"NUM_GPUS": "a[$(touch x)]"}, "NUM_GPUS=a[$(touch x)]: give a number"),
        ({"NUM_GPUS": "1\n\x1b[2J"}, "NUM_GPUS=1??[2J: give a number"),
        ({"RELABEL": "maybe"}, "RELABEL=maybe: give yes or no, or leave it out"),
        ({"MEMORY": "lots"}, "MEMORY=lots: give a size, such as 512m or 8g, or leave it out"),
        ({"SHM_SIZE": "-1g"}, "SHM_SIZE=-1g: give a size"),
        ({"STOP_TIMEOUT": "5m"}, "STOP_TIMEOUT=5m: give whole seconds, or leave it out"),
        ({"NAME": "my run"}, "NAME=my run: give letters, digits, _ . and -"),
        ({"ENGINE": "no-engine"}, "ENGINE=no-engine does not answer: install it"),
        ({"ENGINE": "silent"}, "ENGINE=silent does not answer"),
    ],
)
def test_a_mistake_is_one_line(host, environment, message):
    (host.folder / "empty").mkdir()
    programs.stand_in(host.folder / "bin" / "silent", "exit 1")
    assert message in refusal(host, **environment)
    assert not list(host.folder.glob("[ax]*"))


@pytest.mark.parametrize(
    "words",
    [["demo"], ["--eval", "False"], ["--train_batch_size=8", "part-1"], ["--seed", "1", "part-1"]],
)
def test_a_word_that_is_not_the_value_of_a_flag_is_refused_before_the_image_is_built(host, words):
    line = refusal(host, *words, NO_IMAGE="1")
    assert line.startswith(f"start_training.sh: {words[-1]}: is not an option or a flag's value")
    assert not host.calls()


def test_one_program_is_started(host):
    line = refusal(host, "--eval", "--demo")
    assert line == "start_training.sh: --eval and --demo: give one of them"
    assert not host.calls()


@pytest.mark.parametrize("size", ["512m", "1.5G", "8GiB"])
def test_sizes_are_those_of_the_engines(host, size):
    words = dry_run(host, MEMORY=size, SHM_SIZE="2g", STOP_TIMEOUT="7")
    expected = expected_run(host)
    at = expected.index("--shm-size")
    limits = ["--shm-size", "2g", "--stop-timeout", "7", "--memory", size, "--memory-swap", size]
    assert words == [*expected[:at], *limits, *expected[at + 4 :], *TRAINING]


def test_no_engine_is_one_line(host):
    for name in ("docker", "podman"):
        programs.stand_in(host.folder / "bin" / name, "exit 1")
    assert "no container engine answers" in refusal(host)


@pytest.mark.parametrize("name", ["a b", "[abc]", "back\\slash", "-", "$(touch x)", "\x1b[1m", "é"])
def test_folders_may_have_any_name_that_an_engine_takes(host, name):
    for kind in ("data", "wiki"):
        (host.folder / f"{kind}-{name}").mkdir()
        shutil.copytree(host.folder / kind, host.folder / name / kind)
    given = {"DATA_DIR": f"{name}/data", "WIKI_DIR": f"{name}/wiki", "OUTPUT_DIR": name}
    done = host(**given)
    assert done.returncode == 0, done.stderr
    mounts = re.findall(r"source=(.*?),target=(/\w+)", host.calls()[-1])
    expected = {"/data": f"/{name}/data", "/wiki": f"/{name}/wiki", "/output": f"/{name}"}
    assert {t: s.removeprefix(str(host.folder)) for s, t in mounts} == expected
    assert not (host.folder / "x").exists()


def test_cdpath_leads_nowhere_else(host, repository, tmp_path):
    """Exported, it makes `cd data` go to, and print, a folder of that name somewhere else."""
    other = tmp_path / "other"
    for name in ("data", "wiki", "output", repository.name, "cleanup_scripts", "tracing"):
        (other / name).mkdir(parents=True, exist_ok=True)  # the checkout may have such a name
    given = {"DATA_DIR": "data", "WIKI_DIR": "wiki", "OUTPUT_DIR": "output"}
    assert dry_run(host, **given, CDPATH=str(other)) == [*expected_run(host), *TRAINING]


def train(repository, script, tmp_path, *flags, **environment) -> list[str]:
    """The words with which a script of the container starts Python, in its own place."""
    says = 'printf "%s\\n" $$ "$@"\necho "XLA $TF_XLA_FLAGS" >&2\nexit 9'
    python = programs.stand_in(tmp_path / "python", says)
    environment = {"PATH": os.environ["PATH"], "PYTHON": str(python), **environment}
    started = ["bash", "-c", 'echo $$; exec "$@"', "", repository / script, *flags]
    done = programs.run(*started, env=environment)
    assert done.returncode == 9  # Python's own
    assert done.stderr == "XLA --tf_xla_auto_jit=2\n"
    of_script, of_python, *words = done.stdout.splitlines()
    assert of_script == of_python  # a signal to the container's process 1 is Python's
    return words


def test_train_model_turns_the_environment_into_flags(repository, tmp_path):
    words = train(repository, "train_model.sh", tmp_path, "--train_batch_size=48", SEED="5")
    presets = words.index("--flagfile=/dev/null")  # may override what is before it
    assert words[:9] == [
        "run_pretraining.py", "--do_train", "--bert_config_file=/wiki/bert_config.json",
        "--init_checkpoint=/wiki/tf1_ckpt/model.ckpt-28252", "--input_file=/data/part-*",
        "--eval_input_file=/data/eval_10k", "--output_dir=/output", "--num_gpus=0", "--seed=5",
    ]  # fmt: skip
    assert {"--optimizer=lamb", "--train_batch_size=24"} <= set(words[9:presets])
    assert words[presets + 1 :] == ["--train_batch_size=48"]
    given = {"EVAL_FILE": "", "DATA_DIR": "/a b", "WIKI_DIR": "/w", "OUTPUT_DIR": "/o"}
    assert train(repository, "train_model.sh", tmp_path, **given)[1:7] == [
        "--do_train", "--bert_config_file=/w/bert_config.json",
        "--init_checkpoint=/w/tf1_ckpt/model.ckpt-28252", "--input_file=/a b/part-*",
        "--output_dir=/o", "--num_gpus=0",
    ]  # fmt: skip
    given = {"EVAL_FILE": "/e", "INIT_CHECKPOINT": "/i"}
    words = train(repository, "train_model.sh", tmp_path, **given)
    assert {"--init_checkpoint=/i", "--eval_input_file=/e"} <= set(words)
    assert not [word for word in words if word.startswith("--seed")]


@pytest.mark.parametrize("script", ["train_model.sh", "finetune_model.sh"])
@pytest.mark.parametrize(
    "visible, number",
    [(None, 8), (f"{ONE}, {OTHER}", 2), (SLICE, 1), ("", 0), ("-1", 0)],
)
def test_without_an_engine_the_gpus_that_cuda_sees_are_counted(
    repository, tmp_path, script, visible, number
):
    programs.stand_in(
        tmp_path / "bin" / "nvidia-smi", "for n in 0 1 2 3 4 5 6 7; do echo GPU $n: ; done"
    )
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    environment["PATH"] = f"{tmp_path}/bin:{os.environ['PATH']}"
    assert f"--num_gpus={number}" in train(repository, script, tmp_path, **environment)
    assert "--num_gpus=1" in train(repository, script, tmp_path, NUM_GPUS="1", **environment)


def test_finetune_model_starts_from_the_run_in_the_output(repository, tmp_path):
    words = train(repository, "finetune_model.sh", tmp_path, "--task=rte", SEED="4")
    assert words == [
        "run_finetuning.py", "--data_dir=/data", "--checkpoint=/output",
        "--bert_config_file=/wiki/bert_config.json", "--vocab_file=/wiki/vocab.txt",
        "--output_dir=/output/finetuning", "--num_gpus=0", "--seed=4", "--task=rte",
    ]  # fmt: skip
    words = train(repository, "finetune_model.sh", tmp_path, INIT_CHECKPOINT="/wiki/a b")
    assert "--checkpoint=/wiki/a b" in words
    for flags, seed in (
        (["--sweep"], "--seeds=4"),
        (["--sweep=true", "--task=rte"], "--seeds=4"),
        (["--sweep=1"], "--seeds=4"),
        (["--sweep=false"], "--seed=4"),
        (["--sweep=False"], "--seed=4"),
        (["--sweep", "--nosweep"], "--seed=4"),
        (["--nosweep", "--sweep"], "--seeds=4"),
    ):
        words = train(repository, "finetune_model.sh", tmp_path, *flags, SEED="4")
        assert words[-1 - len(flags) :] == [seed, *flags]


def test_eval_model_evaluates_beside_a_training(repository, tmp_path):
    words = train(repository, "eval_model.sh", tmp_path, "--num_train_steps=600", DATA_DIR="/d")
    assert words[:5] == [
        "run_pretraining.py", "--bert_config_file=/wiki/bert_config.json",
        "--input_file=/d/eval_10k", "--output_dir=/output", "--num_gpus=0",
    ]  # fmt: skip
    rest = ["--flagfile=/dev/null", "--num_train_steps=600", "--do_eval", "--nodo_train"]
    assert words[-4:] == rest


@pytest.mark.parametrize("script", ["train_model.sh", "finetune_model.sh"])
def test_a_script_that_is_process_1_ends_when_it_is_stopped_before_python(
    repository, tmp_path, script
):
    for name, text in {"nvidia-smi": 'touch "$0.runs"; sleep 1', "python": "exit 9"}.items():
        programs.stand_in(tmp_path / name, text)
    unshared = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]
    if programs.run(*unshared, "true").returncode:
        lacking("no new namespace of processes can be had here")
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    process = subprocess.Popen([*unshared, repository / script], env=environment)
    waiting.until((tmp_path / "nvidia-smi.runs").exists, process)
    [first] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(first), signal.SIGTERM)
    assert process.wait(timeout=30) == 143
