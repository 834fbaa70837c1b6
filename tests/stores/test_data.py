"""Data and checkpoints made from and into a bucket equal those of local disks. CPU, two minutes.

Oracle: the same commands with local paths, which other tests compare with the reference.
"""

import json
import os
import sys
from pathlib import Path

import pytest

from mlperf_bert.convert import exporting, importing, tf1_tf2
from mlperf_bert.data import provenance
from mlperf_bert.model.config import BertConfig
from tests.checkpoints.conftest import generated
from tests.data import doors
from tests.data.conftest import SMALL_TABLES
from tests.data.generated_wiki import sentences, vocabulary, wiki_text
from tests.data.making import write_tables
from tests.fixtures import REPOSITORY
from tests.helpers import starts, waiting
from tests.stores.rig import Store, files_in

__all__ = ["generated"]

LENGTHS = {"max_seq_length": 32, "max_predictions_per_seq": 5}
NUM_PARTS = 3


RECORD = "provenance.json"


@pytest.fixture(autouse=True)
def nothing_named_like_a_bucket():
    yield
    assert not list(REPOSITORY.glob("gs:*"))


@pytest.fixture
def work(tmp_path, store, bucket) -> Path:
    """Text and vocabulary, in a local folder and in the bucket."""
    (tmp_path / "vocab.txt").write_bytes(vocabulary(1).encode())
    for number in range(NUM_PARTS):
        (tmp_path / f"part-{number}").write_bytes(sentences(number + 1).encode())
    store.upload(tmp_path, bucket)
    return tmp_path


def run(store: Store, program: str, **flags) -> tuple[int, str, str]:
    """Exit code, output, and the last line of the errors."""
    given = (f"--{name}={value}" for name, value in flags.items())
    done = starts.run([sys.executable, program, *given], env=os.environ | store.environment)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, (done.stderr.strip().splitlines() or [""])[-1]


def succeeds(store: Store, program: str, **flags) -> str:
    """The output."""
    code, output, error = run(store, program, **flags)
    assert code == 0, error
    return output


def dataset(folder: str | Path, **flags) -> dict:
    """Flags that make a data set of the text in a folder, or a bucket, into its folder `out`."""
    inputs = {"input_file": f"{folder}/part-*", "vocab_file": f"{folder}/vocab.txt"}
    return (
        inputs | {"output_dir": f"{folder}/out", "dupe_factor": 2, "nworker": 2} | LENGTHS | flags
    )


def make_local(store: Store, work: Path) -> dict[str, bytes]:
    succeeds(store, "create_pretraining_data.py", **dataset(work))
    made = (path for path in (work / "out").iterdir() if path.name != RECORD)
    return {f"out/{path.name}": path.read_bytes() for path in made}


def outputs(store: Store) -> dict[str, bytes]:
    """What a data set holds; its record names the places."""
    there = store.objects("bucket").items()
    return {n: c for n, c in there if n.startswith("out/") and RECORD not in n}


@pytest.mark.all
def test_a_data_set_in_a_bucket_is_that_of_a_disk(store, work):
    expected = make_local(store, work)
    script, remote = "create_pretraining_data.py", dataset("gs://bucket")
    assert "3 parts made" in succeeds(store, script, **remote)
    assert outputs(store) == expected

    succeeds(store, script, **remote, verify=True)
    damaged = bytearray(expected["out/part-1"])
    damaged[50] ^= 1
    store.put("bucket", "out/part-1", bytes(damaged))
    code, _, error = run(store, script, **remote, verify=True)
    assert (
        code == 1
        and "part-1: its content has changed since it was recorded (sha256); remove" in error
    )
    assert "1 parts made" in succeeds(store, script, **remote)
    assert outputs(store) == expected
    before = store.kinds()
    assert "0 parts made" in succeeds(store, script, **remote)
    asked = store.kinds() - before
    assert asked.total() <= 20 + 4 * NUM_PARTS, asked

    pick = LENGTHS | {"num_examples_to_pick": 7}
    for folder in (work, "gs://bucket"):
        files = {"input_tfrecord": f"{folder}/out/part-0", "output_tfrecord": f"{folder}/picked"}
        succeeds(store, "pick_eval_samples.py", **files, **pick)
    assert store.objects("bucket")["picked"] == (work / "picked").read_bytes()


@pytest.mark.gate
def test_after_a_kill_a_rerun_makes_what_is_missing_though_requests_fail(store, work):
    expected = make_local(store, work)
    flags = dataset("gs://bucket", nworker=1)
    words = (f"--{name}={value}" for name, value in flags.items())
    command = [sys.executable, "create_pretraining_data.py", *words]
    killed = starts.Start(command, env=os.environ | store.environment)
    waiting.until(lambda: made(store), killed)
    killed.kill()
    killed.wait()
    store.remove("bucket", "out/.lock")  # as 40 s in which it is not written again
    assert len(before := made(store)) < NUM_PARTS
    store.fail(0.1, 503)
    assert f"{NUM_PARTS - len(before)} parts made" in succeeds(
        store, "create_pretraining_data.py", **flags
    )
    assert outputs(store) == expected


def made(store: Store) -> list:
    found = store.objects("bucket").get(f"out/{provenance.NAME}")
    return json.loads(found)["records"][0]["outputs"] if found else []


@pytest.mark.all
def test_beam_makes_the_same_between_buckets(store, work):
    expected = make_local(store, work)
    flags = dataset("gs://bucket", beam_options="--runner=DirectRunner")
    assert "3 parts made" in succeeds(store, "create_pretraining_data.py", **flags)
    assert outputs(store) == expected
    store.remove("bucket", "out/part-2")
    assert "1 parts made" in succeeds(store, "create_pretraining_data.py", **flags)
    assert outputs(store) == expected


@pytest.mark.all
def test_checkpoints_and_exports_in_a_bucket_are_those_of_a_disk(
    store, bucket, generated, tmp_path
):
    folder = Path(generated.checkpoint).parent
    tokens = ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens += [f"token{number}" for number in range(4, generated.config.vocab_size)]
    vocab = "".join(f"{token}\n" for token in tokens)
    inputs = {f"init/{path.name}": path.read_bytes() for path in folder.iterdir()}
    inputs |= {"vocab.txt": vocab.encode(), "config.json": generated.config_file.read_bytes()}
    for name, content in inputs.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    store.upload(tmp_path, bucket)
    store.call(_convert_and_export, str(tmp_path))
    store.put(bucket, "tf2/.model.partial/checkpoint-1.index", b"of a process that was killed")
    store.call(_convert_and_export, f"gs://{bucket}")
    local = files_in(tmp_path)
    there = store.objects(bucket)
    assert len(local) > len(inputs) and there.keys() == local.keys()
    # The records name the places.
    assert not [name for name in local if local[name] != there[name] and RECORD not in name]


def _convert_and_export(folder: str) -> None:
    """All from `folder` and into it, a bucket's root too."""
    config = BertConfig.from_json_file(f"{folder}/config.json")
    stored = f"{folder}/init/model.ckpt-28252"
    tf1_tf2.convert(stored, f"{folder}/tf2/model", config=config)
    tf1_tf2.add_accumulators(stored, f"{folder}/acc/model.ckpt")
    vocab = f"{folder}/vocab.txt"
    exporting.export(f"{folder}/tf2/model", f"{folder}/exported", config=config, vocab_file=vocab)
    importing.import_model(f"{folder}/exported", f"{folder}/imported", seed=0)


@pytest.mark.all
def test_clean_up_stages_between_folders_of_a_bucket(store, bucket, tmp_path):
    num_texts = 2
    for number in range(num_texts):
        (tmp_path / f"wiki_{number:02}").write_text(wiki_text(number))
    write_tables(SMALL_TABLES, tmp_path / "punkt")
    store.upload(tmp_path, bucket)
    for folder in (tmp_path, "gs://bucket"):
        data, suffixes = f"{folder}/wiki_0?", {"input_suffix": "", "output_suffix": ".1"}
        punkt, gathered = f"{folder}/punkt", f"{folder}/results"
        test_set = {"test_output": f"{gathered}/eval", "num_test_articles": 5}
        for program, flags in (
            ("cleanup_file", suffixes | {"nworker": 2}),
            ("do_sentence_segmentation", {"input_suffix": ".1", "punkt": punkt, "nworker": 2}),
            ("seperate_test_set", test_set | {"nworker": 2}),
            ("do_gather", {"input_suffix": ".4", "out_dir": gathered, "block_size": 0.01}),
        ):
            succeeds(store, f"cleanup_scripts/{program}.py", data=data, **flags)
    local = files_in(tmp_path)
    assert len(local) > 3 * num_texts + 6
    assert store.objects(bucket) == local


@pytest.mark.all
def test_documents_between_folders_of_a_bucket(store, bucket, tmp_path):
    given = doors.articles_of(wiki_text(1))
    for name in ("a.parquet", "b.jsonl.zst"):
        path = doors.write(tmp_path / name, given)
        store.put(bucket, f"in/{name}", path.read_bytes())
    program = "cleanup_scripts/extract_documents.py"
    flags = {"data": "gs://bucket/in/*", "out_dir": "gs://bucket/text"}
    succeeds(store, program, **flags)
    expected = doors.as_text(given).encode()
    made = {f"text/{name}/wiki_000000": expected for name in ("a", "b")}
    stored = {n: c for n, c in store.objects(bucket).items() if n.startswith("text/")}
    # A NUL keeps a "</doc>" of an article's own apart.
    assert {name: content.replace(b"\0", b"") for name, content in stored.items()} == made
    succeeds(store, "cleanup_scripts/cleanup_file.py", data="gs://bucket/text/*/wiki_??????")
    assert {f"{name}.1" for name in made} <= set(store.objects(bucket))
    code, _, error = run(store, program, **flags | {"data": "gs://bucket/in/a*"})
    assert code == 1 and "gs://bucket/text: holds b/, of which this run has no input" in error


@pytest.mark.all
def test_what_a_bucket_refuses_is_a_line(store, work):
    script = "create_pretraining_data.py"
    one = {"input_file": "gs://bucket/part-0", "vocab_file": "gs://bucket/vocab.txt"} | LENGTHS

    def refused(program=script, **flags) -> str:
        code, _, error = run(store, program, **flags)
        assert code == 1 and error.startswith(f"{Path(program).name}: ")
        return error

    assert "gs://none/part-*: no such bucket or object" in refused(**dataset("gs://none"))
    elsewhere = dataset("gs://bucket", output_dir="gs://none/out")
    assert "gs://none/out/.lock: no such bucket or object" in refused(**elsewhere)
    in_a_file = dataset("gs://bucket", output_dir="gs://bucket/vocab.txt")
    assert "gs://bucket/vocab.txt: is a file, not a folder" in refused(**in_a_file)
    assert "gs://none/one: no such bucket or object" in refused(**one, output_file="gs://none/one")
    absent = {"input_tfrecord": "gs://bucket/none", "output_tfrecord": "gs://bucket/picked"}
    assert "gs://bucket/none: no such bucket or object" in refused("pick_eval_samples.py", **absent)
    importer, output = "mlperf_bert/convert/from_hugging_face.py", f"{work}/imported"
    nothing_there = refused(importer, model="gs://bucket/none", output_dir=output)
    assert "gs://bucket/none: no such bucket or object" in nothing_there
    before = store.objects("bucket")

    store.deny_writes()
    denied = "the store refuses these credentials"
    assert f"gs://bucket/out/.lock: {denied}" in refused(**dataset("gs://bucket"))
    assert f"gs://bucket/one: {denied}" in refused(**one, output_file="gs://bucket/one")
    assert store.objects("bucket") == before
