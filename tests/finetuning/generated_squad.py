"""A SQuAD file with the quirks of text from everywhere, and a vocabulary for it."""

import random
import string

SYLLABLES = [c + v for c in "bdfglmnprstvk" for v in "aeiou"]
ODD_WORDS = [
    *("Café", "Cafe\u0301s", "\u00c5ngstro\u0308m,", "naïve;", "Zürich's", "(1895–1943).", "Äpfel"),
    *("東京都", "in東京;", "한국어", "Привет,", "الأدب", "ไทย", "\U0001f600", "ok\U0001f680!", "½"),
    *("a\u00a0b", "x\u3000y", "zero\u200bwidth", "ctrl\x01char", "soft\u00adhyphen", "\u2028line"),
    *("$5.00", "50%", "U.S.A.", "rock-'n'-roll", '"quoted"', "the", "The", "a", "an", "A/B", "..."),
    *("İstanbul", "Straße", "ﬁne", "\u1e9b\u0323", "q\u0307\u0323", "unknown\u4e02", "mid-1990s"),
    *("—", "x" * 210),
]  # fmt: skip
SPACES = [" ", " ", " ", " ", " ", " ", "  ", "\t", "\n", " \r\n", "\u202f"]


def vocabulary():
    tokens = ["[PAD]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = string.ascii_lowercase + string.digits + "приветкаегошст" + "ไทยالأدب½ßﬁſıοδσς\ua7bb"
    singles = letters + string.punctuation + "–—東京都" + "\u1112\u1161\u11ab\u1100\u116e\u11a8"
    tokens += list(dict.fromkeys(singles))
    tokens += [f"##{c}" for c in dict.fromkeys(letters + "\u1112\u1161\u11ab\u1100\u116e\u11a8")]
    rng = random.Random(1)
    pieces = {"".join(rng.choices(SYLLABLES, k=rng.randint(1, 3))) for _ in range(150)}
    pieces |= {"the", "an", "cafe", "1990", "us", "bu", "da", "what"}
    for piece in sorted(pieces):
        tokens += [piece, f"##{piece}"]
    return list(dict.fromkeys(tokens))


def word(rng, odd=0.15):
    if rng.random() < odd:
        return rng.choice(ODD_WORDS)
    text = "".join(rng.choices(SYLLABLES, k=rng.randint(1, 5)))
    if rng.random() < 0.2:
        text = text.capitalize()
    return rng.choice(["", "", "", "", "(", '"']) + text + rng.choice(["", "", "", ",", ".", "'s"])


def plain_word(rng):
    return "".join(rng.choices(SYLLABLES, k=rng.randint(1, 3))) + rng.choice(["", "", "", ",", "."])


def text(rng, num_words, make):
    parts = [make(rng) + rng.choice(SPACES) for _ in range(num_words)]
    return "".join(parts) if rng.random() < 0.5 else "".join(parts).strip()


def answer(rng, context):
    """Some piece of the context; sometimes not where it says."""
    start = rng.randrange(len(context))
    end = min(len(context), start + rng.choice([1, 3, 8, 20, 60]))
    if rng.random() < 0.5:  # of whole words
        while start and context[start - 1] not in "".join(SPACES):
            start -= 1
        while end < len(context) and context[end] not in "".join(SPACES):
            end += 1
    piece = context[start:end]
    if not piece.strip() or not any(char.isalnum() for char in piece):
        return answer(rng, context)
    if rng.random() < 0.1:
        start = rng.randrange(len(context))
    return {"text": piece, "answer_start": start}


def questions(seed, *, num_paragraphs, num_answers=1, make=word):
    """The content of a file."""
    rng = random.Random(seed)
    articles = []
    for number in range(num_paragraphs):
        context = text(rng, rng.choice([1, 3, 20, 50, 110]), make) + make(rng)
        while not any(char.isalnum() for char in context):
            context += make(rng)
        found = []
        for index in range(rng.randint(1, 4)):
            one = {"id": f"{seed}-{number}-{index}"}
            one["question"] = "What " + text(rng, rng.choice([1, 8, 30, 60]), make)
            one["answers"] = [answer(rng, context) for _ in range(rng.randint(1, num_answers))]
            found.append(one)
        paragraph = {"context": context, "qas": found}
        articles.append({"title": f"Title {number}", "paragraphs": [paragraph]})
    return {"version": "generated", "data": articles}
