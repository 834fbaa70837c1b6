"""The demo: its encyclopedia is a fair test, its commands are those of the benchmark, it succeeds.

`make test-all` also runs the demo from end to end (2 cores, 5 minutes).
"""

import contextlib
import hashlib
import json
import random
import re
import shlex
import string
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import demo.__main__ as the_demo
from benchmarks import convergence
from demo import encyclopedia, facts, model, picture
from mlperf_bert.checkpoints.reading import StoredCheckpoint, load_initial_weights
from mlperf_bert.convert.saving import write_name_based
from mlperf_bert.files import locks
from mlperf_bert.model.pretrainer import build_pretrainer, trained_variables
from mlperf_bert.submission.compliance import check_log
from tests.checkpoints.stored_weights import read_weights
from tests.helpers import programs

# Of 203 articles with seed 1.
ENCYCLOPEDIA_SHA256 = "b27bf9d55b4c09fcbebccd5e68a8475b8dd6cf36778f85d2f8bb35340f08e60a"


def sentences(text):
    return [line for line in re.split(r"(?<=\.) |\n+", text) if line]


@pytest.fixture
def ends(monkeypatch):
    """Runs the main of a module of the demo with flags; returns its exit code."""

    def ends(module, **flags) -> int:
        words = [f"--{name}={value}" for name, value in flags.items()]
        monkeypatch.setattr(sys, "argv", [module.__name__, *words])
        return module.main()

    return ends


def test_encyclopedia_is_a_function_of_its_seed(tmp_path, ends, capsys):
    """The RCPs hold for this text alone."""

    def digest(folder, **given) -> str:
        assert ends(encyclopedia, output_dir=folder, **given) == 0
        paths = sorted(folder.iterdir())
        assert [path.name for path in paths] == [f"wiki_{number:02d}" for number in range(8)]
        return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()

    digests = [digest(tmp_path / str(seed), seed=seed, num_articles=203) for seed in (1, 2)]
    assert digests[0] == ENCYCLOPEDIA_SHA256 != digests[1]
    digest(tmp_path / "few", seed=1, num_articles=8)
    assert ends(encyclopedia, output_dir=tmp_path / "fewer", seed=1, num_articles=7) == 1
    assert "num_articles=7: at least 8, one for each file" in capsys.readouterr().err


def test_every_wording_finds_its_facts():
    world = facts.make_world(random.Random(1))
    wanted = set()
    for kind, paragraphs in encyclopedia.read_grammar().items():
        article = facts.make_facts(kind, world, random.Random(2))
        for wording in (w for paragraph in paragraphs for sentence in paragraph for w in sentence):
            fields = {field for _, field, _, _ in string.Formatter().parse(wording) if field}
            assert fields <= article.keys(), wording
            wanted |= fields
    assert len(wanted) > 60


def test_held_out_articles_cannot_be_known_by_heart():
    texts = [text for _, text in encyclopedia.articles(seed=1, num_articles=6000)]
    assert len(set(texts)) == len(texts)
    held_out, training = texts[::10], [text for n, text in enumerate(texts) if n % 10]
    known = {sentence for text in training for sentence in sentences(text)}
    asked = [sentence for text in held_out for sentence in sentences(text)]
    share = sum(sentence in known for sentence in asked) / len(asked)
    assert share < 0.2


def test_vocabulary_covers_the_text(tmp_path, monkeypatch, ends):
    text = "\n".join(text for _, text in encyclopedia.articles(seed=1, num_articles=60))
    (tmp_path / "text").write_text(text, encoding="utf-8")
    asked = []
    made = lambda *given: asked.append(given) or {"bert/weight": np.ones(3, np.float32)}  # noqa: E731
    monkeypatch.setattr(model, "initial_tensors", made)
    flags = {"input_file": tmp_path / "te*", "output_dir": tmp_path, "vocab_size": 800, "seed": 7}
    assert ends(model, **flags, max_seq_length=32) == 0
    config = json.loads((tmp_path / "checkpoint" / "bert_config.json").read_text())
    assert asked == [(model.tiny_config(config["vocab_size"], 32), 7)]
    assert list(read_weights(str(tmp_path / "checkpoint" / "model.ckpt-0"))) == ["bert/weight"]
    tokens = (tmp_path / "vocab.txt").read_text(encoding="utf-8").splitlines()
    assert tokens[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert len(set(tokens)) == len(tokens) == config["vocab_size"] <= 1000
    assert {"the", "capital", "a", "z", "##a", "##z"} <= set(tokens)
    assert tokens[5:] == [token.lower() for token in tokens[5:]]


def test_initial_checkpoint_fits_the_model(tmp_path):
    config = model.tiny_config(vocab_size=100, max_seq_length=16)
    dropouts = config.hidden_dropout_prob, config.attention_probs_dropout_prob
    assert (config.num_hidden_layers, config.hidden_size, *dropouts) == (2, 128, 0, 0)
    tensors = model.initial_tensors(config, seed=1)
    prefix = str(tmp_path / "model.ckpt-0")
    write_name_based(prefix, tensors)
    variables = trained_variables(build_pretrainer(config, seed=2))
    stored = StoredCheckpoint(prefix)
    names = load_initial_weights(variables, stored)
    assert sorted(names) == sorted(tensors) == sorted(read_weights(prefix))
    layer = "bert/encoder/layer_1/attention/self"
    np.testing.assert_array_equal(tensors[f"{layer}/key/kernel"], tensors[f"{layer}/query/kernel"])
    positions = tensors["bert/embeddings/position_embeddings"]
    assert positions.shape == (16, 128)
    nearness = positions @ positions[8]
    assert np.argmax(nearness) == 8
    assert nearness[9] > nearness[11] > nearness[15]


def test_picture_is_drawn(tmp_path, monkeypatch, ends, capsys):
    lines = [
        {"kind": "train", "step": 10, "samples": 640, "loss": 6.0},
        {"kind": "eval", "step": 10, "samples": 641, "loss": 5.9, "masked_lm_accuracy": 0.5},
        {"kind": "train", "step": 20, "samples": 1280, "loss": 4.0},
        {"kind": "train", "step": 30, "samples": 1920, "loss": 3.0},
        {"kind": "eval", "step": 30, "samples": 1921, "loss": 3.5, "masked_lm_accuracy": 0.7},
    ]
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    png, drawn, words = picture.png, [], []

    @contextlib.contextmanager
    def seen(*given, **options):
        with png(*given, **options) as axes:
            yield axes
            for [each] in axes:
                drawn.append([np.array(line.get_data()).T.tolist() for line in each.lines])
                words.append([text.get_text() for text in (*each.texts, *each.get_legend().texts)])

    monkeypatch.setattr(picture, "png", seen)
    assert ends(picture, metrics_file=metrics, output_file=tmp_path / "report.jpg") == 1
    assert "report.jpg: give a name that ends with .png" in capsys.readouterr().err
    assert ends(picture, metrics_file=metrics, output_file=tmp_path / "report.png") == 0
    accuracy, target = drawn[0]
    assert accuracy == [[641, 0.5], [1921, 0.7]] and {y for _, y in target} == {0.72}
    training, held_out = [[640, 6], [1280, 4], [1920, 3]], [[641, 5.9], [1921, 3.5]]
    assert drawn[1] == [training, held_out]
    assert words == [
        ["0.7000", "on held-out articles", "target 0.720"],
        ["training", "held-out articles"],
    ]
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "report.png"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"kind": "eval", "samples": 3}', r"line 1: damaged \(lacks 'loss'\)"),
        (b'{"kind": "train", "samples": 3, "loss": 1}\n\xff', r"line 2: damaged \(not JSON"),
        (b"[1]", r"line 1: damaged \(expected a JSON object, got list"),
        (
            b'{"kind": "train", "samples": 64, "loss": 6.0}\n',
            "holds no evaluation: the run ended before its first",
        ),
    ],
)
def test_picture_of_another_file_or_of_no_evaluation_is_refused(tmp_path, content, reason):
    (tmp_path / "metrics.jsonl").write_bytes(content)
    remedy = "" if "no evaluation" in reason else "; give the metrics.jsonl of a run$"
    with pytest.raises(ValueError, match=f"{reason}.*{remedy}"):
        picture.draw(tmp_path / "metrics.jsonl", tmp_path / "report.png")


@pytest.mark.parametrize("content", [b"", b" \n\n", b"caf\xe9"])
def test_vocabulary_of_what_is_no_text_is_refused(tmp_path, content):
    (tmp_path / "text").write_bytes(content)
    with pytest.raises(ValueError, match=f"{tmp_path}/text(: byte 3 is not UTF-8;| has no word)"):
        model.learn_vocabulary([str(tmp_path / "text")], vocab_size=800)
    with pytest.raises(ValueError, match="no text to learn a vocabulary from"):
        model.learn_vocabulary([], vocab_size=800)


def test_a_second_demo_in_a_folder_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["demo", f"--output_dir={tmp_path}/demo", "--seed=1"])
    monkeypatch.chdir(tmp_path)  # the demo leaves it
    lock = locks.DirectoryLock(tmp_path, file_name=".demo.lock")
    assert lock.acquire()
    assert the_demo.main() == 1
    assert "another demo works in it; name another --output_dir" in capsys.readouterr().err
    assert not locks.DirectoryLock(tmp_path, file_name=".demo.lock").acquire()  # still held
    assert not (tmp_path / "demo").exists()
    lock.release()


def test_what_trains_the_demo_again_ends_in_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "seed_1").mkdir()
    (tmp_path / "seed_1" / "thesis.txt").touch()
    monkeypatch.setattr(sys, "argv", ["it", f"--output={tmp_path}"])
    assert convergence.main() == 1
    assert capsys.readouterr().err == f"convergence: {tmp_path}/seed_1 {OTHER}\n"


def test_a_variant_is_trained_in_a_folder_of_any_name(tmp_path, monkeypatch):
    folder = tmp_path / "a b"

    def ran(steps, start):
        [(_, command)] = steps
        run = folder / "run" / "float32"
        assert shlex.split(command)[-1] == f"--output_dir={run}"
        run.mkdir(parents=True)
        lines = [
            json.dumps({"kind": "eval", "samples": n, "loss": 1.0, "masked_lm_accuracy": accuracy})
            for n, accuracy in ((64, 0.7), (128, 0.74))
        ]
        (run / "metrics.jsonl").write_text("\n".join(lines))

    monkeypatch.setattr(the_demo, "run_steps", ran)
    found = convergence.train(folder, 1, "float32")
    assert found["samples"] == pytest.approx(96)


COMMANDS = Path(__file__).with_name("demo_commands.txt")
"""What the demo runs in the folder TO, with the masks of the reference."""


def test_demo_uses_the_public_commands_in_a_folder_of_any_name(tmp_path, repository):
    folder = tmp_path / "a b"
    (folder / "cleaned").mkdir(parents=True)
    for number in range(2):
        (folder / "cleaned" / f"part-{number}").touch()
    steps = [*the_demo.data_steps(folder, 7), the_demo.training_step(folder, 7)]
    steps += the_demo.verdict_steps(folder)
    found = [shlex.split(command) for _, command in steps]
    told = [[word.replace(str(folder), "TO") for word in words] for words in found]
    assert told == [command.split() for command in COMMANDS.read_text().splitlines()]
    scripts = {word for words in found for word in words if word.endswith((".py", ".sh"))}
    assert len(scripts) == 4 and all((repository / script).is_file() for script in scripts)


def test_steps_run_by_this_python_from_the_root_until_one_fails(tmp_path, repository, capfd):
    told = "python -c \"import os, sys; print(sys.prefix, os.getcwd(), os.environ['PYTHON'])\""
    steps = iter([("first", told), ("second", "exit 1"), ("third", f"touch {tmp_path}/ran")])
    with pytest.raises(ValueError, match="the last step failed with exit code 1"):
        the_demo.run_steps(steps, time.monotonic())
    _, title, command, printed, *_ = capfd.readouterr().out.splitlines()
    assert (title, command) == ("[  0 s] first", f"$ {told}")
    assert printed == f"{sys.prefix} {repository} {sys.executable}"
    assert not (tmp_path / "ran").exists()


OTHER = "holds other things: name an empty --output_dir"


@pytest.mark.parametrize(
    "name, seed, message",
    [
        ("thesis.txt", 1, OTHER),
        # The training would refuse it minutes later.
        *((the_demo.MARK_FILE, seed, f"seed {seed}: give a number from 0 to 4294967295")
          for seed in (-1, 2**32)),
    ],
)  # fmt: skip
def test_what_the_demo_has_not_made_stays_and_so_does_all_if_it_cannot_run(
    tmp_path, name, seed, message
):
    for each in (name, "report.png"):
        (tmp_path / each).touch()
    with pytest.raises(ValueError, match=message):
        the_demo.run_demo(tmp_path, seed=seed)
    with pytest.raises(ValueError, match="is not a folder: name an empty --output_dir"):
        the_demo.run_demo(tmp_path / name, seed=1)
    assert {path.name for path in tmp_path.iterdir()} == {name, "report.png"}


@pytest.mark.parametrize(
    "status, flags, seed",
    [
        ("success", [], ["--seed=0"]),
        ("success", ["--runtime=jax"], [f"--seed={2**32 - 1}"]),
        ("aborted", [], []),
    ],
)
def test_seed_and_runtime_are_handed_on_and_a_run_that_misses_the_target_fails(
    tmp_path, monkeypatch, capsys, status, flags, seed
):
    folder, words = tmp_path / "demo", []
    folder.mkdir()
    for name in (the_demo.MARK_FILE, "of an earlier demo"):
        (folder / name).touch()

    def ran(steps, start):
        words.extend(word for _, command in steps for word in shlex.split(command))
        (folder / "run").mkdir(exist_ok=True)
        (folder / "run" / "bert.log").write_text("its log")
        (folder / "run" / "run.json").write_text(f'{{"status": "{status}"}}')

    monkeypatch.setattr(the_demo, "run_steps", ran)
    monkeypatch.setattr(sys, "argv", ["demo", f"--output_dir={folder}", *seed, *flags])
    monkeypatch.chdir(tmp_path)  # the demo leaves it
    assert the_demo.main() == (status != "success")
    assert [word for word in words if word.startswith("--runtime")] == flags
    assert (folder / "results" / "result_0.txt").read_text() == "its log"
    [taken] = {word for word in words if word.startswith("--seed=")}
    assert seed in ([taken], []) and 0 <= int(taken.removeprefix("--seed=")) < 2**32
    assert (folder / the_demo.MARK_FILE).exists()
    assert not (folder / "of an earlier demo").exists()
    printed = capsys.readouterr()
    assert f"{folder}/report.png" in printed.out  # drawn all the same
    missed = "demo: the training ended with status aborted: it did not reach the target\n"
    assert printed.err == (missed if status == "aborted" else "")


@pytest.mark.all
@pytest.mark.parametrize("runtime", ["tensorflow", "jax"])
def test_demo_reaches_the_target(tmp_path, runtime):
    folder = tmp_path / "demo"
    words = [sys.executable, "-m", "demo", "--seed=1", f"--output_dir={folder}"]
    finished = programs.run(*words, f"--runtime={runtime}", check=True)
    assert f" by {runtime} " in (folder / "run" / "bert.log").read_text().lower()
    assert (folder / the_demo.MARK_FILE).exists()
    assert (folder / "report.png").read_bytes().startswith(b"\x89PNG")
    [result] = re.findall(r"^RESULT,bert,1,.*$", finished.stdout, re.M)
    *_, status, accuracy, samples = result.split(",")
    assert (status, float(accuracy) >= 0.720, int(samples) % 6400) == ("success", True, 0)
    for ruleset in ("1.0.0", "3.1.0", "4.1.0", "5.0.0"):
        assert check_log(folder / "results" / "result_0.txt", ruleset).passed
