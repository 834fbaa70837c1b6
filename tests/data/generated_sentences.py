"""Lines that are hard to split into sentences, made from a seed; and small tables to split them by.

Runs on any Python from 3.7 on, so that the reference's own stack can read the very same bytes. The
letters are spelt out or drawn by number: `str.upper` would differ from one Python to the next.
"""

import random

ABBREVIATIONS = {"dr", "st", "u.s", "e.g", "i.e", "inc", "vs", "etc", "p.m", "\u03c3", "no"}
COLLOCATIONS = {("##number##", "the"), ("no", "##number##"), ("st", "bach"), ("j", "bach")}
SENTENCE_STARTERS = {"it", "he", "this", "\u043f"}
ORTHOGRAPHY = {"the": 46, "this": 42, "bach": 12, "was": 112, "end": 34, "in": 126, "it": 18}

# Words, abbreviations, numbers, punctuation; letters with odd case; letters newer than Unicode 11;
# white space.
_WORDS = (
    "the The of a Dr. dr. St. e.g. U.S. i.e. no. No. 3.5 1,000 12. 7. -5. .5. x-U.S. co-inc. "
    "a-etc. etc. A. B. J. j. bach Bach he He In in It it is was Was This this end. End. "
    "Stop! Why? No?! ?x !y ... .. . wait... -- --- word-- p.m. Inc. vs. ) ] } \" ' ( [ { ; : "
    "* @ , ,, # & ` Z\u00fcrich \u03a3. A\u03a3. \u0391\u03a3. \u041f. \u043f \u0661. "
    "\u0662\u0663. \u0301. e\u0301. \u201cq.\u201d \u2018s?\u2019 \u00aboui.\u00bb \u1e8f. "
    "\u10d0. \u1c90. \u0e01. \u00df. \u01c4. \u01c5. \u0130. \ufb01. \u1e9e. \u24b6. \u24d0. "
    "\u2160. \u00aa. \u4e2d. \U0001e900. \U0001e922. \ua7c2. \ua7c3. \ua7c2 \ua7c3 \u1cf2. "
    "\u055f. \u1734. A\u03a3\u1734. \u03a3\u055f. \u2c2f. \u9ff0. \u0870. \U0001fbf0. "
    "\U0001fbf5. \u2c5f. \ua7f5. \U00010570. \U00010597. \U00011950. \x1c \x1d \x1e \x1f "
    "\x0b \x0c \x85 \xa0 \u2028 \u2029 \u200b \u3000 \u180e"
).split(" ")
_TAILS = ".?!)\";}]*:@'({[,-.?!\t\x1c\xa0"
_SPACES = [" "] * 12 + ["", "  ", "\t", "\x1c", "\u2028", "\xa0", "\x85", "\u3000"]


def hard_lines(seed: int) -> str:
    """4,000 lines of one to twenty-five words each."""
    rng = random.Random(seed)
    lines = []
    for _ in range(4000):
        words = (_word(rng) + _one_of(rng, _SPACES) for _ in range(1 + int(rng.random() * 25)))
        lines.append("".join(words) + "\n")
    return "".join(lines)


def _word(rng: random.Random) -> str:
    word = _one_of(rng, _WORDS) if rng.random() < 0.9 else f"{_letters(rng)}."
    while rng.random() < 0.3:
        word += _one_of(rng, _TAILS)
    return _one_of(rng, _TAILS) + word if rng.random() < 0.05 else word


def _letters(rng: random.Random) -> str:
    """One to three characters of all of Unicode, surrogates and line ends apart."""
    limits = [0x110000 if rng.random() < 0.3 else 0x3000 for _ in range(1 + int(rng.random() * 3))]
    numbers = [14 + int(rng.random() * (limit - 14)) for limit in limits]
    return "".join(chr(number) for number in numbers if not 0xD800 <= number < 0xE000)


def _one_of(rng: random.Random, values):
    return values[int(rng.random() * len(values))]
