"""The log of a run before the clock starts: submitter, division and hyper-parameters."""

import dataclasses

import tensorflow as tf

from mlperf_bert.mlperf import caches, rules
from mlperf_bert.mlperf.log import Computation, Hyperparameters, MlperfLog, SubmissionInfo
from mlperf_bert.mlperf.results import RECORD_NAME
from mlperf_bert.training import checks
from mlperf_bert.training.agreement import Team
from mlperf_bert.training.config import DeviceConfig
from mlperf_bert.training.setup import Setup

_FIRST_WITH_TF32 = (8, 0)  # compute capability: Ampere


def write(log: MlperfLog, setup: Setup, team: Team) -> None:
    """Empties the file caches if asked to, then logs everything that the checkers require."""
    config = setup.config
    hyperparameters = Hyperparameters(
        global_batch_size=config.global_batch_size,
        gradient_accumulation_steps=config.steps_per_update,
        optimizer=config.optimizer.name,
        learning_rate=config.learning_rate,
        epsilon=config.optimizer.epsilon,
        num_train_steps=config.num_train_steps,
        num_warmup_steps=config.num_warmup_steps,
        start_warmup_step=config.start_warmup_step,
        beta_1=config.optimizer.beta_1,
        beta_2=config.optimizer.beta_2,
        weight_decay_rate=config.optimizer.weight_decay_rate,
        poly_power=config.poly_power,
        max_seq_length=config.shape.max_seq_length,
        max_predictions_per_seq=config.shape.max_predictions_per_seq,
        num_eval_samples=None,
        seed=team.seed,
    )
    log.init_start(cache_cleared=caches.drop() is None if config.drop_caches else None)
    log.submission(_submission(setup, team))
    log.hyperparameters(hyperparameters)
    log.computation(_computation(setup))
    log.event("gradient_normalization", config.normalization)
    log.event("num_replicas", setup.strategy.num_replicas_in_sync)
    if config.emulate_step_seconds is not None:
        log.event("emulated_step_seconds", config.emulate_step_seconds)
    if config.time_budget is not None:
        log.event("time_budget_seconds", config.time_budget)
    log.event("provenance", team.output.provenance)


def _computation(setup: Setup) -> Computation:
    config = setup.config
    precision = precision_of_products(config.precision, config.device)
    return Computation(
        precision_in_linear=precision,
        precision_in_attention=precision,  # of its products; the softmax is fp32
        precision_in_communication="fp32",  # gradients have the type of the weights
        micro_batch_size=config.train_batch_size // setup.strategy.num_replicas_in_sync,
        config_filename=RECORD_NAME,
    )


def precision_of_products(precision: str, device: DeviceConfig) -> str:
    """The precision that matrix products really have, as MLPerf spells it.

    TensorFlow's TensorFloat-32 is bfloat16 on a TPU, and float32 on processors and on GPUs older
    than Ampere. Source: tf.config.experimental.enable_tensor_float_32_execution.
    """
    if precision != "tf32":
        return {"float32": "fp32", "bfloat16": "bfloat16"}[precision]
    if device.use_tpu:
        return "bfloat16"
    gpus = tf.config.list_physical_devices("GPU")[: device.num_gpus]
    found = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
    # A GPU that does not say its capability counts as a new one: the lower precision.
    has_tf32 = any(d.get("compute_capability", _FIRST_WITH_TF32) >= _FIRST_WITH_TF32 for d in found)
    return "tf32" if has_tf32 else "fp32"


def _submission(setup: Setup, team: Team) -> SubmissionInfo:
    departures = checks.departures(setup)
    if team.output.provenance.get("initial_weights"):  # a resume need not name them again
        departures = [issue for issue in departures if issue.parameter != "init_checkpoint"]
    if team.resumes:
        departures.append(rules.Issue("run", "one from start to end", "one that was resumed"))
    if not departures:
        return setup.config.submission
    team.say(rules.open_division(departures))
    return dataclasses.replace(setup.config.submission, division="open")
