"""The demo's tasks: their files are read by the benchmark's own readers, and are a fair test.

make test-soak    runs `make demo` and then `make demo-finetune`
"""

import hashlib
import json
import random
import re
import subprocess
import sys

import pytest

from demo import finetuning, tasks
from demo.encyclopedia import articles_with_facts
from mlperf_bert.finetuning import glue
from tests.helpers import programs

# With seed 1: the margins of demo/finetuning.py were measured on them.
TASKS_SHA256 = "d52c7e5140bb8bdefe83b31345913cca95b8a2f0672e63633e775ed5fcaf283d"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    tasks.write(folder, seed=1)
    return folder


def test_tasks_are_a_function_of_their_seed(written, tmp_path):
    def files(folder):
        return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}

    tasks.write(tmp_path / "other", seed=2)
    other, found = files(tmp_path / "other"), files(written)
    content = b"".join(found[path] for path in sorted(found))
    assert hashlib.sha256(content).hexdigest() == TASKS_SHA256
    assert other.keys() == found.keys() and all(other[path] != found[path] for path in found)


@pytest.mark.parametrize("name", ["rte", "cola"])
def test_their_files_have_glues_format_and_even_labels(written, name):
    task = glue.create(name, str(written))
    for split, num_examples in tasks.NUM_EXAMPLES.items():
        examples = task.read(split)
        assert len(examples) == num_examples
        if split in ("train", "dev"):
            assert 0.42 < sum(example.label for example in examples) / num_examples < 0.58
    texts = {split: {(e.text_a, e.text_b) for e in task.read(split)} for split in ("train", "dev")}
    assert len(texts["train"] & texts["dev"]) < len(texts["dev"]) / 10


def test_word_salad_has_the_words_of_a_sentence_and_its_ends(written):
    examples = glue.create("cola", str(written)).read("train")
    found = articles_with_facts(1, random.Random("tasks train 1"))
    num_salads = num_mixed = 0
    for example in examples:
        sentences = re.split(r"(?<=\.) ", " ".join(next(found)[2]))
        if example.label:
            assert example.text_a in sentences
            continue
        first, *between, last = example.text_a.split()
        same = [s for s in map(str.split, sentences) if (s[0], s[-1]) == (first, last)]
        assert any(sorted(s[1:-1]) == sorted(between) for s in same)
        num_salads += 1
        num_mixed += example.text_a not in sentences
    assert num_salads > 600 and num_mixed > 0.95 * num_salads


def test_a_second_paragraph_belongs_where_the_label_says(written):
    examples = glue.create("rte", str(written)).read("train")
    found = articles_with_facts(1, random.Random("tasks train 1"))
    for example, (_, _, paragraphs) in zip(examples, found):
        assert example.text_a == paragraphs[0]
        assert (example.text_b == paragraphs[1]) == (example.label == 0)


def test_answers_stand_where_the_file_says(written):
    for split in ("train", "dev"):
        data = json.loads((written / "SQuAD" / f"{split}-v1.1.json").read_text())
        assert data["version"] == "1.1" and len(data["data"]) == tasks.NUM_QUESTIONS[split]
        for article in data["data"]:
            [paragraph] = article["paragraphs"]
            [asked] = paragraph["qas"]
            [answer] = asked["answers"]
            begin = answer["answer_start"]
            text = paragraph["context"][begin : begin + len(answer["text"])]
            assert text == answer["text"] and "{" not in asked["question"]


def results(folder, *, best: dict[str, tuple[float, float]]):
    for one in finetuning.COMPARISONS:
        for name, value in zip(("pre-trained", "initial"), best[one.task]):
            path = folder / one.task / name / "results.json"
            path.parent.mkdir(parents=True)
            found = {one.task: {"best": value, "main_metric": "dev/some"}}
            path.write_text(json.dumps({"tasks": found}))


def test_it_fails_where_pre_training_does_not_win_by_its_margin(tmp_path, capsys):
    wins = {"rte": (70.0, 55.0), "cola": (20.0, 0.0), "squad1": (90.0, 80.0)}
    results(tmp_path / "wins", best=wins)
    table = finetuning.compare(tmp_path / "wins")
    assert table.count(" ok") == 3 and table == capsys.readouterr().out.strip("\n")
    results(tmp_path / "loses", best=wins | {"cola": (19.9, 0.0)})
    with pytest.raises(ValueError, match="pre-training does not win by its margin: cola"):
        finetuning.compare(tmp_path / "loses")
    assert capsys.readouterr().out.count(" NO") == 1


def test_both_weights_are_trained_with_the_same_flags(tmp_path):
    first, *training = finetuning.steps(tmp_path / "demo", tmp_path / "out", 7)
    lines = [command.replace(str(tmp_path), "TO") for _, command in (first, *training)]
    expected = ["python -m demo.tasks --seed=7 --output_dir=TO/out/data"]
    for task, data, more in [
        ("rte", "data/", ""),
        ("cola", "data/", ""),
        ("squad1", "data/SQuAD", "--doc_stride=24 --max_query_length=16 "),
    ]:
        for name, weights in [("pre-trained", "run"), ("initial", "checkpoint/model.ckpt-0")]:
            expected.append(
                f"python run_finetuning.py --task={task} --data_dir=TO/out/{data} "
                f"--checkpoint=TO/demo/{weights} "
                "--bert_config_file=TO/demo/checkpoint/bert_config.json "
                f"--vocab_file=TO/demo/vocab.txt --max_seq_length=64 {more}--learning_rate=0.001 "
                f"--seed=1 --eval_batch_size=100 --do_predict --output_dir=TO/out/{task}/{name}"
            )
    assert lines == expected


def run(*flags: str):
    return programs.run(sys.executable, "-m", "demo.finetuning", *flags)


def test_a_demo_that_failed_is_none(tmp_path):
    record = tmp_path / "run" / "run.json"
    record.parent.mkdir()
    for status in ("aborted", "running"):
        record.write_text(json.dumps({"status": status, "seed": 3}))
        with pytest.raises(ValueError, match="no finished demo; run `make demo` first"):
            finetuning.seed_of(tmp_path)
    record.write_text(json.dumps({"status": "success", "seed": 3}))
    assert finetuning.seed_of(tmp_path) == 3
    with pytest.raises(ValueError, match="no finished demo; run `make demo` first"):
        finetuning.seed_of(record)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        *(
            (name, ".*would be emptied.*name a folder next to it")
            for name in ("demo", "demo/tasks", ".", "demo/../demo")
        ),
        ("file", "{folder}/file is not a folder: name an empty --output_dir"),
    ],
)
def test_the_demo_is_not_emptied_nor_a_file_written_to(tmp_path, output, message):
    record = tmp_path / "demo" / "run" / "run.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"status": "success", "seed": 3}))
    for name in ("file", "made_by_the_demo", "demo/made_by_the_demo"):
        (tmp_path / name).touch()
    done = run(f"--demo_dir={tmp_path}/demo", f"--output_dir={tmp_path}/{output}")
    assert done.returncode == 1 and record.exists() and (tmp_path / "file").exists()
    [line] = done.stderr.splitlines()
    assert re.fullmatch(f"demo.finetuning: {message.format(folder=tmp_path)}", line)


@pytest.mark.soak
def test_pre_trained_weights_win_by_the_margins(repository, tmp_path):
    demo = [sys.executable, "-m", "demo", "--seed=2", f"--output_dir={tmp_path}/demo"]
    subprocess.run(demo, cwd=repository, check=True)
    command = [sys.executable, "-m", "demo.finetuning", f"--demo_dir={tmp_path}/demo"]
    subprocess.run([*command, f"--output_dir={tmp_path}/tasks"], cwd=repository, check=True)
