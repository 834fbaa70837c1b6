"""The tokenizer equals the reference on Python 3.7, on whatever Python runs us. CPU, seconds.

Oracles: digests recorded by Python 3.7.16 and by the reference's tokenizer on it, of what
generated_words.py generates.
"""

import hashlib
import itertools
import sys

import pytest

from mlperf_bert.data import sentences, unicode11
from mlperf_bert.data.sentences import read_documents
from mlperf_bert.data.tokenization import Tokenizer
from tests.data import generated_words

WORDS_37 = "a8682fd6cf79878fd42ceae5da3e3854d65a1dfe1999e5094a3f491c4621aaea"
# (do_lower_case, preserve_unused_tokens) -> digest of the ids of all lines
LINES_37 = {
    (True, False): "b1028c7d7a5c6337b1d5f741a8b1622b7d98bed185a090531161d97bd5c76cad",
    (False, False): "82011a017489386ba7a5c6029eb20ad4803fce4ea8b2807dd7cc05ae94d4823e",
    (True, True): "2d8bba5f7bed5538dab8fd423617134b039a5790239d1f2d2a4c5816e404c899",
}

# do_lower_case -> digest of the words that the reference's BasicTokenizer makes of every character
CHARACTERS_37 = {
    True: "a3a0c8c901b0189582e979d9a0136cd552a2791951628225dab86082bc49ba12",
    False: "2cfe3c39ebc795b5c1bdf93df811e919bf34c99ce3e046e8562c5a0ecc6f5bf5",
}


@pytest.fixture
def vocab_file(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes(generated_words.vocabulary_text(1).encode())
    return str(path)


def test_lower_and_decompose_are_those_of_python_37():
    found = hashlib.sha256()
    for word in generated_words.words(1, 50_000):
        found.update(f"{unicode11.lower(word)}\n{unicode11.decompose(word)}\n".encode())
    assert found.hexdigest() == WORDS_37


def test_white_space_of_the_running_python_is_that_of_unicode_11():
    spaces = {chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace()}
    assert spaces == unicode11.SPACES | set("\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f\x85\u2028\u2029")


@pytest.mark.parametrize(
    ("do_lower_case", "preserve"),
    [
        pytest.param(*flags, marks=[] if flags == (True, False) else pytest.mark.gate)
        for flags in LINES_37
    ],
)
def test_lines_equal_the_reference(vocab_file, do_lower_case, preserve):
    tokenizer = Tokenizer(vocab_file, do_lower_case=do_lower_case, preserve_unused_tokens=preserve)
    found = hashlib.sha256()
    for line in generated_words.lines(1, 4000):
        found.update(str(tokenizer.tokenize(line)).encode())
    assert found.hexdigest() == LINES_37[do_lower_case, preserve]


class Words(Tokenizer):
    """Stops before the words are cut into pieces of the vocabulary."""

    def _wordpiece(self, piece):
        return [piece]


@pytest.mark.parametrize(
    "do_lower_case",
    [pytest.param(n, marks=pytest.mark.gate if n else pytest.mark.all) for n in CHARACTERS_37],
)
def test_every_character_is_treated_as_the_reference_does(vocab_file, do_lower_case):
    tokenizer = Words(vocab_file, do_lower_case=do_lower_case)
    found = hashlib.sha256()
    for line in generated_words.every_character():
        found.update("\n".join(tokenizer.tokenize(line)).encode() + b"\n\n")
    assert found.hexdigest() == CHARACTERS_37[do_lower_case]


def test_words_over_200_characters_are_unknown(vocab_file):
    tokenizer = Tokenizer(vocab_file)
    assert len(tokenizer.tokenize("a" * 200)) > 1
    assert tokenizer.tokenize("a" * 201) == [tokenizer.vocabulary["[UNK]"]]


def test_tokens_of_the_vocabulary_are_kept_before_lower_casing(vocab_file):
    unused = Tokenizer(vocab_file, preserve_unused_tokens=True).tokenize("[unused1] [UNUSED1]")
    assert unused[0] == 1 and 1 not in unused[1:]


def test_sentences_are_the_lines_that_the_tokenizer_takes(vocab_file, tmp_path, monkeypatch):
    monkeypatch.setattr(sentences, "_PIECE_BYTES", 1000)  # documents go on from one into the next
    blank = ["", "  ", "\u3000 \x1c", "\u200b", "\u200b \u2028"]  # \u200b is no white space
    lines = list(generated_words.lines(1, 2000))
    lines[::9] = itertools.islice(itertools.cycle(blank), len(lines[::9]))
    expected: list[list] = [[]]
    tokenizer = Tokenizer(vocab_file)
    for line in lines:
        if not line.strip():
            expected.append([])
        elif ids := tokenizer.tokenize(line):
            expected[-1].append(ids)
    assert all(lines[at].strip() for at in (699, 700, 1399, 1400))
    parts = ("\n".join(lines[:700]), "\n".join([*lines[700:1400], ""]), "", "\n".join(lines[1400:]))
    for number, part in enumerate(parts):  # a document goes on in the next
        (tmp_path / str(number)).write_text(part, newline="")
    found = read_documents([str(tmp_path / str(number)) for number in range(4)], tokenizer)
    assert as_lists(found) == list(filter(None, expected))


def as_lists(text: sentences.Text) -> list[list[list[int]]]:
    """Documents of sentences of ids."""
    bounds = itertools.pairwise(text.sentence_starts)
    ids = [text.tokens[start:end].tolist() for start, end in bounds]
    return [ids[start:end] for start, end in itertools.pairwise(text.document_starts)]


def test_only_line_feeds_end_lines_and_documents(vocab_file, tmp_path):
    """Carriage returns vanish; the other line ends of str.splitlines are within a line."""
    (tmp_path / "text").write_bytes("a\rb c\x0bd\u2028e\r\n\r\nf\x85g\n\x1c\nh".encode())
    tokenizer = Tokenizer(vocab_file)
    found = read_documents([str(tmp_path / "text")], tokenizer)
    expected = [["ab cd e"], ["fg"], ["h"]]
    assert as_lists(found) == [
        [tokenizer.tokenize(line) for line in document] for document in expected
    ]
