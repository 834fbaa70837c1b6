"""Runs of run_pretraining.py: files, a second run, what is not a result, signals during imports."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mlperf_bert.data import parts
from mlperf_bert.mlperf import ledger
from mlperf_bert.submission import campaign
from tests.fixtures import REPOSITORY, lacking
from tests.helpers.tiny_examples import spoil, train, write_inputs


@pytest.fixture
def work(tmp_path):
    (tmp_path / "work").mkdir()
    return write_inputs(tmp_path / "work")


@pytest.mark.gate
def test_a_run_its_files_and_a_second_run_into_the_same_directory(work):
    size = (work / "train").stat().st_size
    of_a_sample = parts.DataSet(
        parameters={"examples_per_part": 6000},
        inputs={},
        files={"train": parts.File(bytes=size, md5="")},
    )
    parts.write(work, parts.PARTS, of_a_sample)
    began = time.time()
    done = train(work)
    most = time.time() - began
    assert done.returncode == 0, done.stderr
    out = work / "out" / "run"
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    trained = [line for line in lines if line["kind"] == "train"]
    assert [line["step"] for line in trained] == [1, 2, 3, 4]
    assert set(trained[0]) == {
        "kind", "step", "samples", "loss", "masked_lm_loss", "next_sentence_loss",
        "learning_rate", "samples_per_second", *ledger.as_fields(dict.fromkeys(ledger.KINDS, 0)),
    }  # fmt: skip
    assert [line["samples"] for line in lines if line["kind"] == "eval"] == [8, 16]
    assert re.search(r"^RESULT,bert,\d+,\d+,\w+,.*,aborted,0\.\d+,16$", done.stdout, re.MULTILINE)
    told = int(re.search(r"^RESULT,bert,\d+,(\d+),", done.stdout, re.MULTILINE)[1])
    log = (out / "bert.log").read_text()
    # From the start of the process, imports included, and not from run_start. Rounded: 0.5 s.
    started = float(re.search(r"^started in ([\d.]+) s", done.stdout, re.MULTILINE)[1])
    ends = [
        next(line for line in log.splitlines() if key in line)
        for key in ("block_start", "run_stop")
    ]
    first_ms, last_ms = (int(re.search(r'"time_ms": (\d+)', line)[1]) for line in ends)
    assert started + (last_ms - first_ms) / 1000 - 0.6 <= told <= most + 0.5
    assert "evaluation examples: the rules require 10,000, this run has 50" in done.stdout
    assert done.stdout.count("not a submission to the closed division") == 1
    assert done.stdout.count("bert_config_file: ") == 1
    assert re.search(r"^the run ended without reaching .*\nRESULT,", done.stdout, re.MULTILINE)
    assert "all examples of every part, this run has the first 6000 of each" in done.stdout
    assert re.findall(r'"submission_division", "value": "(\w+)"', log) == ["open"]
    assert list(out.glob("events.out.tfevents.*")) and (out / "model.ckpt-4.index").exists()

    before = {path: path.read_bytes() for path in out.iterdir()}
    again = train(work)
    assert again.returncode == 1 and "holds a finished run" in again.stderr
    assert before == {path: path.read_bytes() for path in out.iterdir()}


@pytest.mark.all
def test_steps_that_are_sleeps_read_and_save_and_are_no_result(work):
    done = train(
        work, emulate_step_seconds=0.4, eval_input_file="", num_parallel_files=2,
        save_checkpoints_steps=2,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "not a result: each step sleeps for 0.4 s" in done.stdout + done.stderr
    assert re.search(r"RESULT,bert,.*,aborted,,16$", done.stdout.strip())
    log = (work / "out" / "run" / "bert.log").read_text()
    assert '"key": "emulated_step_seconds", "value": 0.4' in log
    assert '"value": "open"' in log and '"status": "success"' not in log
    metrics = [json.loads(line) for line in (work / "out" / "run" / "metrics.jsonl").open()]
    rates = [line["samples_per_second"] for line in metrics if line["kind"] == "train"]
    assert len(rates) == 4 and all(0 < rate <= 10 for rate in rates)  # 4 samples in 0.4 s
    assert max(rates) > 5
    assert (work / "out" / "run" / "model.ckpt-4.index").exists()


@pytest.mark.all
@pytest.mark.parametrize(
    ("change", "reason", "statuses"),
    [
        # Lengths are looked at before anything is written, values when their batch is drawn.
        (lambda data: data[:-5], "the file ends within the data", None),
        (
            lambda data: data[:-5] + bytes([data[-5] ^ 1]) + data[-4:],
            "the checksum of the data is wrong",
            ["aborted"],
        ),
    ],
)
def test_damage_behind_the_first_record_names_the_file(work, change, reason, statuses):
    spoil(work, "train", change)
    done = train(work, num_train_steps=40, eval_interval_samples=160)
    assert done.returncode == 1
    assert re.search(rf"train: record 49 at byte \d+ is damaged \({reason}\)", done.stderr)
    log = work / "out" / "run" / "bert.log"
    assert log.parent.exists() is bool(statuses)
    if statuses:
        assert re.findall(r'"run_stop".*"status": "(\w+)"', log.read_text()) == statuses


@pytest.mark.parametrize(
    "command, number",
    [
        (["run_pretraining.py"], signal.SIGTERM),
        (["run_pretraining.py"], signal.SIGINT),
        (["run_pretraining.py"], signal.SIGUSR1),
        (["run_finetuning.py"], signal.SIGTERM),
        (["create_pretraining_data.py"], signal.SIGTERM),
        (["cleanup_scripts/clean_up.py"], signal.SIGTERM),
        (["-m", "demo"], signal.SIGTERM),
    ],
    ids=str,
)
def test_process_1_of_a_container_ends_at_once_during_its_imports(command, number, tmp_path):
    """It has no default action for signals; `unshare` makes such a process."""
    # In short sleeps: Python runs its handler between two calls, and a signal that came just before
    # a long one would wait for its end.
    slow = "import time\nprint('imported', flush=True)\nfor _ in range(600): time.sleep(0.1)\n"
    for module in ("tensorflow", "absl", "secrets", "tempfile"):
        (tmp_path / f"{module}.py").write_text(slow)
    unshared = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]
    if subprocess.run([*unshared, "true"], capture_output=True).returncode:
        lacking("no new namespace of processes can be had here")
    process = subprocess.Popen(
        [*unshared, sys.executable, *command],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "imported\n"
    [first] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(first), number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 128 + number and errors == ""


TASK = {"num_hidden_layers": 1}
FLAGS = """--do_train --max_seq_length=32 --max_predictions_per_seq=6 --optimizer=lamb
    --learning_rate=1e-4 --num_warmup_steps=0 --num_train_steps=30 --save_checkpoints_steps=10
    --train_batch_size=8 --eval_batch_size=9 --eval_interval_samples=80 --target_accuracy=0.01
    --jit_compile=false
    """.split()


@pytest.mark.gate
@pytest.mark.parametrize(
    "offline", [False, pytest.param(True, marks=pytest.mark.all)], ids=["online", "offline"]
)
def test_a_training_becomes_a_submission(task, tmp_path, offline, capfd):
    data = f"{task / 'eval.tfrecord'}"
    status = campaign.main(
        [
            *["--org=o", "--system=s", "--runs=1", f"--output_dir={tmp_path / 'campaign'}"],
            *([f"--offline_eval_input_file={data}"] if offline else []),
            "--",
            *FLAGS,
            f"--bert_config_file={task / 'bert_config.json'}",
            f"--init_checkpoint={task / 'init' / 'model.ckpt-0'}",
            f"--input_file={task / 'train.tfrecord'}",
            *([] if offline else [f"--eval_input_file={data}"]),
        ]
    )
    printed = capfd.readouterr().out
    verdict = printed[printed.index("\nsubmission: ") :].splitlines()
    assert status == 1
    record = json.loads((tmp_path / "campaign" / "runs" / "0" / "run.json").read_text())
    emptied = "emptied" if os.access("/proc/sys/vm/drop_caches", os.W_OK) else "NOT emptied"
    [run] = [line for line in verdict if line.startswith("run 0: success")]
    assert run.endswith(f"80 samples, seed {record['seed']}, caches {emptied}")
    assert "compliance checker: 1 of 1 logs accepted" in verdict
    assert (
        "division open: each run departs from the closed rules, as it said at its start" in verdict
    )
    assert "problem: 1 log, the rules require 10" in verdict
    assert verdict[-1] == "NOT PASSED under ruleset 5.0.0"
    result = tmp_path / "campaign" / "submission" / "o" / "results" / "s" / "bert" / "result_0.txt"
    name = "bert.offline.log" if offline else "bert.log"
    assert result.read_bytes() == (tmp_path / "campaign" / "runs" / "0" / name).read_bytes()
