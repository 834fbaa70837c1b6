"""A killed or stopped run goes on as if nothing had happened: bitwise, on CPU. A minute each.

Dropout and shuffling are on. The twin of a disturbed run is the same command left alone, by the
same runtime. What jax's runtime gives to a run is asked of its twin too.
"""

import contextlib
import json
import os
import random
import re
import signal
import time
from pathlib import Path

import pytest

from mlperf_bert.mlperf import ledger, log_reader
from mlperf_bert.training.evaluations import RESULTS_LINES
from tests.helpers import starts, waiting
from tests.training.generated_task import SMALL
from tests.training.small_runs import (
    assert_same_end,
    command,
    last_logged_step,
    metrics,
    offline_evaluation,
    run_seconds,
    run_stops,
    start,
    wait_for_step,
)

pytestmark = pytest.mark.usefixtures("starts_compile_quickly")

TASK, WATTS, NUM_STEPS = SMALL, 250, 132
SAVED = [*range(22, NUM_STEPS, 22), NUM_STEPS]
BY_JAX = pytest.mark.parametrize("flags", ["jax"], indirect=True)


@pytest.fixture(scope="module")
def flags(request, task) -> dict:
    """Flags of a run by a runtime, so that it starts soon."""
    starts_soon = {
        "tensorflow": {"jit_compile": "false"},
        "jax": {"compilation_cache_dir": f"{task}-cache"},  # what one compiles, the next reads
    }
    every = {"runtime": request.param, "keep_checkpoint_max": 0, "num_train_steps": NUM_STEPS}
    return starts_soon[request.param] | every


@pytest.fixture(scope="module")
def undisturbed(task, flags, tmp_path_factory) -> Path:
    """All checkpoints of a run that waits for each; the others of this module do not wait."""
    output = tmp_path_factory.mktemp("undisturbed") / "out"
    more = {"async_checkpoint": "false", "profile_steps": "31-33", "power_watts": WATTS}
    done = starts.run(command(task, output, **flags, **more), check=True)
    (output.parent / "said").write_text(done.stdout + done.stderr)
    return output


@pytest.mark.gate
@pytest.mark.parametrize(
    "flags", ["tensorflow", pytest.param("jax", marks=pytest.mark.all)], indirect=True
)
def test_killed_and_stopped_it_goes_on_bitwise_with_every_checkpoint(
    repository, task, flags, undisturbed, tmp_path
):
    """Written while the training goes on, each is that of a run that waits.

    Two processes by jax are killed in test_faults.py.
    """
    output = tmp_path / "out"
    relative = os.path.relpath(output, repository)
    go = tmp_path / "go"
    process = start(task, relative, last=(110, go), **flags)
    wait_for_step(process, output, 30)
    process.kill()
    process.communicate()
    there = flags["runtime"]
    here = {"tensorflow": "jax", "jax": "tensorflow"}[there]
    other = starts.run(command(task, relative, **flags | {"runtime": here}))
    assert other.returncode == 1 and other.stderr.count("\n") == 1
    assert f"holds another run (runtime: {there} there, {here} here)" in other.stderr

    process = start(task, relative, last=(110, go), **flags)
    wait_for_step(process, output, 60)
    process.send_signal(signal.SIGTERM)
    go.touch()
    said, _ = process.communicate(timeout=waiting.HANGS_AFTER_SECONDS)
    assert process.returncode == 75 and "Traceback" not in said, said
    [stopped] = map(int, re.findall(r"SIGTERM after step (\d+)", said))
    assert (output / f"model.ckpt-{stopped}.index").exists()

    done = starts.run(command(task, relative, **flags), check=True)
    assert f"Resuming from {relative}/model.ckpt-{stopped}\n" in done.stdout
    assert "Initial weights" not in done.stdout
    assert "one from start to end, this run has one that was resumed" in done.stdout
    parts = "imports, checks, model, compilation, weights, data".replace(",", r" ([\d.]+),")
    told = re.search(rf"^started in ([\d.]+) s: {parts} ([\d.]+)$", done.stdout, re.MULTILINE)
    whole, *seconds = map(float, told.groups())
    assert sum(seconds) == pytest.approx(whole, abs=0.4)  # every figure is rounded
    assert min(seconds[0], seconds[2], seconds[3]) > 0
    assert whole < float(re.search(r"^RESULT,bert,\d+,(\d+),", done.stdout, re.M)[1]) + 1
    logs_of_run = ["bert.log", "bert.resumed-1.log", "bert.resumed-2.log"]
    assert run_stops(output) == [["aborted"]] * len(logs_of_run)
    first, _, resumed = [(output / name).read_text() for name in logs_of_run]
    logged = dict(re.findall(r'"key": "(\w+)", "value": (\d+)', first))
    assert (logged["global_batch_size"], logged["gradient_accumulation_steps"]) == ("32", "4")
    assert '"submission_division", "value": "open"' in resumed
    for step in SAVED:
        assert_same_end(output, undisturbed, num_steps=step)
    assert profile_of(undisturbed).stat().st_size > 10_000


def profile_of(output: Path) -> Path:
    """The one profile of a run."""
    [profile] = (output / "plugins" / "profile").glob("*/*.xplane.pb")
    return profile


@pytest.mark.gate
@BY_JAX
def test_a_run_by_jax_logs_its_runtime_its_energy_and_where_the_time_went(undisturbed):
    found = log_reader.read_run(undisturbed / "bert.log")
    log = (undisturbed / "bert.log").read_text()
    assert re.search(r'"devices", "value": "1 x cpu by jax \d+\.\d+\.\d+"', log)
    least, most = run_seconds(undisturbed / "bert.log")
    assert WATTS * least <= found.energy.joules <= WATTS * most
    assert least <= sum(found.seconds.values()) <= most
    said = (undisturbed.parent / "said").read_text()
    assert re.search(r"^where the time went: .*accelerator utilization [\d.]+%$", said, re.M)
    assert found.seconds[ledger.COMPUTE] > 0 and found.seconds[ledger.EVALUATION_COMPUTE] > 0
    assert b"PjRt" in profile_of(undisturbed).read_bytes()


@pytest.mark.gate
@BY_JAX
def test_checkpoints_of_jax_are_evaluated_offline_as_during_the_run(task, undisturbed):
    words = [f"--num_train_steps={NUM_STEPS}", "--runtime=jax"]
    starts.run(offline_evaluation(task, undisturbed, *words), check=True)
    lines = map(json.loads, (undisturbed / RESULTS_LINES).read_text().splitlines())
    by_step = {line["step"]: line for line in lines}
    assert list(by_step) == SAVED
    [during] = [line for line in metrics(undisturbed, "eval") if line["step"] == NUM_STEPS]
    for name in ("masked_lm_accuracy", "masked_lm_loss", "num_examples"):
        assert by_step[NUM_STEPS][name] == pytest.approx(during[name], abs=1e-5)


def test_sigterm_before_the_clock_leaves_nothing(task, tmp_path):
    output = tmp_path / "out"
    process = start(task, output, last=("init_stop", tmp_path / "sent"))
    told = "This run is not a submission"
    waiting.until(lambda: told in process.output(), process, every_seconds=0.002)
    process.send_signal(signal.SIGTERM)  # the model is being built
    (tmp_path / "sent").touch()  # TensorFlow may have swallowed it: then it counts after init_stop
    text, _ = process.communicate(timeout=waiting.HANGS_AFTER_SECONDS)
    assert process.returncode == 75, text
    assert (
        text.splitlines()[-1]
        == "run_pretraining.py: interrupted; run the same command again to resume"
    )
    assert "Traceback" not in text and not output.exists()


@pytest.mark.all
def test_a_run_with_options_for_speed_goes_on_bitwise_too(task, tmp_path):
    flags = {"precision": "bfloat16", "pack_sequences": True, "recompute": "blocks"}
    flags["num_train_steps"] = 120
    starts.run(command(task, tmp_path / "alone", **flags), check=True)
    output = tmp_path / "out"
    process = start(task, output, last=(100, tmp_path / "never"), **flags)
    wait_for_step(process, output, 60)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    starts.run(command(task, output, **flags), check=True)
    assert_same_end(output, tmp_path / "alone", num_steps=120)


@pytest.mark.gate
@pytest.mark.parametrize("flags", ["tensorflow"], indirect=True)
def test_a_full_disk_leaves_the_checkpoint_before_and_ends_as_aborted(
    task, flags, undisturbed, small_disk, tmp_path
):
    each = sum(p.stat().st_size for p in undisturbed.glob(f"model.ckpt-{NUM_STEPS}*"))
    output = small_disk(40 * each // 1024) / "out"
    go = tmp_path / "go"
    process = start(task, output, last=(60, go), **flags)
    wait_for_step(process, output, 45)  # the save of 44 waited for that of 22
    filler = output.parent / "filler"
    process.send_signal(signal.SIGSTOP)  # so that the next save takes nothing meanwhile
    with filler.open("wb", buffering=0) as file:
        with contextlib.suppress(OSError):  # until it is full: what is free is not told exactly
            while True:
                file.write(bytes(2**14))
        file.truncate(file.tell() - each // 2)
    process.send_signal(signal.SIGCONT)
    go.touch()
    printed, _ = process.communicate(timeout=waiting.HANGS_AFTER_SECONDS)
    assert process.returncode == 1
    line = printed.strip().splitlines()[-1]
    failed = re.search(r"model\.ckpt-(\d+): .*No space left.*make room", line)
    assert failed, line
    failed_step = int(failed[1])
    assert failed_step >= 44
    assert "Traceback" not in printed
    log = (output / "bert.log").read_text()
    assert re.findall(r'"run_stop".*"status": "(\w+)"', log) == ["aborted"]
    saved = {int(path.stem.split("-")[1]) for path in output.glob("model.ckpt-*.index")}
    assert saved == set(range(22, failed_step, 22))
    assert not list(output.glob(f"model.ckpt-{failed_step}*"))
    filler.unlink()
    starts.run(command(task, output, **flags), check=True)
    assert_same_end(output, undisturbed, num_steps=NUM_STEPS)


def has_half_a_checkpoint(output: Path, since: float) -> bool:
    """Whether the saving of one has begun since then, and has not ended."""
    halves = output.glob("model.ckpt-*_temp")
    return any(half.is_dir() and half.stat().st_mtime >= since for half in halves)


@pytest.mark.all
def test_twenty_kills_at_random_moments(task, tmp_path, capsys):
    """Every second one while a checkpoint is being written."""
    flags = {"num_train_steps": 400, "save_checkpoints_steps": 11}
    alone = tmp_path / "alone"
    starts.run(command(task, alone, async_checkpoint="false", **flags), check=True)
    output, rng, kills, halves = tmp_path / "out", random.Random(1), 1, 0
    process = start(task, output, **flags)
    # Before there is a log or a checkpoint.
    waiting.until((output / "run.json").exists, process, every_seconds=0.0005)
    process.kill()
    process.communicate()
    while kills < 20:
        process, began = start(task, output, **flags), time.time()
        reached = last_logged_step(output)
        wait_for_step(process, output, min(380, reached + rng.randint(1, 25)))
        if kills % 2:
            while not has_half_a_checkpoint(output, began) and process.poll() is None:
                time.sleep(0.0002)
        else:
            time.sleep(rng.random() * 0.05)
        if process.poll() is not None:
            break
        process.kill()
        process.communicate()
        kills += 1
        halves += has_half_a_checkpoint(output, began)
    assert kills == 20 and halves > 0
    starts.run(command(task, output, **flags), check=True)
    assert_same_end(output, alone, num_steps=400)
    assert not list(output.glob("*_temp"))
    with capsys.disabled():
        print(
            f"\n{kills} kills survived, {halves} of them with half a checkpoint: "
            "every weight, slot and accumulator bitwise equal"
        )


FLAGS = {
    "num_train_steps": 30,
    "steps_per_update": 1,
    "eval_interval_samples": 8 * 15,
    "save_checkpoints_steps": 10,
    "log_every_steps": 1,
}


@pytest.mark.all
def test_one_of_two_trains_and_the_other_leaves_no_trace(task, tmp_path):
    """Two processes of their own, not of one run, started into one directory."""
    rng = random.Random(20)
    for number in range(20):
        output = tmp_path / str(number)
        first = starts.Start(command(task, output, **FLAGS))
        time.sleep(rng.choice([0, rng.uniform(0, 0.1), rng.uniform(0, 10)]))
        second = starts.Start(command(task, output, **FLAGS))
        texts = [
            started.communicate(timeout=waiting.HANGS_AFTER_SECONDS)[1]
            for started in (first, second)
        ]
        codes = [first.returncode, second.returncode]
        assert sorted(codes) == [0, 1], texts
        [refusal] = texts[codes.index(1)].splitlines()
        assert re.search(r"another process trains into it|holds a finished run", refusal)
        lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines if line["kind"] == "train"] == list(range(1, 31))
        assert [line["step"] for line in lines if line["kind"] == "eval"] == [15, 30]
        [log] = output.glob("bert*.log*")
        assert log.read_text().count('"run_start"') == log.read_text().count('"run_stop"') == 1
        assert not list(output.glob(".*"))
