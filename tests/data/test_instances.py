"""How instances are drawn: the worked examples in docstrings, and quirks that few texts show."""

import doctest
import os
import random
import sys

import numpy as np
import pytest

from mlperf_bert.data import instances, mersenne
from mlperf_bert.data.instances import InstanceConfig, make_instances
from tests.data import many_masks
from tests.helpers import programs


@pytest.mark.parametrize("module", [instances, mersenne], ids=lambda module: module.__name__)
def test_worked_examples(module):
    found = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.attempted >= 5 and not found.failed


@pytest.mark.parametrize(("length", "num_masked"), [(30, 4), (50, 8), (70, 10)])
def test_half_a_masked_token_is_rounded_to_the_even_number(length, num_masked):
    """15% of these lengths are 4.5, 7.5 and 10.5 tokens, which Python 3 rounds to 4, 8 and 10."""
    words = [f"word{n}" for n in range(200)]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    text = many_masks.text_of(6, 40, 7, numbers=np.random.RandomState(0))
    config = InstanceConfig(
        max_seq_length=length, max_predictions_per_seq=76, short_seq_prob=0.0,
        masked_lm_prob=0.15, dupe_factor=10, random_seed=12345,
    )  # fmt: skip
    vocabulary = {token: number for number, token in enumerate(tokens)}
    made = make_instances(text, vocabulary, config)
    lengths = made.segments[:, 1] + made.segments[:, 3] + 3
    counts = np.diff(made.mask_starts)[lengths == length]
    assert len(counts) > 100 and set(counts) == {num_masked}


@pytest.mark.gate
def test_more_masked_tokens_than_a_buffer_holds_are_kept_and_written_within_it():
    """The digest was recorded with a buffer that never grows."""
    made = many_masks.made()
    assert made.mask_starts[-1] == 74927 > 1 << 16
    assert many_masks.digest(made) == "768b4b64d1919e6d4414332d853aca94"
    words = ["-W", "ignore:overflow", "-m", "tests.data.many_masks"]  # as of unsigned numbers in C
    checked = programs.run(sys.executable, *words, env={**os.environ, "NUMBA_DISABLE_JIT": "1"})
    assert checked.stdout == "74927 768b4b64d1919e6d4414332d853aca94\n", checked.stderr


def test_shuffles_and_draws_are_those_of_python():
    """Around powers of two the number of drawn bits changes; 624 words are made at a time."""
    theirs, state = random.Random(12345), mersenne.state_from_seed(12345)
    for length in (0, 1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 509, 512, 513, 3000):
        expected, values = list(range(length)), np.arange(length)
        theirs.shuffle(expected)
        mersenne.shuffle(state, values)
        assert values.tolist() == expected
        assert mersenne.uniform(state) == theirs.random()
        assert mersenne.below(state, length + 1) == theirs.randrange(length + 1)
