"""Fine-tuning by jax on a CPU equals TensorFlow's. Half a minute, most of it in XLA."""

import re

import numpy as np
import pytest
import tensorflow as tf

from mlperf_bert.finetuning import glue, model, weights
from mlperf_bert.finetuning.by_jax import JaxTaskTrainer, mesh_of
from mlperf_bert.finetuning.squad import SquadTask
from mlperf_bert.finetuning.training import (
    TaskTrainer,
    batch_of,
    inputs_of,
    predictions,
    training_batches,
)
from mlperf_bert.optimization.optimizers import WarmupPolynomialDecay
from tests.finetuning.generated_glue import MAX_SEQ_LENGTH, config_of

NUM_STEPS = 15  # three epochs of 37 examples, whose last batch is short


def trainer_of(task, source, precision="float32") -> TaskTrainer:
    return TaskTrainer(
        build_model=lambda: model.build(task, source, seed=5, precision=precision),
        schedule=WarmupPolynomialDecay(
            learning_rate=1e-3, num_train_steps=NUM_STEPS, num_warmup_steps=1
        ),
    )


@pytest.mark.gate
@pytest.mark.parametrize("name", ["mnli", "stsb", "spans"])
def test_losses_and_predictions_of_both_runtimes_are_equal(made, name):
    config = config_of(made)
    source = weights.find(config, [config.create("cola")])
    of_file = glue.create(
        "rte" if name == "spans" else name, str(made / "glue"), max_seq_length=MAX_SEQ_LENGTH
    )
    features = of_file.encode(of_file.read("train"), source.tokenizer, is_training=True)
    if name == "spans":
        del features["labels"]
        ends = features["input_mask"].sum(axis=1, dtype=np.int32) // 2
        features |= {"start_positions": ends // 2, "end_positions": ends}
    task = SquadTask(data_dir="") if name == "spans" else of_file

    found = []
    of_tensorflow, of_jax = trainer_of(task, source), trainer_of(task, source)
    for one in (of_tensorflow, JaxTaskTrainer(of_jax, mesh_of(config))):
        one.put_state()
        batches = training_batches(features, size=8, seed=1)
        losses = one.train(batches, NUM_STEPS)
        outputs = predictions(one, features, size=5)
        if name == "spans":  # the bias of a begin's or an end's logit has no gradient but noise
            outputs = tf.nn.log_softmax(outputs, axis=1).numpy()
        one.fetch_state()
        kernel = one.state["model"].trainable_variables[-2].numpy()  # of the task's head
        found.append((losses, outputs, kernel, int(one.step)))
    for by_tensorflow, by_jax in zip(*found, strict=True):
        np.testing.assert_allclose(by_tensorflow, by_jax, rtol=0, atol=1e-5)
    assert np.ptp(losses) > 1e-2  # something was learned


@pytest.mark.gate
def test_bfloat16_by_jax_is_near_float32_by_tensorflow(made):
    config = config_of(made, task="rte")
    task = config.create("rte")
    source = weights.find(config, [task])
    features = task.encode(task.read("train"), source.tokenizer, is_training=True)
    by_jax = JaxTaskTrainer(trainer_of(task, source, "bfloat16"), mesh_of(config))
    row = np.arange(1)
    finding = by_jax.compile_for(batch_of(features, row, 8), inputs_of(features, row, 5))
    assert re.fullmatch(
        r"note: a step takes under 0\.1 of \d+\.\d GiB available to this cpu; an evaluation under "
        r"0\.1 GiB",
        str(finding),
    )
    by_jax.put_state()
    losses = [
        one.train(training_batches(features, size=8, seed=1), NUM_STEPS)
        for one in (trainer_of(task, source), by_jax)
    ]
    assert 1e-5 < np.abs(losses[0] - losses[1]).max() < 1e-2
