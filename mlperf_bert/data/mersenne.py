"""Python's `random.Random` inside compiled loops: the same numbers in the same order.

The examples are specified by the calls that Python 3.7's `random` makes, so the way in which it
draws is part of the format. An integer below n is made of the n.bit_length() highest bits of a
32-bit word; while it is not below n, the next word is tried. With seed 12345 the words begin

    6aa79987 bb91433a 029a7245 d1f6f86c d340bbcd cd8778e7 4c73a942

Their three highest bits are 3, 5, 0, 6, 6, 6, 2. So three integers below 5 take seven words, of
which four are rejected (state[624] is the index of the next word):

    >>> state = state_from_seed(12345)
    >>> [below(state, 5), below(state, 5), below(state, 5)], int(state[624])
    ([3, 0, 2], 7)

A choice among a single value takes words too (until one has highest bit 0), and one among 2**k
values rejects half of its draws. A fraction takes two words: the first one gives its upper 27
bits, the second its lower 26. A shuffle swaps each place, the last one first, with a place at or
before it: here places 3, 2 and 1 with places 3 (below 4), 2 (below 3) and 0 (below 2).

    >>> values = np.arange(4)
    >>> shuffle(state_from_seed(12345), values)
    >>> values.tolist()
    [1, 0, 2, 3]

A state is an int64 array: the 624 words of the Mersenne Twister, then the index of the next.

Source: Matsumoto and Nishimura, "Mersenne Twister" (1998); Lib/random.py of Python 3.7.
"""

import random

import numpy as np

from mlperf_bert.data.jit import kernel

_NUM_WORDS = 624


def state_from_seed(seed: int) -> np.ndarray:
    """Returns the state of `random.Random(seed)`, [625] int64."""
    return np.array(random.Random(seed).getstate()[1], np.int64)


@kernel
def _refill(state):
    """Makes the next 624 words: each from itself, its neighbour, and the one 397 places on."""
    for i in range(_NUM_WORDS):
        word = (state[i] & 0x80000000) | (state[(i + 1) % _NUM_WORDS] & 0x7FFFFFFF)
        state[i] = state[(i + 397) % _NUM_WORDS] ^ (word >> 1) ^ (0x9908B0DF if word & 1 else 0)
    state[_NUM_WORDS] = 0


@kernel
def next_word(state):
    """Returns the next 32 random bits."""
    if state[_NUM_WORDS] >= _NUM_WORDS:
        _refill(state)
    word = state[state[_NUM_WORDS]]
    state[_NUM_WORDS] += 1
    # Tempering spreads the bits of the word; the state keeps the word as it was.
    word ^= word >> 11
    word ^= (word << 7) & 0x9D2C5680
    word ^= (word << 15) & 0xEFC60000
    return word ^ (word >> 18)


@kernel
def uniform(state):
    """`Random.random()`: a float64 in [0, 1) of 53 bits."""
    high = next_word(state) >> 5
    return (high * 67108864.0 + (next_word(state) >> 6)) / 9007199254740992.0


@kernel
def below(state, limit):
    """`Random._randbelow(limit)`: an integer in [0, limit), 1 <= limit < 2**32."""
    shift = 32
    while limit >> (32 - shift):
        shift -= 1
    value = next_word(state) >> shift
    while value >= limit:
        value = next_word(state) >> shift
    return value


@kernel
def shuffle(state, values):
    """`Random.shuffle(values)`, in place."""
    for i in range(len(values) - 1, 0, -1):
        j = below(state, i + 1)
        values[i], values[j] = values[j], values[i]
