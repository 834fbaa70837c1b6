"""Where the readers and features of tf-models' official.nlp.data answer as ours, and where not.

benchmarks/NOTES.md has the table. A case that fails here, after an update of tf-models, is one that
may no longer need to be ours. CPU, seconds.
"""

import importlib
import json
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from mlperf_bert.data.tokenization import Tokenizer
from mlperf_bert.finetuning import glue
from mlperf_bert.finetuning.splits import Split
from mlperf_bert.finetuning.squad import SquadTask
from mlperf_bert.finetuning.squad_answers import Rules, predict
from mlperf_bert.finetuning.squad_features import Sizes
from tests.finetuning import generated_glue, generated_squad

SIZES = 64, 16, 20  # max_seq_length, doc_stride, max_query_length


@pytest.fixture
def theirs(monkeypatch):
    """Their modules; they import two packages that no environment here has, for other tasks."""
    for name in ("sentencepiece", "tensorflow_datasets"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    names = "squad_lib", "classifier_data_lib"
    modules = [importlib.import_module(f"official.nlp.data.{name}") for name in names]
    return SimpleNamespace(squad=modules[0], glue=modules[1])


class Words:
    """Our tokenizer as their features take one."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._names = {number: token for token, number in tokenizer.vocabulary.items()}

    def tokenize(self, text: str) -> list[str]:
        return [self._names[number] for number in self._tokenizer.tokenize(text)]

    def convert_tokens_to_ids(self, tokens: list[str]) -> list[int]:
        return [self._tokenizer.vocabulary[token] for token in tokens]


@pytest.fixture
def tokenizer(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(generated_squad.vocabulary()) + "\n")
    return Tokenizer(str(tmp_path / "vocab.txt"))


def both(theirs, tokenizer, folder, content, *, name, split):
    """Our task, examples and features, and their examples and features."""
    path = folder / f"{split}-v{'1.1' if name == 'squad1' else '2.0'}.json"
    path.write_text(json.dumps(content))
    length, stride, query_length = SIZES
    sizes = Sizes(max_seq_length=length, doc_stride=stride, max_query_length=query_length)
    task = SquadTask(name=name, data_dir=str(folder), sizes=sizes)
    ours, is_training = task.read(split), split == "train"
    features = task.encode(ours, tokenizer, is_training=is_training)
    others = theirs.squad.read_squad_examples(str(path), is_training, name == "squad2")
    rows = []

    def keep(row, is_padding=False):
        if not is_padding:
            rows.append(row)

    theirs.squad.convert_examples_to_features(
        others, Words(tokenizer), *SIZES, is_training, keep, batch_size=1
    )
    return task, ours, features, others, rows


def without_late_offsets(content):
    """Their reader raises IndexError for an answer that would end after its context."""
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            paragraph["qas"] = [
                question
                for question in paragraph["qas"]
                if all(
                    answer["answer_start"] + len(answer["text"]) <= len(paragraph["context"])
                    for answer in question["answers"]
                )
            ]
    return content


@pytest.mark.parametrize("name", ["squad1", "squad2"])
@pytest.mark.parametrize("split", ["train", "dev"])
def test_windows_are_the_same(theirs, tokenizer, tmp_path, name, split):
    content = generated_squad.questions(
        3, impossible=name == "squad2", num_answers=1 if split == "train" else 3, num_paragraphs=24
    )
    _, ours, features, others, rows = both(
        theirs, tokenizer, tmp_path, without_late_offsets(content), name=name, split=split
    )
    assert [one.question_id for one in ours] == [one.qas_id for one in others]
    for key in ("input_ids", "input_mask", "segment_ids"):
        np.testing.assert_array_equal(features[key], [getattr(row, key) for row in rows])
    if split == "train":
        positions = np.stack([features["start_positions"], features["end_positions"]], axis=1)
        expected = [(row.start_position, row.end_position) for row in rows]
        np.testing.assert_array_equal(positions, expected)
        return
    for mine, row in zip(features["is_max_context"], rows):
        best = [place for place, is_best in row.token_is_max_context.items() if is_best]
        assert np.flatnonzero(mine).tolist() == sorted(best)


@pytest.mark.parametrize("name", ["squad1", "squad2"])
@pytest.mark.parametrize("make", [generated_squad.plain_word, generated_squad.word])
def test_answers_are_the_same_on_plain_words_only(theirs, tokenizer, tmp_path, name, make):
    """Their alignment takes whole words where a token is unknown, or an accent is a character."""
    content = generated_squad.questions(
        5, impossible=name == "squad2", num_answers=3, num_paragraphs=64, make=make
    )
    _, ours, features, others, rows = both(
        theirs, tokenizer, tmp_path, content, name=name, split="dev"
    )
    logits = np.random.default_rng(1).normal(size=(*features["input_ids"].shape, 2)) * 3
    logits = (logits + 9 * (features["char_starts"] >= 0)[..., None]).astype(np.float32)
    logits[:, 2:, 1] = logits[:, :-2, 0] + 0.1 * logits[:, 2:, 1]
    results = [
        SimpleNamespace(unique_id=row.unique_id, start_logits=start, end_logits=end)
        for row, start, end in zip(rows, logits[..., 0].tolist(), logits[..., 1].tolist())
    ]
    _, expected, _ = theirs.squad.postprocess_output(
        others, rows, results, 20, 30, True, version_2_with_negative=name == "squad2"
    )
    rules = Rules(null_score_diff_threshold=1e9)  # there is always an answer
    found = predict(Split(examples=ours, features=features), logits, rules=rules)
    # Where nothing can be predicted, theirs says "empty" or nothing.
    listed = {key: [one["text"] for one in expected[key]] for key in found}
    best = {
        key: [text for text in texts if text not in ("", "empty")] for key, texts in listed.items()
    }
    is_same = [found[key].text == texts[0] for key, texts in best.items() if texts]
    assert len(is_same) > 100
    assert all(is_same) == (make is generated_squad.plain_word)


def test_their_reader_fails_at_an_offset_after_the_context(theirs, tokenizer, tmp_path):
    answers = [{"text": "bu", "answer_start": 0}, {"text": "bu", "answer_start": 9}]
    asked = [
        {"id": str(number), "question": "what", "answers": [answer]}
        for number, answer in enumerate(answers)
    ]
    content = {"data": [{"paragraphs": [{"context": "bu da", "qas": asked}]}]}
    with pytest.raises(IndexError):
        both(theirs, tokenizer, tmp_path, content, name="squad1", split="train")


@pytest.mark.parametrize("name", glue.NAMES)
def test_sentences_are_the_same_but_for_blank_ones(theirs, made, name):
    """transformers, as we, puts a [SEP] after a second sentence without a word."""
    tokenizer = Tokenizer(str(made / "model" / "vocab.txt"))
    length = generated_glue.MAX_SEQ_LENGTH
    task = glue.create(name, str(made / "glue"), max_seq_length=length)
    examples = task.read("train")
    features = task.encode(examples, tokenizer, is_training=True)
    others = []
    for example in examples:
        given = theirs.glue.InputExample("", example.text_a, example.text_b, label=0)
        others.append(theirs.glue.convert_single_example(9, given, None, length, Words(tokenizer)))
    differs = [
        example.text_b
        for example, row, other in zip(examples, features["input_ids"].tolist(), others)
        if row != other.input_ids
    ]
    assert differs == [text for text in (e.text_b for e in examples) if text == ""]
