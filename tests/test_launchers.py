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
EIGHT_GPUS = 'for n in 0 1 2 3 4 5 6 7; do echo "GPU $n: one"; done'


def split(line: str) -> tuple[dict[str, str], list[str]]:
    """Settings and words of `NAME=value ... WORD ...`, as a shell would read them."""
    words = shlex.split(line)
    settings = list(itertools.takewhile(re.compile(r"[A-Z_]+=").match, words))
    return dict(word.split("=", 1) for word in settings), words[len(settings) :]


class Host:
    """A folder with data, whose paths have spaces, and engines."""

    def __init__(self, folder: Path, script: Path):
        self.folder, self.script = folder, script
        for name in ("data/part-00000-of-00500", "wiki/bert_config.json"):
            (folder / name).parent.mkdir(parents=True)
            (folder / name).touch()
        for name in ("docker", "podman"):
            self.has(name, ENGINE)

    def has(self, program: str, text: str) -> None:
        programs.stand_in(self.folder / "bin" / program, text)

    def start(self, line: str = "", **settings: str) -> subprocess.CompletedProcess:
        """Runs start_training.sh with the settings and words of a line in a shell."""
        self._record.unlink(missing_ok=True)
        given, words = split(line)
        own = {"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "RECORD": str(self._record)}
        options = {"cwd": self.folder, "env": own | {"NAME": "the-name"} | given | settings}
        return programs.run(self.script, *words, stdin=subprocess.DEVNULL, **options)

    @property
    def _record(self) -> Path:
        return self.folder / "record"

    def calls(self) -> list[str]:
        return self._record.read_text().splitlines() if self._record.exists() else []

    def dry_run(self, line: str = "", **settings: str) -> list[str]:
        """The words of the command that would be run."""
        return shlex.split(self.start(f"{line} --dry-run", **settings).stdout)

    def refusal(self, line: str, **settings: str) -> str:
        """The one line with which start_training.sh refuses."""
        done = self.start(line, **settings)
        assert done.returncode == 1
        [told] = done.stderr.splitlines()
        assert "<run>" not in "".join(self.calls())
        return told

    def expected(self, *, mounts="data wiki output", user="", gpus=(), given="NUM_GPUS=0") -> list:
        """The words before the image."""
        limits = ["--shm-size", "1g", "--stop-timeout", "300", "--ulimit", open_files()]
        places = [f"{name},target=/{name}" for name in mounts.split()]
        places = [place if "output" in place else f"{place},readonly" for place in places]
        sources = [f"type=bind,source={self.folder}/{place}" for place in places]
        return [
            *["docker", "run", "--rm", "--name", "the-name"],
            *["--user", user or f"{os.getuid()}:{os.getgid()}", "--read-only"],
            *["--tmpfs", "/tmp:rw,exec,nosuid,nodev", "--cap-drop", "ALL"],
            *["--security-opt", "no-new-privileges", *limits, *gpus],
            *[word for source in sources for word in ("--mount", source)],
            *[word for value in shlex.split(given) for word in ("--env", value)],
        ]


@pytest.fixture
def host(tmp_path, repository) -> Host:
    return Host(tmp_path / "a host", repository / "start_training.sh")


def after(words: list[str], option: str) -> list[str]:
    """The values of an option that may be given again."""
    return [value for name, value in itertools.pairwise(words) if name == option]


def hard_limit(kind: str) -> int:
    """-1 for none, as --ulimit takes it."""
    hard = subprocess.check_output(["bash", "-c", f"ulimit -H{kind}"], text=True).strip()
    return -1 if hard == "unlimited" else int(hard)


def open_files() -> str:
    return "nofile=" + ":".join([str(hard_limit("n"))] * 2)


TRAINING = ["mlperf-bert:cpu", "./train_model.sh"]
ROOTLESS = "SECURITY='[name=seccomp,profile=builtin name=rootless name=cgroupns]'"
NO_DAEMON = "SECURITY= DOCKER_HOST=unix:///run/user/1000/docker.sock"
GPUS = ["--gpus", "all", "--ulimit", "memlock=-1", "--ulimit", "stack=67108864"]
HOSTS = """TF_CONFIG='{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"index": 0}}'"""
SRUN = "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2"


@pytest.mark.parametrize(
    "line, differs, ends",
    [
        ("--train_batch_size=8 '--org=My Lab'", {},
         "mlperf-bert:cpu ./train_model.sh --train_batch_size=8 '--org=My Lab'"),
        ("SEED=7 EVAL_FILE= NUM_GPUS=4 --eval",
         {"gpus": GPUS, "given": "NUM_GPUS=4 SEED=7 EVAL_FILE="},
         "mlperf-bert:gpu ./eval_model.sh"),
        ("INIT_CHECKPOINT=/wiki/hf SEED=2 --finetune --task=rte",
         {"given": "NUM_GPUS=0 SEED=2 INIT_CHECKPOINT=/wiki/hf"},
         "mlperf-bert:cpu ./finetune_model.sh --task=rte"),
        ("SEED=3 DATA_DIR=/nowhere --demo", {"mounts": "output", "given": ""},
         "mlperf-bert:cpu python -m demo --output_dir=/output/demo --seed=3"),
        ("DATA_DIR='~/data' WIKI_DIR='~/wiki' OUTPUT_DIR='~/output'", {}, ""),
        (ROOTLESS, {"user": "0:0"}, ""),
        (NO_DAEMON, {"user": "0:0"}, ""),
        (HOSTS, {"given": f"NUM_GPUS=0 {HOSTS}"}, "--network=host"),
        (SRUN, {"given": f"NUM_GPUS=0 {SRUN}"}, "--network=host"),
    ],
)  # fmt: skip
def test_dry_run_prints_the_exact_command(host, line, differs, ends):
    ends = shlex.split(ends)
    ends += TRAINING if "mlperf-bert" not in "".join(ends) else []
    assert host.dry_run(line, HOME=str(host.folder)) == [*host.expected(**differs), *ends]
    assert host.calls()[0] == SECURITY and not (host.folder / "output").exists()


def test_folders_in_a_bucket_are_named_and_not_mounted(host):
    expected = host.expected(mounts="wiki", given="")
    at = expected.index("--mount")
    data, output = "DATA_DIR=gs://b/tfrecords", "OUTPUT_DIR=gs://b/run"
    rest = [*expected[at:], "--env", output, "--env", "NUM_GPUS=0", *TRAINING]
    assert host.dry_run(f"{data} {output}") == [*expected[:at], "--env", data, *rest]
    assert not [path for path in host.folder.iterdir() if path.name.startswith("gs")]


def test_a_key_is_mounted_for_what_is_in_a_bucket_alone(host):
    own, other = host.folder / ".config/gcloud/application_default_credentials.json", "key.json"
    for key in (own, host.folder / other):
        key.parent.mkdir(parents=True, exist_ok=True)
        key.touch()
    name, home = "GOOGLE_APPLICATION_CREDENTIALS", f"HOME='{host.folder}'"
    for settings, source in (
        (home, own), (f"{home} {name}='~/key.json'", key), (f"{name}=key.json", key)
    ):  # fmt: skip
        mount = f"type=bind,source={source},target=/credentials.json,readonly"
        for place in (
            "DATA_DIR=gs://b/tfrecords", "INIT_CHECKPOINT=gs://b/run", "EVAL_FILE=gs://b/eval_10k",
            "--init_checkpoint=gs://b/run",
        ):  # fmt: skip
            words = host.dry_run(f"{settings} {place}")
            assert after(words, "--mount")[-1] == mount
            assert f"{name}=/credentials.json" in after(words, "--env")
        assert host.dry_run(settings) == [*host.expected(), *TRAINING]


def test_an_evaluation_leaves_the_gpus_to_the_training(host):
    host.has("nvidia-smi", "echo 'GPU 0: one'; echo 'GPU 1: another'")
    training = host.expected(gpus=GPUS, given="NUM_GPUS=2")
    assert host.dry_run() == [*training, "mlperf-bert:gpu", "./train_model.sh"]
    assert host.dry_run("--eval") == [*host.expected(), "mlperf-bert:gpu", "./eval_model.sh"]


def test_the_image_has_what_accelerator_names(host):
    for kind in ("gpu-cuda13", "gpu-tensorflow", "gpu"):
        words = host.dry_run(f"ACCELERATOR={kind} NUM_GPUS=2")
        assert words[-2] == f"mlperf-bert:{kind}" and "--gpus" in words
    assert host.dry_run("ACCELERATOR=cpu NUM_GPUS=0")[-2] == "mlperf-bert:cpu"
    assert host.dry_run("ACCELERATOR=gpu-cuda13 IMAGE=mine")[-2] == "mine"
    for line, image in (
        ("NUM_GPUS=2", "mlperf-bert:gpu-tensorflow"),
        ("ACCELERATOR=gpu NUM_GPUS=0", "mlperf-bert:gpu"),
        ("ACCELERATOR=gpu IMAGE=mine NUM_GPUS=2", "mine"),
    ):
        assert host.dry_run(f"{line} --finetune")[-2] == image
    host.start("NO_IMAGE=1 ACCELERATOR=gpu-cuda13")
    build = next(call for call in host.calls() if call.startswith("<build>"))
    assert "<mlperf-bert:gpu-cuda13><--build-arg><ACCELERATOR=gpu-cuda13>" in build


def gpus_of(host, line: str) -> tuple[str, str, str]:
    """Docker's --gpus, podman's devices, and NUM_GPUS, which is the same with both."""
    docker, podman = (host.dry_run(f"ENGINE={engine} {line}") for engine in ("docker", "podman"))
    [number] = [word for word in docker if word.startswith("NUM_GPUS=")]
    assert number in podman and docker[-2:] == podman[-2:]
    return "".join(after(docker, "--gpus")), " ".join(after(podman, "--device")), number


ONE, OTHER = "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77", "GPU-0f7a1b1c-1111-2222-3333-444455556666"
SLICE = "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f"


@pytest.mark.parametrize(
    "line, gpus",
    [
        ("CUDA_VISIBLE_DEVICES=2,3", "2,3"),
        ("CUDA_VISIBLE_DEVICES='3, 2'", "3,2"),
        ("NVIDIA_VISIBLE_DEVICES=5", "5"),
        (f"NVIDIA_VISIBLE_DEVICES={SLICE}", SLICE),
        ("CUDA_VISIBLE_DEVICES=2,3 NUM_GPUS=1", "2"),
        # Slurm without a control group, where CUDA's numbers are the host's, and in one.
        ("SLURM_JOB_GPUS=4,5", "4,5"),
        ("SLURM_JOB_GPUS=4,5,6,7 SLURM_STEP_GPUS=6,7", "6,7"),
        ("SLURM_STEP_GPUS=4,5 CUDA_VISIBLE_DEVICES=0,1", "4,5"),
        ("SLURM_JOB_GPUS=4,5,6 CUDA_VISIBLE_DEVICES=2,1", "6,5"),
        ("SLURM_STEP_GPUS=4,5 NVIDIA_VISIBLE_DEVICES=5", "5"),
    ],
)
def test_a_container_gets_the_gpus_that_its_job_was_given(host, line, gpus):
    host.has("nvidia-smi", EIGHT_GPUS)
    devices = [f"nvidia.com/gpu={gpu}" for gpu in gpus.split(",")]
    wanted = (f'"device={gpus}"', " ".join(devices), f"NUM_GPUS={len(devices)}")
    assert gpus_of(host, line) == gpus_of(host, f"{line} --finetune --task=rte") == wanted
    none = ("", "", "NUM_GPUS=0")
    assert gpus_of(host, f"{line} --eval") == (wanted if "NUM_GPUS" in line else none)
    assert gpus_of(host, f"{line} NUM_GPUS=0") == none
    assert gpus_of(host, "") == ("all", "nvidia.com/gpu=all", "NUM_GPUS=8")


def test_the_help_names_every_setting_that_is_passed_on(host):
    """Whatever name in capitals the script has may be a variable that it passes on."""
    names = set(re.findall(r"[A-Z][A-Z_]{3,}", host.script.read_text()))
    settings = dict.fromkeys(names - {"PATH", "GOOGLE_APPLICATION_CREDENTIALS"}, "1")
    settings |= {"ENGINE": "docker", "RELABEL": "yes", "ACCELERATOR": "gpu"}
    settings |= {f"{kind}_DIR": "gs://b/folder" for kind in ("DATA", "WIKI", "OUTPUT")}
    given = [value.split("=")[0] for value in after(host.dry_run(**settings), "--env")]
    assert {"TF_XLA_FLAGS", "SEED", "TF_CONFIG", "SLURM_PROCID", "DATA_DIR"} <= set(given)
    told = host.start("--help").stdout
    assert "variables of srun" in told
    assert not [name for name in given if name not in told and not name.startswith("SLURM_")]


def test_podman_gets_limits_within_the_hosts_and_cdi_devices(host):
    words = host.dry_run("ENGINE=podman NUM_GPUS=1")
    files, processes = after(words, "--ulimit")
    most, again = map(int, processes.removeprefix("nproc=").split(":"))
    assert files == open_files() and most == again
    assert most <= int(Path("/proc/sys/kernel/pid_max").read_text())
    assert after(words, "--device") == ["nvidia.com/gpu=all"] and "--gpus" not in words
    assert ("--userns=keep-id" in words) == (os.getuid() != 0)
    named = host.dry_run("NUM_GPUS=1 SECURITY= VERSION='podman version 4.3.1'")
    assert named == ["docker", *words[1:]]  # podman under the name of docker


@pytest.mark.parametrize("rootless", [ROOTLESS, NO_DAEMON])
def test_a_rootless_docker_has_the_limits_of_the_user(host, rootless):
    memlock = hard_limit("l")
    memlock = memlock * 1024 if memlock != -1 else -1
    limits = after(host.dry_run(f"{rootless} NUM_GPUS=8"), "--ulimit")
    assert limits == [open_files(), f"memlock={memlock}", "stack=67108864"]
    line = host.refusal(f"{rootless} TF_CONFIG={{}}")
    assert "several hosts need the host's network, which a rootless docker does not give; " in line


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_mounts_are_labelled_where_selinux_is_enforcing(host, engine):
    host.has("getenforce", "echo Enforcing")
    folder = host.folder
    mounts = [f"{folder}/{name}:/{name}:ro,z" for name in ("data", "wiki")]
    mounts.append(f"{folder}/output:/output:z")
    words = host.dry_run(f"ENGINE={engine}")
    assert after(words, "--volume") == mounts
    assert "--mount" not in words and "label=disable" not in words
    assert after(host.dry_run(f"ENGINE={engine} --demo"), "--volume") == mounts[-1:]
    (folder / "key.json").touch()
    of_bucket = "DATA_DIR=gs://b/data GOOGLE_APPLICATION_CREDENTIALS=key.json"
    words = host.dry_run(f"ENGINE={engine} {of_bucket}")
    key = f"{folder}/key.json:/credentials.json:ro,z"
    assert after(words, "--volume") == [*mounts[1:], key]
    (folder / "a:b").mkdir()
    line = host.refusal(f"ENGINE={engine} OUTPUT_DIR=a:b")
    assert "a:b: a mount with SELinux cannot have a colon in its path; use a link without" in line


def test_labels_may_stay_as_they_are_and_are_not_needed_where_nothing_is_enforced(host):
    host.has("getenforce", "echo Enforcing")
    words = host.dry_run("RELABEL=no")
    assert after(words, "--security-opt") == ["no-new-privileges", "label=disable"]
    assert after(words, "--mount") == after(host.expected(), "--mount")
    for mode in ("Permissive", "Disabled"):
        host.has("getenforce", f"echo {mode}")
        assert host.dry_run() == [*host.expected(), *TRAINING]


def test_the_hosts_output_folder_may_be_a_flag_too(host):
    """As a campaign gives it."""
    for value in ("/output", "/output/second", "gs://bucket/run"):
        passed_on = [f"--output_dir={value}"] * (value != "/output")
        words = host.dry_run(f"--output_dir={value}")
        assert words[-1 - len(passed_on) :] == ["./train_model.sh", *passed_on]
        assert after(words, "--mount") == after(host.expected(), "--mount")
    output = f"{host.folder}/a run"
    words = host.dry_run(f"OUTPUT_DIR='{output}' '--output_dir={output}'")
    assert words[-1] == "./train_model.sh"
    assert after(words, "--mount")[-1] == f"type=bind,source={output},target=/output"
    for value in ("results/run", "/outputs", "/output_2/run"):
        line = host.refusal(f"--output_dir={value}")
        assert f"--output_dir={value}: only /output can be written in the container; give" in line
        assert line.endswith(f"OUTPUT_DIR={value} instead")


def test_the_page_cache_is_emptied_by_the_hosts_root(host):
    control = host.folder.parent / "drop_caches"  # without a space
    control.touch()
    text = host.script.read_text().replace("/proc/sys/vm/drop_caches", str(control))
    host.script = programs.stand_in(host.folder / "start_training.sh", text)
    mount = f"type=bind,source={control},target=/drop_caches"
    host.has("id", "echo 0")
    for flag in ("--drop_caches", "-drop_caches", "--drop_caches=true"):
        words = host.dry_run(flag)
        assert mount in after(words, "--mount") and words[-1] == flag
    for flag in ("--nodrop_caches", "--seed=1", f"{NO_DAEMON} --drop_caches"):
        assert mount not in host.dry_run(flag)
    host.has("id", "echo 1000")
    assert mount not in host.dry_run("--drop_caches")


def test_the_image_is_built_when_it_is_missing(host, repository):
    assert host.start("NO_IMAGE=1 BUILD_OPTIONS='--network=host --pull'").returncode == 0
    info, security, look, build, again, run = host.calls()
    assert (info, security) == ("<info>", SECURITY)
    assert look == again == "<image><inspect><--format><{{.Id}}><mlperf-bert:cpu>"
    assert build.startswith("<build><--tag><mlperf-bert:cpu><--build-arg><ACCELERATOR=cpu>")
    assert build.endswith(f"<--network=host><--pull><{repository}>")
    assert run.endswith("<mlperf-bert:cpu><./train_model.sh>")
    assert "<MLPERF_BERT_IMAGE=unknown>" in run
    assert host.start().returncode == 0 and "<MLPERF_BERT_IMAGE=sha256:4711>" in host.calls()[-1]
    done = host.start("NO_IMAGE=1 BUILD_STATUS=3")
    assert done.returncode == 1 and "could not be built" in done.stderr


def test_the_exit_code_of_the_container_is_passed_on(host):
    for code in (75, 0):
        assert host.start(f"RUN_STATUS={code}").returncode == code


def test_no_tty_is_asked_for_without_one_and_one_is_with_one(host, terminal):
    assert "--tty" not in host.dry_run()
    leader, follower = terminal
    subprocess.run(
        [host.script, "--dry-run"], env={"PATH": f"{host.folder}/bin:{os.environ['PATH']}"},
        cwd=host.folder, stdin=follower, stdout=follower, check=True,
    )  # fmt: skip
    assert b"--tty --interactive" in os.read(leader, 10_000)


def test_detach_prints_the_name_and_the_pid_for_tracers(host):
    assert host.start("--detach").stdout == "container the-name  host PID 4242\n"
    assert "<--detach>" in host.calls()[3]


NO_GPU = "leaves this job no GPU: choose some, or give NUM_GPUS=0"
OF_GPUS = [
    *(
        (f"{name}={value}", f"{name}={value} {NO_GPU}")
        for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "SLURM_JOB_GPUS")
        for value in ("", "none", "-1")
    ),
    *(
        (f"CUDA_VISIBLE_DEVICES='{value}'", f"CUDA_VISIBLE_DEVICES={value}: give numbers of GPUs")
        for value in ("2;3", "2,", "0,-1", "07", f"2,{ONE}", "$(id)")
    ),
    ("CUDA_VISIBLE_DEVICES=2,3,2", "CUDA_VISIBLE_DEVICES=2,3,2 names a GPU twice"),
    ("CUDA_VISIBLE_DEVICES=2,3 NUM_GPUS=4",
     "NUM_GPUS=4: CUDA_VISIBLE_DEVICES=2,3 leaves this job 2; give that many or fewer"),
    ("CUDA_VISIBLE_DEVICES=0,1 NVIDIA_VISIBLE_DEVICES=2,3",
     "NVIDIA_VISIBLE_DEVICES=2,3 and CUDA_VISIBLE_DEVICES=0,1 name different GPUs; leave"),
    ("SLURM_STEP_GPUS=4,5 NVIDIA_VISIBLE_DEVICES=0",
     "NVIDIA_VISIBLE_DEVICES=0 and SLURM_STEP_GPUS=4,5 name different GPUs"),
    *(
        (f"SLURM_STEP_GPUS={of_step} CUDA_VISIBLE_DEVICES={of_cuda}",
         f"CUDA_VISIBLE_DEVICES={of_cuda}: which of SLURM_STEP_GPUS={of_step} are these? ")
        # None of the step's; one of them by either count; the first or the second.
        for of_step, of_cuda in (("4,5", "2"), ("4,5", "0,5"), ("1,2", "1"))
    ),
]  # fmt: skip


@pytest.mark.parametrize("line, message", OF_GPUS)
def test_a_choice_of_gpus_that_is_not_clear_is_refused(host, line, message):
    for engine in ("docker", "podman"):
        told = host.refusal(f"ENGINE={engine} {line}")
        assert told.startswith(f"start_training.sh: {message}"), told
    assert host.start(f"{line} NUM_GPUS=0 --dry-run").returncode == 0


NO_FLAG = "is not an option or a flag's value"
REFUSED = [
    ("DATA_DIR=/nowhere", "DATA_DIR=/nowhere: no such folder"),
    ("DATA_DIR=empty", "DATA_DIR=empty is empty"),
    ("WIKI_DIR=data", "WIKI_DIR=data: no bert_config.json"),
    ("OUTPUT_DIR=/proc/none", "cannot be made"),
    ("OUTPUT_DIR=a,b", "cannot have a comma"),
    ("OUTPUT_DIR='a\nb'", "a?b: a mount cannot have a comma, quote or line break"),
    ("OUTPUT_DIR=gs://b/run --finetune --dry-run",
     "OUTPUT_DIR=gs://b/run: fine-tuning writes to a local folder; name one"),
    ("OUTPUT_DIR=gs://b/run --demo",
     "OUTPUT_DIR=gs://b/run: the demo writes to a local folder; name one"),
    ("DATA_DIR='~none/data'", "~none/data: give the whole path, or ./~none/data"),
    ("GOOGLE_APPLICATION_CREDENTIALS=none.json",
     "GOOGLE_APPLICATION_CREDENTIALS=none.json cannot be read; name a"),
    ("NUM_GPUS=abc", "NUM_GPUS=abc: give a number, 0 for the CPU, or leave it out"),
    ("NUM_GPUS='a[$(touch x)]'", "NUM_GPUS=a[$(touch x)]: give a number"),
    ("NUM_GPUS='1\n\x1b[2J'", "NUM_GPUS=1??[2J: give a number"),
    *(
        (f"ACCELERATOR={kind}",
         f"ACCELERATOR={kind}: give gpu, gpu-cuda13, gpu-tensorflow or cpu")
        for kind in ("tpu", "rocm", "gpu2")
    ),
    *(
        (f"ACCELERATOR={kind} NUM_GPUS=2 --finetune",
         f"ACCELERATOR={kind}: --finetune computes by TensorFlow, which this image has for CPUs")
        for kind in ("gpu", "gpu-cuda13")
    ),
    ("ACCELERATOR=cpu NUM_GPUS=1",
     "ACCELERATOR=cpu: this image has nothing for GPUs; give NUM_GPUS=0 too"),
    ("RELABEL=maybe", "RELABEL=maybe: give yes or no, or leave it out"),
    ("MEMORY=lots", "MEMORY=lots: give a size, such as 512m or 8g, or leave it out"),
    ("SHM_SIZE=-1g", "SHM_SIZE=-1g: give a size"),
    ("STOP_TIMEOUT=5m", "STOP_TIMEOUT=5m: give whole seconds, or leave it out"),
    ("NAME='my run'", "NAME=my run: give letters, digits, _ . and -"),
    ("ENGINE=no-engine", "ENGINE=no-engine does not answer: install it"),
    ("ENGINE=silent", "ENGINE=silent does not answer"),
]  # fmt: skip
BEFORE_AN_ENGINE_IS_ASKED = [
    ("demo", f"demo: {NO_FLAG}"),
    ("--eval False", f"False: {NO_FLAG}"),
    ("--train_batch_size=8 part-1", f"part-1: {NO_FLAG}"),
    ("--seed 1 part-1", f"part-1: {NO_FLAG}"),
    ("--eval --demo", "--eval and --demo: give one of them"),
]


@pytest.mark.parametrize("line, message", REFUSED + BEFORE_AN_ENGINE_IS_ASKED)
def test_a_mistake_is_one_line(host, line, message):
    (host.folder / "empty").mkdir()
    host.has("silent", "exit 1")
    told = host.refusal(line)
    assert told.startswith("start_training.sh: ") and message in told
    assert not list(host.folder.glob("[ax]*"))
    assert not host.calls() or (line, message) in REFUSED


@pytest.mark.parametrize("size", ["512m", "1.5G", "8GiB"])
def test_sizes_are_those_of_the_engines(host, size):
    words = host.dry_run(f"MEMORY={size} SHM_SIZE=2g STOP_TIMEOUT=7")
    expected = host.expected()
    at = expected.index("--shm-size")
    limits = ["--shm-size", "2g", "--stop-timeout", "7", "--memory", size, "--memory-swap", size]
    assert words == [*expected[:at], *limits, *expected[at + 4 :], *TRAINING]


def test_no_engine_is_one_line(host):
    for name in ("docker", "podman"):
        host.has(name, "exit 1")
    assert "no container engine answers" in host.refusal("")


@pytest.mark.parametrize("name", ["a b", "[abc]", "back\\slash", "-", "$(touch x)", "\x1b[1m", "é"])
def test_folders_may_have_any_name_that_an_engine_takes(host, name):
    for kind in ("data", "wiki"):
        (host.folder / f"{kind}-{name}").mkdir()
        shutil.copytree(host.folder / kind, host.folder / name / kind)
    done = host.start(DATA_DIR=f"{name}/data", WIKI_DIR=f"{name}/wiki", OUTPUT_DIR=name)
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
    words = host.dry_run("DATA_DIR=data WIKI_DIR=wiki OUTPUT_DIR=output", CDPATH=str(other))
    assert words == [*host.expected(), *TRAINING]


@pytest.fixture
def script(repository, tmp_path):
    """The words with which a script of the container starts Python, in its own place."""
    says = 'printf "%s\\n" $$ "$@"\necho "XLA $TF_XLA_FLAGS" >&2\nexit 9'
    programs.stand_in(tmp_path / "bin" / "python", says)

    def words_of(name: str, line: str = "") -> list[str]:
        settings, flags = split(line)
        started = ["bash", "-c", 'echo $$; exec "$@"', "", repository / name, *flags]
        path = f"{tmp_path}/bin:{os.environ['PATH']}"
        done = programs.run(*started, env={"PATH": path} | settings)
        assert done.returncode == 9  # Python's own
        assert done.stderr == "XLA --tf_xla_auto_jit=2\n"
        of_script, of_python, *words = done.stdout.splitlines()
        assert of_script == of_python  # a signal to the container's process 1 is Python's
        return words

    return words_of


def test_train_model_turns_the_environment_into_flags(script):
    words = script("train_model.sh", "SEED=5 --train_batch_size=48")
    presets = words.index("--flagfile=/dev/null")  # may override what is before it
    assert words[:9] == [
        "run_pretraining.py", "--do_train", "--bert_config_file=/wiki/bert_config.json",
        "--init_checkpoint=/wiki/tf1_ckpt/model.ckpt-28252", "--input_file=/data/part-*",
        "--eval_input_file=/data/eval_10k", "--output_dir=/output", "--num_gpus=0", "--seed=5",
    ]  # fmt: skip
    assert {"--optimizer=lamb", "--train_batch_size=24"} <= set(words[9:presets])
    assert words[presets + 1 :] == ["--train_batch_size=48"]
    line = "EVAL_FILE= DATA_DIR='/a b' WIKI_DIR=/w OUTPUT_DIR=/o"
    assert script("train_model.sh", line)[1:7] == [
        "--do_train", "--bert_config_file=/w/bert_config.json",
        "--init_checkpoint=/w/tf1_ckpt/model.ckpt-28252", "--input_file=/a b/part-*",
        "--output_dir=/o", "--num_gpus=0",
    ]  # fmt: skip
    words = script("train_model.sh", "EVAL_FILE=/e INIT_CHECKPOINT=/i")
    assert {"--init_checkpoint=/i", "--eval_input_file=/e"} <= set(words)
    assert not [word for word in words if word.startswith("--seed")]


@pytest.mark.parametrize("name", ["train_model.sh", "finetune_model.sh"])
@pytest.mark.parametrize(
    "line, number",
    [
        ("", 8),
        (f"CUDA_VISIBLE_DEVICES='{ONE}, {OTHER}'", 2),
        (f"CUDA_VISIBLE_DEVICES={SLICE}", 1),
        ("CUDA_VISIBLE_DEVICES=", 0),
        ("CUDA_VISIBLE_DEVICES=-1", 0),
    ],
)
def test_without_an_engine_the_gpus_that_cuda_sees_are_counted(
    script, tmp_path, name, line, number
):
    programs.stand_in(tmp_path / "bin" / "nvidia-smi", EIGHT_GPUS)
    assert f"--num_gpus={number}" in script(name, line)
    assert "--num_gpus=1" in script(name, f"NUM_GPUS=1 {line}")


def test_finetune_model_starts_from_the_run_in_the_output(script):
    assert script("finetune_model.sh", "SEED=4 --task=rte") == [
        "run_finetuning.py", "--data_dir=/data", "--checkpoint=/output",
        "--bert_config_file=/wiki/bert_config.json", "--vocab_file=/wiki/vocab.txt",
        "--output_dir=/output/finetuning", "--num_gpus=0", "--seed=4", "--task=rte",
    ]  # fmt: skip
    assert "--checkpoint=/wiki/a b" in script("finetune_model.sh", "INIT_CHECKPOINT='/wiki/a b'")
    for flags, seed in (
        ("--sweep", "--seeds=4"),
        ("--sweep=true --task=rte", "--seeds=4"),
        ("--sweep=1", "--seeds=4"),
        ("--sweep=false", "--seed=4"),
        ("--sweep=False", "--seed=4"),
        ("--sweep --nosweep", "--seed=4"),
        ("--nosweep --sweep", "--seeds=4"),
    ):
        words = script("finetune_model.sh", f"SEED=4 {flags}")
        assert " ".join(words).endswith(f" {seed} {flags}")


def test_eval_model_evaluates_beside_a_training(script):
    words = script("eval_model.sh", "DATA_DIR=/d --num_train_steps=600")
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
