"""The numbers of the rules, in whole numbers and without rounding errors."""

from fractions import Fraction

import pytest

from mlperf_bert.mlperf import rules


@pytest.mark.parametrize(
    ("global_batch_size", "interval_samples"),
    # the table of the reference's README, then those of the rounds' reference convergence points
    [
        *((256, 150_000), (1024, 150_000), (1536, 150_000), (2048, 150_000)),
        *((3072, 175_000), (4096, 175_000), (8192, 225_000)),
        *((24, 150_000), (448, 150_000), (4608, 200_000), (6144, 200_000), (6912, 225_000)),
        *((8704, 250_000), (12288, 275_000), (13056, 300_000), (16384, 325_000)),
    ],
)
def test_interval_follows_the_published_table(global_batch_size, interval_samples):
    assert rules.nominal_evaluation_interval_samples(global_batch_size) == interval_samples


def test_interval_equals_the_formula_exactly():
    def by_fractions(batch):
        share = Fraction(5, 100) * (Fraction(23_023, 100) * batch + 3_000_000)
        return int(share / 25_000) * 25_000

    batches = [*range(1, 70_000, 7), 50_000_000, 100_000_000]  # the last two are exact multiples
    computed = [rules.nominal_evaluation_interval_samples(batch) for batch in batches]
    assert computed == [by_fractions(batch) for batch in batches]
    assert rules.nominal_evaluation_interval_samples(50_000_000) == (6 + 23_023) * 25_000


@pytest.mark.parametrize(
    ("global_batch_size", "interval_samples", "steps"),
    [(448, 150_080, 335), (4096, 176_128, 43), (24, 150_000, 6250), (256, 150_016, 586)],
)
def test_interval_is_rounded_up_to_whole_batches(global_batch_size, interval_samples, steps):
    assert rules.evaluation_interval_samples(global_batch_size) == interval_samples
    assert rules.samples_to_steps(interval_samples, global_batch_size) == steps


CLOSED_RUN = {
    "global_batch_size": 448,
    "interval_samples": 150_080,
    "seed_is_random": True,
    "optimizer": "lamb",
    "poly_power": 1.0,
    "max_seq_length": 512,
    "max_predictions_per_seq": 76,
    "target_masked_lm_accuracy": 0.720,
}


@pytest.mark.parametrize(
    ("change", "parameter", "expected"),
    [
        ({"optimizer": "adamw"}, "optimizer", "lamb"),
        ({"poly_power": 0.5}, "poly_power", 1.0),
        ({"max_seq_length": 128}, "max_seq_length", 512),
        ({"max_predictions_per_seq": 20}, "max_predictions_per_seq", 76),
        ({"target_masked_lm_accuracy": 0.5}, "target_masked_lm_accuracy", 0.720),
        ({"interval_samples": 75_040}, "evaluation_interval_samples", 150_080),
        ({"interval_samples": 300_160}, "evaluation_interval_samples", 150_080),
        ({"seed_is_random": False}, "seed", "a random one, drawn by the run"),
        ({"model": {**rules.BERT_LARGE, "vocab_size": 9}}, "bert_config_file: vocab_size", 30522),
    ],
)
def test_each_departure_is_named(change, parameter, expected):
    [departure] = rules.departures_from_closed_rules(**CLOSED_RUN | change)
    assert (departure.parameter, departure.expected) == (parameter, expected)
    assert str(departure).startswith(f"{parameter}: the rules require {expected}, this run has ")
    model = {name: value for name, value in rules.BERT_LARGE.items() if name != "hidden_act"}
    [departure] = rules.departures_from_closed_rules(**CLOSED_RUN, model=model)
    assert str(departure).endswith("hidden_act: the rules require gelu, this run has nothing")


def test_a_run_says_its_departures_once_those_of_a_model_in_one_line():
    model = {**rules.BERT_LARGE, "hidden_size": 64, "num_hidden_layers": 2}
    issues = rules.departures_from_closed_rules(
        global_batch_size=448, interval_samples=150_080, seed_is_random=False, model=model
    )
    assert rules.open_division(issues).splitlines() == [
        "This run is not a submission to the closed division:",
        "  - seed: the rules require a random one, drawn by the run, this run has one fixed by the "
        "user",
        "  - bert_config_file: not the benchmark's hidden_size, num_hidden_layers",
    ]
