"""Vocabularies: what is refused, what is padded, what is cased. CPU, seconds."""

import json
import sys

import pytest

from mlperf_bert.data import provenance, tokenization, vocabulary
from tests.helpers import starts

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "##s", "a"]


@pytest.fixture
def write(tmp_path):
    """Writes lines as a vocab.txt; returns its path."""

    def written(lines, *, end="\n", **beside) -> str:
        (tmp_path / "vocab.txt").write_bytes(("\n".join(lines) + end).encode())
        for name, values in beside.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(values))
        return str(tmp_path / "vocab.txt")

    return written


@pytest.mark.parametrize("end", ["\n", "", "\r\n"])
def test_the_line_of_a_word_is_its_id(write, end):
    assert vocabulary.read_vocabulary(write(WORDS, end=end)) == dict(zip(WORDS, range(8)))


def test_white_space_of_unicode_is_a_word(write):
    """As in the published Chinese vocabulary."""
    found = vocabulary.read_vocabulary(write(["\u2028", *WORDS, "##\u2028"]))
    assert found["\u2028"] == 0 and found["##"] == 9 and len(found) == 10


def test_a_model_may_have_more_rows_than_words(write):
    path = write(WORDS)
    for size in (8, 9, 64):
        assert len(vocabulary.read_fitting(path, size, of="c.json")) == 8
    with pytest.raises(ValueError, match=r"has 8 words, but c.json says vocab_size=7; give"):
        vocabulary.read_fitting(path, 7, of="c.json")


def tokenizer_json(**changed) -> dict:
    model = {"type": "WordPiece", "vocab": dict(zip(WORDS, range(8)))}
    return {"model": model | changed, "added_tokens": [{"id": 8, "content": "[NEW]"}]}


def test_the_words_of_tokenizer_json(write, tmp_path):
    write(WORDS, tokenizer=tokenizer_json())
    found = vocabulary.read_vocabulary(str(tmp_path / "tokenizer.json"))
    assert list(found) == [*WORDS, "[NEW]"] and list(found.values()) == list(range(9))
    assert vocabulary.as_text(found) == "".join(f"{w}\n" for w in [*WORDS, "[NEW]"]).encode()


@pytest.mark.parametrize(
    "values, message",
    [
        ("\n".join([*WORDS, "the"]), "line 9 has 'the' again; a word's line is its id"),
        ("\n".join([*WORDS[:5], "", *WORDS[5:]]), "line 6 is blank; "),
        ("\n".join(WORDS[2:]), "[UNK] missing; this is not a BERT vocabulary"),
        ([], "expected a JSON object"),
        (tokenizer_json(type="BPE"), "holds no WordPiece vocabulary"),
        (tokenizer_json(continuing_subword_prefix="_"), "holds no WordPiece vocabulary with '##'"),
        (tokenizer_json(vocab={**dict(zip(WORDS, range(8))), "b": 7}), "none has 9, or two have"),
        (tokenizer_json(vocab={"a": "b"}), "damaged ("),
        (tokenizer_json(vocab={"a": 0}) | {"added_tokens": []}, "[UNK], [CLS], [SEP], [MASK] miss"),
        (tokenizer_json() | {"added_tokens": [{"id": 8}]}, "damaged (KeyError('content'))"),
    ],
)
def test_what_is_no_vocabulary_of_bert_is_refused(tmp_path, values, message):
    is_text = isinstance(values, str)
    path = tmp_path / ("vocab.txt" if is_text else "tokenizer.json")
    path.write_text(values if is_text else json.dumps(values))
    with pytest.raises(ValueError) as error:
        vocabulary.read_vocabulary(str(path))
    assert str(error.value).startswith(f"{path}: ") and message in str(error.value)


def normalizer(lowercase) -> dict:
    return {"normalizer": {"type": "BertNormalizer", "lowercase": lowercase}}


@pytest.mark.parametrize(
    "beside, stated",
    [
        ({}, None),
        ({"tokenizer_config": {"do_lower_case": False}}, False),
        ({"tokenizer_config": {}, "tokenizer": normalizer(False)}, False),
        ({"tokenizer_config": {"do_lower_case": True}, "tokenizer": normalizer(False)}, True),
        ({"tokenizer": {"normalizer": None}}, None),
    ],
)
def test_a_flag_against_the_tokenizer_s_files_is_refused(write, beside, stated):
    path = write(WORDS, **beside)
    assert tokenization.stated_lower_casing(path) is stated
    tokenization.require_casing(path, do_lower_case=stated is not False)
    if stated is not None:
        told = rf"--do_lower_case={not stated}, but .* says {stated}; give --do_lower_case={stated}"
        with pytest.raises(ValueError, match=told):
            tokenization.require_casing(path, do_lower_case=not stated)


def test_a_casing_that_is_neither_true_nor_false_is_refused(write):
    path = write(WORDS, tokenizer_config={"do_lower_case": "no"})
    with pytest.raises(ValueError, match=r"lower-cased is 'no' in .*; correct it to true or false"):
        tokenization.require_casing(path, do_lower_case=True)


def test_the_flag_decides_on_the_casing_of_data(write, tmp_path):
    path = write([*WORDS, "The"], tokenizer_config={"do_lower_case": False})
    (tmp_path / "text").write_text("The a\nthe\n\na a\nThe\n")
    command = [sys.executable, "create_pretraining_data.py", f"--vocab_file={path}"]
    command += [f"--input_file={tmp_path}/text", f"--output_dir={tmp_path}/data"]
    refused = starts.run(command)
    assert refused.returncode == 1 and "--do_lower_case=True, but " in refused.stderr
    starts.run([*command, "--do_lower_case=False"], check=True)
    [made] = provenance.read(tmp_path / "data")
    assert made.parameters["do_lower_case"] is False
