"""docs/data.md, "From nothing to a run": its commands, with a small file and a small model."""

import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from mlperf_bert.submission import compliance
from tests.data import doors
from tests.helpers import programs

LENGTHS = " --max_seq_length=64 --max_predictions_per_seq=10"
ADDED = {
    "create_pretraining_data.py": LENGTHS,
    "pick_eval_samples.py": "--num_examples_to_pick=100" + LENGTHS,
    "run_pretraining.py": "--do_train --optimizer=lamb --learning_rate=0.001 --num_warmup_steps=10 "
    "--num_train_steps=100 --train_batch_size=8 --eval_batch_size=20 --eval_interval_samples=400 "
    "--log_every_steps=1" + LENGTHS,
}


def commands_of(document: Path, heading: str) -> list[str]:
    section = document.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = re.findall(r"^    (.*)$", section, re.MULTILINE)
    return re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines()


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """A folder with articles.parquet and public/, a model in Hugging Face's layout."""
    folder = tmp_path_factory.mktemp("from nothing")

    def run(*words):
        programs.run(sys.executable, *words, check=True)

    run("-m", "demo.encyclopedia", "--seed=1", "--num_articles=400", f"--output_dir={folder}/text")
    texts = [path.read_text() for path in sorted((folder / "text").rglob("wiki_??"))]
    articles = [article for text in texts for article in doors.articles_of(text)]
    doors.write(folder / "articles.parquet", articles)
    (folder / "lines.txt").write_text("\n".join(article["text"] for article in articles))
    run(
        *["-m", "demo.model", "--seed=2", f"--input_file={folder}/lines.txt"],
        f"--output_dir={folder}",
    )
    run(
        *["-m", "mlperf_bert.convert.to_hugging_face", f"--output_dir={folder}/public"],
        *[f"--checkpoint={folder}/checkpoint/model.ckpt-0", f"--vocab_file={folder}/vocab.txt"],
        *[f"--bert_config_file={folder}/checkpoint/bert_config.json"],
    )
    for made in ("text", "checkpoint", "lines.txt", "public/README.md"):
        place = folder / made
        shutil.rmtree(place) if place.is_dir() else place.unlink()
    return folder


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


@pytest.fixture(scope="module")
def made(work, repository, shared) -> Path:
    punkt = shared / "data" / "nltk_data" / "tokenizers" / "punkt_tab" / "english"
    commands = commands_of(repository / "docs" / "data.md", "From nothing to a run")
    commands = [command for command in commands if not command.startswith("hf download ")]
    assert len(commands) == 6
    for command in commands:
        environment = {**os.environ, "PUNKT": str(punkt)}
        programs.run(*small(command, repository), cwd=work, env=environment, check=True)
    return work


@pytest.mark.gate
def test_a_parquet_file_and_a_public_model_make_a_run(made):
    lines = (made / "output" / "metrics.jsonl").read_text().splitlines()
    metrics = [json.loads(line) for line in lines]
    assert [line["samples"] for line in metrics if line["kind"] == "eval"] == [400, 800]
    losses = [line["loss"] for line in metrics if line["kind"] == "train"]
    assert len(losses) == 100 and sum(losses[-10:]) < sum(losses[:10])
    record = json.loads((made / "output" / "run.json").read_text())["inputs"]
    log = (made / "output" / "bert.log").read_text()
    for name in ("input_file", "init_checkpoint"):
        assert "sha256:" in record[name] and record[name] in log
    for ruleset in ("1.0.0", "3.1.0", "4.1.0", "5.0.0"):
        verdict = compliance.check_log(made / "output" / "bert.log", ruleset)
        assert verdict.passed, verdict
