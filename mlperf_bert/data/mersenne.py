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

A state is an int64 array: the 624 words of the Mersenne Twister, the index of the next, and the 624
numbers that these words give.

Source: Matsumoto and Nishimura, "Mersenne Twister" (1998); Lib/random.py of Python 3.7.
"""

import random

import numpy as np

from mlperf_bert.data.jit import kernel

_NUM_WORDS = 624
_NUMBERS = _NUM_WORDS + 1  # where they begin in a state


def state_from_seed(seed: int) -> np.ndarray:
    """Returns the state of `random.Random(seed)`, [1249] int64."""
    words_and_index = random.Random(seed).getstate()[1]  # all words are used up: the index is 624
    return np.array([*words_and_index, *[0] * _NUM_WORDS], np.int64)


@kernel
def _twist(word, neighbour, other):
    mixed = (word & 0x80000000) | (neighbour & 0x7FFFFFFF)
    return other ^ (mixed >> 1) ^ ((mixed & 1) * 0x9908B0DF)


@kernel
def _refill(state):
    """Makes the next 624 words: each from itself, its neighbour, and the one 397 places on."""
    # Loops without a condition or a remainder become vector instructions.
    wrapped = _NUM_WORDS - 397
    for i in range(wrapped):
        state[i] = _twist(state[i], state[i + 1], state[i + 397])
    for i in range(wrapped, _NUM_WORDS - 1):
        state[i] = _twist(state[i], state[i + 1], state[i - wrapped])
    state[_NUM_WORDS - 1] = _twist(state[_NUM_WORDS - 1], state[0], state[396])
    # Tempering spreads the bits of a word; the words themselves stay as they are.
    for i in range(_NUM_WORDS):
        word = state[i]
        word ^= word >> 11
        word ^= (word << 7) & 0x9D2C5680
        word ^= (word << 15) & 0xEFC60000
        state[_NUMBERS + i] = word ^ (word >> 18)
    state[_NUM_WORDS] = 0


@kernel
def next_word(state):
    """Returns the next 32 random bits."""
    if state[_NUM_WORDS] == _NUM_WORDS:
        _refill(state)
    index = state[_NUM_WORDS]
    state[_NUM_WORDS] = index + 1
    return state[_NUMBERS + index]


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
    # `below` written out, because nobody can predict which draws are rejected: here a rejected one
    # swaps a value with itself and stays at its place, so that the loop has no branch on it.
    i = len(values) - 1
    num_bits = 0
    while (i + 1) >> num_bits:
        num_bits += 1
    index = state[_NUM_WORDS]
    while i > 0:
        last = max(1, (1 << (num_bits - 1)) - 1)  # the last place that draws so many bits
        while i >= last:
            if index == _NUM_WORDS:
                _refill(state)
                index = 0
            drawn = state[_NUMBERS + index] >> (32 - num_bits)
            index += 1
            is_accepted = drawn <= i
            j = drawn if is_accepted else i
            values[i], values[j] = values[j], values[i]
            i -= is_accepted
        num_bits -= 1
    state[_NUM_WORDS] = index
