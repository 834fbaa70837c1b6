"""Every clean-up stage equals the reference byte for byte. Plain Python, seconds.

Two oracles: the recorded digests of the real sample, through the scripts as users call them; and
digests that the reference's scripts (Python 3.7.16, nltk 3.4.5, GNU sed and grep) gave for
generated text, which needs nothing from outside.

Long because the scripts of all stages are refused alike.
"""

import concurrent.futures
import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from mlperf_bert.data import articles, gathering, punkt, segmentation, stages, wiki
from tests.data.conftest import SMALL_TABLES
from tests.data.generated_wiki import wiki_text
from tests.data.making import clean_up, clean_up_sample
from tests.data.reference_figures import md5
from tests.fixtures import REPOSITORY
from tests.helpers import programs, waiting

# Recorded from the reference: generated file number -> MD5 of the text and of stages .1 to .4.
GENERATED = [
    "278450ed6d858967cf5508cea5925bae f85c4475fb772fee5a7f4f9ef6bdca1f "
    "cd0bb3a22836f2ab7504ffe1a1fa10f2 52ed676d9b5a57352266e1b9a9f2f84d "
    "fd5a66b29e42a2b3e9f3e9bc4d3e16bf",
    "84876ba295adb360106a5730030ef75a dfaadcdf5384a9ac469353895cf785bf "
    "e97563f8b55686d5911ea7103e553f7c d0100658851da34d34ff02685e35d444 "
    "02e8b6c9e59c61b8a8ead4c60f0f0785",
    "4738022af2342601dd3e4ea05575747a 3885aa5fe3bc7be40b041c11bc4d3e84 "
    "f1803c77649637ca09573cd6994aefdf e6b15de98bfd27d2ae051ad8b3ca02a2 "
    "675f82d389536b59eaa27f63598b893f",
    "ba996385b84c1f65b83a4980bf2ee6ce f96ab4df9b544a90f5bf9fa7a7c7b77e "
    "7a49d1dd855767c741b07b24ec79978c a5c21a884884d553f727b365ba4bfdc2 "
    "e83fd67542336c113d726ffece72e92c",
]
GENERATED_RESULTS = {
    "eval.md5": "f81bc610a714f38c7e958dd0d0f7555f",
    "eval.txt": "200dd97a5f8fbc2c8a6fb6dd7f6daf5d",
    "part-00000-of-00500": "ed56ab50cfebb8dc18a9ab9c32e329ac",
    "part-00001-of-00500": "4a51e9109fbb40102d5576f8d4d17511",
}


def test_generated_text_through_all_stages(tmp_path):
    files, eval_articles = [], []
    for index, digests in enumerate(GENERATED):
        name = str(tmp_path / f"wiki_{index:02d}")
        files.append(name)
        Path(name).write_bytes(wiki_text(index).encode())
        wiki.write_stage_1(name, f"{name}.1")
        wiki.write_stage_2(f"{name}.1", f"{name}.2")
        text = segmentation.split_lines(
            stages.read_text(f"{name}.2"), segmentation.SentenceSplitter(SMALL_TABLES)
        )
        Path(f"{name}.3").write_bytes(text.encode())
        count = gathering.num_test_articles_of(index, len(GENERATED), 17)
        seed = 12345 + gathering.SEED_STEP * index
        eval_articles += gathering.write_stage_4(f"{name}.3", f"{name}.4", count, seed)
        found = [md5(name), *(md5(f"{name}.{stage}") for stage in (1, 2, 3, 4))]
        assert found == digests.split(), name
    results = tmp_path / "results"
    gathering.write_test_set(eval_articles, str(results / "eval"))
    for number, names in gathering.plan(files, block_size_mb=0.1, num_workers=1).items():
        part = results / gathering.part_name(number, 500)
        gathering.write_part(str(part), [f"{name}.4" for name in names])
    assert {path.name: md5(path) for path in results.iterdir()} == GENERATED_RESULTS


def test_real_sample_through_the_script_in_a_folder_with_a_space(shared, tmp_path):
    work = shutil.copytree(shared / "data" / "wiki_sample", tmp_path / "with space")
    stages_md5 = clean_up_sample(shared, work)["stages_md5"]
    assert {name: md5(work / name) for name in stages_md5} == stages_md5
    leftovers = [p.name for p in work.rglob("*") if "partial" in p.name]
    assert not leftovers


def test_stage_2_keeps_what_is_no_utf_8(tmp_path):
    (tmp_path / "a").write_bytes(b"a \xff [b]\r\n\xfe")
    wiki.write_stage_2(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"a \xff b\r\n\xfe\n"


def test_clean_sh_on_one_file_equals_stage_2(tmp_path):
    given, made = tmp_path / "a b", tmp_path / "c"
    (tmp_path / "raw").write_bytes(wiki_text(0).encode())
    wiki.write_stage_1(tmp_path / "raw", given)
    clean_up("clean.sh", given, made, check=True)
    assert md5(made) == GENERATED[0].split()[2]


def words_of(folder: Path, script: str, *words: str, **environment: str) -> list[list[str]]:
    """What a script gives its Python, a list for each stage; its parent, and what glibc is told."""
    told = '"$PPID" "$MALLOC_TRIM_THRESHOLD_" "$MALLOC_MMAP_THRESHOLD_" "$@"'
    python = programs.stand_in(folder / "python", f"printf '%s\\n' {told}")
    own = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHON": str(python)}
    done = programs.run(script, *words, env=own | environment)
    assert (done.returncode, done.stderr) == (0, "")
    groups = itertools.groupby(done.stdout.splitlines(), "--".__eq__)
    return [list(words) for is_end, words in groups if not is_end]


SCRIPTS = REPOSITORY / "cleanup_scripts"
GIVEN = {
    "NUM_TEST_ARTICLES": "7", "BLOCK_SIZE": "0.5", "RESULTS": "r", "NWORKER": "3", "PUNKT": "p q",
    "TEXT_DIR": "t", "TEXT_COLUMN": "body", "MALLOC_TRIM_THRESHOLD_": "8",
    "MALLOC_MMAP_THRESHOLD_": "9",
}  # fmt: skip


@pytest.mark.parametrize(
    ("given", "glob"), [({}, "a/??/wiki_??"), *((GIVEN, f"a/*.{end}") for end in
     ("parquet", "json", "jsonl", "json.gz", "jsonl.gz", "json.zst", "jsonl.zst"))]
)  # fmt: skip
def test_the_whole_clean_up_is_these_stages_in_one_process(tmp_path, given, glob):
    """That of the script, so that a signal reaches it; with the benchmark's values."""
    value = {
        "NUM_TEST_ARTICLES": "10000", "BLOCK_SIZE": "26.92", "RESULTS": "./results",
        "NWORKER": str(len(os.sched_getaffinity(0))), "MALLOC_TRIM_THRESHOLD_": "100000000",
        "MALLOC_MMAP_THRESHOLD_": "100000000",
    } | given  # fmt: skip
    workers, raw = f"--nworker={value['NWORKER']}", "t/*/wiki_??????" if given else glob
    gather = [
        "do_gather.py", f"--data={raw}", "--input_suffix=.4", f"--block_size={value['BLOCK_SIZE']}",
        f"--out_dir={value['RESULTS']}",
    ]  # fmt: skip
    first, *stages = words_of(tmp_path, f"{SCRIPTS}/process_wiki.sh", glob, **given)
    of_glibc = [value["MALLOC_TRIM_THRESHOLD_"], value["MALLOC_MMAP_THRESHOLD_"]]
    assert first == [str(os.getpid()), *of_glibc, f"{SCRIPTS}/clean_up.py"]
    if given:
        extract, *stages = stages
        column = "--text_column=body"
        assert extract == ["extract_documents.py", f"--data={glob}", "--out_dir=t", workers, column]
    segment = ["do_sentence_segmentation.py", "--input_suffix=.2", "--output_suffix=.3", workers]
    assert [[*words[:1], *words[2:]] for words in stages[1:-1]] == [
        ["cleanup_file.py", "--output_suffix=.1", workers],
        ["clean.py", "--input_suffix=.1", "--output_suffix=.2", workers],
        segment + ["--punkt=p q"] * bool(given),
        ["seperate_test_set.py", "--input_suffix=.3", "--output_suffix=.4", workers,
         f"--num_test_articles={value['NUM_TEST_ARTICLES']}",
         f"--test_output={value['RESULTS']}/eval"],
    ]  # fmt: skip
    assert {words[1] for words in stages} == {f"--data={raw}"}
    assert stages[0] == [*gather, "--check"] and stages[-1] == gather


def test_an_exported_cdpath_leads_no_script_elsewhere(tmp_path):
    """bash would print the folder that `cd` finds by it."""
    expected = [str(os.getpid()), "", "", f"{SCRIPTS}/clean_up.py"]
    told = words_of(tmp_path, "cleanup_scripts/clean.sh", "a b", "c", CDPATH=str(REPOSITORY))
    assert told == [[*expected, "clean.py", "a b", "c"]]
    told = words_of(tmp_path, "cleanup_scripts/process_wiki.sh", "x", CDPATH=str(REPOSITORY))
    assert told[0][3] == f"{SCRIPTS}/clean_up.py"
    words = ("cleanup_scripts/download_and_uncompress.sh", f"--out_dir={tmp_path}", "punkt")
    [told] = words_of(tmp_path, *words, CDPATH=str(REPOSITORY))
    assert told[3:] == [f"{SCRIPTS}/clean_up.py", "punkt"]


ALL = {"num_workers": os.cpu_count() or 1}
DEFAULTS = {
    "cleanup_file.py": ("./wiki_??", [("a", "a.1"), ("b", "b.1")], ALL),
    "clean.py": ("./wiki_??", [("a.1", "a.2"), ("b.1", "b.2")], ALL),
    "do_sentence_segmentation.py": (
        "./*/*.compact", [("a.2", "a.3", "tables"), ("b.2", "b.3", "tables")], ALL),
    "seperate_test_set.py": (
        "./*/*.compact", [("a.3", "a.4", 5000, 12345), ("b.3", "b.4", 5000, 12358)],
        ALL | {"also_written": ["./results/eval.txt", "./results/eval.md5"]}),
    "do_gather.py": (
        "~/book-corpus-feb-stn/*/*.txt",
        [("HOME/book-corpus-large-gather/part-00000-of-00500", ["a.3", "b.3"])],
        {"num_workers": 1, "also_read": ["a", "b"]}),
    "extract_documents.py --data=x": (
        "x", [("a", "text/a", "text"), ("b", "text/b", "text")], ALL),
}  # fmt: skip


@pytest.mark.parametrize("command", DEFAULTS)
def test_a_stage_without_flags_does_this(tmp_path, monkeypatch, capsys, stage, command):
    """Of two raw files `a` and `b`."""
    pattern, jobs, options = DEFAULTS[command]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "HOME")
    given = []

    def run(function, jobs, *, description, **options):
        given.extend((list(jobs), options))
        return []

    monkeypatch.setattr(stages, "input_files", lambda *words: given.extend(words) or ["a", "b"])
    monkeypatch.setattr(stages, "run", run)
    monkeypatch.setattr(gathering, "write_test_set", lambda *_: None)
    monkeypatch.setattr(articles, "require_text", lambda _: None)
    monkeypatch.setattr(articles, "folders_of", lambda files, out: {f: f"{out}/{f}" for f in files})
    monkeypatch.setattr(punkt, "find_or_fetch", lambda folder: folder or "tables")
    monkeypatch.setattr(punkt, "not_published", lambda _: ["of another"])
    for name, size_bytes in (("a", 20 * 2**20), ("b", 12 * 2**20)):
        with Path(name).open("wb") as file:
            file.truncate(size_bytes)
    assert stage(*command.split()) == ""
    assert given == [pattern, jobs, options]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["clean.sh", "one"], r"usage: clean\.sh INPUT OUTPUT\n"),
        (["process_wiki.sh", "a", "b"], ".*quote the glob.*"),
        (["clean.py", "one"], ".*give INPUT and OUTPUT, or --data\n"),
    ],
)
def test_a_script_that_is_called_otherwise_says_how(words, message):
    done = clean_up(*words)
    assert done.returncode == 2 and re.fullmatch(message, done.stderr, re.DOTALL)


@pytest.mark.parametrize(
    "script",
    ["cleanup_file", "do_sentence_segmentation", "seperate_test_set", "do_gather",
     "extract_documents"],
)  # fmt: skip
def test_a_script_starts_the_stage_of_its_name_in_any_folder(tmp_path, script):
    done = clean_up(f"{script}.py", "--data=none", folder=tmp_path)
    told = f"{script}.py: --data=none: no file matches; quote the glob, and check the folder\n"
    assert (done.returncode, done.stderr) == (1, told)


def test_stages_in_one_process_end_with_the_first_that_fails(tmp_path):
    (tmp_path / "wiki_00.1").write_text("One.\n")
    data = f"--data={tmp_path}/wiki_00"
    done = clean_up("clean_up.py", "x", "--", "clean.py", data)
    assert done.returncode == 1 and done.stderr.startswith("clean_up.py: x: choose of punkt, ")
    (tmp_path / "wiki_00").touch()
    words = ["clean.py", data, "--", "seperate_test_set.py", data, "--", "cleanup_file.py", data]
    done = clean_up("clean_up.py", *words)
    assert done.returncode == 1 and "wiki_00.3: no such file" in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"wiki_00", "wiki_00.1", "wiki_00.2"}


def test_bad_input_is_one_line_and_leaves_no_output(tmp_path, stage):
    data = f"--data={tmp_path}/wiki_*"
    assert "no file matches" in stage("cleanup_file.py", data)

    (tmp_path / "wiki_00").write_bytes(b"good \xff bad")
    line = stage("cleanup_file.py", data)
    assert "wiki_00: byte 5 is not UTF-8" in line
    assert "--nworker=0: must be a number at least 1" in stage("do_gather.py", "--nworker=0")
    (tmp_path / "wiki_00.1").write_bytes(b"a\0b\n")
    data = f"--data={tmp_path}/wiki_??"
    assert "wiki_00.1: a NUL character" in stage("clean.py", data)
    (tmp_path / "wiki_00.2").write_bytes(b"\xff")
    punkt = tmp_path / "punkt"
    punkt.mkdir()
    segment = ("do_sentence_segmentation.py", data, f"--punkt={punkt}")
    assert "abbrev_types.txt" in stage(*segment)
    separate = ("seperate_test_set.py", data, f"--test_output={tmp_path}/eval")
    assert "wiki_00.3: no such file; run the stage before this one first" in stage(*separate)
    (tmp_path / "wiki_00.3").write_bytes(b"one \xff")
    assert "wiki_00.3: byte 4 is not UTF-8" in stage(*separate)
    gather = ("do_gather.py", data, f"--out_dir={tmp_path}/out")
    assert "wiki_00.3: byte 4 is not UTF-8" in stage(*gather)
    (tmp_path / "wiki_00.3").write_text("one\n\ntwo\n\n")
    line = stage(*separate, "--num_test_articles=4")
    assert "4 test articles wanted, but the file has 3 articles" in line
    line = stage("do_gather.py", data, "--input_suffix=.4", f"--out_dir={tmp_path}/out")
    assert "wiki_00.4: no such file" in line
    made = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert made == {"wiki_00", "wiki_00.1", "wiki_00.2", "wiki_00.3"}


def test_without_worker_processes_a_stage_still_runs(tmp_path, monkeypatch):
    """A container's /dev/shm may not be writable."""
    asked = []

    def refuse(*_, **__):
        asked.append(True)
        raise PermissionError("semaphores cannot be had")

    monkeypatch.setattr("concurrent.futures.ProcessPoolExecutor", refuse)
    (tmp_path / "wiki_00").write_text("<doc>\ntitle\nText\n</doc>\n")
    jobs = [(str(tmp_path / "wiki_00"), str(tmp_path / f"{n}.1")) for n in range(3)]
    stages.run(wiki.write_stage_1, jobs, num_workers=2, description="drop tags")
    assert asked and [(tmp_path / f"{n}.1").read_text() for n in range(3)] == ["\nText\n"] * 3


def test_a_full_disk_leaves_nothing_half_written(tmp_path, small_disk, stage):
    raw = tmp_path / "wiki_00"
    raw.write_text('<doc id="1">\nTitle\n\n' + "One sentence is here.\n" * 20_000 + "</doc>\n")
    disk = small_disk(200)
    (disk / "wiki_00").symlink_to(raw)
    for words in (["cleanup_file.py"], ["clean.py", "--input_suffix="]):
        line = stage(*words, f"--data={disk}/wiki_??")
        told = "No space left on device; make room and repeat the command"
        assert re.search(rf"{disk}/wiki_00\S*: {told}$", line)
    gather = ("do_gather.py", f"--data={disk}/wiki_??", "--input_suffix=", f"--out_dir={disk}")
    assert "No space left on device" in stage(*gather)
    assert [path.name for path in disk.iterdir()] == ["wiki_00"]


@pytest.mark.parametrize(
    ("raw", "results", "message"),
    [
        ("wiki_00", "results", "holds part-00001-of-00500, which this run does not make"),
        ("eval.txt", ".", "eval.txt: is an input too; give other suffixes, or another folder"),
    ],
)
def test_all_stages_are_refused_before_the_first_where_the_last_would_be(
    tmp_path, raw, results, message
):
    (tmp_path / results).mkdir(exist_ok=True)
    if results != ".":
        (tmp_path / results / "part-00001-of-00500").write_text("text")
    (tmp_path / raw).write_text('<doc id="1">\nTitle\n\nOne.\n</doc>\n')
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    done = clean_up("process_wiki.sh", raw, folder=tmp_path, RESULTS=results)
    assert done.returncode == 1 and message in done.stderr
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_the_checkouts_python_is_found(repository, tmp_path):
    (tmp_path / "cleanup_scripts").mkdir()
    source = repository / "cleanup_scripts" / "interpreter.sh"
    copy = shutil.copy(source, tmp_path / "cleanup_scripts")

    def chosen(**environment) -> str:
        environment = {"PATH": os.environ["PATH"], **environment}
        return subprocess.check_output([copy], env=environment, text=True).strip()

    assert chosen() == "python3"
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    assert chosen().endswith(".venv/bin/python")
    assert chosen(PYTHON="/opt/my python") == "/opt/my python"


REPLACING = [
    ("cleanup_file.py", ["--data={0}/wiki_*", "--output_suffix=_1"]),  # wiki_0_1 of wiki_0
    ("clean.py", ["{0}/wiki_0", "{0}/link"]),
    ("clean.py", ["{0}/wiki_0", "{0}/../{1}/wiki_0"]),
    ("seperate_test_set.py", ["--data={0}/eval.t?t", "--input_suffix=", "--test_output={0}/eval"]),
    ("do_gather.py", ["--data={0}/part-*", "--input_suffix=", "--out_dir={0}"]),
    ("do_gather.py", ["--data={0}/part-*", "--input_suffix=.4", "--out_dir={0}"]),
]


@pytest.mark.parametrize(("name", "words"), REPLACING)
def test_no_stage_replaces_what_it_reads(tmp_path, stage, name, words):
    for file in ("wiki_0", "wiki_0_1", "eval.txt", "part-00000-of-00500"):
        (tmp_path / file).write_text("One.\n")
    (tmp_path / "link").symlink_to("wiki_0")
    line = stage(name, *(word.format(tmp_path, tmp_path.name) for word in words))
    assert line.endswith(": is an input too; give other suffixes, or another folder"), line
    assert len(list(tmp_path.iterdir())) == 5
    assert all(path.read_text() == "One.\n" for path in tmp_path.iterdir())


def test_parts_are_packed_by_the_raw_size_and_workers_number_apart(tmp_path):
    names = []
    for index, size in enumerate([700, 524, 500, 200]):  # two of them fill a kilobyte exactly
        names.append(str(tmp_path / f"wiki_{index}"))
        Path(names[-1]).write_bytes(b"x" * size)
    kilobyte_mb = 1024 / gathering.BYTES_PER_MB
    one = gathering.plan(names, block_size_mb=kilobyte_mb, num_workers=1)
    assert one == {0: names[:1], 1: names[1:3], 2: names[3:]}
    two = gathering.plan(names, block_size_mb=kilobyte_mb, num_workers=2)
    assert two == {0: names[:1], 1: names[1:2], 1000: names[2:]}
    first_too_large = gathering.plan(names, block_size_mb=kilobyte_mb / 2, num_workers=1)
    assert first_too_large[0] == names[:1]
    assert gathering.part_name(7, 500) == "part-00007-of-00500"


WAITS = """
import os, pathlib, sys, time
from mlperf_bert.data import stages

def wait(path):
    pathlib.Path(path).write_text(str(os.getpid()))
    time.sleep(300)

stages.run(wait, [(sys.argv[1],)], num_workers=1, description="x")
"""


def test_workers_end_with_a_parent_that_is_killed(repository, tmp_path):
    path = tmp_path / "worker"
    with subprocess.Popen([sys.executable, "-c", WAITS, path], cwd=repository) as parent:
        number = waiting.until(lambda: path.exists() and path.read_text(), parent)
        worker = psutil.Process(int(number))
        parent.kill()
    gone = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    try:
        waiting.until(lambda: not worker.is_running() or worker.status() in gone)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.kill()


def test_results_are_in_the_order_of_the_jobs_whichever_ends_first():
    assert stages.run(after, [(0.5,), (0,)], num_workers=2, description="x") == [0.5, 0]


def after(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@pytest.mark.usefixtures("worker_processes")
def test_a_worker_that_is_killed_is_named():
    message = "split: a worker was killed, perhaps for lack of memory; lower --nworker"
    with pytest.raises(ValueError, match=message):
        stages.run(signal.raise_signal, [(signal.SIGKILL,)] * 3, num_workers=2, description="split")


def test_after_a_failure_what_has_not_begun_is_dropped():
    begun, is_shut = [], threading.Event()

    class Pool(concurrent.futures.ThreadPoolExecutor):
        def shutdown(self, wait=True, *, cancel_futures=False):
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            is_shut.set()
            super().shutdown(wait=wait)

    def fail_first(number: int) -> None:
        begun.append(number)
        if len(begun) == 1:
            raise ValueError("the first file is bad")
        assert is_shut.wait(waiting.HANGS_AFTER_SECONDS)

    with pytest.raises(ValueError, match="the first file is bad"):
        list(stages.as_they_end(Pool(1), fail_first, [(number,) for number in range(50)], "x"))
    assert len(begun) <= 2
