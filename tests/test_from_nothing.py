"""docs/data.md, "From nothing to a run": its commands, with a small file and a small model."""

import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from demo import encyclopedia, model
from mlperf_bert.convert import exporting, saving
from mlperf_bert.submission import compliance
from tests.data import doors
from tests.helpers import programs

LENGTHS = " --max_seq_length=64 --max_predictions_per_seq=10"
ADDED = {
    "create_pretraining_data.py": LENGTHS,
    "pick_eval_samples.py": "--num_examples_to_pick=100" + LENGTHS,
    "run_pretraining.py": "--do_train --optimizer=lamb --learning_rate=0.001 --num_warmup_steps=10 "
    "--num_train_steps=40 --train_batch_size=8 --eval_batch_size=20 --eval_interval_samples=160 "
    "--log_every_steps=1" + LENGTHS,
}


def commands_of(document: Path, heading: str) -> list[str]:
    section = document.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = re.findall(r"^    (.*)$", section, re.MULTILINE)
    return re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines()


def write_inputs(folder: Path) -> None:
    """Writes articles.parquet and public/, a model in Hugging Face's layout."""
    folder.mkdir()
    articles = list(encyclopedia.articles(seed=1, num_articles=150))
    rows = [
        {"id": str(number), "url": "", "title": title, "text": text}
        for number, (title, text) in enumerate(articles)
    ]
    doors.write(folder / "articles.parquet", rows)
    words = set(re.findall(r"\w+|[^\w\s]", "".join(text.lower() for _, text in articles)))
    tokens = [*model.SPECIAL_TOKENS, *sorted(words)]
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    config = model.tiny_config(len(tokens), max_seq_length=64)
    checkpoint = str(folder / "model.ckpt-0")
    saving.write_name_based(checkpoint, model.initial_tensors(config, seed=2))
    vocab_file = str(folder / "vocab.txt")
    exporting.export(checkpoint, str(folder / "public"), config=config, vocab_file=vocab_file)
    (folder / "public/README.md").unlink()


def small(command: str, repository: Path) -> list[str]:
    """A command of the document with local files and few examples; its environment comes first."""
    replaced = {
        r"corpus/.*": "articles.parquet",
        r"--(flagfile|num_gpus)=.*": "",
        r"NUM_TEST_ARTICLES=.*": "NUM_TEST_ARTICLES=20",
        r"--max_.*": "",
        r"python": sys.executable,
        r"([^=]*\.(py|sh))": rf"{repository}/\1",
    }
    words = shlex.split(command)
    for pattern, word in replaced.items():
        words = [re.sub(rf"^{pattern}$", word, each) for each in words]
    for script, flags in ADDED.items():
        words += flags.split() if script in command else []
    return ["env", f"PYTHON={sys.executable}", f"PYTHONPATH={repository}", *filter(None, words)]


@pytest.mark.gate
def test_a_parquet_file_and_a_public_model_make_a_run(tmp_path, repository):
    write_inputs(work := tmp_path / "from nothing")
    commands = commands_of(repository / "docs" / "data.md", "From nothing to a run")
    commands = [command for command in commands if not command.startswith("hf download ")]
    assert len(commands) == 6
    for command in commands:
        environment = {**os.environ, "PUNKT": str(repository / "demo" / "punkt")}
        programs.run(*small(command, repository), cwd=work, env=environment, check=True)
    made = work / "output"
    lines = (made / "metrics.jsonl").read_text().splitlines()
    metrics = [json.loads(line) for line in lines]
    assert [line["samples"] for line in metrics if line["kind"] == "eval"] == [160, 320]
    losses = [line["loss"] for line in metrics if line["kind"] == "train"]
    assert len(losses) == 40 and sum(losses[-10:]) < sum(losses[:10])
    record = json.loads((made / "run.json").read_text())["inputs"]
    log = (made / "bert.log").read_text()
    for name in ("input_file", "init_checkpoint"):
        assert "sha256:" in record[name] and record[name] in log
    for ruleset in ("1.0.0", "3.1.0", "4.1.0", "5.0.0"):
        verdict = compliance.check_log(made / "bert.log", ruleset)
        assert verdict.passed, verdict
