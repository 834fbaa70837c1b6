"""GLUE's files as they are published, with their quirks, and what is wrong with others. Seconds."""

import numpy as np
import pytest

from mlperf_bert.finetuning import glue
from mlperf_bert.finetuning.splits import Split


def create(name, folder):
    return glue.create(name, str(folder))


def split_of(examples, **features):
    return Split(examples=examples, features=features)


QQP = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
# Task, file and lines -> index, sentences and label of each example.
READ = {
    "quotation marks are text, and a carriage return ends no line": (
        "rte", "RTE/train.tsv",
        ["index\tsentence1\tsentence2\tlabel", '0\t"never closed\t\tentailment', "\t \r",
         '1\ta\rb\u2028c\x85d\t"x"\tnot_entailment\r'],
        [('"never closed', "", 0), ("a\rb\u2028c\x85d", '"x"', 1)],
    ),
    "columns are found by name, behind a byte order mark": (
        "mnli", "MNLI/dev_matched.tsv",
        ["\ufeffgold_label\tsentence2\tpairID\tsentence1\tlabel1", "neutral\tb\t7\ta\tentailment"],
        [("a", "b", 2)],
    ),
    "also of a test set": (
        "qqp", "QQP/test.tsv", ["question2\tid\tquestion1", "b\t41\ta\r"], [("a", "b", None)],
    ),
    "the question is before the sentence, however they stand": (
        "qnli", "QNLI/dev.tsv", ["sentence\tindex\tlabel\tquestion", "s\t0\tentailment\tq"],
        [("q", "s", 0)],
    ),
    "and a first sentence before the second": (
        "mrpc", "MRPC/dev.tsv",
        ["#2 String\t#1 String\tQuality", "b\ta\t1", "d\tc\t0"], [("a", "b", 1), ("c", "d", 0)],
    ),
    "a score is from 0 to 5, both included": (
        "stsb", "STS-B/dev.tsv", ["sentence1\tsentence2\tscore", "a\tb\t0.000", "c\td\t5.000"],
        [("a", "b", 0.0), ("c", "d", 5.0)],
    ),
    "incomplete lines of QQP are skipped and counted": (
        "qqp", "QQP/train.tsv",
        [QQP, "1\t2\t3\ta\tb\t1", "cut off", "4\t5\t6\tq", "7\t8\t9\tc\td\t0"],
        [("a", "b", 1), ("c", "d", 0)],
    ),
    "one that is skipped is told too": (
        "qqp", "QQP/dev.tsv", [QQP, "1\t2\t3\ta\tb\t1", "cut off"], [("a", "b", 1)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", READ)
def test_what_is_read_of_odd_files(tmp_path, capsys, case):
    name, file, lines, expected = READ[case]
    path = tmp_path / file
    path.parent.mkdir()
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    found = create(name, tmp_path).read(path.stem)
    assert found == expected
    skipped = f"{path}: skipped {len(lines) - 1 - len(expected)} lines without all columns\n"
    assert capsys.readouterr().err == (skipped if "skipped" in case else "")


SST2, HEADER = "SST-2/train.tsv", "sentence\tlabel\n"
# Task, file and content -> what is said of it.
BAD = [
    ("sst2", SST2, None, "SST-2/train.tsv for this task"),
    ("sst2", SST2, HEADER, "train.tsv: no examples; copy the file here"),
    ("sst2", SST2, "sentence\tx\na\t1",
     "train.tsv line 1: no column 'label' in 'sentence | x'; give the file as GLUE publishes it"),
    ("sst2", SST2, HEADER + "\na\t1\nb", "line 4: 1 columns, expected 2, with "),
    ("sst2", SST2, HEADER + "a\t1\t\na\tb\t1", "line 3: 3 columns, expected 2"),
    ("sst2", SST2, HEADER + "a\tyes\x1b", r"label is 'yes\x1b', expected one of 0, 1; correct or"),
    ("sst2", SST2, b"sentence\tlabel\ncaf\xe9\t0", "byte 18 is not UTF-8; give a text"),
    ("qqp", "QQP/train.tsv", QQP + "\n1\t2\t3\ta\tb\tc\t1", "line 2: 7 columns, expected 6"),
    # Its answers need a row for each.
    ("qqp", "QQP/train.tsv", "id\tquestion1\tquestion2\n1\ta\tb", "no column 'is_duplicate'"),
    ("qqp", "QQP/test.tsv", "id\tquestion1\tquestion2\n1\tcut", "line 2: 2 columns, expected 3"),
    *(
        ("stsb", "STS-B/train.tsv", f"sentence1\tsentence2\tscore\na\tb\t{score}",
         f"score is {score!r}, expected a number from 0 to 5; correct or remove the line")
        for score in ("high", "nan", "5.1", "-1", "inf", "")
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "file", "content", "message"), BAD)
def test_a_bad_file_is_one_line(tmp_path, name, file, content, message):
    if content is not None:
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError) as error:
        create(name, tmp_path).read((tmp_path / file).stem)
    [line] = str(error.value).splitlines()
    assert line.startswith(str(tmp_path / file)) and message in line


# Task -> split of the test, name of its file, answers.
ANSWERS = {
    "cola": ("test", "CoLA.tsv", "1 0 1"),
    "sst2": ("test", "SST-2.tsv", "1 0 1"),
    "mrpc": ("test", "MRPC.tsv", "1 0 1"),
    "qqp": ("test", "QQP.tsv", "1 0 1"),
    "qnli": ("test", "QNLI.tsv", "not_entailment entailment not_entailment"),
    "rte": ("test", "RTE.tsv", "not_entailment entailment not_entailment"),
    "stsb": ("test", "STS-B.tsv", "0.100 5.000 0.000"),  # within its range
    "mnli": ("test_mismatched", "MNLI-mm.tsv", "entailment contradiction neutral"),
}
LOGITS = np.array([[0.1, 2.0], [7.0, -1.0], [-0.2, 0.5]], np.float32)


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_are_what_the_server_takes(made, tmp_path, name):
    task, (split, file_name, answers) = create(name, made / "glue"), ANSWERS[name]
    outputs = LOGITS if task.labels else LOGITS[:, :1]
    if task.num_labels == 3:
        outputs = np.insert(outputs, 2, [0.0, 0.0, 9.0], axis=1)
    examples = task.read(split)[:3]
    path = task.write_predictions(split_of(examples), outputs, name=split, folder=tmp_path)
    lines = [f"{number}\t{answer}" for number, answer in enumerate(answers.split())]
    assert path == tmp_path / file_name
    assert path.read_text() == "\n".join(["index\tprediction", *lines]) + "\n"


TWO_OF_THREE = {"accuracy": 100 * 2 / 3}
# Task -> outputs of its head, and what the metrics say, the main one first.
METRICS = {
    "cola": (2, {"matthews": 50.0}),
    "sst2": (2, TWO_OF_THREE),
    "mrpc": (2, {"f1": 80.0, **TWO_OF_THREE}),
    "stsb": (1, {"spearman": 50.0, "pearson": 99.19}),
    "qqp": (2, {"f1": 80.0, **TWO_OF_THREE}),
    "mnli": (3, TWO_OF_THREE),
    "qnli": (2, TWO_OF_THREE),
    "rte": (2, TWO_OF_THREE),
}


@pytest.mark.parametrize("name", METRICS)
def test_metrics_of_the_tasks(made, name):
    task, (num_labels, expected) = create(name, made / "glue"), METRICS[name]
    labels = {"cola": [1, 0, 0], "stsb": [0.0, 5.0, 0.5]}.get(name, [1, 1, 1])
    found = task.metrics(split_of([], labels=np.array(labels)), LOGITS)
    assert found == pytest.approx(expected, abs=0.01) and task.main_metric == next(iter(expected))
    assert task.num_labels == num_labels and list(METRICS) == list(glue.NAMES)


def test_a_split_is_known_by_its_features_and_its_answers():
    """SQuAD's dev set has its answers in the examples alone."""
    ids = np.arange(6).reshape(2, 3)
    parts = [
        (["a", "b"], {"input_ids": ids}),
        (["a", "c"], {"input_ids": ids}),
        (["a", "b"], {"input_ids": ids + 1}),
        (["a", "b"], {"segment_ids": ids}),
    ]
    found = [split_of(examples, **features).sha256 for examples, features in parts]
    assert len(set(found)) == 4
    assert found[0] == split_of(["a", "b"], input_ids=ids.copy()).sha256


def score(name, labels, predictions):
    return glue.METRICS[name](np.array(labels), np.array(predictions))


@pytest.mark.parametrize("name", ["pearson", "spearman"])
def test_a_correlation_that_is_not_defined_is_zero(name):
    assert score(name, [1.0, 2.0, 3.0], [4.0, 4.0, 4.0]) == 0.0
    assert score(name, [1.0, 2.0, 3.0], [2.0, 4.0, 6.0]) == pytest.approx(1.0)


def test_scores_of_nothing_found_are_zero():
    labels = [1, 1, 1, 0, 0]
    assert score("f1", labels, [0, 0, 0, 0, 0]) == score("matthews", labels, [1] * 5) == 0.0
