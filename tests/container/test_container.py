"""The image, built and run for real with docker and with podman. Root, 2 cores, eight minutes."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.container.conftest import run
from tests.data.generated_wiki import sentences, vocabulary
from tests.data.reference_figures import GENERATED, figures
from tests.fixtures import open_to_all
from tests.helpers import waiting
from tests.training import generated_task

pytestmark = pytest.mark.gate

USER = 12345
TRAIN = [
    "--max_seq_length=32", "--max_predictions_per_seq=6", "--learning_rate=0.001",
    "--num_warmup_steps=10", "--train_batch_size=8", "--eval_batch_size=20", "--seed=7",
    "--eval_interval_samples=4000", "--save_checkpoints_steps=500", "--log_every_steps=5",
]  # fmt: skip


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """A tiny task under the names that train_model.sh looks for; a path with a space."""
    folder = tmp_path_factory.mktemp("a task")
    generated_task.write_task(folder / "wiki")
    (folder / "data").mkdir()
    (folder / "wiki" / "train.tfrecord").rename(folder / "data" / "part-00000-of-00001")
    (folder / "wiki" / "eval.tfrecord").rename(folder / "data" / "eval_10k")
    open_to_all(folder)
    return folder


@pytest.fixture
def start(docker, image, repository, task, tmp_path):
    """Runs start_training.sh on the tiny task."""

    def start(*arguments, output="out put", popen=False, before=(), **environment):
        everything = {
            **docker,
            "IMAGE": image,
            "DATA_DIR": str(task / "data"),
            "WIKI_DIR": str(task / "wiki"),
            "OUTPUT_DIR": str(tmp_path / output),
            "INIT_CHECKPOINT": "/wiki/init/model.ckpt-0",
            **environment,
        }
        words = [*before, str(repository / "start_training.sh"), *arguments]
        if popen:
            return subprocess.Popen(
                words, env=everything, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        return subprocess.run(
            words, env=everything, capture_output=True, text=True, stdin=subprocess.DEVNULL,
            timeout=1800,
        )  # fmt: skip

    start.output = tmp_path / "out put"
    return start


def steps_logged(output: Path) -> int:
    path = output / "metrics.jsonl"
    found = re.findall(r'"kind": "train", "step": (\d+)', path.read_text()) if path.exists() else []
    return int(found[-1]) if found else 0


def test_the_image_has_what_runs_and_nothing_else(docker, image):
    inspected = json.loads(run("docker", "image", "inspect", image, env=docker).stdout)[0]
    labels = inspected["Config"]["Labels"]
    assert labels["org.opencontainers.image.revision"] == "0123abc"
    assert labels["org.opencontainers.image.version"] == "0.1.0-cpu"
    assert inspected["Config"]["User"] == "1000:1000"
    script = (
        "cd /opt/bert; ls -A; for c in gcc cc make git pip; do command -v $c; done; ls -A /root"
    )
    found = run("docker", "run", "--rm", image, "sh", "-c", script, env=docker, check=False).stdout
    names = set(found.split())
    assert {"run_pretraining.py", "train_model.sh", "mlperf_bert", "demo"} <= names
    assert not names & {".git", "tests", "build", ".venv", ".cache"}
    assert not [name for name in names if name.startswith("/")]  # no command was found


def test_a_change_of_code_installs_nothing_anew(docker, image, base_image, repository, tmp_path):
    left = shutil.ignore_patterns(".git", ".venv*", ".*_cache", "build")
    changed = shutil.copytree(repository, tmp_path / "changed", ignore=left)
    with (changed / "run_pretraining.py").open("a") as file:
        file.write("# changed\n")
    words = ["docker", "build", "--network=host", "--tag", "mlperf-bert:changed"]
    run(*words, "--build-arg", f"BASE_IMAGE={base_image}", changed, env=docker)
    layers = [
        run("docker", "image", "inspect", "--format={{json .RootFS.Layers}}", name, env=docker)
        for name in (image, "mlperf-bert:changed")
    ]
    first, second = (json.loads(layer.stdout) for layer in layers)
    assert first[:3] == second[:3] and first != second  # the base, the locks, the environment
    run("docker", "image", "rm", "mlperf-bert:changed", env=docker)


def test_its_data_are_the_references(docker, image, tmp_path):
    """On generated text, whose figures were recorded from the reference."""
    flags, [expected] = next(iter(GENERATED.items()))
    (tmp_path / "text").write_bytes(sentences(1).encode())
    (tmp_path / "vocab.txt").write_bytes(vocabulary(1).encode())
    open_to_all(tmp_path)
    words = ["docker", "run", "--rm", f"--user={os.getuid()}:{os.getgid()}"]
    words += ["--mount", f"type=bind,source={tmp_path},target=/data", image]
    words += ["python", "create_pretraining_data.py", *flags.split(), "--input_file=/data/text"]
    run(*words, "--vocab_file=/data/vocab.txt", "--output_file=/data/out", env=docker)
    assert figures(tmp_path / "out") == expected


@pytest.mark.all
def test_the_demo_reaches_the_target(start, tmp_path):
    output = tmp_path / "out put"
    done = start("--demo", SEED="1")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert re.search(r"^RESULT,bert,1,.*,success,0\.7", done.stdout, re.MULTILINE)
    assert "5.0.0 SUCCESS" in done.stdout
    assert (output / "demo" / "report.png").stat().st_size > 10_000


def test_python_is_process_1_under_a_read_only_root_as_any_user(docker, image, task, tmp_path):
    """Not through start_training.sh, which gives the caller's user: here it is a number alone."""
    output = tmp_path / "out"
    output.mkdir()
    os.chown(output, USER, USER)
    open_to_all(tmp_path)
    words = ["docker", "run", "--rm", "--detach", "--name=bert-user", f"--user={USER}:{USER}"]
    words += ["--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--env=NUM_GPUS=0"]
    words += ["--env=INIT_CHECKPOINT=/wiki/init/model.ckpt-0"]
    for source, target in ((task / "data", "/data"), (task / "wiki", "/wiki")):
        words += ["--mount", f"type=bind,source={source},target={target},readonly"]
    words += ["--mount", f"type=bind,source={output},target=/output", image, "./train_model.sh"]
    run(*words, *TRAIN, "--num_train_steps=100000", "--target_accuracy=0.999", env=docker)
    try:
        waiting.until(lambda: steps_logged(output) > 20)
        look = "tr '\\0' ' ' < /proc/1/cmdline; echo; id -u; touch /opt/x 2>&1 || true"
        found = run("docker", "exec", "bert-user", "sh", "-c", look, env=docker).stdout
        first, uid, touched = found.splitlines()
        assert first.startswith("python run_pretraining.py --do_train"), first
        assert uid == str(USER) and "Read-only file system" in touched
    finally:
        run("docker", "kill", "bert-user", env=docker, check=False)
    assert {path.stat().st_uid for path in output.iterdir()} == {USER}


def test_stop_saves_within_its_time_and_the_next_start_resumes(docker, start):
    long = [*TRAIN, "--num_train_steps=2000", "--target_accuracy=0.999"]
    detached = start(*long, "--detach", NAME="bert-stop", STOP_TIMEOUT="300", MEMORY="3g")
    assert detached.returncode == 0, detached.stderr
    limit = run("docker", "inspect", "--format={{.HostConfig.Memory}}", "bert-stop", env=docker)
    assert int(limit.stdout) == 3 << 30
    found = re.fullmatch(r"container bert-stop  host PID (\d+)\n", detached.stdout)
    waiting.until(lambda: steps_logged(start.output) > 200)
    host_process = Path(f"/proc/{found[1]}/cmdline").read_bytes()
    assert host_process.startswith(b"python\0run_pretraining.py\0")
    began = time.monotonic()
    run("docker", "stop", "bert-stop", env=docker)
    assert time.monotonic() - began < 300
    waiting.until(lambda: run("docker", "inspect", "bert-stop", env=docker, check=False).returncode)
    log = (start.output / "bert.log").read_text()
    assert re.findall(r'"run_stop".*"status": "(\w+)"', log) == ["aborted"]
    saved = [int(path.stem.split("-")[1]) for path in start.output.glob("model.ckpt-*.index")]
    assert max(saved) >= 200
    resumed = start(*long, NAME="bert-stop")
    assert resumed.returncode == 0, resumed.stderr
    assert re.search(r"^RESULT,bert,7,.*,aborted,0\.\d+,16000$", resumed.stdout, re.MULTILINE)
    assert json.loads((start.output / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 2000


@pytest.mark.all  # two whole runs
def test_a_campaign_of_containers_is_stopped_and_resumes(docker, image, repository, task, tmp_path):
    folder = tmp_path / "a campaign"
    flags = [flag for flag in TRAIN if not flag.startswith("--seed")]
    command = [sys.executable, "-m", "mlperf_bert.submission.campaign", "--org=lab", "--runs=2"]
    command += ["--system=box", f"--output_dir={folder}", "--run_command=./start_training.sh", "--"]
    # The tiny task reaches little, but more than this at its first evaluation.
    command += [*flags, "--num_train_steps=1000", "--target_accuracy=0.01"]
    environment = {
        **docker,
        "IMAGE": image,
        "DATA_DIR": str(task / "data"),
        "WIKI_DIR": str(task / "wiki"),
        "INIT_CHECKPOINT": "/wiki/init/model.ckpt-0",
        "SEED": "3",
    }
    first = subprocess.Popen(command, cwd=repository, env=environment)
    waiting.until(lambda: steps_logged(folder / "runs" / "0") > 5)
    first.terminate()
    assert first.wait(timeout=300) == 75
    done = run(*command, cwd=repository, env=environment, check=False)
    assert done.returncode == 1, done.stdout  # two runs are no result
    assert "2 logs, the rules require 10" in done.stdout
    assert "\n0: cut off, run again" in done.stdout
    emptied = "emptied" if os.access("/proc/sys/vm/drop_caches", os.W_OK) else "NOT emptied"
    runs = re.findall(rf"^run \d: success, .* seed (\d+), caches {emptied}$", done.stdout, re.M)
    assert len(set(runs)) == 2 and "3" not in runs
    described = json.loads((folder / "submission/lab/systems/box.json").read_text())
    assert re.search(r"image sha256:\w{64}$", described["other_software_stack"])


def test_two_at_once_and_a_failing_one(start):
    short = [*TRAIN, "--num_train_steps=50"]
    both = [start(*short, output=f"out-{number}", popen=True) for number in range(2)]
    for process in both:
        text, _ = process.communicate(timeout=600)
        assert process.returncode == 0, text
        assert "RESULT,bert,7," in text
    bad = start(*short, "--max_seq_length=31", output="bad")
    assert bad.returncode == 1
    assert "max_seq_length" in bad.stderr and "Traceback" not in bad.stderr


def test_a_container_over_its_memory_limit_is_killed(start):
    done = start(*TRAIN, "--num_train_steps=50", MEMORY="200m")  # TensorFlow alone needs more
    assert done.returncode == 137, done.stdout + done.stderr
    assert "RESULT" not in done.stdout


def test_a_trace_sees_what_the_container_does(start, task, tmp_path, repository):
    trace = tmp_path / "trace"
    before = [str(repository / "tracing" / "trace.sh"), f"--output={trace}", "--backend=strace"]
    done = start(*TRAIN, "--num_train_steps=40", before=[*before, "--"])
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert re.search(r"trace: container mlperf-bert-\S+: its process \d+ is traced", done.stderr)
    summary = json.loads((trace / "summary.json").read_text())
    assert {"init", "run", "block", "eval", "checkpoint"} == {p["name"] for p in summary["phases"]}
    assert all(phase["is_closed"] for phase in summary["phases"])
    on_disk = sum(path.stat().st_size for path in start.output.glob("model.ckpt-*"))
    assert sum(c["written_bytes"] for c in summary["checkpoints"]) == on_disk
    read = {file["path"]: file for file in summary["files"] if file["file_class"] == "tfrecords"}
    assert set(read) == {"/data/part-00000-of-00001", "/data/eval_10k"}
    assert read["/data/eval_10k"]["size_bytes"] == (task / "data" / "eval_10k").stat().st_size


def test_evaluation_in_a_second_container(start):
    trained = start(*TRAIN, "--num_train_steps=500", EVAL_FILE="")
    assert trained.returncode == 0, trained.stderr
    shape = ["--max_seq_length=32", "--max_predictions_per_seq=6", "--num_train_steps=500"]
    done = start("--eval", *shape, "--eval_batch_size=20")
    assert done.returncode == 0, done.stderr
    lines = (start.output / "eval_results.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 500]
    assert "bert.offline.log: aborted after 4,000 samples" in done.stdout


@pytest.mark.all  # a copy of 3 GB
def test_podman_runs_the_same_image(docker, podman, image, start):
    run("bash", "-c", f"set -o pipefail; docker save {image} | podman load", env=docker | podman)
    trains_under_podman(start, podman)


def test_podman_runs_its_files_under_its_configuration(docker, podman, image, start, tmp_path):
    """Podman mounts docker's files, and imports what is left of the image."""
    words = ["docker", "run", "--detach", "--rm", "--user=0", image, "sleep", "infinity"]
    source = run(*words, env=docker).stdout.strip()
    try:
        inspected = json.loads(run("docker", "inspect", source, env=docker).stdout)[0]
        files = Path(inspected["GraphDriver"]["Data"]["MergedDir"])
        settings = tmp_path / "containers.conf"
        settings.write_text(
            Path(podman["CONTAINERS_CONF"]).read_text()
            + f'[containers]\nvolumes = ["{files}/opt:/opt:ro", "{files}/usr:/usr:ro"]\n'
        )
        of_image = run("docker", "image", "inspect", image, env=docker).stdout
        configuration = json.loads(of_image)[0]["Config"]
        changes = [f"ENV {variable}" for variable in configuration["Env"]]
        changes += [f"USER {configuration['User']}", f"WORKDIR {configuration['WorkingDir']}"]
        changes += [f"CMD {json.dumps(configuration['Cmd'])}"]
        without = "--exclude=./opt/* --exclude=./usr/* --exclude=./proc/* --exclude=./sys/*"
        words = ["podman", "import", *(f"--change={change}" for change in changes), "-", image]
        script = f"set -o pipefail; tar -C {shlex.quote(str(files))} {without} -cf - . | "
        run("bash", "-c", script + shlex.join(words), env={**os.environ, **podman})
        trains_under_podman(start, {**podman, "CONTAINERS_CONF": str(settings)})
    finally:
        run("docker", "rm", "--force", source, env=docker)


def trains_under_podman(start, podman: dict[str, str]) -> None:
    done = start(*TRAIN, "--num_train_steps=50", ENGINE="podman", **podman)
    assert done.returncode == 0, done.stderr
    assert "RESULT,bert,7," in done.stdout
