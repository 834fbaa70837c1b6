"""The sentence splitter equals nltk 3.4.5 on Python 3.7. Plain Python, seconds."""

import hashlib
import itertools
import re

import nltk.data
import pytest

from mlperf_bert.data import punkt, segmentation, unicode11
from tests.data import generated_sentences, making

# Recorded by nltk 3.4.5 on Python 3.7.16 with the tables of generated_sentences, for seeds
# 0, 1, 2 and so on: MD5 of the text and of its sentences.
RECORDED = [
    ("08be1e1574e3912a7dd353c73bb8b182", "3287a577b5d78967db6ec5f28e5f0700"),
    ("2e05c51ac226c5e3c9b66a976e81c964", "0d6078580c8feffb0b0377ad06ce9c03"),
    ("d56ac8f375f7f8833616228b5f32a2b7", "08f7a6f9fdfe859d3682618bb98c8683"),
    ("65d17d2c77cafeac1fbc719042791640", "0552333522d826fce10aea0c4f72f60d"),
    ("e2d5b3d9b920e64045cfaecf33e38dda", "7b6642c8036b99b315043317f0df8296"),
    ("4511191f3050352fc999eb21e28889be", "47623e55ee88233087e5f5cc78bbced1"),
]
# The same with the published tables: digest of the MD5s of the sentences of twelve seeds.
RECORDED_PUBLISHED = "dc2bbc7f1725dbce8eda026f9009603b"


@pytest.fixture
def tables():
    return punkt.PunktTables(
        abbrev_types=frozenset(generated_sentences.ABBREVIATIONS),
        collocations=frozenset(generated_sentences.COLLOCATIONS),
        sent_starters=frozenset(generated_sentences.SENTENCE_STARTERS),
        ortho_context=generated_sentences.ORTHOGRAPHY,
    )


@pytest.fixture
def table_folder(tmp_path, tables):
    making.write_tables(tables, tmp_path)
    return tmp_path


def md5(text: str) -> str:
    return hashlib.md5(text.encode()).hexdigest()


@pytest.mark.parametrize(
    "seed",
    [pytest.param(n, marks=[pytest.mark.gate] * (n > 2)) for n in range(len(RECORDED))],
)
def test_hard_lines_split_as_recorded(seed, tables):
    text = generated_sentences.hard_lines(seed)
    sentences = segmentation.split_lines(text, segmentation.SentenceSplitter(tables))
    assert (md5(text), md5(sentences)) == RECORDED[seed]


@pytest.mark.gate
def test_hard_lines_split_by_the_published_tables_as_recorded(shared):
    folder = shared / "data" / "nltk_data" / "tokenizers" / "punkt_tab" / "english"
    splitter = segmentation.load_splitter(folder)
    texts = map(generated_sentences.hard_lines, range(12))
    found = "".join(md5(segmentation.split_lines(text, splitter)) for text in texts)
    assert md5(found) == RECORDED_PUBLISHED


def test_every_character_is_of_the_kind_that_python_3_7_takes_it_for():
    """Case, letter, digit, white space, and what casing takes for a part of a word."""
    letter, digit = re.compile(r"[^\W\d]"), re.compile(r"\d")
    digest = hashlib.md5()
    for code in itertools.chain(range(0xD800), range(0xE000, 0x34000), range(0xE0000, 0xE0200)):
        seen = unicode11.as_in_unicode_11(chr(code))
        kind = [seen.isupper(), seen.islower(), bool(letter.match(seen)), bool(digit.match(seen))]
        kind += [seen.isspace(), (seen + "\u03a3").lower()[-1], ("A" + seen + "\u03a3").lower()[-1]]
        digest.update(ascii((kind, seen.lower() if seen == chr(code) else chr(code))).encode())
    assert digest.hexdigest() == "2cdbe800e480eec9a1bba90f5625ff0b"


@pytest.mark.all
def test_a_long_run_without_white_space_takes_linear_time(tables):
    splitter = segmentation.SentenceSplitter(tables)
    assert splitter.tokenize("x" * 1_000_000) == ["x" * 1_000_000]
    assert splitter.tokenize("!" * 1_000_000) == ["!" * 999_999, "!"]
    assert splitter.tokenize("ab.cd" * 100_000) == ["ab.cd" * 100_000]


@pytest.mark.parametrize(
    ("seen", "behind_abbreviation", "behind_initial"),
    [
        *((seen, 1, 1) for seen in (0, 1 << 1, 1 << 2, 1 << 3)),  # upper-case, or never
        *((seen, 2, 2) for seen in (1 << 4, 1 << 5, 1 << 6)),  # lower-case: begin, middle, unknown
        *((1 << 2 | seen, 1, 2) for seen in (1 << 4, 1 << 5, 1 << 6)),
    ],
)
def test_each_way_in_which_a_word_was_seen_counts(seen, behind_abbreviation, behind_initial):
    """The numbers of sentences are nltk's, which differs from 3.4.5 elsewhere."""
    tables = punkt.PunktTables(
        abbrev_types=frozenset({"approx"}),
        collocations=frozenset(),
        sent_starters=frozenset(),
        ortho_context={"word": seen},
    )
    splitter = segmentation.SentenceSplitter(tables)
    assert len(splitter.tokenize("It is approx. Word is here.")) == behind_abbreviation
    assert len(splitter.tokenize("It is J. Word is here.")) == behind_initial


def test_a_last_line_of_one_character_gets_a_blank_line_before_it(tables):
    splitter = segmentation.SentenceSplitter(tables)
    assert segmentation.split_lines("One.\n\nx", splitter) == "One.\n\n\nx\n\n"


def test_tables_survive_the_disk(table_folder, tables):
    assert segmentation.load_splitter(table_folder)._tables == tables


def test_tables_are_found_in_nltk_data(tmp_path, tables, monkeypatch):
    folder, other = (tmp_path / root / "tokenizers/punkt_tab/english" for root in ("b", "a"))
    for each in (folder, other):
        making.write_tables(tables, each)
    (tmp_path / "b").chmod(0o777)  # as a folder mounted for several users
    places = [str(tmp_path / root) for root in ("none", "b", "a")]
    monkeypatch.setattr(nltk.data, "path", places)  # the first one that has them
    assert punkt.find_or_fetch() == folder


def test_broken_or_missing_tables_name_their_folder(table_folder):
    (table_folder / "ortho_context.tab").write_text("the 46\n")
    with pytest.raises(ValueError, match=r"damaged \(.*fetch the tables of punkt_tab again"):
        segmentation.load_splitter(table_folder)
    (table_folder / "sent_starters.txt").unlink()
    with pytest.raises(ValueError, match=r"sent_starters\.txt missing; --punkt names a folder"):
        punkt.find_or_fetch(str(table_folder))
