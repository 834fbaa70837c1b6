"""Whole runs with --runtime=jax: killed, stopped, evaluated, converted. CPU, a minute or two.

Dropout and shuffling are on. What a run does between its device calls is the same by both runtimes,
and tested elsewhere: here is what the trainer of jax gives to it.
"""

import json
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from mlperf_bert.checkpoints import names
from mlperf_bert.checkpoints.reading import StoredCheckpoint
from mlperf_bert.convert.tf1_tf2 import convert
from mlperf_bert.mlperf import ledger, logs
from mlperf_bert.model.config import BertConfig
from mlperf_bert.training.evaluations import RESULTS_LINES
from tests.helpers import starts
from tests.training.generated_task import SMALL
from tests.training.small_runs import (
    NUM_STEPS,
    assert_same_end,
    command,
    kill_at_step,
    metrics,
    offline_evaluation,
    run_seconds,
    start,
    wait_for_step,
)

pytestmark = pytest.mark.gate
TASK, WATTS = SMALL, 250
SAVED = [*range(22, NUM_STEPS, 22), NUM_STEPS]


def by_jax(task: Path, **changed) -> dict:
    """Flags of a run by jax; what one has compiled, the next reads."""
    kept = {"runtime": "jax", "keep_checkpoint_max": 0, "compilation_cache_dir": f"{task}-cache"}
    return kept | changed


@pytest.fixture(scope="module")
def undisturbed(task, tmp_path_factory) -> Path:
    """A run that waits for each of its checkpoints, with profile and energy."""
    output = tmp_path_factory.mktemp("undisturbed") / "out"
    flags = by_jax(task, async_checkpoint="false", profile_steps="31-33", power_watts=WATTS)
    done = starts.run(command(task, output, **flags), check=True)
    (output.parent / "said").write_text(done.stdout + done.stderr)
    return output


@pytest.fixture(scope="module")
def by_tensorflow(task, tmp_path_factory) -> Path:
    """The same run by TensorFlow, its step compiled as a whole."""
    output = tmp_path_factory.mktemp("by_tensorflow") / "out"
    flags = {"runtime": "tensorflow", "jit_compile": "true", "keep_checkpoint_max": 0}
    starts.run(command(task, output, **flags), check=True)
    return output


def test_killed_and_stopped_it_goes_on_bitwise_with_every_checkpoint(task, undisturbed, tmp_path):
    """Written while the training goes on, each is that of a run that waits."""
    output = tmp_path / "out"
    kill_at_step(60, task, output, **by_jax(task))
    other = starts.run(command(task, output, **by_jax(task, runtime="tensorflow")))
    assert other.returncode == 1 and other.stderr.count("\n") == 1
    assert "holds another run (runtime: jax there, tensorflow here)" in other.stderr

    process = start(task, output, **by_jax(task))
    wait_for_step(process, output, 110)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 75, said
    [stopped] = map(int, re.findall(r"SIGTERM after step (\d+)", said))
    assert f"{output}/model.ckpt-" in said and (output / f"model.ckpt-{stopped}.index").exists()

    done = starts.run(command(task, output, **by_jax(task)), check=True)
    assert f"Going on from {output}/model.ckpt-{stopped}\n" in done.stdout
    for step in SAVED:
        assert_same_end(output, undisturbed, num_steps=step)


def test_it_computes_what_tensorflow_computes_with_its_dropout(undisturbed, by_tensorflow):
    for kind in ("train", "eval"):
        found, expected = (metrics(folder, kind) for folder in (undisturbed, by_tensorflow))
        assert len(found) == len(expected) >= 8
        for name in ("step", "loss", "masked_lm_loss", "next_sentence_loss", "samples"):
            values = [[line[name] for line in lines] for lines in (found, expected)]
            np.testing.assert_allclose(*values, rtol=0, atol=1e-5, err_msg=f"{kind}: {name}")


def test_its_log_has_the_runtime_the_energy_and_where_the_time_went(undisturbed):
    found = logs.read_run(undisturbed / "bert.log")
    log = (undisturbed / "bert.log").read_text()
    assert re.search(r'"devices", "value": "1 x cpu by jax \d+\.\d+\.\d+"', log)
    least, most = run_seconds(undisturbed / "bert.log")
    assert WATTS * least <= found.energy.joules <= WATTS * most
    assert least <= sum(found.seconds.values()) <= most
    said = (undisturbed.parent / "said").read_text()
    assert re.search(r"^where the time went: .*accelerator utilization [\d.]+%$", said, re.M)
    assert found.seconds[ledger.COMPUTE] > 0 and found.seconds[ledger.EVALUATION_COMPUTE] > 0


def test_the_profiler_is_jaxs(undisturbed):
    [profile] = (undisturbed / "plugins" / "profile").glob("*/*.xplane.pb")
    assert b"PjRt" in profile.read_bytes()


def test_checkpoints_are_evaluated_offline_and_converted(task, undisturbed, tmp_path):
    by_step = {}
    for runtime in ("jax", "tensorflow"):
        output = tmp_path / runtime
        shutil.copytree(undisturbed, output)
        words = [f"--num_train_steps={NUM_STEPS}", f"--runtime={runtime}"]
        starts.run(offline_evaluation(task, output, *words), check=True)
        lines = map(json.loads, (output / RESULTS_LINES).read_text().splitlines())
        by_step[runtime] = {line["step"]: line for line in lines}
    assert list(by_step["jax"]) == SAVED
    for step, found in by_step["jax"].items():
        assert found == pytest.approx(by_step["tensorflow"][step], abs=1e-5), step
    [during] = [line for line in metrics(undisturbed, "eval") if line["step"] == NUM_STEPS]
    for name in ("masked_lm_accuracy", "masked_lm_loss", "num_examples"):
        assert by_step["jax"][NUM_STEPS][name] == pytest.approx(during[name], abs=1e-5)

    config = BertConfig.from_json_file(str(task / "bert_config.json"))
    newest, converted = f"{undisturbed}/model.ckpt-{NUM_STEPS}", str(tmp_path / "converted")
    convert(newest, converted, config=config)
    stored, trained = StoredCheckpoint(converted), StoredCheckpoint(newest)
    weights = names.weights(config.num_hidden_layers)
    assert len(weights) == 30
    for weight in weights:
        shape = weight.our_shape(config)
        assert stored.read(weight, shape).tobytes() == trained.read(weight, shape).tobytes()
    words = [f"--init_checkpoint={converted}", "--runtime=jax"]
    starts.run(offline_evaluation(task, tmp_path / "given", *words), check=True)
    [line] = (tmp_path / "given" / RESULTS_LINES).read_text().splitlines()
    assert json.loads(line)["loss"] == by_step["jax"][NUM_STEPS]["loss"]


def test_the_initial_accuracy_is_checked(task, tmp_path):
    accuracy = []
    for runtime in ("jax", "tensorflow"):
        words = command(task, tmp_path / "out", **by_jax(task, runtime=runtime))
        done = starts.run([*words, "--check", "--check_initial_accuracy"])
        assert done.returncode == 0, done.stdout + done.stderr
        accuracy += re.findall(r"initial checkpoint has masked-LM accuracy (\d\.\d+);", done.stdout)
    assert len(accuracy) == 2 and accuracy[0] == accuracy[1]
