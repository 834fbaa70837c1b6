"""A killed or stopped run goes on as if nothing had happened: bitwise, on CPU. A minute each.

Dropout and shuffling are on. The twin of a disturbed run is the same command left alone.
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

from tests.helpers import starts, waiting
from tests.training.generated_task import SMALL
from tests.training.small_runs import (
    NUM_STEPS,
    assert_same_end,
    command,
    kill_at_step,
    last_logged_step,
    start,
    wait_for_step,
)

TASK = SMALL


@pytest.fixture(scope="module")
def undisturbed(task, tmp_path_factory) -> Path:
    """All checkpoints of a run that waits for each; the others of this module do not wait."""
    output = tmp_path_factory.mktemp("undisturbed") / "out"
    waits = {"async_checkpoint": "false", "keep_checkpoint_max": 0}
    starts.run(command(task, output, **waits), check=True)
    return output


@pytest.mark.gate
def test_sigterm_saves_and_the_same_command_goes_on(repository, task, undisturbed, tmp_path):
    output = tmp_path / "out"
    relative = os.path.relpath(output, repository)
    process = start(task, relative)
    wait_for_step(process, output, 90)
    process.send_signal(signal.SIGTERM)
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 75, text
    assert "SIGTERM after step" in text and "Traceback" not in text
    log = (output / "bert.log").read_text()
    assert re.findall(r'"run_stop".*"status": "(\w+)"', log) == ["aborted"]
    logged = dict(re.findall(r'"key": "(\w+)", "value": (\d+)', log))
    assert (logged["global_batch_size"], logged["gradient_accumulation_steps"]) == ("32", "4")
    done = starts.run(command(task, relative))
    assert done.returncode == 0, done.stderr
    assert re.search(rf"Going on from {re.escape(relative)}/model\.ckpt-\d+\n", done.stdout)
    assert "Initial weights" not in done.stdout
    assert "one from start to end, this run has one that was resumed" in done.stdout
    parts = "imports, checks, model, compilation, weights, data".replace(",", r" ([\d.]+),")
    told = re.search(rf"^started in ([\d.]+) s: {parts} ([\d.]+)$", done.stdout, re.MULTILINE)
    whole, *seconds = map(float, told.groups())
    assert sum(seconds) == pytest.approx(whole, abs=0.4)  # every figure is rounded
    assert min(seconds[0], seconds[2], seconds[3]) > 0
    assert whole < float(re.search(r"^RESULT,bert,\d+,(\d+),", done.stdout, re.M)[1]) + 1
    resumed_log = (output / "bert.resumed-1.log").read_text()
    assert resumed_log.count('"run_start"') == resumed_log.count('"run_stop"') == 1
    assert '"submission_division", "value": "open"' in resumed_log
    assert_same_end(output, undisturbed)


def test_sigterm_before_the_clock_leaves_nothing(task, tmp_path):
    output = tmp_path / "out"
    process = start(task, output)
    told = "This run is not a submission"
    waiting.until(lambda: told in process.output(), process, every_seconds=0.002)
    process.send_signal(signal.SIGTERM)  # the model is being built
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 75, text
    assert (
        text.splitlines()[-1]
        == "run_pretraining.py: interrupted; run the same command again to resume"
    )
    assert "Traceback" not in text and not output.exists()


@pytest.mark.all
@pytest.mark.parametrize(
    ("options", "without"),
    [
        ({"precision": "bfloat16", "pack_sequences": True}, ["float32", "False"]),
        ({"recompute": "blocks"}, ["none"]),
    ],
)
def test_runs_with_options_for_speed_go_on_bitwise_too(task, tmp_path, options, without):
    flags = {**options, "num_train_steps": 120}
    starts.run(command(task, tmp_path / "alone", **flags), check=True)
    output = tmp_path / "out"
    kill_at_step(60, task, output, **flags)
    done = starts.run(command(task, output, num_train_steps=120))
    assert done.returncode == 1 and "holds another run (" in done.stderr
    for (name, value), here in zip(options.items(), without, strict=True):
        assert re.search(rf"[(, ]{name}: {value} there, {here} here[,)]", done.stderr)
    starts.run(command(task, output, **flags), check=True)
    assert_same_end(output, tmp_path / "alone", num_steps=120)


@pytest.mark.all
def test_a_damaged_newest_checkpoint_is_named(task, undisturbed, tmp_path):
    output = tmp_path / "out"
    kill_at_step(60, task, output)
    newest = max(output.glob("model.ckpt-*.index"), key=lambda path: path.stat().st_mtime)
    data = newest.with_suffix(".data-00000-of-00001")
    whole = data.read_bytes()
    data.write_bytes(whole[: len(whole) // 2])
    done = starts.run(command(task, output))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    line = done.stderr.strip().splitlines()[-1]
    assert f"{newest.stem}: cannot be restored" in line and "one before" in line, done.stderr
    data.write_bytes(whole)
    (output / "checkpoint").unlink()  # the list of checkpoints is lost: their files are looked for
    done = starts.run(command(task, output))
    assert done.returncode == 0, done.stderr
    assert f"Going on from {newest.with_suffix('')}\n" in done.stdout
    assert_same_end(output, undisturbed)
    for log in ("bert.log", "bert.resumed-1.log"):
        stops = re.findall(r'"run_stop".*"metadata": ({.*})}', (output / log).read_text())
        assert [json.loads(stop)["status"] for stop in stops] == ["aborted"]
        assert ("written_ms" in stops[0]) == (log == "bert.log")  # the killed run's


@pytest.mark.gate
def test_a_full_disk_leaves_the_checkpoint_before_and_ends_as_aborted(
    task, undisturbed, tmp_path, small_disk
):
    each = sum(p.stat().st_size for p in undisturbed.glob(f"model.ckpt-{NUM_STEPS}*"))
    output = small_disk(40 * each // 1024) / "out"
    process = start(task, output, keep_checkpoint_max=0)
    wait_for_step(process, output, 45)  # the save of 44 waited for that of 22
    filler = output.parent / "filler"
    process.send_signal(signal.SIGSTOP)  # so that the next save takes nothing meanwhile
    with filler.open("wb", buffering=0) as file:
        with contextlib.suppress(OSError):  # until it is full: what is free is not told exactly
            while True:
                file.write(bytes(2**14))
        file.truncate(file.tell() - each // 2)
    process.send_signal(signal.SIGCONT)
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 1
    line = printed.strip().splitlines()[-1]
    failed = re.search(r"model\.ckpt-(\d+): cannot be saved \(.*No space left.*make room", line)
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
    again = command(task, output, keep_checkpoint_max=0)
    starts.run(again, check=True)
    assert_same_end(output, undisturbed)


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
        texts = [started.communicate(timeout=300)[1] for started in (first, second)]
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
