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
[ -z "$NO_ENGINE" ] || exit 1
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
NVIDIA_SMI = 'for n in 0 1 2 3 4 5 6 7; do [ $n -ge "${GPUS:-0}" ] || echo "GPU $n: one"; done'

# No root, whoever runs the tests.
ID = 'case $1 in -u) echo "${USER_ID:-1001}" ;; -g) echo 2002 ;; esac'


def split(line: str) -> tuple[dict[str, str], list[str]]:
    """Settings and words of `NAME=value ... WORD ...`, as a shell would read them."""
    words = shlex.split(line)
    settings = list(itertools.takewhile(re.compile(r"[A-Z_]+=").match, words))
    return dict(word.split("=", 1) for word in settings), words[len(settings) :]


class Host:
    """A folder with data and keys, whose paths have spaces, engines, and GPUS or SELINUX if given.

    The checkout is its folder bert. An exported CDPATH leads `cd bert` to another one.
    """

    def __init__(self, folder: Path, repository: Path):
        self.folder, self.script = folder, "bert/start_training.sh"
        self.own_key = folder / ".config/gcloud/application_default_credentials.json"
        for name in ("data/part-00000-of-00500", "wiki/bert_config.json", "key.json", self.own_key):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()
        (folder / "bert").symlink_to(repository)
        self._others = folder.parent / "others"
        for name in ("data", "wiki", "output", "bert"):
            (self._others / name).mkdir(parents=True)
        texts = dict.fromkeys(("docker", "podman"), ENGINE) | {"nvidia-smi": NVIDIA_SMI}
        texts |= {"getenforce": 'echo "${SELINUX:-Disabled}"', "id": ID}
        for name, text in texts.items():
            self.has(name, text)

    def has(self, program: str, text: str) -> None:
        programs.stand_in(self.folder / "bin" / program, text)

    def start(self, line: str = "", **settings: str) -> subprocess.CompletedProcess:
        """Runs start_training.sh with the settings and words of a line in a shell."""
        self._record.unlink(missing_ok=True)
        given, words = split(line)
        own = {"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "RECORD": str(self._record)}
        own |= {"HOME": str(self.folder), "NAME": "the-name", "CDPATH": str(self._others)}
        options = {"cwd": self.folder, "env": own | given | settings}
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

    def expected(
        self, *, engine="docker", user="1001:2002", limits="1g 300", more="",
        mounts="data wiki output", labelled=False, given="NUM_GPUS=0",
    ) -> list[str]:  # fmt: skip
        """The words before the image.

        Args:
          limits: of shared memory and of a stop's time, then words.
          more: words after the limit of open files.
          mounts: source>target, or what they have in common; a bucket's is a variable.
          labelled: for SELinux.
          given: variables.
        """
        memory, seconds, *others = shlex.split(limits)
        words = [engine, "run", "--rm", "--name", "the-name"]
        words += ["--user", user, "--read-only"]
        words += ["--tmpfs", "/tmp:rw,exec,nosuid,nodev", "--cap-drop", "ALL"]
        words += ["--security-opt", "no-new-privileges", "--shm-size", memory]
        words += ["--stop-timeout", seconds, *others, *OPEN_FILES, *shlex.split(more)]
        for place in shlex.split(mounts):
            source, _, target = place.partition(">")
            source, target = self.folder / source, f"/{target or source}"
            mode = "" if target == "/output" else "ro" if labelled else ",readonly"
            if "=" in place:
                words += ["--env", place]
            elif labelled:
                words += ["--volume", f"{source}:{target}:{','.join(filter(None, [mode, 'z']))}"]
            else:
                words += ["--mount", f"type=bind,source={source},target={target}{mode}"]
        return [*words, *(word for value in shlex.split(given) for word in ("--env", value))]


@pytest.fixture
def host(tmp_path, repository) -> Host:
    return Host(tmp_path / "a host", repository)


def after(words: list[str], option: str) -> list[str]:
    """The values of an option that may be given again."""
    return [value for name, value in itertools.pairwise(words) if name == option]


def hard_limit(kind: str) -> int:
    """-1 for none, as --ulimit takes it."""
    hard = subprocess.check_output(["bash", "-c", f"ulimit -H{kind}"], text=True).strip()
    return -1 if hard == "unlimited" else int(hard)


OPEN_FILES = ["--ulimit", "nofile=" + ":".join([str(hard_limit("n"))] * 2)]
TRAINING = "mlperf-bert:cpu ./train_model.sh"
ON_GPUS = "mlperf-bert:gpu ./train_model.sh"
ROOTLESS = "SECURITY='[name=seccomp,profile=builtin name=rootless name=cgroupns]'"
NO_DAEMON = "SECURITY= DOCKER_HOST=unix:///run/user/1000/docker.sock"
GPUS = "--gpus all --ulimit memlock={} --ulimit stack=67108864"
OF_USER = GPUS.format(hard_limit("l") * 1024 if hard_limit("l") != -1 else -1)
GPUS = GPUS.format(-1)
PROCESSES = int(Path("/proc/sys/kernel/pid_max").read_text())
if 0 <= hard_limit("u") < PROCESSES:
    PROCESSES = hard_limit("u")
OF_ROOT = f"--ulimit nproc={PROCESSES}:{PROCESSES}"
OF_PODMAN = f"{OF_ROOT} --userns=keep-id"
CDI = f"{OF_PODMAN} --device nvidia.com/gpu=all"
HOSTS = """TF_CONFIG='{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"index": 0}}'"""
SRUN = "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2"
DATA, RUN = "DATA_DIR=gs://b/tfrecords", "OUTPUT_DIR=gs://b/run"
KEY, OWN_KEY = (
    "GOOGLE_APPLICATION_CREDENTIALS",
    ".config/gcloud/application_default_credentials.json",
)
WITH_KEY = {"given": f"{KEY}=/credentials.json NUM_GPUS=0"}
OF_HOST = "data wiki output key.json>credentials.json"
LABELLED = {"labelled": True}


@pytest.mark.parametrize(
    "line, differs, ends",
    [
        ("--train_batch_size=8 '--org=My Lab'", {}, "--train_batch_size=8 '--org=My Lab'"),
        ("SEED=7 EVAL_FILE= NUM_GPUS=4 --eval",
         {"more": GPUS, "given": "NUM_GPUS=4 SEED=7 EVAL_FILE="},
         "mlperf-bert:gpu ./eval_model.sh"),
        ("GPUS=2", {"more": GPUS, "given": "NUM_GPUS=2"}, ON_GPUS),
        ("GPUS=2 NVIDIA_VISIBLE_DEVICES=all", {"more": GPUS, "given": "NUM_GPUS=2"}, ON_GPUS),
        ("GPUS=2 --eval", {}, "mlperf-bert:gpu ./eval_model.sh"),  # they are the training's
        ("INIT_CHECKPOINT=/wiki/hf SEED=2 --finetune --task=rte",
         {"given": "NUM_GPUS=0 SEED=2 INIT_CHECKPOINT=/wiki/hf"},
         "mlperf-bert:cpu ./finetune_model.sh --task=rte"),
        ("SEED=3 DATA_DIR=/nowhere --demo", {"mounts": "output", "given": ""},
         "mlperf-bert:cpu python -m demo --output_dir=/output/demo --seed=3"),
        ("DATA_DIR='~/data' WIKI_DIR='~/wiki' OUTPUT_DIR='~/output'", {}, ""),
        ("DATA_DIR=data WIKI_DIR=./wiki OUTPUT_DIR=output", {}, ""),
        *((f"MEMORY={size} SHM_SIZE=2g STOP_TIMEOUT=7",
           {"limits": f"2g 7 --memory {size} --memory-swap {size}"}, "")
          for size in ("512m", "1.5G", "8GiB")),
        *((f"{rootless} NUM_GPUS={number}",
           {"user": "0:0", "more": OF_USER * number, "given": f"NUM_GPUS={number}"},
           ON_GPUS if number else TRAINING)
          for rootless in (ROOTLESS, NO_DAEMON) for number in (0, 1)),
        ("ENGINE=podman NUM_GPUS=1", {"engine": "podman", "more": CDI, "given": "NUM_GPUS=1"},
         ON_GPUS),
        ("SECURITY= VERSION='podman version 4.3.1'", {"more": OF_PODMAN}, ""),  # under that name
        ("ENGINE=./bin/podman", {"engine": "./bin/podman", "more": OF_PODMAN}, ""),
        ("USER_ID=0 ENGINE=podman", {"engine": "podman", "user": "0:2002", "more": OF_ROOT}, ""),
        (HOSTS, {"given": f"NUM_GPUS=0 {HOSTS}"}, f"--network=host {TRAINING}"),
        (SRUN, {"given": f"NUM_GPUS=0 {SRUN}"}, f"--network=host {TRAINING}"),
        # What is in a bucket is named and not mounted, and then a key is.
        (f"{DATA} {RUN} HOME=/none", {"mounts": f"{DATA} wiki {RUN}"}, ""),
        (f"{DATA} {RUN}", {"mounts": f"{DATA} wiki {RUN} {OWN_KEY}>credentials.json"} | WITH_KEY,
         ""),
        (f"{KEY}=key.json", {}, ""),
        *((f"{KEY}={key} --init_checkpoint=gs://b/run", {"mounts": OF_HOST} | WITH_KEY,
           f"{TRAINING} --init_checkpoint=gs://b/run") for key in ("key.json", "'~/key.json'")),
        *((f"{KEY}=key.json {place}",
           {"mounts": OF_HOST, "given": f"{WITH_KEY['given']} {place}"}, "")
          for place in ("INIT_CHECKPOINT=gs://b/run", "EVAL_FILE=gs://b/eval_10k")),
        # Where SELinux is enforcing, mounts are labelled, or not if asked for.
        ("SELINUX=Permissive", {}, ""),
        ("SELINUX=Enforcing", LABELLED, ""),
        ("SELINUX=Enforcing ENGINE=podman", LABELLED | {"engine": "podman", "more": OF_PODMAN}, ""),
        ("SELINUX=Enforcing --demo", LABELLED | {"mounts": "output", "given": ""},
         "mlperf-bert:cpu python -m demo --output_dir=/output/demo"),
        (f"SELINUX=Enforcing {KEY}=key.json --x=gs://b",
         LABELLED | {"mounts": OF_HOST} | WITH_KEY, f"{TRAINING} --x=gs://b"),
        ("SELINUX=Enforcing RELABEL=no", {"more": "--security-opt label=disable"}, ""),
        # A campaign gives the host's folder as a flag.
        ("--output_dir=/output", {}, ""),
        *((f"--output_dir={place}", {"mounts": mounts} | given, f"{TRAINING} --output_dir={place}")
          for place, mounts, given in (
              ("/output/second", "data wiki output", {}),
              ("gs://b/run", f"data wiki output {OWN_KEY}>credentials.json", WITH_KEY))),
        ("OUTPUT_DIR='a run' '--output_dir=a run'", {"mounts": "data wiki 'a run>output'"}, ""),
    ],
)  # fmt: skip
def test_dry_run_prints_the_exact_command(host, line, differs, ends):
    ends = ends if "mlperf-bert" in ends else f"{TRAINING} {ends}"
    assert host.dry_run(line) == [*host.expected(**differs), *shlex.split(ends)]
    assert not (host.folder / "output").exists() and not list(host.folder.glob("gs*"))


@pytest.mark.parametrize(
    "line, image",
    [
        ("ACCELERATOR=gpu NUM_GPUS=2", "mlperf-bert:gpu"),
        ("ACCELERATOR=gpu-cuda13 NUM_GPUS=2", "mlperf-bert:gpu-cuda13"),
        ("ACCELERATOR=cpu NUM_GPUS=0", "mlperf-bert:cpu"),
        ("ACCELERATOR=gpu-cuda13 IMAGE=mine", "mine"),
        ("NUM_GPUS=2 --finetune", "mlperf-bert:gpu"),
        ("ACCELERATOR=gpu NUM_GPUS=0 --finetune", "mlperf-bert:gpu"),
        ("ACCELERATOR=gpu IMAGE=mine NUM_GPUS=2 --finetune", "mine"),
    ],
)  # fmt: skip
def test_the_image_has_what_accelerator_names(host, line, image):
    words = host.dry_run(line)
    assert words[-2] == image and ("--gpus" in words) == ("NUM_GPUS=2" in line)
    host.start(f"NO_IMAGE=1 {line}")
    build = next(call for call in host.calls() if call.startswith("<build>"))
    kind = words[-2].rpartition(":")[2] if image != "mine" else split(line)[0]["ACCELERATOR"]
    assert f"<{image}><--build-arg><ACCELERATOR={kind}>" in build


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
        ("CUDA_VISIBLE_DEVICES='3, 2, 4'", "3,2,4"),
        ("NVIDIA_VISIBLE_DEVICES=5", "5"),
        (f"NVIDIA_VISIBLE_DEVICES={SLICE}", SLICE),
        ("CUDA_VISIBLE_DEVICES=2,3 NUM_GPUS=1", "2"),
        # Slurm without a control group, where CUDA's numbers are the host's, and in one.
        ("SLURM_JOB_GPUS=4,5", "4,5"),
        ("SLURM_JOB_GPUS=4,5,6,7 SLURM_STEP_GPUS=6,7", "6,7"),
        ("SLURM_STEP_GPUS=4,5 CUDA_VISIBLE_DEVICES=0,1", "4,5"),
        ("SLURM_JOB_GPUS=4,5,6 CUDA_VISIBLE_DEVICES=2,1", "6,5"),
        ("SLURM_STEP_GPUS=4,5 NVIDIA_VISIBLE_DEVICES=5", "5"),
        (f"SLURM_JOB_GPUS=4,5 CUDA_VISIBLE_DEVICES={ONE}", ONE),
        ("SLURM_JOB_GPUS=4,5 --finetune --task=rte", "4,5"),
        ("SLURM_JOB_GPUS=4,5 NUM_GPUS=1 --eval", "4"),
        ("SLURM_JOB_GPUS=4,5 --eval", ""),
        ("SLURM_JOB_GPUS=4,5 NUM_GPUS=0", ""),
    ],
)
def test_a_container_gets_the_gpus_that_its_job_was_given(host, line, gpus):
    devices = [f"nvidia.com/gpu={gpu}" for gpu in gpus.split(",") if gpu]
    named = f'"device={gpus}"' if gpus else ""
    wanted = named, " ".join(devices), f"NUM_GPUS={len(devices)}"
    assert gpus_of(host, f"GPUS=8 {line}") == wanted


FAILS = {
    "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18": "NVML: Driver/",
    "echo 'No devices were found' >&2; exit 6": "exit code 6 (No devices were found)",
    "echo 'GPU 0: one'; echo 'Unable to determine the device handle'": "(GPU 0: one Unable to",
    "exit 139": "exit code 139 ()",
}


def test_gpus_that_nvidia_smi_cannot_list_are_no_cpu(host):
    host.has("nvidia-smi", "exit 139")
    for line in ("", "--finetune --task=rte"):
        assert host.refusal(line) == (
            "start_training.sh: nvidia-smi fails with exit code 139 (): repair the driver, or give "
            "NUM_GPUS, 0 for the CPU"
        )
    assert gpus_of(host, "NUM_GPUS=0")[0] == gpus_of(host, "--eval")[0] == ""
    assert "mlperf-bert:cpu" in host.dry_run("--demo")
    assert gpus_of(host, "NUM_GPUS=2")[0] == "all"
    assert gpus_of(host, "SLURM_JOB_GPUS=2,3")[0] == '"device=2,3"'


def test_what_nvidia_smi_lists_beside_gpus_is_not_counted(host):
    slices = "echo '  MIG 1g.10gb  Device  0: (UUID: MIG-1)'; echo 'WARNING: infoROM is corrupted'"
    host.has("nvidia-smi", f"echo 'GPU 0: one'; {slices}; echo 'GPU 1: two'")
    assert gpus_of(host, "")[2] == "NUM_GPUS=2"


@pytest.mark.parametrize("name", ["train_model.sh", "finetune_model.sh"])
@pytest.mark.parametrize("does", FAILS)
def test_without_an_engine_nvidia_smi_must_list_them_too(repository, script, tmp_path, name, does):
    tool = programs.stand_in(tmp_path / "bin" / "nvidia-smi", does)
    done = programs.run(repository / name, env={"PATH": f"{tool.parent}:{os.environ['PATH']}"})
    [told] = done.stderr.splitlines()
    assert done.returncode == 1 and FAILS[does] in told and told.startswith(f"{name}: nvidia-smi")
    most = 1 if name == "finetune_model.sh" else 2  # one computes
    for line, number in (("NUM_GPUS=0", 0), ("CUDA_VISIBLE_DEVICES=4,6", most)):
        assert f"--num_gpus={number}" in script(name, line)


# By the programs, TensorFlow, and jax, which finds the processes of srun and mpirun by itself.
READ_IN_CONTAINER = """
    SEED EVAL_FILE INIT_CHECKPOINT TF_XLA_FLAGS TF_NUM_INTRAOP_THREADS TF_NUM_INTEROP_THREADS
    TF_CONFIG JAX_COORDINATOR_ADDRESS SLURM_JOB_ID SLURM_NTASKS SLURM_PROCID SLURM_LOCALID
    SLURM_STEP_NUM_TASKS SLURM_STEP_NUM_NODES SLURM_STEP_NODELIST OMPI_MCA_orte_hnp_uri
    OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_LOCAL_SIZE OMPI_COMM_WORLD_LOCAL_RANK
""".split()


def test_the_help_names_every_setting_that_is_passed_on(host):
    """Whatever name in capitals the script has may be a variable that it passes on."""
    names = set(re.findall(r"[A-Z][A-Z_]{3,}", (host.folder / host.script).read_text()))
    settings = dict.fromkeys(names - {"PATH", "BASH_SOURCE", KEY}, "1")
    settings |= {"ENGINE": "docker", "RELABEL": "yes", "ACCELERATOR": "gpu", "SLURM_PROCID": "1"}
    settings |= {f"{kind}_DIR": "gs://b/folder" for kind in ("DATA", "WIKI", "OUTPUT")}
    settings |= dict.fromkeys(READ_IN_CONTAINER, "1")
    given = [value.split("=")[0] for value in after(host.dry_run(**settings), "--env")]
    assert {*READ_IN_CONTAINER, "DATA_DIR"} <= set(given)
    told = host.start("--help").stdout
    assert "what srun or mpirun sets" in told
    assert not [
        name for name in given if name not in told and not name.startswith(("SLURM_", "OMPI_"))
    ]


def test_the_page_cache_is_emptied_by_the_hosts_root(host, repository):
    control = host.folder.parent / "drop_caches"  # without a space
    control.touch()
    text = (host.folder / host.script).read_text().replace("/proc/sys/vm/drop_caches", str(control))
    host.script = programs.stand_in(host.folder / "start_training.sh", text)
    (host.folder / "environment").symlink_to(repository / "environment")
    mount = f"type=bind,source={control},target=/drop_caches"
    assert mount not in host.dry_run("--drop_caches")
    for flag in ("--drop_caches", "-drop_caches", "--drop_caches=true"):
        words = host.dry_run(flag, USER_ID="0")
        assert mount in after(words, "--mount") and words[-1] == flag
    for flag in ("--nodrop_caches", "--seed=1", f"{NO_DAEMON} --drop_caches"):
        assert mount not in host.dry_run(flag, USER_ID="0")


def test_the_image_is_built_when_it_is_missing(host):
    host.has("git", 'echo "$*"')
    assert host.start("NO_IMAGE=1 BUILD_OPTIONS='--network=host --pull'").returncode == 0
    info, security, look, build, again, run = host.calls()
    assert (info, security) == ("<info>", SECURITY)
    assert look == again == "<image><inspect><--format><{{.Id}}><mlperf-bert:cpu>"
    assert build.startswith("<build><--tag><mlperf-bert:cpu><--build-arg><ACCELERATOR=cpu>")
    assert f"<--build-arg><COMMIT=-C {host.folder}/bert rev-parse HEAD>" in build
    assert build.endswith(f"<--network=host><--pull><{host.folder}/bert>")
    assert run.endswith("<mlperf-bert:cpu><./train_model.sh>")
    assert "<MLPERF_BERT_IMAGE=unknown>" in run
    assert host.start().returncode == 0 and "<MLPERF_BERT_IMAGE=sha256:4711>" in host.calls()[-1]
    host.has("git", "exit 128")
    done = host.start("NO_IMAGE=1 BUILD_STATUS=3")
    assert "<COMMIT=unknown>" in host.calls()[-1]
    assert done.returncode == 1 and "could not be built" in done.stderr


def test_podman_is_taken_where_docker_does_not_answer(host):
    assert host.dry_run(NO_ENGINE="1")[0] == "docker"  # a dry run asks none
    host.has("docker", "exit 1")
    assert host.start().returncode == 0 and "<run><--rm>" in host.calls()[-1]


def test_the_exit_code_of_the_container_is_passed_on(host):
    for code in (75, 0):
        assert host.start(f"RUN_STATUS={code} OUTPUT_DIR=new/{code}").returncode == code
        assert (host.folder / f"new/{code}").is_dir()


def test_no_tty_is_asked_for_without_one_and_one_is_with_one(host, terminal):
    assert "--tty" not in host.dry_run()
    leader, follower = terminal
    environment = {"PATH": f"{host.folder}/bin:{os.environ['PATH']}"}
    for stdin, words, expected in (
        (follower, [], True),
        (follower, ["--detach"], False),
        (subprocess.DEVNULL, [], False),  # as a campaign starts it
    ):
        subprocess.run(
            [host.script, "--dry-run", *words], env=environment,
            cwd=host.folder, stdin=stdin, stdout=follower, check=True,
        )  # fmt: skip
        printed = os.read(leader, 10_000)
        assert (b"--tty --interactive" in printed) is expected
        assert re.search(rb" --name mlperf-bert-\d{6}-\d+ ", printed)  # a new one for each


def test_detach_prints_the_name_and_the_pid_for_tracers(host):
    assert host.start("--detach").stdout == "container the-name  host PID 4242\n"
    run = host.calls()[3]
    assert "<--detach><--env>" in run and run.endswith("<mlperf-bert:cpu><./train_model.sh>")


NO_GPU = "leaves this job no GPU: choose some, or give NUM_GPUS=0"
OF_GPUS = [
    *(
        (f"{name}={value}", f"{name}={value} {NO_GPU}")
        for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "SLURM_JOB_GPUS")
        for value in ("", "none", "void", "NoDevFiles", "-1")
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
    assert host.refusal(line).startswith(f"start_training.sh: {message}")
    assert host.start(f"{line} NUM_GPUS=0 --dry-run").returncode == 0


NO_FLAG = "is not an option or a flag's value"
REFUSED = [
    ("DATA_DIR=/nowhere", "DATA_DIR=/nowhere: no such folder"),
    ("DATA_DIR=empty", "DATA_DIR=empty is empty"),
    ("DATA_DIR=empty --finetune", "is empty; name the one with the task's files, such as CoLA/tr"),
    ("WIKI_DIR=data", "WIKI_DIR=data: no bert_config.json"),
    ("OUTPUT_DIR=/proc/none", "cannot be made"),
    ("OUTPUT_DIR=a,b", "cannot have a comma"),
    ("OUTPUT_DIR='a\"b'", 'a"b: a mount cannot have a comma, quote or line break in its path'),
    ("OUTPUT_DIR='a\nb'", "a?b: a mount cannot have a comma, quote or line break"),
    ("OUTPUT_DIR=gs://b/run --finetune --dry-run",
     "OUTPUT_DIR=gs://b/run: fine-tuning reads and writes local folders; copy the run into"),
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
         f"ACCELERATOR={kind}: give gpu, gpu-cuda13 or cpu")
        for kind in ("tpu", "gpu2")
    ),
    ("ACCELERATOR=cpu NUM_GPUS=1",
     "ACCELERATOR=cpu: this image has nothing for GPUs; give NUM_GPUS=0 too"),
    ("RELABEL=maybe", "RELABEL=maybe: give yes or no, or leave it out"),
    ("MEMORY=lots", "MEMORY=lots: give a size, such as 512m or 8g, or leave it out"),
    ("SHM_SIZE=-1g", "SHM_SIZE=-1g: give a size"),
    ("STOP_TIMEOUT=5m", "STOP_TIMEOUT=5m: give whole seconds, or leave it out"),
    ("NAME='my run'", "NAME=my run: give letters, digits, _ . and -"),
    ("ENGINE=no-engine", "ENGINE=no-engine does not answer: install it"),
    ("NO_ENGINE=1 ENGINE=docker", "ENGINE=docker does not answer"),
    ("NO_ENGINE=1", "no container engine answers: install docker or podman"),
    *(
        (f"{rootless} {HOSTS}",
         "several hosts need the host's network, which a rootless docker does not give; ")
        for rootless in (ROOTLESS, NO_DAEMON)
    ),
    ("SELINUX=Enforcing OUTPUT_DIR=o:p",
     "o:p: a mount with SELinux cannot have a colon in its path; use a link without"),
]  # fmt: skip
BEFORE_AN_ENGINE_IS_ASKED = [
    ("demo", f"demo: {NO_FLAG}"),
    ("--eval False", f"False: {NO_FLAG}"),
    ("--train_batch_size=8 part-1", f"part-1: {NO_FLAG}"),
    ("--seed 1 part-1", f"part-1: {NO_FLAG}"),
    ("--eval --demo", "--eval and --demo: give one of them"),
    *(
        (f"--output_dir={value}",
         f"--output_dir={value}: only /output can be written in the container; give "
         f"OUTPUT_DIR={value} instead")
        for value in ("results/run", "/outputs", "/output_2/run")
    ),
]  # fmt: skip


@pytest.mark.parametrize("line, message", REFUSED + BEFORE_AN_ENGINE_IS_ASKED)
def test_a_mistake_is_one_line(host, line, message):
    (host.folder / "empty").mkdir()
    told = host.refusal(line)
    assert told.startswith("start_training.sh: ") and message in told
    assert not list(host.folder.glob("[ax]*"))
    assert not host.calls() or (line, message) in REFUSED


# Script -> what is empty for none: more words, no evaluation, or not its own.
MAY_BE_EMPTY = {
    "start_training.sh": "EVAL_FILE BUILD_OPTIONS DOCKER_HOST HOME",
    "train_model.sh": "EVAL_FILE",
    "eval_model.sh": "",
    "finetune_model.sh": "",
    "cleanup_scripts/process_wiki.sh": "",
    "cloud/gcp_tpu.sh": "BUCKET FLAGS CREATE",
}
OF_OTHERS = re.compile("TF_|CUDA_|SLURM_|MALLOC_|TMPDIR|PYTHON")  # make exports an empty PYTHON


@pytest.mark.parametrize("name", MAY_BE_EMPTY)
def test_no_setting_of_a_script_may_be_empty(repository, tmp_path, name):
    found = re.findall(r"\$\{([A-Z][A-Z_]+)(?:\[[^]]*\])?:?[-+=]", (repository / name).read_text())
    settings = set(found) - set(MAY_BE_EMPTY[name].split())
    settings = {setting for setting in settings if not OF_OTHERS.match(setting)}
    assert len(settings) > 3
    for setting, value in itertools.product(sorted(settings), ("", " ")):
        environment = {"PATH": os.environ["PATH"], "PYTHON": "/no", setting: value}
        done = programs.run(repository / name, "x", env=environment, cwd=tmp_path)
        [told] = done.stderr.splitlines()
        assert done.returncode in (1, 2)
        assert told.startswith(f"{Path(name).name}: {setting}= is empty, perhaps a variable")


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


@pytest.fixture
def script(repository, tmp_path):
    """The words with which a script of the container starts Python, in its own place."""
    says = 'printf "%s\\n" $$ "$@"\nexit 9'
    programs.stand_in(tmp_path / "bin" / "python", says)

    def words_of(name: str, line: str) -> list[str]:
        settings, flags = split(line)
        started = ["bash", "-c", 'echo $$; exec "$@"', "", repository / name, *flags]
        path = f"{tmp_path}/bin:{os.environ['PATH']}"
        done = programs.run(*started, env={"PATH": path} | settings)
        assert done.returncode == 9  # Python's own
        assert not done.stderr
        of_script, of_python, *words = done.stdout.splitlines()
        assert of_script == of_python  # a signal to the container's process 1 is Python's
        return words

    return words_of


@pytest.mark.parametrize("name", ["train_model.sh", "eval_model.sh", "finetune_model.sh"])
def test_the_scripts_of_the_container_start_pythons_choice_with_tensorflows_settings(
    repository, tmp_path, name
):
    names = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "TF_CPP_MIN_LOG_LEVEL")
    python = programs.stand_in(tmp_path / "my python", f"echo {' '.join(f'${n}-' for n in names)}")
    env = {"PATH": os.environ["PATH"], "PYTHON": str(python), "NUM_GPUS": "0"}
    threads = f"{len(os.sched_getaffinity(0))}- 2-" if name == "train_model.sh" else "- -"
    for given, told in (({}, f"{threads} 2-\n"), (dict(zip(names, "340")), "3- 4- 0-\n")):
        assert programs.run(repository / name, env=env | given, check=True).stdout == told


# What follows --flagfile=/dev/null, such as a preset, may override what is before it.
SHAPE = "--max_seq_length=512 --max_predictions_per_seq=76"
RECIPE = (
    f"{SHAPE} --optimizer=lamb --train_batch_size=24 --eval_batch_size=8 --learning_rate=0.0001 "
    "--num_train_steps=107538 --num_warmup_steps=1562 --start_warmup_step=0 "
    "--save_checkpoints_steps=6250 --flagfile=/dev/null"
)
TRAIN = "run_pretraining.py --do_train --bert_config_file={}/bert_config.json --init_checkpoint={}"
WIKI = TRAIN.format("/wiki", "/wiki/tf1_ckpt/model.ckpt-28252")
FINETUNE = "run_finetuning.py --data_dir=/data --checkpoint={} "
FINETUNE += "--bert_config_file=/wiki/bert_config.json --vocab_file=/wiki/vocab.txt "
FINETUNE += "--output_dir={}/finetuning --num_gpus=0"
OF_OUTPUT = FINETUNE.format("/output", "/output")
STARTS = {
    "train_model.sh SEED=5 --train_batch_size=48": f"{WIKI} --input_file=/data/part-* "
    f"--eval_input_file=/data/eval_10k --output_dir=/output --num_gpus=0 --seed=5 {RECIPE} "
    "--train_batch_size=48",
    "train_model.sh EVAL_FILE= DATA_DIR='/a b' WIKI_DIR=/w OUTPUT_DIR=/o":
    f"{TRAIN.format('/w', '/w/tf1_ckpt/model.ckpt-28252')} '--input_file=/a b/part-*' "
    f"--output_dir=/o --num_gpus=0 {RECIPE}",
    "train_model.sh EVAL_FILE='/e f' INIT_CHECKPOINT=/i":
    f"{TRAIN.format('/wiki', '/i')} --input_file=/data/part-* '--eval_input_file=/e f' "
    f"--output_dir=/output --num_gpus=0 {RECIPE}",
    "eval_model.sh DATA_DIR=/d --num_train_steps=600":
    "run_pretraining.py --bert_config_file=/wiki/bert_config.json --input_file=/d/eval_10k "
    f"--output_dir=/output --num_gpus=0 {SHAPE} --eval_batch_size=8 --num_train_steps=107538 "
    "--flagfile=/dev/null --num_train_steps=600 --do_eval --nodo_train",
    "eval_model.sh EVAL_FILE=/e WIKI_DIR=/w OUTPUT_DIR=/o NUM_GPUS=2":
    "run_pretraining.py --bert_config_file=/w/bert_config.json --input_file=/e --output_dir=/o "
    f"--num_gpus=2 {SHAPE} --eval_batch_size=8 --num_train_steps=107538 --flagfile=/dev/null "
    "--do_eval --nodo_train",
    "finetune_model.sh OUTPUT_DIR=/o --task=rte": f"{FINETUNE.format('/o', '/o')} --task=rte",
    "finetune_model.sh INIT_CHECKPOINT='/wiki/a b'": FINETUNE.format("'/wiki/a b'", "/output"),
    **{
        f"finetune_model.sh SEED=4 {flags}": f"{OF_OUTPUT} {seed}=4 {flags}"
        for flags, seed in (
            ("--task=rte", "--seed"),
            ("--sweep", "--seeds"),
            ("--sweep=true --task=rte", "--seeds"),
            ("--sweep=1", "--seeds"),
            ("--sweep=false", "--seed"),
            ("--sweep=False", "--seed"),
            ("--sweep --nosweep", "--seed"),
            ("--sweep --sweep=false", "--seed"),
            ("--nosweep --sweep", "--seeds"),
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("line", STARTS)
def test_the_scripts_of_the_container_turn_the_environment_into_flags(script, line):
    assert script(*line.split(" ", 1)) == shlex.split(STARTS[line])


@pytest.mark.parametrize(
    "line, number",
    [
        ("", 8),
        (f"CUDA_VISIBLE_DEVICES='{ONE}, {OTHER}'", 2),
        (f"CUDA_VISIBLE_DEVICES={SLICE}", 1),
        ("CUDA_VISIBLE_DEVICES=", 0),
        ("CUDA_VISIBLE_DEVICES=-1", 0),
        ("CUDA_VISIBLE_DEVICES=4,6 NUM_GPUS=1", 1),
        ("CUDA_VISIBLE_DEVICES=4,6 NUM_GPUS=two", "two"),  # Python refuses it
    ],
)
def test_without_an_engine_the_gpus_that_cuda_sees_are_counted(script, tmp_path, line, number):
    programs.stand_in(tmp_path / "bin" / "nvidia-smi", NVIDIA_SMI)
    assert f"--num_gpus={number}" in script("train_model.sh", f"GPUS=8 {line}")
    number = min(number, 1) if isinstance(number, int) else number  # one computes
    assert f"--num_gpus={number}" in script("finetune_model.sh", f"GPUS=8 {line}")


@pytest.mark.parametrize(
    "script, number",
    [
        *(
            ("train_model.sh", getattr(signal, f"SIG{name}"))
            for name in ("HUP", "INT", "USR1", "USR2")
        ),
        ("finetune_model.sh", signal.SIGTERM),
    ],
)
def test_a_script_that_is_process_1_ends_when_it_is_stopped_before_python(
    repository, tmp_path, script, number
):
    looks = 'touch "$0.runs"; until [ -e "$0.ends" ]; do sleep 0.05; done'
    for name, text in {"nvidia-smi": looks, "python": "exit 9"}.items():
        programs.stand_in(tmp_path / name, text)
    unshared = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]
    if programs.run(*unshared, "true").returncode:
        lacking("no new namespace of processes can be had here")
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    process = subprocess.Popen([*unshared, repository / script], env=environment)
    waiting.until((tmp_path / "nvidia-smi.runs").exists, process)
    [first] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(first), number)
    (tmp_path / "nvidia-smi.ends").touch()
    assert process.wait(timeout=waiting.HANGS_AFTER_SECONDS) == 128 + number
