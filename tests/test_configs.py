"""The presets carry the numbers of their sources, and run_pretraining.py takes them."""

import json
import math
import re
import sys

import pytest
from mlperf_logging.rcp_checker.rcp_checker import RCP_Checker

from mlperf_bert.mlperf import convergence, rules
from tests.fixtures import REPOSITORY
from tests.helpers import known_flags, starts

PRESETS = {path.stem: path for path in sorted((REPOSITORY / "configs").glob("*.flags"))}
TPU = "tpu_v3_128_bs8192"
# From random weights: 512 * 1,000,000 samples in all, tuned by the rule at this batch.
PHASES = {"phase1_128": (128, 20, 0.9), "phase2_512": (512, 76, 0.1)}
PAPERS_SAMPLES, PAPERS_BATCH, PAPERS_RATE, PAPERS_WARM_UP = 512_000_000, 32_768, 0.005, 1 / 5
PAPERS_LAMB = {"lamb_beta_1": "0.9", "lamb_beta_2": "0.999", "lamb_weight_decay_rate": "0.01"}
HYPERPARAMETERS = {
    "learning_rate": "opt_base_learning_rate",
    "lamb_beta_1": "opt_lamb_beta_1",
    "lamb_beta_2": "opt_lamb_beta_2",
    "lamb_weight_decay_rate": "opt_lamb_weight_decay_rate",
}
STEPS = {
    "num_train_steps": "opt_learning_rate_training_steps",
    "num_warmup_steps": "num_warmup_steps",
    "start_warmup_step": "start_warmup_step",
}


OF_THE_RULES = {
    "do_train": "", "optimizer": "lamb", "max_seq_length": "512", "max_predictions_per_seq": "76",
}  # fmt: skip
# A step fits into a core only so; the epsilon is that of the reference's example.
OF_THE_TPU = {
    "use_tpu": "", "num_tpu_cores": "128", "precision": "bfloat16", "recompute": "blocks",
    "log_epsilon": "-6", "iterations_per_loop": "3", "save_checkpoints_steps": "3",
}  # fmt: skip
SIZES = ("train_batch_size", "eval_batch_size", "steps_per_update", "save_checkpoints_steps")
NAMES = {*OF_THE_RULES, *HYPERPARAMETERS, *STEPS, *SIZES}
RECORDS = RCP_Checker("training", "5.0.0", "bert", verbose=False).rcp_data.values()
RUNS = {record["BS"]: len(record["Epochs to converge"]) for record in RECORDS}


def flags_of(path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return dict(line.removeprefix("--").partition("=")[::2] for line in lines)


def number_in(text, pattern) -> int:
    return int(re.search(pattern, text)[1].replace(",", ""))


def test_every_reference_point_has_its_preset():
    points = {f"batch_{size}" for size in convergence.reference_points()}
    assert set(PRESETS) == points | {"batch_24", "batch_448_in_8_steps", TPU, *PHASES}


@pytest.mark.parametrize("name", sorted(PRESETS.keys() - PHASES))
def test_preset_has_the_numbers_of_the_reference_point(name):
    text, given = PRESETS[name].read_text(), flags_of(PRESETS[name])
    assert set(given) <= known_flags.flags_of("run_pretraining.py")
    of_the_tpu = OF_THE_TPU if name == TPU else {}
    assert set(given) == NAMES | set(of_the_tpu)
    assert given.items() >= (OF_THE_RULES | of_the_tpu).items()
    steps_per_update = int(given["steps_per_update"])
    global_batch_size = int(given["train_batch_size"]) * steps_per_update
    assert global_batch_size == number_in(name, r"(?:batch_|_bs)(\d+)")
    interval_samples = int(given["save_checkpoints_steps"]) * int(given["train_batch_size"])
    if name == TPU:  # the reference's recipe saves more often
        assert interval_samples == number_in(text, r"every ([\d,]+) samples")
    else:
        assert interval_samples == rules.evaluation_interval_samples(global_batch_size)
    bound = convergence.bound_of(global_batch_size)
    assert number_in(text, r"Least mean that passes: ([\d,]+)") == round(
        bound.point.min_mean_samples
    )
    point = convergence.reference_points().get(global_batch_size)
    if point is None:
        assert "it has no reference convergence point" in text
        own = (REPOSITORY / "train_model.sh").read_text().split()
        assert {f"--{flag}={given[flag]}" for flag in ("learning_rate", *STEPS)} <= {*own}
        return
    assert number_in(text, r"mean ([\d,]+) samples\.") == round(point.mean_samples)
    assert number_in(text, r"Reference: (\d+) runs") == RUNS[global_batch_size]
    for flag, key in HYPERPARAMETERS.items():
        assert float(given[flag]) == point.hyperparameters[key], flag
    for flag, key in STEPS.items():
        assert int(given[flag]) == point.hyperparameters[key] * steps_per_update, flag


@pytest.mark.parametrize("name", PHASES)
def test_phases_have_the_numbers_of_the_paper(name):
    """You et al., arXiv 1904.00962, the table of untuned LAMB, by its square-root rule."""
    text, given = PRESETS[name].read_text(), flags_of(PRESETS[name])
    max_seq_length, max_predictions_per_seq, share = PHASES[name]
    assert int(given["max_seq_length"]) == max_seq_length
    assert int(given["max_predictions_per_seq"]) == max_predictions_per_seq
    batch, steps = int(given["train_batch_size"]), int(given["num_train_steps"])
    steps_per_update = int(given["steps_per_update"])
    assert steps * batch == share * PAPERS_SAMPLES
    global_batch_size = batch * steps_per_update
    assert global_batch_size == number_in(text, r"global batch ([\d,]+)\. No submission")
    rate = PAPERS_RATE * math.sqrt(global_batch_size / PAPERS_BATCH)
    assert math.isclose(float(given["learning_rate"]), rate, rel_tol=1e-5)
    warm_up_share = PAPERS_WARM_UP * global_batch_size / PAPERS_BATCH
    assert int(given["num_warmup_steps"]) == steps * warm_up_share
    assert int(given["save_checkpoints_steps"]) == 1000 * steps_per_update
    more = {"eval_interval_samples": str(1000 * global_batch_size)} if share == 0.1 else {}
    assert set(given) == NAMES | set(more)
    assert given.items() >= (PAPERS_LAMB | more).items()
    assert steps == number_in(text, r"([\d,]+) updates of") * steps_per_update


@pytest.mark.parametrize("name", PRESETS)
def test_devices_of_the_comment_share_the_batches(name):
    text, given = PRESETS[name].read_text(), flags_of(PRESETS[name])
    replicas = 1 if "one replica" in text else number_in(text, r"instance ([\d,]+) replicas")
    assert number_in(text, r"replicas? of ([\d,]+)") * replicas == int(given["train_batch_size"])
    assert int(given["eval_batch_size"]) % replicas == 0


def checked(name, tmp_path) -> str:
    """What --check says of a preset, with a checkpoint that is not there."""
    (tmp_path / "bert_config.json").write_text(json.dumps(dict(rules.BERT_LARGE)))
    (tmp_path / "part").write_bytes(b"no record")
    command = [sys.executable, "run_pretraining.py", f"--flagfile={PRESETS[name]}", "--check"]
    command += [f"--{flag}={tmp_path / 'part'}" for flag in ("input_file", "init_checkpoint")]
    command += [f"--bert_config_file={tmp_path / 'bert_config.json'}"]
    command += [f"--output_dir={tmp_path / 'out'}"]
    done = starts.run(command)
    assert done.returncode == 1  # such a checkpoint there is not
    return done.stdout


@pytest.mark.parametrize(
    "name, told",
    [
        ("batch_24", "judged by batch 448"),
        ("batch_448_in_8_steps", ""),
        ("phase1_128", "not a submission to the closed division: "),
    ],
)
def test_check_takes_a_preset_and_says_what_its_result_is(name, told, tmp_path):
    printed = checked(name, tmp_path)
    assert told in printed and ("judged by batch 448" in printed) == (name == "batch_24")
    assert printed.splitlines()[-1].startswith("errors: ")
    assert ("not a submission" in printed) == (name in PHASES)
