"""Words of characters from all over Unicode, and a vocabulary. Runs on Python 3.7 too.

The recorded digests were made by running the reference's tokenizer on these lines, and Python
3.7.16's own `lower` and `normalize` on these words.
"""

import random

# First and last + 1 of the blocks to draw from, the last one being everything.
BLOCKS = (
    *((0x20, 0x7F), (0x20, 0x7F), (0, 0x20), (0x7F, 0xA1), (0xA0, 0x250), (0x300, 0x400)),
    *((0x400, 0x530), (0x590, 0x700), (0x900, 0xE00), (0x1100, 0x1200), (0x1C80, 0x2150)),
    *((0x2E80, 0x3100), (0x4E00, 0x5000), (0xA640, 0xA800), (0xAB30, 0xAC10), (0xF900, 0xFB50)),
    *((0x10400, 0x10500), (0x11000, 0x11600), (0x1D100, 0x1D250), (0x1E900, 0x1E960)),
    (0, 0x110000),
)
SIGMA = "\u03a3"
SPACES = [" ", "\t", "\u00a0", "\u3000", "\u2028", "\x0b ", "\x1c", "\x85"]


def words(seed, count):
    rng = random.Random(seed)
    for _ in range(count):
        chars = []
        for _ in range(rng.randint(1, 8)):
            first, end = rng.choice(BLOCKS)
            code = rng.randrange(first, end)
            chars.append(SIGMA if 0xD800 <= code < 0xE000 else chr(code))
            if rng.random() < 0.1:
                chars.append(SIGMA)
        yield "".join(chars) if rng.random() < 0.99 else "".join(chars) * 40


def lines(seed, count):
    rng = random.Random(seed)
    known = vocabulary(seed)
    for line_words in zip(*[words(seed, count * 6)] * 6):
        parts = [word + rng.choice(["", " "]) + rng.choice(known) for word in line_words]
        yield rng.choice(SPACES).join(parts).replace("\n", " ").replace("\r", " ").strip()


def vocabulary(seed):
    rng = random.Random(seed)
    tokens = ["[PAD]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [chr(code) for code in range(0x21, 0x500)] + ["\u0e01", "\u4e01", "\uac00", "\u1100"]
    tokens += letters + ["##" + letter for letter in letters]
    for _ in range(300):
        piece = "".join(
            rng.choice("abcdefghijklmnop\u03c3\u03c2") for _ in range(rng.randint(2, 4))
        )
        tokens += [piece, "##" + piece]
    return tokens


def vocabulary_text(seed):
    """The lines of a vocab.txt, whose ids are those that the reference gives the tokens.

    It strips them, and one that stands there again gets no other id; our reader refuses that.
    """
    known = dict.fromkeys(token.strip() for token in vocabulary(seed))
    return "".join((token or "\u2028") + "\n" for token in known)


def every_character():
    """Every character between letters and before a capital sigma; of Chinese and Hangul some."""
    spans = (0, 0x4E00, 1), (0x4E00, 0xD800, 16), (0xE000, 0x20000, 1), (0x20000, 0xE1000, 16)
    for code in (code for span in spans for code in range(*span)):
        char = chr(code)
        yield f"A{char}b {char}{SIGMA} \u0301{char}\u0323 B{SIGMA}{char}"
