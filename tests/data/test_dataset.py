"""Whole data sets: resumable, verified, all or nothing. CPU, about a minute.

Oracle: what create_pretraining_data.py makes of each part alone, which other tests compare with
the reference.

Long because one command has many ways to be disturbed.
"""

import concurrent.futures
import functools
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import create_pretraining_data
from mlperf_bert import options
from mlperf_bert.data import dataset, parts, published, tfrecord
from mlperf_bert.data.dataset import DatasetConfig
from mlperf_bert.data.examples import expand_input, write_examples
from mlperf_bert.files.locks import DirectoryLock
from mlperf_bert.messages import Problems
from mlperf_bert.mlperf.convergence import reference_points
from tests.data.generated_wiki import sentences, vocabulary
from tests.data.making import clean_up
from tests.helpers import called, starts

FLAGS = {"max_seq_length": 32, "max_predictions_per_seq": 5, "dupe_factor": 2}
NUM_PARTS = 20
ALL_FILES = {"part-0", "part-1", "part-2", "parts.json"}


def command(work, **flags) -> list[str]:
    flags = {
        "input_file": f"{work}/part-*",
        "output_dir": work / "out",
        "vocab_file": work / "vocab.txt",
        "nworker": 2,
        **FLAGS,
        **flags,
    }
    given = (f"--{name}={value}" for name, value in flags.items() if value is not None)
    return [sys.executable, "create_pretraining_data.py", *given]


def config_of(**flags) -> DatasetConfig:
    """How a data set is made by these flags and the defaults of the others."""
    defaults = {name: about.default for name, about in options.flags_of(DatasetConfig).items()}
    return DatasetConfig(**options.values_of(DatasetConfig, defaults | flags, {}))


def run(work, *, check: bool = False, **flags) -> subprocess.CompletedProcess:
    return starts.run(command(work, **flags), check=check)


def parts_of(work) -> dict[str, parts.File]:
    """Each part that the record of out/ has."""
    data_set = parts.read(work / "out").get(parts.PARTS)
    return data_set.files if data_set else {}


def visible(folder) -> set[str]:
    return {path.name for path in folder.iterdir()} - {".lock"}


def fails(done) -> str:
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.gate
def test_each_part_is_what_it_is_alone(work):
    done = run(work, check=True)
    assert visible(work / "out") == ALL_FILES
    config = config_of(vocab_file=str(work / "vocab.txt"), **FLAGS)
    for name, part in parts_of(work).items():
        write_examples(
            [f"{work}/{name}"], [work / "one"], config.tokenizer(), config.instances, silent=True
        )
        assert (work / "one").read_bytes() == (work / "out" / name).read_bytes()
        assert part.examples == tfrecord.count_records(work / "one")
    assert "3 parts made" in done.stdout and "2,414,421" in done.stdout
    run(work, verify=True, check=True)


def in_turn(missing, folder, tokenizer, config):
    """A `Make` in this process, the last part first: parts end in any order."""
    for name, path in reversed(missing.items()):
        yield name, dataset.make_part(path, folder / name, tokenizer, config)


def write(work, make=in_turn, *, out="out", **flags) -> tuple[parts.DataSet, list[str]]:
    """Makes the parts of a folder."""
    config = config_of(vocab_file=str(work / "vocab.txt"), **FLAGS | flags)
    texts = expand_input(f"{work}/part-*")
    return dataset.write_dataset(texts, work / out, config, make)


def contents(folder) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in visible(folder)}


def rewrite(path, content: bytes, *, seconds: int) -> None:
    """Changes a file so many seconds after the record was written, or before."""
    path.write_bytes(content)
    recorded = path.parents[path.parent.name == "out"] / "out" / parts.NAME
    os.utime(path, (recorded.stat().st_mtime + seconds,) * 2)


def test_a_rerun_makes_what_the_record_does_not_have(work, monkeypatch):
    for number in range(3, 7):
        (work / f"part-{number}").write_bytes(sentences(number + 1, 4).encode())
    out, names = work / "out", [f"part-{number}" for number in range(7)]
    monkeypatch.setenv("MLPERF_BERT_COMMIT", "first")
    first, made = write(work)
    assert made == names and {parts.PARTS: first} == parts.read(out)
    assert list(parts.read(out)[parts.PARTS].files) == names
    assert first.inputs == {name: parts.describe(work / name) for name in names}
    assert first.files == {
        name: parts.describe(out / name, examples=tfrecord.count_records(out / name))
        for name in names
    }
    before = {name: (out / name).read_bytes() for name in names}
    flipped = {name: content[:50] + b"x" + content[51:] for name, content in before.items()}

    (out / "part-1").unlink()
    rewrite(out / "part-2", before["part-2"] + b"x", seconds=-9)  # a size is always looked at
    rewrite(out / "part-3", flipped["part-3"], seconds=9)
    rewrite(out / "part-6", flipped["part-6"], seconds=-9)  # older than the record: not read again
    changed = "its content has changed since it was recorded (MD5)"
    size = len(before["part-2"])
    assert published.verify(out) == [
        f"{out}/{told}; remove it and run again"
        for told in (
            "part-1: missing", f"part-2: {size + 1:,} bytes, {size:,} were recorded",
            f"part-3: {changed}", f"part-6: {changed}",
        )
    ]  # fmt: skip

    text = (work / "part-4").read_bytes()
    rewrite(work / "part-4", text.swapcase(), seconds=9)
    rewrite(work / "part-5", (work / "part-5").read_bytes(), seconds=9)
    monkeypatch.setenv("MLPERF_BERT_COMMIT", "second")
    assert write(work)[1] == names[1:5]
    again = parts.read(out)[parts.PARTS]
    assert [path.read_bytes() for path in sorted(out.glob("part*[0-35]"))] == [
        before[name] for name in names if name not in ("part-4", "part-6")
    ]
    assert again.inputs == first.inputs | {"part-4": parts.describe(work / "part-4")}
    assert again.made_with == first.made_with | {"commit": "second"}
    assert write(work)[1] == []


def test_a_sample_is_the_first_examples_of_each_part(work):
    whole, _ = write(work)
    few, made = write(work, out="few", examples_per_part=7)
    assert [few.files[name].examples for name in made] == [7] * 3 and whole.files[
        "part-0"
    ].examples > 7
    for name in made:
        content = (work / "few" / name).read_bytes()
        assert (work / "out" / name).read_bytes().startswith(content)
        assert tfrecord.count_records(work / "few" / name) == 7
    told = dataset.summary(few, num_made=3, seconds=1, samples_needed={})
    assert "(the first 7 examples of each part: a uniform sample, not fit for a submission)" in told


def test_the_summary_counts_parts_bytes_and_passes():
    files = {
        name: parts.File(bytes=number * 1000, md5="", examples=number)
        for name, number in (("a", 2), ("b", 3), ("c", 45))
    }
    data_set = parts.DataSet(parameters={"examples_per_part": 0}, inputs={}, files=files)
    told = dataset.summary(data_set, num_made=1, seconds=7.25, samples_needed={448: 125, 8: 20})
    assert told.splitlines() == [
        "3 parts, 50 examples, 50,000 bytes (whole parts)",
        "1 parts made in 7.2 s, 2 were there already",
        "a run needs on average, by global batch size, so many samples, or passes over these:",
        "         8:          20        0.40",
        "       448:         125        2.50",
    ]


def slow_or_empty(path, output, *_):
    """Stands for `make_part`."""
    if output.name == "part-1":
        time.sleep(60)  # this worker is ended
    output.write_bytes(b"")
    return (parts.describe(Path(path)),) * 2


@pytest.mark.usefixtures("worker_processes")
def test_no_worker_writes_once_the_folder_is_unlocked(work, monkeypatch):
    def full(folder, name, data_set):
        if data_set.files:
            raise OSError("the disk is full")

    monkeypatch.setattr(dataset, "make_part", slow_or_empty)
    monkeypatch.setattr(dataset, "warm_up", lambda *_: None)
    monkeypatch.setattr(parts, "write", full)
    with pytest.raises(OSError, match="the disk is full"):
        write(work, functools.partial(dataset.make_in_processes, workers=2))
    assert not (work / "out" / "part-1").exists()


def full_or_slow(path, output, *_):
    """Stands for `make_part`."""
    if output.name == "part-0":
        return "No space left on device"
    time.sleep(0.02)
    return (parts.describe(Path(path)),) * 2


def test_workers_are_as_many_as_are_asked_for_and_begin_nothing_on_a_full_disk(work, monkeypatch):
    asked = []

    def pool(number: int) -> concurrent.futures.Executor:
        asked.append(number)
        return concurrent.futures.ThreadPoolExecutor(1)

    monkeypatch.setattr(dataset.stages, "process_pool", pool)
    monkeypatch.setattr(dataset, "make_part", full_or_slow)
    monkeypatch.setattr(dataset, "warm_up", lambda *_: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(5)))
    inputs = {f"part-{number}": f"{work}/part-0" for number in range(20)}
    for workers in (0, 3, 99):
        made = list(dataset.make_in_processes(inputs, work, None, config_of(), workers=workers))
        assert made[0] == ("part-0", "No space left on device") and len(made) < 10
    assert asked == [5, 3, 20]


def test_other_parameters_and_foreign_files_are_refused(work, monkeypatch):
    write(work)
    with pytest.raises(ValueError, match="made with dupe_factor=2, now it is 3; choose"):
        write(work, dupe_factor=3)
    (work / "vocab.txt").write_bytes(vocabulary(1).encode() + b"more\n")
    with pytest.raises(ValueError, match="made with vocab_md5="):
        write(work)
    (work / "out" / parts.NAME).unlink()
    with pytest.raises(ValueError, match="holds part-0, and no record of its origin"):
        write(work)
    (work / "out" / parts.NAME).write_text('{"parts": {}}')
    with pytest.raises(ValueError, match=r"parts.json: damaged \(lacks"):
        write(work)
    monkeypatch.setattr(dataset, "LOCK_PATIENCE_SECONDS", 0.1)
    lock = DirectoryLock(work / "out")
    assert lock.acquire()
    started = time.monotonic()
    with pytest.raises(ValueError, match="another process writes here"):
        write(work)
    assert time.monotonic() - started > 0.1  # the workers of a killed run keep it for a moment
    lock.release()


def test_one_failed_part_is_named_and_the_others_are_kept(work):
    (work / "part-1").write_bytes(b"good\n\xff\n")
    (work / "part-2").write_bytes(b"\n \n")
    done = run(work)
    ends = re.findall(r"(?m)^(part-\d): (\w+), (\d) to go$", done.stderr)
    assert [left for _, _, left in ends] == ["2", "1", "0"]
    states = {name: state for name, state, _ in ends}
    assert states == {"part-0": "done", "part-1": "failed", "part-2": "failed"}
    message = fails(done)
    assert "2 of 3 parts failed" in message
    assert "part-1" in message and "byte 5 is not UTF-8" in message
    assert "part-2" in message and "no document" in message
    assert visible(work / "out") == {"part-0", "parts.json"}
    assert set(parts_of(work)) == {"part-0"}


def test_a_full_disk_leaves_nothing_half_written(work, small_disk):
    write(work)
    sizes = [(work / "out" / f"part-{n}").stat().st_size for n in range(3)]
    out = small_disk(sum(sizes[:2]) // 1024 + 40)  # the record and two parts fit in
    full = "No space left on device; make room and repeat the command"
    message = fails(run(work, output_dir=out, nworker=1))
    assert "1 of 3 parts failed" in message and f"part-2: {full}" in message
    assert visible(out) == {"part-0", "part-1", "parts.json"}
    assert list(parts.read(out)[parts.PARTS].files) == ["part-0", "part-1"]
    one = run(work, output_dir=None, output_file=out / "one", nworker=None)
    assert "No space left on device" in fails(one)
    assert visible(out) == {"part-0", "part-1", "parts.json"}


FILE = {"output_dir": None, "output_file": "{}/x", "nworker": None}
USAGE = [
    ({"output_dir": None}, "give either --output_file or --output_dir"),
    ({"output_file": "{}/x"}, "give either --output_file or --output_dir"),
    ({"vocab_file": None}, "--vocab_file must be given"),
    ({"vocab_file": None, "input_file": None}, "--input_file and --vocab_file must be given"),
    ({"vocab_file": "gs://b/v"}, "--vocab_file=gs://b/v: give a local path, and copy"),
    ({"output_dir": "gs://b/o"}, "--output_dir=gs://b/o: give a local path, and copy"),
    ({"verify": True, "vocab_file": None}, "{}/out: no parts.json; make the data with"),
    ({"beam_options": "--x"}, "--beam_options needs Apache Beam: pip install apache-beam"),
    (FILE | {"examples_per_part": 2}, "--examples_per_part needs --output_dir, whose record"),
    (FILE | {"verify": True}, "--verify needs --output_dir, the folder of the parts"),
]


def create(work, **flags) -> None:
    """As `run`, in this process."""
    flags = {"input_file": f"{work}/part-*", "vocab_file": f"{work}/vocab.txt"} | FLAGS | flags
    configurations = dataset.Request, DatasetConfig
    called.main_of(create_pretraining_data, *configurations, **{"output_dir": work / "out"} | flags)


@pytest.mark.parametrize(("flags", "message"), USAGE)
def test_usage_errors(work, monkeypatch, flags, message):
    monkeypatch.setitem(sys.modules, "mlperf_bert.data.beam_pipeline", None)  # as without Beam
    given = {n: f.format(work) if isinstance(f, str) else f for n, f in flags.items()}
    with pytest.raises(ValueError, match=f"^{re.escape(message.format(work))}"):
        create(work, **given)
    assert not (work / "out").exists() and not (work / "x").exists()


def test_the_command_makes_verifies_and_names_what_has_changed(work, monkeypatch, capsys):
    """By a `Make` in this process; the others are in the tests of whole starts."""
    told = []

    def make(*given, workers):
        told.append(workers)
        return in_turn(*given)

    monkeypatch.setattr(create_pretraining_data, "make_in_processes", make)
    create(work, nworker=3)
    first, _, _, *passes = capsys.readouterr().out.splitlines()
    assert first.startswith("3 parts, ") and told == [3]
    points = reference_points().items()
    assert [line.split()[:2] for line in passes] == [
        [f"{size}:", f"{point.mean_samples:,.0f}"] for size, point in sorted(points)
    ]
    monkeypatch.undo()
    create(work)
    assert " 0 parts made in " in capsys.readouterr().out.replace("\n", " ")
    create(work, verify=True)
    assert capsys.readouterr().out == f"{work}/out: all parts are as recorded\n"
    (work / "out" / "part-1").unlink()
    with pytest.raises(Problems, match=r"out/part-1: missing; remove it and run again"):
        create(work, verify=True)


@pytest.mark.parametrize(
    ("output_file", "message"),
    [
        ("one,./one", "--output_file=one: is the same file as --output_file="),
        ("one,", "--output_file=one,: '' is no file; name one"),
        (".", "--output_file=.: '.' is no file; name one"),
        ("no/one", "--output_file: no/one: there is no folder no; make it"),
        ("gs://b/one", "--output_file=gs://b/one: give a local path, and copy"),
        ("other,text", "--output_file=text: is an input too; name another file"),
    ],
)
def test_what_cannot_be_an_output_is_refused(tmp_path, monkeypatch, output_file, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        create_pretraining_data._outputs(output_file, ["text"])


def test_the_flags_of_words_reach_the_tokenizer(work):
    given = {"do_lower_case": False, "preserve_unused_tokens": True}
    tokenizer = config_of(vocab_file=f"{work}/vocab.txt", **given).tokenizer()
    assert {name: getattr(tokenizer, name) for name in given} == given


def test_two_texts_of_one_name_are_refused(tmp_path):
    """The part of one would replace that of the other."""
    with pytest.raises(ValueError, match=r"^--input_file: two files have one name; "):
        dataset.write_dataset(["a/part-0", "b/part-0"], tmp_path / "out", config_of(), dict)
    assert not (tmp_path / "out").exists()


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


def official(**sizes) -> parts.DataSet:
    """The published figures; parts of unknown size share what is left of the total."""
    known = {n: s for n, s in published.PUBLISHED_RECORD_BYTES.items() if n.startswith("part")}
    unknown = sorted(published.PUBLISHED_PARTS - set(known))
    left = published.PUBLISHED_TOTAL_BYTES - sum(known.values())
    expected = dict.fromkeys(unknown, left // len(unknown)) | known
    expected[unknown[0]] += left % len(unknown)
    texts = {name: published.PUBLISHED_TEXT.get(name, "") for name in expected}
    sizes = expected | {"another-part": 7} | sizes
    return parts.DataSet(
        parameters={"examples_per_part": 0, **published.PUBLISHED_LENGTHS},
        inputs={name: parts.File(bytes=1, md5=md5) for name, md5 in texts.items()},
        files={name: parts.File(bytes=size, md5="") for name, size in sizes.items()},
    )


def test_published_sizes_and_texts(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "difference", lambda *_: None)  # the 391 GB are not at hand

    def told(data_set: parts.DataSet, eval_bytes: int = 25_382_591) -> list[str]:
        parts.write(tmp_path, parts.PARTS, data_set)
        with (tmp_path / "eval_10k").open("wb") as file:
            file.truncate(eval_bytes)
        return published.verify(tmp_path)

    assert told(official()) == []
    assert told(official(), 5) == ["eval_10k: 5 bytes, published are 25382591"]
    other = official(**{"part-00000-of-00500": 514_241_280})
    assert told(other) == [
        "part-00000-of-00500: 514241280 bytes, published are 514241279",
        "all parts: 391434110130 bytes, published are 391434110129",
    ]
    other.parameters.update(max_seq_length=128)  # sizes are published for one length
    other.inputs["part-00001-of-00500"] = parts.File(bytes=1, md5="of another text")
    assert told(other) == [
        "part-00001-of-00500: made from a text with MD5 of another text, published is "
        "549a9ed4f805257245bec936563abfd0"
    ]
    other.parameters["examples_per_part"] = 7  # of samples nothing is published
    assert told(other) == []


@pytest.mark.all
def test_killed_at_any_moment_a_rerun_ends_as_an_undisturbed_run(tmp_path):
    """20 parts, SIGKILL at 20 random moments over the life of a run, then one run to the end."""
    (tmp_path / "vocab.txt").write_bytes(vocabulary(1).encode())
    for number in range(NUM_PARTS):
        (tmp_path / f"part-{number:02}").write_bytes(sentences(number).encode() * 4)
    run(tmp_path, output_dir=tmp_path / "warm", check=True)  # imports and compiles
    started = time.monotonic()
    run(tmp_path, output_dir=tmp_path / "calm", check=True)
    duration = time.monotonic() - started
    rng = random.Random(1)
    num_killed = 0
    for _ in range(20):
        process = starts.Start(command(tmp_path))
        time.sleep(rng.uniform(0.3, 1.1) * duration)
        num_killed += process.poll() is None
        process.kill()
        process.wait()
        if rng.random() < 0.5:  # so that later runs have work left to be killed in
            for path in sorted((tmp_path / "out").glob("part-*")):
                if rng.random() < 0.7:
                    path.unlink()
    assert num_killed >= 5
    run(tmp_path, check=True)
    assert contents(tmp_path / "out") == contents(tmp_path / "calm")


@pytest.mark.parametrize("script", ["create_pretraining_data", "pick_eval_samples"])
def test_the_scripts_are_also_where_the_reference_keeps_them(tmp_path, script):
    done = clean_up(f"{script}.py", "--help", folder=tmp_path)
    assert "--max_predictions_per_seq" in done.stdout and not done.stderr


DIRECT = "--runner=DirectRunner"


@pytest.mark.all
@pytest.mark.parametrize("options", [DIRECT, f"{DIRECT} --direct_num_workers=2"])
def test_the_direct_runner_of_beam_makes_the_same_bytes(work, options):
    run(work, output_dir=work / "pool", check=True)
    text = (work / "part-1").read_bytes()
    (work / "part-1").write_bytes(b"good\n\xff\n")
    message = fails(run(work, beam_options=options))
    assert "1 of 3 parts failed" in message and f"{work}/part-1: byte 5 is not UTF-8" in message
    assert visible(work / "out") == {"part-0", "part-2", "parts.json"}
    (work / "part-1").write_bytes(text)
    assert "1 parts made" in run(work, beam_options=options, check=True).stdout
    assert contents(work / "out") == contents(work / "pool")
