"""GLUE's files as they are published, with their quirks, and what is wrong with others. Seconds."""

from pathlib import Path

import numpy as np
import pytest

from mlperf_bert.data.tokenization import Tokenizer
from mlperf_bert.finetuning import glue
from mlperf_bert.finetuning.splits import Split

LOGITS = np.array([[0.1, 2.0], [3.0, -1.0], [0.0, 0.5]], np.float32)


def create(name, folder):
    return glue.create(name, str(folder))


def split_of(examples, **features):
    return Split(examples=examples, features=features)


def write(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def refusal(name, folder, split="train") -> str:
    with pytest.raises(ValueError) as error:
        create(name, folder).read(split)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", glue.NAMES)
def test_every_split_of_every_task_is_read(made, name):
    task = create(name, made / "glue")
    for split in ("train", *task.eval_splits):
        assert {example.label is None for example in task.read(split)} == {False}
    for split in task.test_splits:
        examples = task.read(split)
        assert [example.index for example in examples] == [str(n) for n in range(6)]
        assert {example.label for example in examples} == {None}
    is_pair = len(task.sentences) == 2
    assert all((example.text_b is not None) == is_pair for example in task.read("train"))


def test_quotation_marks_are_text_and_a_carriage_return_ends_no_line(tmp_path):
    write(
        tmp_path / "RTE" / "train.tsv",
        "index\tsentence1\tsentence2\tlabel",
        '0\t"never closed\t\tentailment',
        '1\ta\rb\u2028c\x85d\t"x"\tnot_entailment\r',
    )
    first, second = create("rte", tmp_path).read("train")
    assert (first.text_a, first.text_b, first.label) == ('"never closed', "", 0)
    assert (second.text_a, second.text_b, second.label) == ("a\rb\u2028c\x85d", '"x"', 1)


def test_columns_are_found_by_name(tmp_path):
    write(
        tmp_path / "MNLI" / "dev_matched.tsv",
        "gold_label\tsentence2\tpairID\tsentence1\tlabel1",
        "neutral\tb\t7\ta\tentailment",
    )
    [example] = create("mnli", tmp_path).read("dev_matched")
    assert (example.text_a, example.text_b, example.label) == ("a", "b", 2)


def test_incomplete_lines_of_qqp_are_skipped_and_counted(tmp_path, capsys):
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
    rows = ["1\t2\t3\ta\tb\t1", "cut off", "4\t5\t6\tq", "7\t8\t9\tc\td\t0"]
    write(tmp_path / "QQP" / "train.tsv", header, *rows)
    assert [example.label for example in create("qqp", tmp_path).read("train")] == [1, 0]
    assert "train.tsv: skipped 2 lines without all columns" in capsys.readouterr().err
    write(tmp_path / "QQP" / "test.tsv", "id\tquestion1\tquestion2", "0\ta\tb", "1\tcut off")
    cut = "test.tsv line 3: 2 columns, expected 3; correct or remove the line"
    assert cut in refusal("qqp", tmp_path, "test")  # its answers need a row for each


def test_bad_files_are_one_line_each(tmp_path):
    path = tmp_path / "SST-2" / "train.tsv"
    assert f"{path}: no such file; --data_dir takes the folder of the" in refusal("sst2", tmp_path)
    assert "SST-2/train.tsv for this task" in refusal("sst2", tmp_path)
    path.mkdir(parents=True)
    assert f"{path}: is not a regular file; give one" in refusal("sst2", tmp_path)
    path.rmdir()

    def found(*lines) -> str:
        write(path, *lines)
        return refusal("sst2", tmp_path)

    header = "sentence\tlabel"
    missing = "train.tsv line 1: no column 'label'; give the file as GLUE publishes it"
    assert missing in found("sentence\ttarget", "a\t1")
    assert "train.tsv: no examples; copy the file here again" in found(header)
    short = "train.tsv line 3: 1 columns, expected 2; correct or remove the line"
    assert short in found(header, "a\t1", "b")
    wide = "train.tsv line 3: 3 columns, expected 2; correct or remove the line"
    assert wide in found(header, "a\t1\t", "a\tb\t1")
    unknown = "train.tsv line 2: label is 'yes\\x1b', expected one of 0, 1; correct or remove"
    assert unknown in found(header, "a\tyes\x1b")
    path.write_bytes(b"sentence\tlabel\nfine\t1\ncaf\xe9\t0\n")
    assert "train.tsv: byte 25 is not UTF-8; give a text file" in refusal("sst2", tmp_path)


@pytest.mark.parametrize("score", ["high", "nan", "5.1", "-1", "inf", ""])
def test_a_score_outside_its_range_is_one_line(tmp_path, score):
    header = "index\tsentence1\tsentence2\tscore"
    write(tmp_path / "STS-B" / "train.tsv", header, f"0\ta\tb\t{score}")
    message = refusal("stsb", tmp_path)
    assert f"train.tsv line 2: score is {score!r}, expected a number from 0 to 5" in message


def test_a_test_set_needs_the_column_of_its_index(tmp_path):
    write(tmp_path / "CoLA" / "test.tsv", "sentence", "a")
    assert "test.tsv line 1: no column 'index'" in refusal("cola", tmp_path, "test")


def test_the_longer_sentence_is_cut_first():
    def cut(first, second, at_most):
        return tuple(map(len, glue.cut([1] * first, [2] * second, at_most=at_most)))

    assert cut(10, 3, 8) == (5, 3)
    assert cut(3, 10, 8) == (3, 5)
    assert cut(10, 10, 7) == (4, 3)
    assert cut(0, 10, 7) == (0, 7)
    assert cut(2, 3, 7) == (2, 3)


def test_features_by_hand(made):
    tokenizer = Tokenizer(str(made / "model" / "vocab.txt"))
    ids = tokenizer.vocabulary
    examples = [("red ship", "a"), ("ship", ""), ("town of", None)]
    features = glue.encode(examples, tokenizer, max_seq_length=7)
    names = ["[CLS] red ship [SEP] a [SEP]", "[CLS] ship [SEP] [SEP]", "[CLS] town of [SEP]"]
    expected = np.zeros((3, 7), np.int32)
    for row, name in zip(expected, names):
        found = [ids[token] for token in name.split()]
        row[: len(found)] = found
    np.testing.assert_array_equal(features["input_ids"], expected)
    np.testing.assert_array_equal(features["input_mask"], expected != 0)
    segments = [[0, 0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 0, 0, 0], [0] * 7]
    np.testing.assert_array_equal(features["segment_ids"], segments)
    assert {values.dtype for values in features.values()} == {np.dtype(np.int32)}


ANSWERS = {
    "cola": ("CoLA.tsv", "1 0 1"),
    "sst2": ("SST-2.tsv", "1 0 1"),
    "mrpc": ("MRPC.tsv", "1 0 1"),
    "qqp": ("QQP.tsv", "1 0 1"),
    "qnli": ("QNLI.tsv", "not_entailment entailment not_entailment"),
    "rte": ("RTE.tsv", "not_entailment entailment not_entailment"),
    "stsb": ("STS-B.tsv", "0.100 3.000 0.000"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_are_what_the_server_takes(made, tmp_path, name):
    task = create(name, made / "glue")
    examples = task.read("test")[:3]
    outputs = LOGITS if task.labels else LOGITS[:, :1]
    [path] = task.write_predictions(split_of(examples), outputs, name="test", folder=tmp_path)
    file_name, answers = ANSWERS[name]
    lines = [f"{number}\t{answer}" for number, answer in enumerate(answers.split())]
    assert path == tmp_path / file_name
    assert path.read_text() == "\n".join(["index\tprediction", *lines]) + "\n"


def test_answers_of_mnli_are_two_files_and_scores_stay_in_their_range(made, tmp_path):
    task = create("mnli", made / "glue")
    outputs = np.eye(3, dtype=np.float32)
    for split, name in (("test_matched", "MNLI-m.tsv"), ("test_mismatched", "MNLI-mm.tsv")):
        examples = task.read(split)[:3]
        [path] = task.write_predictions(split_of(examples), outputs, name=split, folder=tmp_path)
        assert path.name == name
        assert path.read_text().split()[2:] == "0 contradiction 1 entailment 2 neutral".split()
    stsb = create("stsb", made / "glue")
    outputs = np.array([[-0.2], [7.0]], np.float32)
    examples = stsb.read("test")[:2]
    [path] = stsb.write_predictions(split_of(examples), outputs, name="test", folder=tmp_path)
    assert path.read_text().split()[2:] == ["0", "0.000", "1", "5.000"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cola", {"matthews": 50.0}),
        ("mrpc", {"f1": 80.0, "accuracy": 100 * 2 / 3}),
        ("rte", {"accuracy": 100 * 2 / 3}),
    ],
)
def test_metrics_of_the_tasks(made, name, expected):
    task = create(name, made / "glue")
    labels = np.array([1, 0, 0] if name == "cola" else [1, 1, 1])
    found = task.metrics(split_of([], labels=labels), LOGITS)
    assert found == pytest.approx(expected) and task.main_metric in found


def test_labels_are_encoded_where_all_examples_have_one(made):
    tokenizer = Tokenizer(str(made / "model" / "vocab.txt"))
    for name, dtype in (("mnli", np.int32), ("stsb", np.float32)):
        task = create(name, made / "glue")
        examples = task.read("train")
        features = task.encode(examples, tokenizer, is_training=True)
        assert features["labels"].dtype == dtype
        np.testing.assert_array_equal(features["labels"], [e.label for e in examples])
        assert "labels" not in task.encode(
            task.read(task.test_splits[0]), tokenizer, is_training=False
        )
