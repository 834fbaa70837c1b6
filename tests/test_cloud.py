"""Every command of cloud/ against a stand-in that records it; nothing was run on real hardware.

The golden files hold what a dry run prints: the commands, each as a shell would take it.

Long because one script has nine verbs, and its stand-in serves them all.
"""

import configparser
import dataclasses
import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from mlperf_bert.messages import EXIT_TRY_AGAIN
from mlperf_bert.mlperf.rules import BERT_LARGE
from mlperf_bert.model.config import BertConfig
from mlperf_bert.training import memory
from mlperf_bert.training.processes import cluster_of
from tests.fixtures import REPOSITORY
from tests.helpers import programs
from tests.helpers.frozen_flags import RUN_PRETRAINING_FLAGS

GOLDEN = Path(__file__).with_name("cloud_dry_runs.json")
ACTIONS = ["create", "setup", "train", "eval", "watch", "logs", "logs eval", "status", "delete"]
SETTINGS = {
    "GCP_PROJECT": "my-project",
    "GCP_ZONE": "europe-west4-a",
    "BUCKET": "gs://my-bucket/bert",
    "TMPDIR": "/tmp",
    "PAUSE": "0",
}
SHARE = {"BUCKET": "", "SHARE": "10.0.0.2:/share"}
IN_STEPS = {"FLAGS": "--train_batch_size=256 --steps_per_update=32"}  # for few cores
# What a dry run is asked for: the verb, and settings that differ.
DRY_RUNS = {
    **{action: (action, {}) for action in ACTIONS},
    "setup, SHARE": ("setup", SHARE),
    "train, SHARE": ("train", SHARE),
    "eval, SHARE": ("eval", SHARE),
    "create, v5litepod-8 spot": (
        "create",
        {
            "TPU_TYPE": "v5litepod-8",
            "EVAL_TPU_TYPE": "none",
            "SPOT": "1",
            "VALID_UNTIL": "6h",
            **IN_STEPS,
        },
    ),
    "train, v5litepod-8": ("train", {"TPU_TYPE": "v5litepod-8", **IN_STEPS}),
    "create, v4-256 reserved": (
        "create",
        {"TPU_TYPE": "v4-256", "RESERVED": "1", "FLAGS": "--eval_batch_size=768"},
    ),
}
NOT_FOUND = (
    "ERROR: (gcloud.compute.tpus.describe) NOT_FOUND: Resource "
    "'projects/my-project/locations/europe-west4-a/x' was not found"
)
DOWN = "ERROR: the network is down"
VERSIONS = "\n".join(
    f"tpu-vm-tf-{version}{pod}-pjrt{suffix}"
    for version, suffixes in (
        ("2.16.1", [""]),
        ("2.18.0", ["-v5p-and-below", "-v5e-and-v6"]),
        ("2.20.0", ["-v5p-and-below", "-v5e-and-v6"]),
    )
    for suffix in suffixes
    for pod in ("", "-pod")
)
# Writes down its arguments, then answers. ANSWERS: for a pattern in its arguments, what it says
# the first, the second, ... time; the last answer stays. An answer that begins with ERROR fails.
STAND_IN = f"""#!{sys.executable}
import json, os, re, sys
words = " ".join(sys.argv[1:])
with open(os.environ["RECORD"], "a+") as record:
    record.seek(0)
    before = [" ".join(json.loads(line)[1:]) for line in record]
    record.write(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]) + "\\n")
for pattern, answers in json.loads(os.environ.get("ANSWERS", "{{}}")).items():
    if re.search(pattern, words):
        turn = sum(bool(re.search(pattern, words)) for words in before)
        answer = answers[min(turn, len(answers) - 1)]
        print(answer, file=sys.stderr if answer.startswith("ERROR") else sys.stdout)
        sys.exit(answer.startswith("ERROR"))
if "queued-resources describe" in words:
    print("ACTIVE\\t")
elif "tpu-vm describe" in words:
    print("READY")
elif "versions list" in words:
    print({VERSIONS!r})
elif "is-active" in words:
    print("active")
"""


@pytest.fixture
def recorded(tmp_path):
    """Runs a script of cloud/ among stand-ins; returns its end and what they were told."""
    folder, record = tmp_path / "bin", tmp_path / "record"
    for name in ("gcloud", "srun", "scontrol"):
        programs.stand_in(folder / name, STAND_IN)

    def run(*command, **environment):
        record.write_text("")
        path = f"{folder}:{os.environ['PATH']}"
        given = {"PATH": path, "RECORD": str(record), "TMPDIR": str(tmp_path), **environment}
        done = programs.run(*command, env=given, timeout=300)
        return done, [json.loads(line) for line in record.read_text().splitlines()]

    return run


@pytest.fixture
def tpu(recorded):
    """Runs a verb of gcp_tpu.sh; gcloud answers as given."""

    def run(action, answers=None, **settings):
        return recorded(
            "cloud/gcp_tpu.sh",
            *action.split(),
            **{**SETTINGS, **settings},
            ANSWERS=json.dumps(answers or {}),
        )

    return run


def changes(told: list[list[str]]) -> list[str]:
    """The commands that change or start something, without project and zone."""
    lines = [" ".join(words[3:]).replace("  ", " ") for words in told if words[0] == "gcloud"]
    return [
        re.sub(r" --(project|zone)=\S+", "", line)
        for line in lines
        if not re.search(r"describe|versions list|is-active", line)
    ]


def complaints(done) -> list[str]:
    """The lines of the script, other than those of what costs money at its end."""
    lines = [line for line in done.stderr.splitlines() if line.startswith("gcp_tpu.sh: ")]
    return [line for line in lines if not re.search("cost|cannot tell", line)]


def dry_run(action: str, **settings) -> list[str]:
    given = {"PATH": os.environ["PATH"], **SETTINGS, **settings}  # and no gcloud is needed
    done = programs.run("cloud/gcp_tpu.sh", *action.split(), "--dry-run", env=given)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout.replace(str(REPOSITORY), "CHECKOUT").splitlines()


@pytest.mark.parametrize("name", DRY_RUNS)
def test_dry_run_prints_the_golden_commands(name):
    action, settings = DRY_RUNS[name]
    assert dry_run(action, **settings) == json.loads(GOLDEN.read_text())[name]


def printed_words(lines: list[str]) -> list[list[str]]:
    """The words of printed commands; $'...' where a line breaks is read by bash only."""
    lines = [line for line in lines if line.startswith("$ gcloud")]
    printing = "\n".join(f"printf '%s\\0' {line[2:]}; printf '\\1'" for line in lines)
    words = programs.run("bash", "-c", printing).stdout
    return [part.split("\0")[:-1] for part in words.split("\1")[:-1]]


ABSENT_THEN_THERE = {
    "queued-resources describe bert-train": [NOT_FOUND, "ACTIVE\t"],
    "queued-resources describe bert-eval": [NOT_FOUND, "ACTIVE\t"],
    "tpu-vm describe bert-train": [NOT_FOUND, "READY"],
    "tpu-vm describe bert-eval": [NOT_FOUND, "READY"],
}
PREEMPTED_ONCE = {
    "queued-resources describe bert-train": ["ACTIVE\t"],
    "tpu-vm describe bert-train": ["PREEMPTED", "PREEMPTED", "READY"],
    "tpu-vm describe bert-eval": ["PREEMPTED", "PREEMPTED", "READY"],
    "is-active": ["inactive"],
}


@pytest.mark.parametrize("action", ACTIONS)
def test_what_runs_is_what_a_dry_run_prints(tpu, action):
    answers = {"create": ABSENT_THEN_THERE, "watch": PREEMPTED_ONCE}.get(action, {})
    offered = "tpu-vm-tf-2.20.0-pod-pjrt\ntpu-vm-tf-2.20.0-pjrt"  # as a dry run supposes
    done, told = tpu(action, {"versions list": [offered], **answers})
    assert done.returncode == 0, done.stderr
    assert changes(told) == changes(printed_words(done.stdout.splitlines()))
    hide = re.compile(r"\S*bert-checkout\.[^/]+")
    assert [hide.sub("", line) for line in changes(told)] == [
        hide.sub("", line) for line in changes(printed_words(dry_run(action)))
    ]
    # the looks are printed by a dry run, and what still costs money is looked at in the end
    looks = {tuple(words) for words in printed_words(dry_run(action)) if "describe" in words}
    assert looks <= {tuple(words) for words in told}
    assert ("costs money until" in done.stderr) == (action != "status")


def start_script(action: str, **settings) -> str:
    """What the service runs on the host."""
    *_, line = dry_run(action, **settings)
    [command] = [word for word in printed_words([line])[0] if word.startswith("--command=")]
    return command.partition("<<'START'\n")[2].partition("\nSTART\n")[0]


def remote_command(action: str, **settings) -> list[str]:
    words = shlex.split(start_script(action, **settings).splitlines()[-1])
    return words[words.index("run_pretraining.py") + 1 :]


@pytest.mark.parametrize("action", ["train", "eval"])
def test_remote_flags_are_those_of_run_pretraining(action):
    names = [re.match(r"--(?:no)?(\w+)", flag)[1] for flag in remote_command(action)]
    assert set(names) - {"flagfile"} <= set(RUN_PRETRAINING_FLAGS)
    assert "--flagfile=configs/tpu_v3_128_bs8192.flags" in remote_command(action)


def test_the_service_restarts_what_can_go_on_and_nothing_else(tmp_path):
    unit = configparser.ConfigParser(strict=False)
    unit.optionxform = str
    unit.read(REPOSITORY / "cloud" / "bert@.service")
    service = unit["Service"]
    assert service["Restart"] == "always"
    ends = {int(code) for code in service["RestartPreventExitStatus"].split()}
    assert {0, 1} <= ends and EXIT_TRY_AGAIN not in ends and 128 + 9 not in ends
    assert unit["Install"]["WantedBy"] == "multi-user.target"  # it starts again after a reboot
    if verify := shutil.which("systemd-analyze"):
        copy = tmp_path / "bert@root.service"
        shutil.copy(REPOSITORY / "cloud" / "bert@.service", copy)
        done = programs.run(verify, "verify", copy)
        assert done.returncode == 0 and done.stderr == "", done.stderr


def test_the_service_runs_the_training_and_ends_as_it_does(tmp_path):
    python = tmp_path / "bert" / ".venv" / "bin" / "python"
    programs.stand_in(python, 'echo "$TPU_LOAD_LIBRARY" "$@"\nexit 75')
    (tmp_path / "bert" / "start.sh").write_text(start_script("train"))
    done = programs.run("bash", "bert/start.sh", cwd=tmp_path, env={})
    assert done.returncode == EXIT_TRY_AGAIN
    assert done.stdout == " ".join(["0 run_pretraining.py", *remote_command("train")]) + "\n"


def test_the_evaluator_waits_until_there_is_a_run(tmp_path):
    looks = tmp_path / "looks"
    for name, script in {
        "gcloud": f'echo "$@" >> {looks}; [ $(wc -l < {looks}) = 3 ]',
        "sleep": "exit 0",
        "bert/.venv/bin/python": 'echo "$@"',
    }.items():
        programs.stand_in(tmp_path / name, script)
    (tmp_path / "bert" / "start.sh").write_text(start_script("eval"))
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = programs.run("bash", "bert/start.sh", cwd=tmp_path, env={"PATH": path})
    assert done.returncode == 0 and "--do_eval" in done.stdout
    assert looks.read_text() == "storage ls gs://my-bucket/bert/output/run.json\n" * 3


REFUSED = [
    ("setup", {"GCP_PROJECT": ""}, "set GCP_PROJECT;"),
    ("setup", {"GCP_ZONE": ""}, "set GCP_ZONE;"),
    ("setup", {"BUCKET": ""}, "set BUCKET or SHARE;"),
    ("train", {"BUCKET": ""}, "set BUCKET or SHARE;"),
    ("setup", {"SHARE": "10.0.0.2:/share"}, "BUCKET and SHARE exclude each other; unset one of "
     "them\n"),
    ("create", {"EVAL_TPU_NAME": "bert-train"}, "TPU_NAME and EVAL_TPU_NAME are both bert-train"),
    *(("create", {name: "yes"}, f"{name}=yes: give 1, or leave it out\n")
      for name in ("SPOT", "RESERVED")),
    ("eval", {"EVAL_TPU_TYPE": "none"}, "EVAL_TPU_TYPE=none: there is no evaluator\n"),
    ("create", {"TPU_TYPE": "v2-32"}, "TPU_TYPE=v2-32: 256 examples of a core do not fit, about 68 "
     "do; raise --steps"),
    *(("setup", {"BUCKET": "", "SHARE": share},
       f"SHARE={share}: give host:/folder of an NFS share\n")
      for share in ("/only/a/folder", "-oexec:/x", "10.0.0.2:folder", "host")),
    *(("setup", {"BUCKET": bucket}, f"BUCKET={bucket}: give gs://bucket/folder")
      for bucket in ("my-bucket", "s3://b/x", "gs://", "gs://b/a b", "gs://b/*")),
    *((action, settings, message) for action in ("create", "train") for settings, message in (
        ({"TPU_TYPE": "v7-8"}, "TPU_TYPE=v7-8: give v2-N, v3-N, v4-N or v5p-N with N TensorCores"),
        ({"TPU_TYPE": "v5e-8"}, "TPU_TYPE=v5e-8: give"),
        ({"TPU_TYPE": "v3"}, "TPU_TYPE=v3: give"),
        ({"EVAL_TPU_TYPE": "v3-0"}, "EVAL_TPU_TYPE=v3-0: give"),
        ({"TPU_TYPE": "v3-256"}, "TPU_TYPE=v3-256 has 256 cores, which cannot share "
         "--eval_batch_size=640 equally; choose another, or set FLAGS=--eval_batch_size=768"),
        ({"TPU_TYPE": "v4-384", "FLAGS": "--eval_batch_size=768"}, "TPU_TYPE=v4-384 has 384 cores, "
         "which cannot share --train_batch_size=8192 equally; choose another, or set "
         "FLAGS=--train_batch_size=8448"),
        ({"EVAL_FLAGS": "--eval_batch_size=100"}, "EVAL_TPU_TYPE=v3-8 has 8 cores, which cannot "
         "share --eval_batch_size=100 equally; choose another, or set "
         "EVAL_FLAGS=--eval_batch_size=104"),
        ({"FLAGS": "--train_batch_size=many"}, "FLAGS: --num_tpu_cores=128 --train"),
    )),
]  # fmt: skip


@pytest.mark.parametrize("action, settings, message", REFUSED)
def test_what_cannot_work_is_refused_in_one_line_and_nothing_runs(tpu, action, settings, message):
    done, told = tpu(action, **settings)
    assert done.returncode == 2 and told == []
    assert done.stderr.startswith(f"gcp_tpu.sh: {message}") and done.stderr.count("\n") == 1


def test_what_fits_into_a_core_is_what_the_estimate_says():
    text = (REPOSITORY / "cloud/gcp_tpu.sh").read_text()
    fitting = {name: int(n) for name, n in re.findall(r"(v\w+)\) fitting=(\d+) ;;", text)}
    step = memory.Step(
        model=BertConfig(**BERT_LARGE),
        num_rows=1,
        sequence_length=512,
        predictions_per_row=76,
        precision="bfloat16",
        fused=True,
        recompute="blocks",
        steps_per_update=1,
        device="TPU",
    )

    def fits(num_examples, available_bytes):
        return dataclasses.replace(step, num_rows=num_examples).total_bytes() <= available_bytes

    assert fitting.keys() == memory.TPU_BYTES.keys()
    for name, available_bytes in memory.TPU_BYTES.items():
        assert fits(fitting[name], available_bytes) and not fits(fitting[name] + 1, available_bytes)


@pytest.mark.parametrize(
    "settings, told",
    [
        ({"TPU_TYPE": "v5litepod-32"}, ["256 examples of a core may not fit, about 219 do"]),
        ({"TPU_TYPE": "v2-32", "FLAGS": "--recompute=none"}, []),  # not checked
        ({}, []),
    ],
)
def test_a_tpu_into_which_a_step_may_not_fit_is_told_before_it_is_rented(tpu, settings, told):
    done, commands = tpu("create", **settings)
    assert done.returncode == 0 and commands
    lines = [line.partition(";")[0] for line in complaints(done)]
    assert lines == [f"gcp_tpu.sh: warning: TPU_TYPE=v5litepod-32: {text}" for text in told]


def test_a_gcloud_that_answers_nothing_is_told_at_once(tpu):
    for action in ("create", "watch"):
        done, told = tpu(action, {"describe": [SIGNED_OUT]})
        assert done.returncode == 1 and changes(told) == []
        [line] = complaints(done)
        assert line.startswith("gcp_tpu.sh: cannot look for bert-train: UNKNOWN (ERROR: ")
        assert "sign in with: gcloud auth login" in line


@pytest.mark.parametrize("share", ["h:/a b", "h:/a;touch x", "h:/$(touch x)", "h:/a\nb", "h:/*"])
def test_the_share_is_one_word_on_the_host(tpu, tmp_path, share):
    _, told = tpu("setup", BUCKET="", SHARE=share)
    [command] = {w.removeprefix("--command=") for words in told for w in words if "nfs" in w}
    mounting = command[command.index("mountpoint") : command.index("mkdir -p bert")]
    words = "sudo() { printf '<%s>' \"$@\"; }; mountpoint() { false; }; " + mounting
    found = programs.run("bash", "-c", words, cwd=tmp_path)
    assert found.stdout == f"<mount><-t><nfs><{share}></mnt/bert>"
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    "tpu_type, cores, eval_type",
    [
        ("v2-8", 8, "v2-8"),
        ("v3-128", 128, "v3-8"),
        ("v4-64", 64, "v4-8"),
        ("v5p-128", 128, "v5p-8"),
        ("v5litepod-32", 32, "v5litepod-8"),
        ("v6e-8", 8, "v6e-8"),
    ],
)
def test_the_type_says_how_many_cores(tpu_type, cores, eval_type):
    given = {"TPU_TYPE": tpu_type, **IN_STEPS}
    flags = remote_command("train", **given)
    assert f"--num_tpu_cores={cores}" in flags
    assert ("--tpu_name=bert-train" in flags) == (cores > 8)  # one host drives its own TPU
    script = start_script("train", **given)
    assert ("TPU_LOAD_LIBRARY" in script) == (cores > 8)
    assert f"export TPU_ACCELERATOR_TYPE={tpu_type}\n" in script
    made = [line for line in dry_run("create", **given) if "resources create" in line]
    assert f"--accelerator-type={tpu_type} " in made[0]
    assert f"--accelerator-type={eval_type} " in made[1]


def test_more_flags_come_last_and_win(tpu):
    flags = remote_command("train", TPU_TYPE="v4-256", FLAGS="--num_tpu_cores=128 --seed=7")
    assert flags[-3:] == ["--num_tpu_cores=256", "--num_tpu_cores=128", "--seed=7"]
    done, _ = tpu("train", TPU_TYPE="v4-256", FLAGS="--num_tpu_cores=128")  # 640 = 128 * 5
    assert done.returncode == 0


def test_flags_on_several_lines_are_all_taken():
    flags = remote_command("train", FLAGS="\n--train_batch_size=4096\n\t--steps_per_update=2\n")
    assert flags[-3:] == ["--num_tpu_cores=128", "--train_batch_size=4096", "--steps_per_update=2"]


def test_the_evaluator_goes_on_to_the_trainings_last_step():
    last = [flag for flag in remote_command("eval") if "num_train_steps" in flag]
    assert last == ["--num_train_steps=600"]
    settings = {"FLAGS": "--steps_per_update=4 --num_train_steps=2400"}
    last = [flag for flag in remote_command("eval", **settings) if "num_train_steps" in flag]
    assert last == ["--num_train_steps=2400"]
    settings["EVAL_FLAGS"] = "--num_train_steps=30"
    assert remote_command("eval", **settings)[-1] == "--num_train_steps=30"


@pytest.mark.parametrize(
    "tpu_type, offered, chosen",
    [
        ("v3-128", VERSIONS, "tpu-vm-tf-2.20.0-pod-pjrt-v5p-and-below"),
        ("v3-8", VERSIONS, "tpu-vm-tf-2.20.0-pjrt-v5p-and-below"),
        ("v6e-16", VERSIONS, "tpu-vm-tf-2.20.0-pod-pjrt-v5e-and-v6"),
        ("v5litepod-8", VERSIONS, "tpu-vm-tf-2.20.0-pjrt-v5e-and-v6"),
        (
            "v3-8",
            "tpu-vm-tf-2.20.1-pjrt\ntpu-vm-tf-2.20.0-pjrt\ntpu-vm-tf-2.21.0-pjrt\n"
            "tpu-vm-tf-2.20.9-pod-pjrt\ntpu-vm-tf-2.20.9-se\nv2-alpha-tpuv6e",
            "tpu-vm-tf-2.20.1-pjrt",
        ),
    ],
)
def test_the_software_that_fits_is_chosen(tpu, tpu_type, offered, chosen):
    answers = {"versions list": [offered], **ABSENT_THEN_THERE}
    done, told = tpu("create", answers, TPU_TYPE=tpu_type, EVAL_TPU_TYPE="none", **IN_STEPS)
    assert done.returncode == 0, done.stderr
    assert f" --runtime-version={chosen} " in changes(told)[0]


@pytest.mark.parametrize(
    "offered, nearest",
    [
        ("tpu-vm-tf-2.18.0-pod-pjrt\ntpu-vm-tf-2.21.0-pod-pjrt", "tpu-vm-tf-2.18.0-pod-pjrt"),
        ("tpu-vm-tf-2.21.0-pod-pjrt\ntpu-vm-tf-2.19.0-pjrt", "tpu-vm-tf-2.21.0-pod-pjrt"),
        ("v2-alpha-tpuv6e\ntpu-ubuntu2204-base", "none"),
    ],
)
def test_a_zone_without_the_software_is_told_with_the_nearest(tpu, offered, nearest):
    done, told = tpu("create", {"versions list": [offered], **ABSENT_THEN_THERE})
    assert done.returncode == 1 and changes(told) == []
    assert complaints(done) == [
        "gcp_tpu.sh: europe-west4-a has no tpu-vm-tf-2.20.0-pod-pjrt; the nearest is "
        f"{nearest}: choose another GCP_ZONE, or try it with TPU_VERSION=..."
    ]
    done, told = tpu(
        "create",
        {"versions list": [offered], **ABSENT_THEN_THERE},
        TPU_VERSION="mine",
        EVAL_TPU_VERSION="mine",
    )
    assert done.returncode == 0 and "--runtime-version=mine" in changes(told)[0]


QUOTA = "ERROR: (gcloud) RESOURCE_EXHAUSTED: Quota limit 'TPUV3sPerZone' has been exceeded."
CAPACITY = "ERROR: (gcloud) There is no more capacity in the zone europe-west4-a."
DENIED = "ERROR: (gcloud) PERMISSION_DENIED: tpu.nodes.create"
SIGNED_OUT = "ERROR: (gcloud) no active account selected.\nPlease run:\n\n  $ gcloud auth login"


@pytest.mark.parametrize(
    "said, advice",
    [
        (QUOTA, "ask for more quota"),
        (CAPACITY, "no capacity, it seems: try again later"),
        (DENIED, "sign in with: gcloud auth login; my-project must give you the role"),
        (SIGNED_OUT, "sign in with: gcloud auth login"),
        (DOWN, "; when that is right, the same command again"),
        ("ERROR: (gcloud) INVALID_ARGUMENT: v3-128", "europe-west4-a may not have this type"),
    ],
)
def test_a_refused_request_is_one_line_that_says_what_to_do(tpu, said, advice):
    done, told = tpu("create", {"resources create": [said], **ABSENT_THEN_THERE})
    assert done.returncode == 1 and len(changes(told)) == 1
    [line] = complaints(done)
    assert line.startswith(f"gcp_tpu.sh: bert-train was not requested: {said.splitlines()[0]}; ")
    assert advice in line


def test_a_request_that_waits_is_waited_for(tpu):
    states = ["WAITING_FOR_RESOURCES\t"] * 3 + ["PROVISIONING\t", DOWN, "ACTIVE\t"]
    answers = {**ABSENT_THEN_THERE, "queued-resources describe bert-train": [NOT_FOUND, *states]}
    done, _ = tpu("create", answers)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith("bert-train: ")]
    assert said == [
        "bert-train: WAITING_FOR_RESOURCES",
        "bert-train: PROVISIONING",
        f"bert-train: UNKNOWN ({DOWN})",
        "bert-train: READY",
    ]


@pytest.mark.parametrize(
    "state, advice",
    [
        ("FAILED\tno more capacity in the zone", "no capacity, it seems"),
        ("FAILED\tQuota limit 'TPUV3sPerZone' has been exceeded", "ask for more quota"),
        ("SUSPENDED\t", "no capacity, it seems"),
    ],
)
def test_a_request_that_is_not_granted_is_told(tpu, state, advice):
    answers = {"queued-resources describe bert-train": [state]}
    done, told = tpu("create", answers)
    assert done.returncode == 1 and changes(told) == []
    [line] = complaints(done)
    word = state.split("\t")[0]
    assert line.startswith(f"gcp_tpu.sh: bert-train is not granted: {word}")
    assert "cloud/gcp_tpu.sh delete, then: " in line and advice in line
    assert (
        f"bert-train is {word} and costs nothing; its request stays until: cloud/gcp_tpu.sh delete"
    ) in done.stderr


def test_create_again_requests_only_what_is_missing(tpu):
    answers = {
        "queued-resources describe bert-eval": [NOT_FOUND, "ACTIVE\t"],
        "tpu-vm describe bert-eval": [NOT_FOUND, "READY"],
    }
    done, told = tpu("create", answers)
    assert done.returncode == 0
    assert [line.split()[1:3] for line in changes(told)] == [["create", "bert-eval"]]


def test_the_archive_has_a_new_name_each_time_and_goes(tpu, tmp_path):
    names = set()
    for answers in ({}, {"scp": [DOWN]}):
        done, told = tpu("setup", answers, TMPDIR=str(tmp_path))
        assert (done.returncode != 0) == bool(answers)
        names |= {words[words.index("scp") + 1] for words in told if "scp" in words}
    assert len(names) == 2
    assert not list(tmp_path.glob("bert-checkout*"))


@pytest.mark.parametrize("action", ["setup", "train"])
def test_ssh_that_breaks_is_tried_again(tpu, action):
    done, told = tpu(action, {"tpu-vm ssh bert-train": [DOWN, DOWN, ""]})
    assert done.returncode == 0
    tried = [line for line in changes(told) if line.startswith("tpu-vm ssh bert-train")]
    assert len(tried) == 3 and len(set(tried)) == 1
    assert complaints(done) == [
        f"gcp_tpu.sh: attempt {n} of 5 failed; the next in 0 seconds" for n in (1, 2)
    ]


@pytest.mark.parametrize(
    "arguments",
    [[], ["start"], ["create", "--dry"], ["create", "a", "b"], ["logs", "x"], ["train", "eval"]],
)
def test_usage(recorded, arguments):
    done, told = recorded("cloud/gcp_tpu.sh", *arguments, **SETTINGS)
    assert done.returncode == 2 and told == []
    assert done.stderr.startswith("usage: cloud/gcp_tpu.sh create | setup")
    assert "  VALID_UNTIL  " in done.stderr and "set -euo" not in done.stderr


def test_no_gcloud_is_told(tmp_path):
    for tool in ("bash", "env", "dirname"):  # a machine that has no gcloud for certain
        (tmp_path / tool).symlink_to(shutil.which(tool))
    done = programs.run("cloud/gcp_tpu.sh", "create", env={"PATH": str(tmp_path), **SETTINGS})
    assert done.returncode == 2 and done.stdout == "" and "no gcloud here" in done.stderr


@pytest.mark.parametrize(
    "action, fails", [("create", "resources create bert-eval"), ("setup", "scp"), ("train", "ssh")]
)
def test_after_a_failure_whatever_runs_is_named(tpu, action, fails):
    answers = {**(ABSENT_THEN_THERE if action == "create" else {}), fails: [DOWN]}
    done, told = tpu(action, answers)
    assert done.returncode != 0
    for name in ("bert-train", "bert-eval"):
        assert f"{name} is READY and costs money until: cloud/gcp_tpu.sh delete" in done.stderr
    if action == "setup":
        assert not any("ssh" in words for words in told)  # it stopped there
        assert "bert-train did not get the checkout; the lines above say why" in done.stderr


def test_a_request_that_waits_is_named(tpu):
    done, _ = tpu("train", {"queued-resources describe": ["WAITING_FOR_RESOURCES\t"]})
    for name in ("bert-train", "bert-eval"):
        assert (
            f"{name} is WAITING_FOR_RESOURCES and will cost money when it is granted, "
            "unless: cloud/gcp_tpu.sh delete"
        ) in done.stderr


def test_a_state_that_cannot_be_asked_is_told_and_an_absent_tpu_is_not(tpu):
    done, _ = tpu("train", {"describe": [DOWN]})
    assert "cannot tell whether bert-train still runs" in done.stderr
    done, told = tpu("delete", {"describe": [NOT_FOUND]})
    assert done.returncode == 0 and done.stderr == "" and changes(told) == []
    assert done.stdout.splitlines() == [
        f"{name}: {what} not there"
        for name in ("bert-train", "bert-eval")
        for what in ("request", "TPU")
    ]


def test_delete_removes_requests_and_tpus_and_says_what_it_found(tpu):
    answers = {
        "queued-resources describe bert-train": ["WAITING_FOR_RESOURCES\t", NOT_FOUND],
        "tpu-vm describe bert-train": [NOT_FOUND],
        "queued-resources describe bert-eval": [NOT_FOUND],  # made without a request
        "tpu-vm describe bert-eval": ["READY", NOT_FOUND],
    }
    done, told = tpu("delete", answers)
    assert done.returncode == 0 and done.stderr == ""
    assert [line for line in done.stdout.splitlines() if not line.startswith("$")] == [
        "bert-train: request WAITING_FOR_RESOURCES",
        "bert-train: TPU not there",
        "bert-eval: request not there",
        "bert-eval: TPU READY",
    ]
    assert changes(told) == [
        "queued-resources delete bert-train --force --quiet",
        "tpu-vm delete bert-eval --quiet",
    ]


def test_delete_tries_both(tpu):
    done, told = tpu("delete", {"delete bert-train": [DOWN]})
    assert done.returncode == 1
    assert [line.split()[2] for line in changes(told)] == ["bert-train"] * 2 + ["bert-eval"] * 2
    assert "bert-train is READY and costs money" in done.stderr


def test_status_says_what_is_there(tpu):
    answers = {
        "queued-resources describe bert-eval": ["SUSPENDED\t"],
        "is-active": ["ssh: warning\nactivating"],
    }
    done, told = tpu("status", answers)
    assert done.returncode == 0 and changes(told) == []
    assert done.stdout == "bert-train: READY, the run is activating\nbert-eval: SUSPENDED\n"
    done, _ = tpu("status", {"ssh": [DOWN]})
    assert "bert-train: READY, the run is unreachable" in done.stdout


def verbs(told) -> list[str]:
    """What was done to which TPU, in order."""
    found = [re.match(r"(?:queued-resources|tpu-vm) (\w+) (\S+?)(:| |$)", c) for c in changes(told)]
    lines = [re.search(r"bert-checkout.tar.gz (\S+):", line) for line in changes(told)]
    return [f"{match[1]} {line[1] if line else match[2]}" for match, line in zip(found, lines)]


RENEWED = ["delete {}", "create {}", "scp {}", "ssh {}", "ssh {}"]


def test_watch_makes_a_preempted_tpu_again_and_starts_its_run(tpu):
    answers = {
        # the run goes on, the TPU is taken, found gone, deleted, granted again after a while
        "queued-resources describe bert-train": [
            "ACTIVE\t",
            "SUSPENDING\t",
            "SUSPENDED\t",
            "SUSPENDED\t",
            "WAITING_FOR_RESOURCES\t",
            "ACTIVE\t",
        ],
        "tpu-vm describe bert-train": ["READY", NOT_FOUND, "READY"],
        "ssh bert-train .*is-active": ["active", "active", "inactive"],
        "ssh bert-eval .*is-active": ["active"] * 5 + ["inactive"],
    }
    done, told = tpu("watch", answers)
    assert done.returncode == 0, done.stderr
    assert verbs(told) == [line.format("bert-train") for line in RENEWED]
    assert done.stdout.splitlines()[-1] == "bert-eval: the run has ended"
    assert "bert-train is READY and costs money until" in done.stderr


def test_watch_does_not_make_a_tpu_again_whose_run_has_ended(tpu):
    answers = {
        "queued-resources describe bert-train": ["ACTIVE\t", "SUSPENDED\t"],
        "ssh bert-train .*is-active": ["inactive"],
        "ssh bert-eval .*is-active": ["active"] * 3 + ["inactive"],
    }
    done, told = tpu("watch", answers)
    assert done.returncode == 0 and changes(told) == []


def test_watch_starts_what_does_not_run_yet(tpu):
    answers = {
        "ssh bert-train .*is-active": ["inactive\nabsent", "active"],
        "ssh bert-eval .*is-active": ["active", "inactive"],
    }
    done, told = tpu("watch", answers)
    assert done.returncode == 0
    assert verbs(told) == ["scp bert-train", "ssh bert-train", "ssh bert-train"]


def test_watch_survives_a_tpu_that_is_preempted_while_it_is_set_up(tpu):
    answers = {
        "tpu-vm describe bert-train": [
            *("PREEMPTED", "PREEMPTED", "READY", "PREEMPTED"),
            *("PREEMPTED", "PREEMPTED", "READY"),
        ],
        "scp .* bert-train": [DOWN] * 5 + [""],
        "is-active": ["active", "inactive"],
    }
    done, told = tpu("watch", answers, EVAL_TPU_TYPE="none")
    assert done.returncode == 0, done.stderr
    once = ["delete bert-train", "delete bert-train", "create bert-train"]
    assert verbs(told) == [
        *once,
        *["scp bert-train"] * 5,
        *once,
        *["scp bert-train", "ssh bert-train", "ssh bert-train"],
    ]


@pytest.mark.parametrize(
    "answers, message",
    [
        ({"bert-train .*is-active": ["failed"]}, "the run on bert-train has failed, for good;"),
        ({"bert-eval .*is-active": ["failed"]}, "why: cloud/gcp_tpu.sh logs eval"),
        ({"describe bert-train": [NOT_FOUND]}, "bert-train is not there: NOT_FOUND;"),
        ({"resources describe": ["FAILED\tno"]}, "bert-train is not there: FAILED?no;"),
        (
            {
                "tpu-vm describe": ["PREEMPTED", "PREEMPTED", "READY"],
                "resources delete": [DOWN],
            },
            "bert-train is not deleted; the lines above say why",
        ),
    ],
)
def test_watch_ends_where_it_cannot_help(tpu, answers, message):
    done, _ = tpu("watch", answers)
    assert done.returncode == 1
    assert any(message in line for line in done.stderr.splitlines())


def test_a_failure_that_a_preemption_explains_does_not_end_the_watch(tpu):
    answers = {
        "tpu-vm describe bert-train": ["READY", "PREEMPTED", "PREEMPTED", "READY"],
        "is-active": ["failed", "inactive"],
    }
    done, told = tpu("watch", answers, EVAL_TPU_TYPE="none")
    assert done.returncode == 0
    assert verbs(told)[:3] == ["delete bert-train", "delete bert-train", "create bert-train"]


def test_logs_say_that_the_run_goes_on(tpu):
    done, told = tpu("logs eval", {"journalctl": [DOWN]})
    assert done.returncode == 1 and "ssh bert-eval" in changes(told)[0]
    assert complaints(done)[0].startswith("gcp_tpu.sh: the connection has ended, the run goes on;")


def test_the_recipe_of_the_documents_has_the_verbs_in_their_order():
    text = (REPOSITORY / "docs" / "clusters.md").read_text()
    recipe = re.findall(r"^    cloud/gcp_tpu\.sh ([a-z ]+?) *(?:#.*)?$", text, re.MULTILINE)
    assert recipe == ["create", "setup", "train", "eval", "logs", "watch", "delete"]
    assert set(recipe) <= set(ACTIONS)  # each of which runs, above


@pytest.mark.soak
@pytest.mark.skipif(not shutil.which("gcloud"), reason="no gcloud here")
def test_gcloud_itself_takes_the_arguments(tmp_path):
    """It reads its arguments (else it ends with 2) before it finds that nobody is signed in."""
    lines = {line for _, lines in json.loads(GOLDEN.read_text()).items() for line in lines}
    (tmp_path / "bert-checkout.tar.gz").touch()
    alone = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "CLOUDSDK_CONFIG": str(tmp_path),
        "CLOUDSDK_CORE_CHECK_GCE_METADATA": "false",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": "http://127.0.0.1:9/",
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
    }
    for words in printed_words(sorted(lines)):
        done = programs.run(*words, cwd=tmp_path, env=alone)
        assert done.returncode == 1 and "active account" in done.stderr, done.stderr


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


def test_slurm_takes_data_and_output_in_a_bucket(recorded):
    buckets = {"DATA": "gs://b/bert", "OUTPUT": "gs://b/bert/run"}
    done, told = recorded(*BATCH, **SLURM | buckets)
    assert done.returncode == 0, done.stderr
    assert {"--output_dir=gs://b/bert/run", "--input_file=gs://b/bert/tfrecords/part-*"} <= set(
        told[0]
    )
    assert not any("/data" in word for word in told[0])


def test_slurm_queues_a_saved_run_again(recorded, tmp_path):
    programs.stand_in(tmp_path / "bin" / "srun", "exit 75")
    done, told = recorded(*BATCH, **SLURM)
    assert done.returncode == 75 and told == [["scontrol", "requeue", "7"]]
    programs.stand_in(tmp_path / "bin" / "srun", "exit 1")
    done, told = recorded(*BATCH, **SLURM)
    assert done.returncode == 1 and told == []


@pytest.mark.parametrize(
    "command, changed, message",
    [
        (BATCH, {"DATA": ""}, "set DATA;"),
        (BATCH[:2], {}, "name a preset"),
        ([*BATCH[:2], "configs/none.flags"], {}, "cannot read the preset configs/none.flags"),
        (
            BATCH,
            {"GOOGLE_APPLICATION_CREDENTIALS": "/no/key.json"},
            "cannot read GOOGLE_APPLICATION_CREDENTIALS=/no/key.json",
        ),
    ],
)
def test_slurm_bad_input_is_told(recorded, command, changed, message):
    done, told = recorded(*command, **SLURM | changed)
    assert done.returncode == 2 and told == [] and message in done.stderr


def test_the_tfjob_starts_run_pretraining_on_every_worker():
    yaml = pytest.importorskip("yaml")
    account, job = yaml.safe_load_all((REPOSITORY / "cloud" / "kubernetes.yaml").read_text())
    assert (account["apiVersion"], account["kind"]) == ("v1", "ServiceAccount")
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "TFJob")
    [(kind, replicas)] = job["spec"]["tfReplicaSpecs"].items()
    assert kind == "Worker" and replicas["replicas"] == 4
    pod = replicas["template"]["spec"]
    assert pod["serviceAccountName"] == account["metadata"]["name"]
    [container] = pod["containers"]
    assert container["name"] == "tensorflow"  # the operator sets TF_CONFIG in this one only
    assert container["command"] == ["python", "run_pretraining.py"]
    flags = dict(arg.removeprefix("--").split("=", 1) for arg in container["args"])
    assert (REPOSITORY / flags.pop("flagfile")).is_file()
    assert set(flags) <= set(RUN_PRETRAINING_FLAGS)
    assert int(flags["num_gpus"]) == container["resources"]["limits"]["nvidia.com/gpu"]
    paths = [value for name, value in flags.items() if name.endswith(("file", "checkpoint", "dir"))]
    assert len(paths) == 5 and all(path.startswith("gs://BUCKET/bert/") for path in paths)
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}


def test_the_jobset_starts_the_same_and_gives_each_pod_its_tf_config():
    """JobSet names pod n of job 0: jobset-replicatedJob-0-n.subdomain."""
    yaml = pytest.importorskip("yaml")
    account, job = yaml.safe_load_all((REPOSITORY / "cloud" / "jobset.yaml").read_text())
    account_of_tfjob, tfjob = yaml.safe_load_all((REPOSITORY / "cloud/kubernetes.yaml").read_text())
    assert account == account_of_tfjob
    assert (job["apiVersion"], job["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    [jobs] = job["spec"]["replicatedJobs"]
    spec = jobs["template"]["spec"]
    pod, replicas = spec["template"]["spec"], tfjob["spec"]["tfReplicaSpecs"]["Worker"]
    assert jobs["replicas"] == 1 and spec["completionMode"] == "Indexed"
    assert spec["parallelism"] == spec["completions"] == replicas["replicas"]
    [container] = pod["containers"]
    index, config = container.pop("env")  # a variable is known to those after it
    [port] = container.pop("ports")
    [of_tfjob] = replicas["template"]["spec"]["containers"]
    del of_tfjob["ports"]
    assert container == of_tfjob
    assert pod["volumes"] == replicas["template"]["spec"]["volumes"]
    assert pod["serviceAccountName"] == account["metadata"]["name"]
    annotation = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    assert index["valueFrom"] == {"fieldRef": {"fieldPath": annotation}}
    names = f"{job['metadata']['name']}-{jobs['name']}-0-"
    where = f".{job['spec']['network']['subdomain']}:{port['containerPort']}"
    for number in range(spec["completions"]):
        text = config["value"].replace(f"$({index['name']})", str(number))
        cluster = cluster_of({config["name"]: text})
        assert cluster.index == number
        assert cluster.addresses == tuple(f"{names}{n}{where}" for n in range(4))
