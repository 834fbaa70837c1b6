"""The closed-division rules of MLPerf Training BERT as numbers and pure functions.

The rules count in samples (one sample = one example that was trained or evaluated); only
`samples_to_steps` turns samples into steps.

Source: MLCommons training_rules.adoc (sections on quality targets, evaluation frequency,
hyper-parameters and random number generation) and the README of the BERT reference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

TARGET_MASKED_LM_ACCURACY = 0.720
"""Masked-LM accuracy on the evaluation samples at which a run has converged."""

INITIAL_MASKED_LM_ACCURACY = 0.34085
"""Masked-LM accuracy of the official initial checkpoint before training, to test the loading."""

NUM_EVAL_SAMPLES = 10_000
MAX_SEQ_LENGTH = 512
MAX_PREDICTIONS_PER_SEQ = 76

DATA_SEED = 12345
"""Seed of the data generation; the seed of training must be random instead."""
DUPE_FACTOR = 10
MASKED_LM_PROB = 0.15

NUM_RUNS_PER_RESULT = 10
"""A result is the mean of ten runs without the fastest and the slowest."""

RULESETS = ("1.0.0", "1.1.0", "2.0.0", "2.1.0", "3.0.0", "3.1.0", "4.0.0", "4.1.0", "5.0.0")
"""Every ruleset from 1.0.0 on that accepts BERT: 5.1.0 has BERT's keys but refuses
the benchmark's name."""

FIXED_HYPERPARAMETERS: Mapping[str, object] = MappingProxyType(
    {
        "optimizer": "lamb",
        "poly_power": 1.0,
        "max_seq_length": MAX_SEQ_LENGTH,
        "max_predictions_per_seq": MAX_PREDICTIONS_PER_SEQ,
        "target_masked_lm_accuracy": TARGET_MASKED_LM_ACCURACY,
    }
)
"""What equals the reference; batch, learning rate, epsilon, steps, warm-up, betas and weight decay
are free."""

BERT_LARGE: Mapping[str, object] = MappingProxyType(
    {
        "attention_probs_dropout_prob": 0.1,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": 1024,
        "initializer_range": 0.02,
        "intermediate_size": 4096,
        "max_position_embeddings": 512,
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "type_vocab_size": 2,
        "vocab_size": 30522,
    }
)
"""The official bert_config.json."""
_OF_MODEL = "bert_config_file: "


@dataclass(frozen=True)
class Departure:
    """One departure from a rule: a value to collect and print, not an exception."""

    parameter: str
    expected: object
    actual: object

    def __str__(self) -> str:
        return f"{self.parameter}: the rules require {self.expected}, this run has {self.actual}"


def nominal_evaluation_interval_samples(global_batch_size: int) -> int:
    """Returns how many samples may pass between two evaluations, before rounding to batches.

    floor(0.05 * (230.23 * global_batch_size + 3,000,000) / 25,000) * 25,000, in integers (both
    sides of the division times 2,000), without rounding errors.
    """
    return (23_023 * global_batch_size + 300_000_000) // 50_000_000 * 25_000


def evaluation_interval_samples(global_batch_size: int) -> int:
    """Returns the evaluation interval in samples, rounded up to whole global batches."""
    nominal_samples = nominal_evaluation_interval_samples(global_batch_size)
    return samples_to_steps(nominal_samples, global_batch_size) * global_batch_size


def samples_to_steps(num_samples: int, global_batch_size: int) -> int:
    """Returns the fewest steps that cover `num_samples`; only this makes steps of samples."""
    # Rounded up, in integers.
    return -(-num_samples // global_batch_size)


def is_bert_large(model: Mapping[str, object]) -> bool:
    """Returns whether the entries of bert_config.json are those of the benchmark's model."""
    return all(model.get(name) == value for name, value in BERT_LARGE.items())


def departures_from_closed_rules(
    *,
    global_batch_size: int,
    interval_samples: int,
    seed_is_random: bool,
    model: Mapping[str, object] = BERT_LARGE,
    **fixed_hyperparameters: object,
) -> list[Departure]:
    """Returns every way in which a run departs from the closed division; empty if none.

    Args:
      global_batch_size: samples per update of the weights, over all replicas and accumulations.
      interval_samples: samples between evaluations. Evaluating more often departs too: such a
        run could stop earlier than the rules allow.
      seed_is_random: False when the user fixed the seed of training.
      model: the entries of bert_config.json.
      **fixed_hyperparameters: values for keys of FIXED_HYPERPARAMETERS; those left out count as
        equal to the rules.
    """
    departures = [
        Departure(name, FIXED_HYPERPARAMETERS[name], actual)
        for name, actual in fixed_hyperparameters.items()
        if actual != FIXED_HYPERPARAMETERS[name]
    ]
    departures += [
        Departure(f"{_OF_MODEL}{name}", expected, model.get(name, "nothing"))
        for name, expected in BERT_LARGE.items()
        if model.get(name) != expected
    ]
    expected_samples = evaluation_interval_samples(global_batch_size)
    if interval_samples != expected_samples:
        departures.append(
            Departure("evaluation_interval_samples", expected_samples, interval_samples)
        )
    if not seed_is_random:
        departures.append(
            Departure("seed", "a random one, drawn by the run", "one fixed by the user")
        )
    return departures


def departure_of_evaluation(num_eval_samples: int) -> Departure | None:
    """Returns the departure of an evaluation whose number of examples is not that of the rules."""
    if num_eval_samples == NUM_EVAL_SAMPLES:
        return None
    return Departure("evaluation examples", f"{NUM_EVAL_SAMPLES:,}", f"{num_eval_samples:,}")


def open_division(departures: Sequence[Departure]) -> str:
    """Returns why a run is not closed division: a line for each departure, one for the model."""
    # One line for the model, however many of its sizes are others.
    of_model = [name for each in departures if (name := each.parameter.partition(_OF_MODEL)[2])]
    lines = [str(each) for each in departures if not each.parameter.startswith(_OF_MODEL)]
    if of_model:
        lines.append(f"{_OF_MODEL}not the benchmark's {', '.join(of_model)}")
    return "\n  - ".join(["This run is not a submission to the closed division:", *lines])


def require_ruleset(ruleset: str) -> None:
    """Refuses a ruleset without BERT: the official tools would check nothing, report success."""
    if ruleset not in RULESETS:
        raise ValueError(f"ruleset {ruleset!r} has no BERT; use one of {', '.join(RULESETS)}")
