"""Whole data sets: resumable, verified, all or nothing. CPU, about a minute.

Oracle: what create_pretraining_data.py makes of each part alone, which other tests compare with
the reference.

Long because one command has many ways to be disturbed.
"""

import dataclasses
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from mlperf_bert.data import provenance, published, tfrecord
from mlperf_bert.data.dataset import make_part, write_dataset
from mlperf_bert.files.locks import DirectoryLock
from tests.data.generated_wiki import sentences, vocabulary
from tests.data.making import (
    clean_up,
    command,
    config_of,
    fails,
    parts_of,
    request_of,
    run,
    visible,
)
from tests.helpers import starts, waiting

NUM_PARTS = 20
ALL_FILES = {"part-0", "part-1", "part-2", "provenance.json"}


@pytest.mark.gate
def test_each_part_is_what_it_is_alone(work):
    done = run(work)
    assert done.returncode == 0, done.stderr
    assert visible(work / "out") == ALL_FILES
    for name, (_, part) in parts_of(work).items():
        one = {"input_file": work / name, "output_file": work / "one"}
        alone = run(work, **one, output_dir=None, nworker=None)
        assert alone.returncode == 0, alone.stderr
        assert (work / "one").read_bytes() == (work / "out" / name).read_bytes()
        assert part.examples == tfrecord.count_records(work / "one")
    assert "3 parts made" in done.stdout and "2,414,421" in done.stdout
    assert run(work, verify=True).returncode == 0
    done = run(work, output_dir=work / "few", examples_per_part=7)
    assert done.returncode == 0 and "not fit for a submission" in done.stdout
    for name in parts_of(work):
        few = work / "few" / name
        assert (work / "out" / name).read_bytes().startswith(few.read_bytes())
        assert tfrecord.count_records(few) == 7


@pytest.mark.gate
def test_a_rerun_makes_only_what_is_missing_or_differs(work):
    assert run(work).returncode == 0
    before = parts_of(work)
    kept = (work / "out" / "part-0").stat().st_mtime_ns
    (work / "out" / "part-1").unlink()
    with (work / "out" / "part-2").open("ab") as file:
        file.truncate(100)
    done = run(work)
    assert done.returncode == 0 and "2 parts made" in done.stdout
    assert parts_of(work) == before
    assert (work / "out" / "part-0").stat().st_mtime_ns == kept
    assert run(work, verify=True).returncode == 0


@pytest.mark.all
def test_a_rerun_notices_content_changed_since(work):
    assert run(work).returncode == 0
    before = parts_of(work)
    damaged = work / "out" / "part-1"
    content = bytearray(damaged.read_bytes())
    content[50] ^= 1
    damaged.write_bytes(content)  # of the same size
    text = (work / "part-2").read_bytes()
    (work / "part-2").write_bytes(text)  # newer, but equal
    (work / "part-0").write_bytes((work / "part-0").read_bytes().swapcase())
    done = run(work)
    assert done.returncode == 0 and "2 parts made" in done.stdout
    after = parts_of(work)
    assert after["part-0"][0].digest != before["part-0"][0].digest
    assert after["part-1"] == before["part-1"] and after["part-2"] == before["part-2"]
    assert run(work, verify=True).returncode == 0


@pytest.mark.gate
def test_verify_tells_every_disagreement(work):
    assert run(work).returncode == 0
    (work / "out" / "part-0").unlink()
    (work / "out" / "part-1").write_bytes(b"short")
    data = bytearray((work / "out" / "part-2").read_bytes())
    data[50] ^= 1
    (work / "out" / "part-2").write_bytes(data)
    done = run(work, verify=True)
    assert done.returncode == 1
    for message in (
        "3 problems", "part-0: missing; remove it and run again", "part-1: 5 bytes, ",
        "part-2: its content has changed since it was recorded (sha256); remove it and run",
    ):  # fmt: skip
        assert message in done.stderr


def test_other_parameters_and_foreign_files_are_refused(work):
    assert run(work).returncode == 0
    assert "made with dupe_factor=2, now it is 3" in fails(run(work, dupe_factor=3))
    (work / "vocab.txt").write_bytes(vocabulary(1).encode() + b"more\n")
    assert "made with vocab_md5=" in fails(run(work))
    (work / "out" / provenance.NAME).unlink()
    assert "holds part-0, and no record of its origin" in fails(run(work))
    (work / "out" / provenance.NAME).write_text("{}")
    assert "provenance.json: damaged (lacks" in fails(run(work))


def test_one_failed_part_is_named_and_the_others_are_kept(work):
    (work / "part-1").write_bytes(b"good\n\xff\n")
    (work / "part-2").write_bytes(b"\n \n")
    message = fails(run(work))
    assert "2 of 3 parts failed" in message
    assert "part-1" in message and "byte 5 is not UTF-8" in message
    assert "part-2" in message and "no document" in message
    assert visible(work / "out") == {"part-0", "provenance.json"}
    assert set(parts_of(work)) == {"part-0"}


@pytest.mark.all
def test_a_killed_worker_ends_the_command_and_what_is_done_is_kept(repository, work):
    words = [sys.executable, "-c", STOPPED, *command(work, nworker=1)[2:]]
    with subprocess.Popen(words, cwd=repository, stderr=subprocess.PIPE, text=True) as running:
        waiting.until((work / "worker").exists, running)
        os.kill(int((work / "worker").read_text()), signal.SIGKILL)
        errors = running.stderr.read()
    assert running.returncode == 1 and "Traceback" not in errors
    assert "a process was killed, perhaps for lack of memory; lower --nworker and run" in errors
    assert {path.name for path in (work / "out").glob("*part*[0-9]")} == {"part-0"}
    assert "2 parts made" in run(work).stdout


@pytest.mark.gate
def test_a_full_disk_leaves_nothing_half_written(work, small_disk):
    assert run(work, output_dir=work / "warm").returncode == 0
    sizes = [(work / "warm" / f"part-{n}").stat().st_size for n in range(3)]
    out = small_disk(sum(sizes[:2]) // 1024 + 40)  # the record and two parts fit in
    message = fails(run(work, output_dir=out, nworker=1))
    assert "1 of 3 parts failed" in message
    assert "part-2: No space left on device; make room and repeat the command" in message
    assert visible(out) == {"part-0", "part-1", "provenance.json"}
    one = run(work, output_dir=None, output_file=out / "one", nworker=None)
    assert "No space left on device" in fails(one)
    assert visible(out) == {"part-0", "part-1", "provenance.json"}


@pytest.mark.all
def test_usage_errors(work):
    assert "give either --output_file or" in fails(run(work, output_dir=None))
    assert "--vocab_file must be given" in fails(run(work, vocab_file=None))
    assert "examples_per_part=-1" in fails(run(work, examples_per_part=-1))
    assert "no provenance.json of parts" in fails(run(work, verify=True))
    (work / "more").mkdir()
    (work / "more" / "part-0").write_bytes(b"a\n")
    two = f"{work}/part-*,{work}/more/part-0"
    assert "two files have one name" in fails(run(work, input_file=two))
    only = run(work, output_dir=None, output_file=work / "x", examples_per_part=2)
    assert "needs --output_dir" in fails(only)
    for names, message in {
        "one,./one": "--output_file=one: is the same file as --output_file=one; name another",
        "one,": "--output_file=one,: '' is no file; name one",
        str(work): f"--output_file={work}: {str(work)!r} is no file; name one",
        "no/one": "--output_file=no/one: there is no folder no; make it",
    }.items():
        assert message in fails(run(work, output_dir=None, output_file=names))
    assert not (work / "one").exists()
    only = run(work, output_dir=None, output_file=work / "x", verify=True)
    assert "--verify needs --output_dir" in fails(only)


@pytest.mark.all
def test_two_runs_at_once_are_refused(work):
    lock = DirectoryLock(work / "out")
    assert lock.acquire()
    assert "another process writes here" in fails(run(work))
    lock.release()
    assert run(work).returncode == 0


def test_no_part_and_no_output_replaces_an_input(work):
    text = work / "out" / "part-1"
    text.parent.mkdir()
    text.write_bytes((work / "part-1").read_bytes())
    before = text.read_bytes()
    assert "out/part-1: is an input too; give another" in fails(run(work, input_file=text))
    assert text.read_bytes() == before
    output = {"output_dir": None, "output_file": work / "vocab.txt"}
    words = (work / "vocab.txt").read_bytes()
    assert "vocab.txt: is an input too; name another file" in fails(run(work, **output))
    assert (work / "vocab.txt").read_bytes() == words


STOPPED = """
import os, pathlib, signal, sys
import create_pretraining_data
from mlperf_bert import command_line
from mlperf_bert.data import dataset

write_examples = dataset.write_examples

def stopped(inputs, outputs, *rest, **named):
    if outputs[0].name == "part-1":
        (outputs[0].parent.parent / "worker").write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
    return write_examples(inputs, outputs, *rest, **named)

dataset.write_examples = stopped
command_line.run(create_pretraining_data.main, dataset.Request, dataset.DatasetConfig)
"""


@pytest.mark.all
def test_a_worker_that_outlives_a_killed_run_keeps_others_from_its_part(repository, work):
    killed = subprocess.Popen(
        [sys.executable, "-c", STOPPED, *command(work)[2:]],
        cwd=repository, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    waiting.until(lambda: (work / "worker").exists() and len(parts_of(work)) >= 2)
    worker = psutil.Process(int((work / "worker").read_text()))
    killed.kill()
    killed.wait()
    assert worker.status() == psutil.STATUS_STOPPED
    message = fails(run(work))
    assert f"1 of 3 parts failed, run again: part-1: {work}/out/part-1: another process" in message
    worker.kill()
    assert run(work).returncode == 0
    assert visible(work / "out") == ALL_FILES


def test_a_folder_may_have_the_name_of_a_scheme(work, monkeypatch):
    def make(missing, folder, tokenizer, config):
        for name, path in missing.items():
            yield {name: make_part(path, folder / name, tokenizer, config)}

    monkeypatch.chdir(work)
    config = config_of(vocab_file="vocab.txt")
    write_dataset(request_of(input_file="part-*", output_dir="./gs:out"), config, make)
    assert visible(work / "gs:out") == ALL_FILES


def official(**sizes) -> provenance.Record:
    """The published figures; parts of unknown size share what is left of the total."""
    known = {n: s for n, s in published.PUBLISHED_RECORD_BYTES.items() if n.startswith("part")}
    unknown = sorted(published.PUBLISHED_PARTS - set(known))
    left = published.PUBLISHED_TOTAL_BYTES - sum(known.values())
    expected = dict.fromkeys(unknown, left // len(unknown)) | known
    expected[unknown[0]] += left % len(unknown)
    texts = {name: published.PUBLISHED_TEXT.get(name, (1, ""))[1] for name in expected}
    return provenance.Record(
        step=provenance.PARTS,
        inputs=[provenance.File(path=n, bytes=1, digest=f"md5:{md5}") for n, md5 in texts.items()],
        outputs=[
            provenance.File(path=name, bytes=size, digest="")
            for name, size in (expected | sizes).items()
        ],
        parameters={"examples_per_part": 0, **published.PUBLISHED_LENGTHS},
        made_with={},
    )


@pytest.fixture
def nothing_is_read(monkeypatch):
    """The 391 GB are not at hand."""
    monkeypatch.setattr(provenance, "difference", lambda *_: None)


@pytest.mark.parametrize(
    ("sizes", "eval_bytes", "messages"),
    [
        ({}, 25_382_591, []),
        ({}, 5, ["eval_10k: 5 bytes, published are 25382591"]),
        (
            {"part-00000-of-00500": 514_241_280},
            25_382_591,
            [
                "part-00000-of-00500: 514241280 bytes, published are 514241279",
                "all parts: 391434110130 bytes, published are 391434110129",
            ],
        ),
    ],
)
def test_published_sizes(tmp_path, nothing_is_read, sizes, eval_bytes, messages):
    provenance.add(tmp_path, official(**sizes))
    with (tmp_path / "eval_10k").open("wb") as file:
        file.truncate(eval_bytes)
    assert published.verify(tmp_path) == messages


def test_sizes_are_published_for_one_length_of_records(tmp_path, nothing_is_read):
    made = official(**{"part-00000-of-00500": 5})
    made.parameters.update(max_seq_length=128, max_predictions_per_seq=20)
    provenance.add(tmp_path, made)
    assert published.verify(tmp_path) == []
    [place] = [n for n, text in enumerate(made.inputs) if text.path == "part-00001-of-00500"]
    made.inputs[place] = dataclasses.replace(made.inputs[place], digest="md5:of another text")
    provenance.add(tmp_path, made)
    assert published.verify(tmp_path) == [
        "part-00001-of-00500: made from a text with md5:of another text, published is "
        "md5:549a9ed4f805257245bec936563abfd0"
    ]


@pytest.mark.soak
def test_killed_at_any_moment_a_rerun_ends_as_an_undisturbed_run(tmp_path):
    """20 parts, SIGKILL at 20 random moments over the life of a run, then one run to the end."""
    (tmp_path / "vocab.txt").write_bytes(vocabulary(1).encode())
    for number in range(NUM_PARTS):
        (tmp_path / f"part-{number:02}").write_bytes(sentences(number).encode() * 4)
    assert run(tmp_path, output_dir=tmp_path / "warm").returncode == 0  # imports and compiles
    started = time.monotonic()
    assert run(tmp_path, output_dir=tmp_path / "calm").returncode == 0
    duration = time.monotonic() - started
    rng = random.Random(1)
    num_killed = 0
    for _ in range(20):
        process = starts.Start(command(tmp_path))
        time.sleep(rng.uniform(0.3, 1.1) * duration)
        num_killed += process.poll() is None
        process.kill()
        process.wait()
        if rng.random() < 0.5 and (tmp_path / "out").is_dir():
            _lose_some_parts(rng, tmp_path / "out")
    assert num_killed >= 5
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    calm, out = tmp_path / "calm", tmp_path / "out"
    assert (out / provenance.NAME).read_bytes() == (calm / provenance.NAME).read_bytes()
    assert visible(out) == visible(calm)
    for name in parts_of(tmp_path):
        assert (out / name).read_bytes() == (calm / name).read_bytes()


def _lose_some_parts(rng: random.Random, folder: Path) -> None:
    """So that later runs have work left to be killed in."""
    for path in sorted(folder.glob("part-*")):
        if rng.random() < 0.7:
            path.unlink()


@pytest.mark.parametrize("script", ["create_pretraining_data", "pick_eval_samples"])
def test_the_scripts_are_also_where_the_reference_keeps_them(tmp_path, script):
    done = clean_up(f"{script}.py", "--help", folder=tmp_path)
    assert "--max_predictions_per_seq" in done.stdout and not done.stderr
