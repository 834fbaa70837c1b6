"""The log of a run before the clock starts: submitter, division and hyper-parameters."""

import dataclasses

from mlperf_bert.mlperf import caches, rules
from mlperf_bert.mlperf.log import Hyperparameters, MlperfLog, SubmissionInfo
from mlperf_bert.training import preflight
from mlperf_bert.training.agreement import Team
from mlperf_bert.training.findings import Setup


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
    log.event("gradient_normalization", config.normalization)
    log.event("num_replicas", setup.strategy.num_replicas_in_sync)
    if config.emulate_step_seconds is not None:
        log.event("emulated_step_seconds", config.emulate_step_seconds)
    log.event("provenance", team.output.provenance)


def _submission(setup: Setup, team: Team) -> SubmissionInfo:
    departures = preflight.departures(setup)
    if team.resumes:
        departures.append(rules.Issue("run", "one from start to end", "one that was resumed"))
    if not departures:
        return setup.config.submission
    team.say(rules.open_division(departures))
    return dataclasses.replace(setup.config.submission, division="open")
