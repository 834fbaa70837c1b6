"""SQuAD's windows, predictions and metrics equal those of transformers. CPU, 30 s.

Oracles: transformers 4.48.3, its processors of SQuAD with the slow BertTokenizer, its predictions
and its metrics. The end of this file lists what differs on purpose.

Long because windows, answers and scores share one generated data set.
"""

import dataclasses
import itertools
import json

import numpy as np
import pytest
from transformers import BertTokenizer
from transformers.data.metrics import squad_metrics as their_metrics
from transformers.data.processors import squad as theirs

from mlperf_bert.data.tokenization import Tokenizer
from mlperf_bert.finetuning.splits import Split
from mlperf_bert.finetuning.squad import SquadTask
from mlperf_bert.finetuning.squad_features import cut_with_characters
from mlperf_bert.finetuning.squad_reading import piece_of
from tests.data import generated_words
from tests.finetuning import generated_squad

# max_seq_length, doc_stride, max_query_length
SIZES = [(64, 16, 20), (64, 41, 20), (384, 128, 64), (48, 10, 30)]


@pytest.fixture(scope="module")
def vocab_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("".join(f"{token}\n" for token in generated_squad.vocabulary()))
    return str(path)


class TheirTokenizer(BertTokenizer):
    """Joins the pieces of a word as the code published with BERT does.

    transformers leaves a span that starts within a word with "##", so that it is never found.
    """

    def convert_tokens_to_string(self, tokens):
        return " ".join(tokens).replace(" ##", "").replace("##", "").strip()


@pytest.fixture(scope="module", autouse=True)
def their_tokenizer(vocab_file):
    tokenizer = TheirTokenizer(vocab_file)
    theirs.squad_convert_example_to_features_init(tokenizer)
    return tokenizer


@pytest.fixture(scope="module")
def tokenizer(vocab_file):
    return Tokenizer(vocab_file)


def of_sizes(*sizes) -> dict[str, int]:
    return dict(zip(("max_seq_length", "doc_stride", "max_query_length"), sizes, strict=True))


def file_of(context, *questions):
    """A file with one paragraph."""
    usual = {"question": "what", "answers": [{"text": "bu", "answer_start": 0}]}
    qas = [{"id": f"q{number}"} | usual | question for number, question in enumerate(questions)]
    return {"data": [{"paragraphs": [{"context": context, "qas": qas}]}]}


def encoded(split, content, folder, tokenizer, *, max_seq_length=64, **fields):
    """The task of a file, its examples and their features."""
    (folder / f"{split}-v1.1.json").write_text(json.dumps(content))
    task = SquadTask(data_dir=str(folder), max_seq_length=max_seq_length, **fields)
    examples = task.read(split)
    features = task.encode(examples, tokenizer, is_training=split == "train")
    return task, examples, features


def their_features(example, sizes, *, is_training):
    return theirs.squad_convert_example_to_features(example, *sizes, "max_length", is_training)


def rows_of_question(features, examples):
    """Question id -> row numbers."""
    rows = {}
    for row, index in enumerate(features["example_index"]):
        rows.setdefault(examples[index].question_id, []).append(row)
    return rows


def assert_same_inputs(features, rows, expected):
    for key, name in [
        ("input_ids", "input_ids"),
        ("input_mask", "attention_mask"),
        ("segment_ids", "token_type_ids"),
    ]:
        assert features[key].dtype == np.int32
        np.testing.assert_array_equal(features[key][rows], [getattr(f, name) for f in expected])


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_windows_for_training_equal_theirs(sizes, tokenizer, tmp_path, capsys):
    content = generated_squad.questions(3, num_paragraphs=24)
    _, examples, features = encoded("train", content, tmp_path, tokenizer, **of_sizes(*sizes))
    rows = rows_of_question(features, examples)
    texts = {one.question_id: (one.context, one.answers[0]) for one in examples}
    expected = theirs.SquadV1Processor().get_train_examples(str(tmp_path))
    num_skipped = num_same = num_narrower = 0
    for one in expected:
        found = their_features(one, sizes, is_training=True)
        mine = rows.get(one.qas_id, [])
        num_skipped += not mine
        if not found and mine:
            # Theirs takes a no-break space for one between words, in the answer alone.
            context, answer = texts[one.qas_id]
            assert context.startswith(answer.text, answer.start) and not answer.text.isascii()
        if not found:
            continue
        assert_same_inputs(features, mine, found)
        for row, feature in zip(mine, found, strict=True):
            theirs_at = feature.start_position, feature.end_position
            ours_at = features["start_positions"][row], features["end_positions"][row]
            num_same += ours_at == theirs_at != (0, 0)
            if ours_at != theirs_at:
                # Within a word, of which theirs takes the whole.
                assert (0, 0) in (ours_at, theirs_at) or (
                    theirs_at[0] <= ours_at[0] <= ours_at[1] <= theirs_at[1]
                )
                context, answer = texts[one.qas_id]
                end = answer.start + len(answer.text)
                neighbours = context[max(answer.start - 1, 0) : answer.start] + context[end:][:1]
                assert context.startswith(answer.text, answer.start) and neighbours.strip()
                num_narrower += 1
    assert num_skipped > 2 and num_same > 20 and num_narrower < num_same
    said = f"{num_skipped} of {len(expected)} questions left out"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_windows_for_prediction_equal_theirs(sizes, tokenizer, tmp_path):
    content = generated_squad.questions(4, num_answers=3, num_paragraphs=16)
    _, examples, features = encoded("dev", content, tmp_path, tokenizer, **of_sizes(*sizes))
    rows = rows_of_question(features, examples)
    expected = theirs.SquadV1Processor().get_dev_examples(str(tmp_path))
    assert [example.question_id for example in examples] == [one.qas_id for one in expected]
    for example, one in zip(examples, expected):
        answers = [{"answer_start": a.start, "text": a.text} for a in example.answers]
        assert answers == one.answers and example.context == one.context_text
        found = their_features(one, sizes, is_training=False)
        mine = rows[one.qas_id]
        assert_same_inputs(features, mine, found)
        for row, feature in zip(mine, found):
            in_context = np.flatnonzero(features["char_starts"][row] >= 0)
            assert in_context.tolist() == sorted(feature.token_to_orig_map)
            best = np.flatnonzero(features["is_max_context"][row])
            expected_best = [i for i, is_best in feature.token_is_max_context.items() if is_best]
            assert best.tolist() == sorted(expected_best)


@pytest.mark.parametrize("num_words", [381, 440, 712])
def test_a_short_last_window_counts_less(num_words, tokenizer, tmp_path):
    sizes = (384, 330, 64)
    content = file_of("bu " * num_words, {})
    _, _, features = encoded("dev", content, tmp_path, tokenizer, **of_sizes(*sizes))
    content["data"][0]["title"] = ""  # theirs needs one
    [one] = theirs.SquadV1Processor()._create_examples(content["data"], "dev")
    expected = their_features(one, sizes, is_training=False)
    for row, feature in zip(features["is_max_context"], expected, strict=True):
        best = [i for i, is_best in feature.token_is_max_context.items() if is_best]
        assert np.flatnonzero(row).tolist() == sorted(best)


def their_predictions(examples, features, logits, tokenizer, folder, task):
    """The predictions and the n best that compute_predictions_logits writes."""
    results = []
    for number, (feature, one) in enumerate(zip(features, logits)):
        feature.unique_id = number
        start, end = one.T.tolist()
        results.append(theirs.SquadResult(number, start, end))
    files = [folder / f"their_{kind}.json" for kind in ("predictions", "n_best", "null_odds")]
    their_metrics.compute_predictions_logits(
        examples,
        features,
        results,
        task.n_best_size,
        task.max_answer_length,
        True,
        *map(str, files),
        False,
        False,
        0.0,
        tokenizer,
    )
    return [json.loads(file.read_text()) for file in files[:2]]


@pytest.mark.parametrize("sizes", SIZES[:3], ids=str)
@pytest.mark.parametrize("n_best_size", [20, 4])
def test_predictions_and_metrics_equal_theirs(
    sizes, n_best_size, tokenizer, their_tokenizer, tmp_path
):
    """Of random logits, on plain words, where their alignment of texts always works."""
    content = generated_squad.questions(
        5, num_answers=3, num_paragraphs=16, make=generated_squad.plain_word
    )
    fields = of_sizes(*sizes) | {"n_best_size": n_best_size, "max_answer_length": 12}
    task, examples, features = encoded("dev", content, tmp_path, tokenizer, **fields)
    shape = *features["input_ids"].shape, 2
    logits = np.random.default_rng(1).normal(size=shape).astype(np.float32) * 3
    # As after some training: answers are in the context and three tokens long.
    logits += 9 * (features["char_starts"] >= 0)[..., None]
    logits[:, 2:, 1] = logits[:, :-2, 0] + 0.1 * logits[:, 2:, 1]
    asked, rows = theirs.SquadV1Processor().get_dev_examples(str(tmp_path)), []
    for number, one in enumerate(asked):
        for feature in their_features(one, sizes, is_training=False):
            feature.example_index = number
            rows.append(feature)
    expected, n_best = their_predictions(asked, rows, logits, their_tokenizer, tmp_path, task)
    # Theirs predicts the word "empty" where none of the n best spans is valid.
    made_up = {"text": "empty", "start_logit": 0.0, "end_logit": 0.0}.items()
    nothing = [i for i in expected if any(made_up <= one.items() for one in n_best[i])]
    expected |= dict.fromkeys(nothing, "")

    split = Split(examples=examples, features=features)
    (tmp_path / "ours").mkdir()
    path = task.write_predictions(split, logits, name="dev", folder=tmp_path / "ours")
    assert len(nothing) < len(expected) / 4
    assert path.name == "predictions.json" and json.loads(path.read_text()) == expected
    scores_of_theirs = their_metrics.squad_evaluate(asked, expected)
    assert task.metrics(split, logits) == pytest.approx(
        {name: scores_of_theirs[name] for name in ("exact", "f1", "total")}
    )


def test_every_token_knows_its_characters(tokenizer, tmp_path):
    """On characters from everywhere: the characters of a token are cut into that token again."""
    words = tmp_path / "words.txt"
    words.write_bytes(generated_words.vocabulary_text(1).encode())
    for one, lines in [
        (tokenizer, [" ".join(generated_squad.ODD_WORDS)]),
        (Tokenizer(str(words)), generated_words.lines(2, 1500)),
        (Tokenizer(str(words), do_lower_case=False), generated_words.lines(3, 500)),
    ]:
        cut = cut_with_characters(one)
        for line in lines:
            ids, starts, ends = cut(line).T
            assert ids.tolist() == one.tokenize(line)
            assert (starts < ends).all() and (np.diff(starts) >= 0).all()
            assert one.tokenize(line[: starts[0]]) == []
            assert one.tokenize(line[ends[-1] :]) == []
            assert_cut_again(one, cut(line).tolist(), line)


def assert_cut_again(tokenizer, tokens, line):
    """At tokens that begin and end a piece of a word."""
    continues = {i for token, i in tokenizer.vocabulary.items() if token.startswith("##")}
    for (token, start, end), (after, *_) in itertools.pairwise([*tokens, (-1, 0, 0)]):
        text = line[start:end]
        is_whole = token not in continues and after not in continues
        if is_whole and "\u03a3" not in text:  # a capital sigma looks at its neighbours
            assert tokenizer.tokenize(text) == [token], repr(text)


@pytest.mark.parametrize(
    ("context", "token", "text"),
    [
        ("Cafe\u0301s.", "cafe", "Cafe\u0301"),
        ("(1990)", "1990", "1990"),
        ("in東京;", "東", "東"),
        ("say \U0001f600!", "[UNK]", "\U0001f600"),
        ("The\u00adUS\u200b", "us", None),
    ],
)
def test_an_answer_is_a_piece_of_the_context(context, token, text, tokenizer):
    """Accents that are characters of their own, punctuation, unknown words and what is dropped."""
    tokens = cut_with_characters(tokenizer)(context)
    ids = tokens[:, 0].tolist()
    number = tokenizer.vocabulary[token]
    assert (number in ids) == (text is not None)
    if text:
        assert piece_of(context, *tokens[ids.index(number), 1:]) == text


# What differs on purpose.
@pytest.mark.parametrize(
    ("context", "text", "start", "expected"),
    [
        ("東京都在東京", "東京", 0, ("東", "京", 0)),
        ("東京都在東京", "東京", 4, ("東", "京", 4)),  # not the first of equal ones
        ("東京都在東京", "東京", 3, ("東", "京", 4)),  # an offset that is wrong by one
        ("東京1990都bubu", "1990", 2, ("1990", "1990", 2)),
        ("buda-bu-bu", "bu", 8, ("bu", "bu", 8)),
        ("(da bu),", "u", 5, ("bu", "bu", 4)),
        ("bu\u00a0da bu", "bu\u00a0da", 0, ("bu", "da", 0)),
        ("da\t bu\r\nda", "bu\r\nda", 4, ("bu", "da", 4)),
        ("da\t bu\r\nda", "bu da", 4, ("bu", "da", 4)),
        ("da da Cafe\u0301", "Cafe\u0301", 6, ("cafe", "cafe", 6)),
        ("\u0130\u0130da bu", "bu", 5, ("bu", "bu", 5)),  # lower-casing changes lengths
        ("\U0001f600 bu \U0001f600", "\U0001f600", 5, ("[UNK]", "[UNK]", 5)),
        ("da bu", " bu", 2, ("bu", "bu", 3)),
    ],
)
def test_a_label_has_the_characters_of_the_answer(
    context, text, start, expected, tokenizer, tmp_path
):
    """Theirs takes the first of equal tokens, and the whole word of a part of it."""
    content = file_of(context, {"answers": [{"text": text, "answer_start": start}]})
    _, _, features = encoded("train", content, tmp_path, tokenizer)
    _, _, plain = encoded("dev", content, tmp_path, tokenizer)
    first, last = features["start_positions"][0], features["end_positions"][0]
    names = list(tokenizer.vocabulary)
    tokens = [names[number] for number in features["input_ids"][0, [first, last]]]
    assert (*tokens, plain["char_starts"][0, first]) == expected


@pytest.mark.parametrize(
    ("text", "start", "context"),
    [
        ("", 0, "bu da"),
        (" ", 3, "bu da"),
        ("bu", 99, "bu da"),
        ("bu", 5, "bu da"),  # the first character after the context
        ("da", 0, "bu da"),
        ("bu da", 5, "bu da"),
        ("bu", 0, " bu"),  # before the first word
    ],
)
def test_answers_that_theirs_takes_or_fails_at_are_left_out(
    text, start, context, tokenizer, tmp_path, capsys
):
    """Theirs takes an empty text, and raises IndexError for an offset after the context."""
    good = {"answers": [{"text": "bu", "answer_start": context.index("bu")}]}
    bad = {"answers": [{"text": text, "answer_start": start}]}
    _, examples, features = encoded("train", file_of(context, good, bad), tmp_path, tokenizer)
    assert [example.question_id for example in examples] == ["q0"]
    assert features["example_index"].tolist() == [0]
    assert "1 of 2 questions left out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("context", "question", "start"),
    [
        # Theirs labels a token before it or after it.
        ("bu \u200b da", {"answers": [{"text": "\u200b", "answer_start": 3}]}, 0),
        # Theirs fails at an empty question.
        ("bu da", {"question": "", "answers": [{"text": "da", "answer_start": 3}]}, 3),
    ],
)
def test_texts_without_tokens(context, question, start, tokenizer, tmp_path):
    _, _, features = encoded("train", file_of(context, question), tmp_path, tokenizer)
    assert features["start_positions"].tolist() == features["end_positions"].tolist() == [start]


@pytest.mark.parametrize("context", ["", " \n", "\u200b"])
def test_a_context_without_tokens_has_no_window_and_no_answer(context, tokenizer, tmp_path):
    """Theirs gives its questions to other windows, or fails."""
    content = file_of(context, {"id": "empty"})
    content["data"] += file_of("bu", {})["data"]
    task, examples, features = encoded("dev", content, tmp_path, tokenizer)
    assert features["example_index"].tolist() == [1]
    logits = np.ones((*features["input_ids"].shape, 2), np.float32)
    split = Split(examples=examples, features=features)
    path = task.write_predictions(split, logits, name="dev", folder=tmp_path)
    assert json.loads(path.read_text()) == {"empty": "", "q0": "bu"}
    assert task.metrics(split, logits)["exact"] == 50


def test_an_answer_has_at_most_its_greatest_number_of_tokens(tokenizer, tmp_path):
    """The best span has four tokens, of which the task allows three; the next best has three."""
    sizes = of_sizes(*SIZES[0])
    content = file_of("bu da bu da bu", {})
    task, examples, features = encoded("dev", content, tmp_path, tokenizer, **sizes)
    first = int(np.flatnonzero(features["char_starts"][0] >= 0)[0])
    logits = np.zeros((*features["input_ids"].shape, 2), np.float32)
    logits[0, first, 0], logits[0, first + 3, 1], logits[0, first + 2, 1] = 9, 9, 8
    split = Split(examples=examples, features=features)
    assert list(task.predict(split, logits).values()) == ["bu da bu da"]
    shorter = dataclasses.replace(task, max_answer_length=3)
    assert list(shorter.predict(split, logits).values()) == ["bu da bu"]


def test_windows_shorter_than_the_stride_hold_all_tokens(tokenizer, tmp_path):
    """Theirs leaves some out; the published code does not."""
    content = file_of("bu da " * 100, {})
    _, _, features = encoded("dev", content, tmp_path, tokenizer, max_seq_length=20)
    starts = features["char_starts"]
    assert set(starts[starts >= 0]) == {3 * number for number in range(200)}


def test_no_room_for_the_context(tokenizer, tmp_path):
    content = file_of("bu da", {"question": "bu " * 70})
    encoded("dev", content, tmp_path, tokenizer, max_seq_length=68)
    with pytest.raises(
        ValueError, match=r"^--max_seq_length=67 leaves no room .*; give at least 68"
    ):
        encoded("dev", content, tmp_path, tokenizer, max_seq_length=67)
