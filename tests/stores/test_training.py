"""Training from a bucket into a bucket: the same numbers as on local disks. Minutes.

Dropout and shuffling are on. The twin of each run is the same command with local paths.
"""

import json
import os
import random
import re
import time
from pathlib import Path

import pytest

from tests.helpers import starts, waiting
from tests.stores.rig import Store
from tests.training import generated_task, small_runs
from tests.training.small_runs import NUM_STEPS, assert_same_end, command, held

BUCKET = "gs://bucket"
TASK = generated_task.SMALL
NUM_CHECKPOINTS = NUM_STEPS // 22 + 1


@pytest.fixture(scope="module")
def undisturbed(task, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("undisturbed") / "out"
    starts.run(command(task, output, async_checkpoint="false"), check=True)
    return output


@pytest.fixture
def filled(store, task) -> Store:
    """A store whose bucket holds the task."""
    store.upload(task, "task/")
    return store


class Host:
    """A host's temporary folder, and the environment in which its programs reach the store."""

    def __init__(self, store: Store, folder: Path):
        """Makes the folder."""
        folder.mkdir()
        self.folder = folder
        self.environment = {**os.environ, **store.environment, "TMPDIR": str(folder)}

    def start(self, words: list[str], **more: str) -> starts.Start:
        return starts.Start(words, env=self.environment | more, errors_in_output=True)

    def run(self, words: list[str], *, code: int = 0) -> str:
        done = starts.run(words, env=self.environment, errors_in_output=True)
        assert done.returncode == code, done.stdout
        assert "Traceback" not in done.stdout
        return done.stdout


@pytest.fixture
def host(filled, tmp_path) -> Host:
    return Host(filled, tmp_path / "host")


def in_bucket(words: list[str]) -> list[str]:
    """A command whose paths are `BUCKET/...`."""
    return [word.replace("=BUCKET/", f"={BUCKET}/") for word in words]


def training(output_dir: str = "BUCKET/run", **changed) -> list[str]:
    return in_bucket(command(Path("BUCKET/task"), output_dir, **changed))


def has_ended(store: Store) -> bool:
    """Whether the run's end is in the bucket; its process may have been killed after that."""
    record = store.objects().get("run/run.json", b"{}")
    return json.loads(record).get("status", "running") != "running"


def has_step_66(store: Store) -> bool:
    """Whether the checkpoint of step 66, of 112 or 200, is in the bucket."""
    return b"model.ckpt-66" in store.objects().get("run/checkpoint", b"")


def forget_the_owner(store: Store) -> None:
    """As 40 s in which a killed run does not write its lock again."""
    if "run/.lock" in store.objects():
        store.remove("run/.lock")


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1]


@pytest.mark.all
def test_a_run_in_a_bucket_is_the_run_on_disks(host, filled, undisturbed, repository, tmp_path):
    text = host.run(training())
    found = filled.download("run/", tmp_path / "found")
    assert_same_end(found, undisturbed)
    assert {path.name for path in found.iterdir() if "tfevents" not in path.name} == {
        path.name for path in undisturbed.iterdir() if "tfevents" not in path.name
    }
    keys = [
        re.findall(r'"key": "(\w+)"', (folder / "bert.log").read_text())
        for folder in (found, undisturbed)
    ]
    # A thread logs it whenever a checkpoint is complete; before the next one begins.
    stops = [key for key in keys[0] if key.startswith("checkpoint_")]
    assert stops == ["checkpoint_start", "checkpoint_stop"] * NUM_CHECKPOINTS
    in_order = [[key for key in found if key != "checkpoint_stop"] for found in keys]
    assert in_order[0] == in_order[1] and sorted(keys[0]) == sorted(keys[1])
    assert json.loads((found / "run.json").read_text())["status"] == "aborted"
    assert re.search(r"^RESULT,bert,7,.*,aborted,", text, re.MULTILINE)
    assert not [path for folder in (repository, host.folder) for path in folder.glob("gs:*")]
    refused = host.run(training(), code=1)
    assert last_line(refused).endswith(
        f"--output_dir={BUCKET}/run holds a finished run (status aborted); choose a new directory, "
        "or remove this one to train again"
    )


@pytest.mark.all
def test_requests(host, filled):
    """Of a step none but for records; of an evaluation and a checkpoint a fixed number."""
    host.run(training(log_every_steps=1, keep_checkpoint_max=0))
    first = next(n for n, request in enumerate(filled.requests) if request.name == "run/run.json")
    while_training = filled.requests[first:]
    of_data = [request for request in while_training if request.name.startswith("task/")]
    for name in ("task/train.tfrecord", "task/eval.tfrecord"):
        kinds = [request.kind for request in of_data if request.name == name]
        # Where it is opened again after 5 s, TensorFlow's client looks first whether it changed.
        assert set(kinds) <= {"read", "other"} and kinds.count("other") <= kinds.count("read") <= 20
    of_checkpoints = [request for request in while_training if "ckpt" in request.name]
    logs = ("run/bert.log", "run/metrics", "run/events", "run/run.json")
    of_logs = [request for request in while_training if request.name.startswith(logs)]
    assert len(of_checkpoints) <= 40 * NUM_CHECKPOINTS
    assert len(of_logs) <= 24 * (NUM_CHECKPOINTS + NUM_STEPS // 28 + 1)


@pytest.mark.all
def test_kills_on_any_host(filled, undisturbed, tmp_path):
    """Each after a number of requests, so that as much happens in between on every machine."""
    draw = random.Random(20261122)
    host = Host(filled, tmp_path / "host-0")
    num_kills = 0
    while num_kills < 10 and not has_ended(filled):
        started = host.start(training())
        last = len(filled.requests) + draw.randint(10, 150)
        while len(filled.requests) < last and started.poll() is None:
            time.sleep(0.002)
        started.kill()
        text, _ = started.communicate(timeout=waiting.HANGS_AFTER_SECONDS)
        assert started.returncode in (0, -9), text
        num_kills += started.returncode == -9
        forget_the_owner(filled)
        if draw.random() < 0.5:
            host = Host(filled, tmp_path / f"host-{last}")
    assert num_kills >= 5
    if not has_ended(filled):
        host.run(training())
    assert_same_end(filled.download("run/", tmp_path / "found"), undisturbed)
    for name, content in filled.objects().items():
        if name.startswith("run/bert."):
            text = content.decode()
            assert text.count('"run_start"') == text.count('"run_stop"') == 1, name


@pytest.mark.gate
def test_a_kill_half_a_checkpoint_and_faults_at_random_lose_nothing(host, filled, task, tmp_path):
    """Refused requests until step 66 is saved; killed; cut connections from then on."""
    num_steps = {"num_train_steps": 112}
    twin = command(task, tmp_path / "twin", async_checkpoint="false", **num_steps)
    starts.run(twin, check=True)
    filled.fail(0.1, 503, seed=1)
    started = host.start(held(training(**num_steps), 90, tmp_path / "never"))
    waiting.until(lambda: has_step_66(filled), started)
    started.kill()
    started.wait()
    forget_the_owner(filled)
    objects = filled.objects()
    half = "run/model.ckpt-999.data-00000-of-00001"
    filled.put("bucket", half, objects["run/model.ckpt-66.data-00000-of-00001"][:100_000])
    filled.fail(0.1, "cut", seed=1)
    text = host.run(training("BUCKET//run/", **num_steps))  # another way to write it
    begin = re.search(rf"Resuming from {BUCKET}/run/model.ckpt-(\d+)\n", text)
    assert 66 <= int(begin[1]) < 999
    filled.fail(0)
    found = filled.download("run/", tmp_path / "found")
    assert_same_end(found, tmp_path / "twin", num_steps=112)
    statuses = [request.status for request in filled.requests]
    assert statuses.count(503) > 10 and statuses.count(0) > 10


@pytest.mark.all
def test_a_bucket_that_refuses_a_checkpoint_ends_the_run_before_the_next(
    host, filled, undisturbed, tmp_path
):
    started = host.start(held(training(), 120, tmp_path / "go"))
    waiting.until(lambda: has_step_66(filled), started)
    filled.deny_writes()
    (tmp_path / "go").touch()
    text, _ = started.communicate(timeout=waiting.HANGS_AFTER_SECONDS)
    assert started.returncode == 1 and "Traceback" not in text
    assert "the store refuses these credentials" in last_line(text), text
    filled.deny_writes(False)
    found = re.search(rf"Resuming from {BUCKET}/run/model.ckpt-(\d+)\n", host.run(training()))
    assert int(found[1]) >= 66
    assert_same_end(filled.download("run/", tmp_path / "found"), undisturbed)


@pytest.mark.all
def test_the_offline_evaluator_meets_the_training_in_the_bucket_alone(filled, task, tmp_path):
    words = in_bucket(small_runs.training_to_evaluate("BUCKET/task", "BUCKET/run", "--seed=7"))
    trainer = Host(filled, tmp_path / "trainer").start(words)
    evaluator = Host(filled, tmp_path / "evaluator")
    waiting.until(lambda: "run/model.ckpt-0.index" in filled.objects(), trainer)
    evaluation = in_bucket(
        small_runs.offline_evaluation("BUCKET/task", "BUCKET/run", "--num_train_steps=30")
    )
    text = evaluator.run(evaluation)
    assert trainer.wait() == 0
    assert f"{BUCKET}/run/bert.offline.log: aborted after 240 samples" in text
    found = filled.download("run/", tmp_path / "found")
    local = tmp_path / "local"
    starts.run(small_runs.training_to_evaluate(task, local, "--seed=7"), check=True)
    starts.run(small_runs.offline_evaluation(task, local, "--num_train_steps=30"), check=True)
    for name in ("eval_results.jsonl", "eval_results.txt"):
        assert (found / name).read_bytes() == (local / name).read_bytes()


@pytest.mark.all
def test_two_processes_share_a_bucket(filled, task, tmp_path):
    """They find each other, their data and the checkpoint in the bucket alone."""
    addresses = starts.free_addresses(2)
    hosts = [Host(filled, tmp_path / f"host-{index}") for index in range(2)]

    def train() -> list[str]:
        words = training(num_train_steps=44)
        started = [
            host.start(words, TF_CONFIG=starts.environment_of(addresses, index)["TF_CONFIG"])
            for index, host in enumerate(hosts)
        ]
        try:
            texts = [
                process.communicate(timeout=waiting.HANGS_AFTER_SECONDS)[0] for process in started
            ]
        finally:
            for process in started:
                process.kill()
        assert [process.returncode for process in started] == [0, 0], texts
        return texts

    text, other = train()
    assert "RESULT,bert,7," in text and "RESULT" not in other
    record = json.loads(filled.objects()["run/run.json"])
    assert record["status"] == "aborted"
    assert not [name for name in filled.objects() if "/." in name]  # locks, signs of life


def check(**changed) -> list[str]:
    return [*training(**changed), "--check"]


@pytest.mark.all
def test_what_a_bucket_refuses_is_one_line_each(host, filled):
    text = host.run(check())
    assert "errors: 0;" in text
    text = host.run(check(output_dir="gs://nobody/run"), code=1)
    assert "cannot be written to (gs://nobody/run/run.json: no such bucket" in text
    filled.put("bucket", "an-object", b"x")
    text = host.run(check(output_dir=f"{BUCKET}/an-object"), code=1)
    assert f"({BUCKET}/an-object: is a file, not a folder; choose another name)" in text
    text = host.run(training(input_file=f"{BUCKET}/none-*"), code=1)
    assert f"--input_file: no file matches '{BUCKET}/none-*'" in text
    filled.deny_writes()
    text = host.run(check(), code=1)
    assert (
        f"cannot be written to ({BUCKET}/run/run.json: the store refuses these credentials" in text
    )
    text = host.run(training(), code=1)
    assert f"--output_dir={BUCKET}/run: cannot be written to" in text and "credentials" in text
    filled.token = "another"
    text = host.run(check(), code=1)
    assert f"{BUCKET}/task/bert_config.json: the store refuses these credentials" in text
    assert not [name for name in filled.objects() if name.startswith("run")]
