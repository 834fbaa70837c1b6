"""Vocabularies: what is refused, what is padded, what is cased. CPU, seconds."""

import hashlib
import json
import sys

import pytest

from mlperf_bert.data import parts, tokenizer_files, vocabulary
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
    """The published Chinese vocabulary has one."""
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
    return {"model": model | changed, "added_tokens": [{"id": 3, "content": "[SEP]"}]}


def test_the_words_of_tokenizer_json(write, tmp_path):
    ends = {"model": {"type": "WordPiece", "vocab": dict(zip(WORDS[:4] + WORDS[5:], range(7)))}}
    ends |= {"added_tokens": [{"id": 3, "content": "[SEP]"}, {"id": 7, "content": "[MASK]"}]}
    padded = dict(zip(WORDS[1:], range(1, 8)))
    for values, expected in (
        (tokenizer_json(), WORDS),
        (ends, [*WORDS[:4], *WORDS[5:], "[MASK]"]),
        (tokenizer_json(vocab=padded) | {"added_tokens": [{"id": 0, "content": "[PAD]"}]}, WORDS),
    ):
        (tmp_path / "tokenizer.json").write_text(json.dumps(values))
        found = vocabulary.read_vocabulary(str(tmp_path / "tokenizer.json"))
        assert list(found) == expected and list(found.values()) == list(range(8))
        assert vocabulary.as_text(found) == "".join(f"{w}\n" for w in expected).encode()


def test_the_name_of_a_vocabulary_is_that_of_its_words(write):
    [name] = {
        vocabulary.md5_of(vocabulary.read_vocabulary(write(WORDS, end=end)))
        for end in ("\n", "", "\r\n")
    }
    assert name == hashlib.md5(vocabulary.as_text(WORDS)).hexdigest()
    assert name != vocabulary.md5_of([*WORDS[:6], WORDS[7], WORDS[6]])


@pytest.mark.parametrize(
    "values, message",
    [
        ("\n".join([*WORDS, "the"]), "line 9 has 'the' again; a word's line is its id"),
        ("\n".join([*WORDS[:5], "", *WORDS[5:]]), "line 6 is blank; "),
        ("\n".join(WORDS[2:]), "[UNK] missing; this is not a BERT vocabulary"),
        ([], "expected a JSON object"),
        (tokenizer_json(type="BPE"), "holds no WordPiece vocabulary"),
        (tokenizer_json(continuing_subword_prefix="_"), "holds no WordPiece vocabulary with '##'"),
        (tokenizer_json(vocab={**dict(zip(WORDS, range(8))), "b": 7}), "none has 8, or two have"),
        (tokenizer_json(vocab={"a": "b"}), "damaged ("),
        (tokenizer_json(vocab={"a": 0}) | {"added_tokens": []}, "[UNK], [CLS], [SEP], [MASK] miss"),
        (tokenizer_json() | {"added_tokens": [{"id": 8}]}, "damaged (lacks 'content')"),
    ],
)
def test_what_is_no_vocabulary_of_bert_is_refused(tmp_path, values, message):
    is_text = isinstance(values, str)
    path = tmp_path / ("vocab.txt" if is_text else "tokenizer.json")
    path.write_text(values if is_text else json.dumps(values))
    with pytest.raises(ValueError) as error:
        vocabulary.read_vocabulary(str(path))
    assert str(error.value).startswith(f"{path}: ") and message in str(error.value)


def normalizer(lowercase, **more) -> dict:
    return {"normalizer": {"type": "BertNormalizer", "lowercase": lowercase} | more}


OF_BERT = [
    {},
    {"tokenizer_config": {"tokenizer_class": "BertTokenizerFast", "strip_accents": None}},
    {"tokenizer_config": {"do_lower_case": False, "strip_accents": False, "never_split": None}},
    {"tokenizer_config": {"unk_token": {"content": "[UNK]"}, "never_split": ["[CLS]"]}},
    {"tokenizer_config": {"word_tokenizer_type": "basic", "do_basic_tokenize": True}},
    {"tokenizer_config": {"added_tokens_decoder": {"1": {"content": "[UNK]"}}}},
    {"tokenizer": normalizer(True, strip_accents=True, handle_chinese_chars=True)},
    {"tokenizer": tokenizer_json() | {"pre_tokenizer": {"type": "BertPreTokenizer"}}},
    {"added_tokens": {"a": 7}, "special_tokens_map": {"additional_special_tokens": ["a"]}},
    {"config": {"tokenizer_class": None}},
    *({"config": {"tokenizer_class": name}} for name in "DistilBertTokenizer ElectraTokenizerFast "
      "MobileBertTokenizer PreTrainedTokenizerFast TokenizersBackend".split()),
]  # fmt: skip


@pytest.mark.parametrize("beside", OF_BERT)
def test_files_of_berts_tokenizer_may_lie_beside(write, beside):
    assert len(vocabulary.read_vocabulary(write(WORDS, **beside))) == 8


@pytest.mark.parametrize(
    "name, values, message",
    [
        ("tokenizer_config", {"tokenizer_class": "BertJapaneseTokenizer"}, "is 'BertJapaneseTok"),
        ("config", {"tokenizer_class": "BertJapaneseTokenizer"}, "tokenizer_class is 'BertJapan"),
        ("tokenizer_config", {"word_tokenizer_type": "mecab"}, "type is 'mecab', and text is cut"),
        ("tokenizer_config", {"subword_tokenizer_type": "character"}, "alone ('wordpiece')"),
        ("tokenizer_config", {"do_basic_tokenize": False}, "do_basic_tokenize is False, "),
        ("tokenizer_config", {"tokenize_chinese_chars": False}, "chinese_chars is False, and"),
        ("tokenizer_config", {"do_word_tokenize": False}, "do_word_tokenize is False, "),
        ("tokenizer_config", {"do_subword_tokenize": False}, "do_subword_tokenize is False, "),
        *(("tokenizer_config", {f"{name}_token": "<x>"}, f"{name}_token is '<x>', and text is cut")
          for name in ("unk", "cls", "sep")),
        ("tokenizer_config", {"strip_accents": False}, "strip_accents is False, "),
        ("tokenizer_config", {"do_lower_case": False, "strip_accents": True}, "_accents is True, "),
        ("tokenizer_config", {"never_split": ["c++"]}, "never_split is ['c++'], "),
        ("tokenizer_config", {"mask_token": {"content": "<mask>"}}, "mask_token is '<mask>', and"),
        ("tokenizer", tokenizer_json(type="BPE"), "model.type is 'BPE', and text is cut here by"),
        ("tokenizer", tokenizer_json(unk_token="<u>"), "model.unk_token is '<u>', and text is cut"),
        ("tokenizer", tokenizer_json(continuing_subword_prefix="_"), "subword_prefix is '_', and"),
        ("tokenizer", {"normalizer": {"type": "Sequence"}}, "normalizer.type is 'Sequence', "),
        ("tokenizer", normalizer(True, strip_accents=False), "normalizer.strip_accents is False, "),
        ("tokenizer", normalizer(True, handle_chinese_chars=False), "chinese_chars is False, "),
        ("tokenizer", {"pre_tokenizer": {"type": "Whitespace"}}, "type is 'Whitespace', and text"),
    ],
)  # fmt: skip
def test_another_tokenizer_than_berts_is_refused(write, tmp_path, name, values, message):
    with pytest.raises(ValueError) as error:
        vocabulary.read_vocabulary(write(WORDS, **{name: values}))
    assert str(error.value).startswith(f"{tmp_path / name}.json: ") and message in str(error.value)


@pytest.mark.parametrize(
    "name, values, message",
    [
        ("added_tokens", {"covid": 8, "virus": 9}, "lacks 2 tokens that were added to its tokenizer"
         ": 'covid' (8), 'virus' (9); give a model without them, or a vocab.txt with them at its"),
        ("added_tokens", {"the": 8}, "lacks 1 tokens that were added to its tokenizer: 'the' (8)"),
        ("added_tokens", {f"w{n}": 8 + n for n in range(12)}, "'w9' (17) and 2 more; give"),
        ("tokenizer", tokenizer_json() | {"added_tokens": [{"id": 8, "content": "covid-19"}]},
         "'covid-19' (8); give a model without them"),
        ("tokenizer_config", {"added_tokens_decoder": {"8": {"content": "x"}}}, "'x' (8)"),
        ("special_tokens_map", {"additional_special_tokens": [{"content": "[E]"}]}, ": '[E]'; "),
        ("tokenizer_config", {"extra_special_tokens": {"image": "<i>"}}, "tokenizer: '<i>'; "),
    ],
)  # fmt: skip
def test_tokens_that_the_vocabulary_lacks_are_named(write, name, values, message):
    with pytest.raises(ValueError) as error:
        vocabulary.read_vocabulary(path := write(WORDS, **{name: values}))
    assert str(error.value).startswith(f"{path}: ") and message in str(error.value)
    are_words = name == "added_tokens" or "'x'" in message
    assert str(error.value).endswith("in the order of their ids") == are_words
    if name == "added_tokens" and "the" not in values:  # as the message advises
        assert len(vocabulary.read_vocabulary(write([*WORDS, *values]))) == 8 + len(values)


def test_damaged_added_tokens_are_refused(write):
    told = r"^tokenizer.json beside .*: damaged \(lacks 'content'\); fetch the files again$"
    with pytest.raises(ValueError, match=told):
        vocabulary.read_vocabulary(write(WORDS, tokenizer={"added_tokens": [{"id": 8}]}))


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
    assert tokenizer_files.stated_lower_casing(path) is stated
    tokenizer_files.require_casing(path, do_lower_case=stated is not False)
    if stated is not None:
        told = rf"--do_lower_case={not stated}, but .* says {stated}; give --do_lower_case={stated}"
        with pytest.raises(ValueError, match=told):
            tokenizer_files.require_casing(path, do_lower_case=not stated)


def test_a_casing_that_is_neither_true_nor_false_is_refused(write):
    path = write(WORDS, tokenizer_config={"do_lower_case": "no"})
    with pytest.raises(ValueError, match=r"lower-cased is 'no' in .*; correct it to true or false"):
        tokenizer_files.require_casing(path, do_lower_case=True)


def test_the_flag_decides_on_the_casing_of_data(write, tmp_path):
    path = write([*WORDS, "The"], tokenizer_config={"do_lower_case": False})
    (tmp_path / "text").write_text("The a\nthe\n\na a\nThe\n")
    command = [sys.executable, "create_pretraining_data.py", f"--vocab_file={path}"]
    command += [f"--input_file={tmp_path}/text", f"--output_dir={tmp_path}/data"]
    refused = starts.run(command)
    assert refused.returncode == 1 and "--do_lower_case=True, but " in refused.stderr
    starts.run([*command, "--do_lower_case=False"], check=True)
    data_set = parts.read(tmp_path / "data")[parts.PARTS]
    assert data_set.parameters["do_lower_case"] is False
