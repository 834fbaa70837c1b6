"""The chain from a folder back to its first inputs, and every changed byte in it."""

import dataclasses
import json
import os
import platform
import re
from importlib import metadata

import pytest

from mlperf_bert.data import chain, provenance


@pytest.fixture
def chained(tmp_path):
    """raw/ -> text/ -> records/, with two files in each."""
    for name in ("raw", "text", "records"):
        (tmp_path / name).mkdir()
        for number in range(2):
            (tmp_path / name / f"part-{number}").write_text(f"{name} {number}")
    for above, folder in (("raw", "text"), ("text", "records")):
        provenance.note(
            tmp_path / folder,
            step=f"{above} to {folder}",
            inputs=sorted((tmp_path / above).glob("part-*")),
            outputs=sorted((tmp_path / folder).glob("part-*")),
            parameters={"seed": 12345},
        )
    return tmp_path


def checked(folder) -> list[str]:
    return chain.verify(chain.chain(folder))


RIGHT, ABSENT, OF_ITS_SIZE = chain.USUAL


def test_a_chain_is_followed_to_its_beginning(chained, capsys):
    steps = list(chain.chain(chained / "records"))
    assert [(step.record.step, step.depth) for step in steps] == [
        ("text to records", 0),
        ("raw to text", 1),
    ]
    assert checked(chained / "records") == [RIGHT] * 6
    assert chain.main([str(chained / "records")]) == 0
    told = capsys.readouterr().out
    assert "raw to text, commit " in told and "seed=12345" in told
    assert told.endswith("\n6 files are as recorded\n")


def test_the_record_of_a_file_may_lie_in_the_folder_above(chained):
    """As that of text/AA/wiki_00."""
    record = chained / "text" / provenance.NAME
    text = record.read_text().replace('"part-', '"text/part-').replace('"../raw', '"raw')
    (chained / provenance.NAME).write_text(text)
    record.unlink()
    assert checked(chained / "records") == [RIGHT] * 6


@pytest.mark.parametrize("folder", ["raw", "text", "records"])
def test_a_changed_byte_anywhere_is_found(chained, folder, capsys):
    path = chained / folder / "part-1"
    path.write_text(path.read_text()[:-1] + "x")
    assert chain.main([str(chained / "records")]) == 1
    assert f"{path}: its content has changed since it was recorded" in capsys.readouterr().out


def test_what_cannot_be_said_of_a_file_and_what_differs(chained, capsys):
    path = chained / "text" / provenance.NAME
    content = json.loads(path.read_text())
    content["records"][0]["inputs"][0]["digest"] = ""
    content["records"][0]["outputs"][1]["digest"] = "sha256:" + 64 * "0"
    path.write_text(json.dumps(content))
    (chained / "raw" / "part-1").unlink()
    *others, differs = checked(chained / "records")
    assert others == [OF_ITS_SIZE, ABSENT, RIGHT, RIGHT, RIGHT]
    assert "text/part-1: the step that made it and the one that read it record" in differs
    (chained / "raw" / "part-0").write_text("longer than before")
    assert chain.main([str(chained / "records")]) == 1
    told = capsys.readouterr().out
    assert "\n3 files are as recorded\n1 files are not here\n" in told
    assert "raw/part-0: 18 bytes, 5 were recorded\n" in told


@pytest.mark.parametrize("content", ["{", '{"records": [{"inputs": [], "outputs": [%s]}]}'])
def test_a_damaged_record_above_is_a_line(chained, refusal, content):
    file = '{"path": "x", "bytes": 1, "digest": "sha255:"}'
    (chained / "text" / provenance.NAME).write_text(content.replace("%s", file))
    line = refusal(chain, chained / "records")
    assert re.search(r"text/provenance.json: damaged .* copy it here again", line)


def test_a_step_made_again_replaces_its_record_and_names_both_makers(chained):
    folder = chained / "records"
    (before,) = provenance.read(folder)
    other = {**before.made_with, "commit": "of another day"}
    provenance.add(folder, dataclasses.replace(before, made_with=other), continues=True)
    (found,) = provenance.read(folder)
    assert found.made_with["commit"] == f"{before.made_with['commit']}, of another day"
    assert found.made_with["python"] == before.made_with["python"]
    provenance.add(folder, before)
    assert provenance.read(folder) == [before]


def test_known_digests_are_those_of_the_records(chained):
    known = str(chained / "text" / "part-0")
    (chained / "text" / "new").write_text("")
    found = provenance.known_digests([known, str(chained / "text" / "new")])
    assert found[known].startswith("sha256:") and found[str(chained / "text" / "new")] == ""


def test_one_digest_stands_for_several_files():
    files = [provenance.File(path=f"a/{n}", bytes=1, digest=f"md5:{n}") for n in "ab"]
    moved = [dataclasses.replace(file, path=file.path[2:]) for file in reversed(files)]
    assert provenance.digest_of_files(files) == provenance.digest_of_files(moved)
    assert provenance.digest_of_files(files) != provenance.digest_of_files(files[:1])
    unknown = dataclasses.replace(files[0], digest="")
    assert provenance.digest_of_files([unknown]) == provenance.digest_of_files([]) == "unknown"


def test_a_record_is_added_from_the_command_line(chained):
    (chained / "out").mkdir()
    (chained / "out" / "x").write_text("1")
    chain.main(
        [
            *[str(chained / "out"), "--add=copy", f"--inputs={chained}/records/part-*"],
            *[f"--outputs={chained}/out/x", "--parameters", "a=b", "c=d=e"],
        ]
    )
    (found,) = provenance.read(chained / "out")
    assert found.parameters == {"a": "b", "c": "d=e"}
    assert [file.path for file in found.inputs] == ["../records/part-0", "../records/part-1"]
    assert checked(chained / "out") == [RIGHT] * 7


def test_a_folder_without_a_record_is_a_line(tmp_path, refusal):
    line = refusal(chain, tmp_path)
    assert "no provenance.json, so it is unknown what it was made" in line
    line = refusal(chain, tmp_path, "--add=x", "--inputs", f"{tmp_path}/none")
    assert "--inputs: no file matches" in line


def test_what_a_process_is_made_with_is_asked_once(monkeypatch):
    """Git takes up to a second."""
    monkeypatch.delenv("MLPERF_BERT_COMMIT", raising=False)
    known = provenance.made_with()
    monkeypatch.setattr(provenance, "printed_by", pytest.fail)
    monkeypatch.setattr(provenance.metadata, "version", pytest.fail)
    assert provenance.made_with() == known
    monkeypatch.setenv("MLPERF_BERT_COMMIT", "an image's")
    assert provenance.made_with() == known | {"commit": "an image's"}


def test_tensorflow_for_cpus_is_known_and_what_is_missing_is_unknown(monkeypatch):
    installed = {"numpy": "1.26.4", "tensorflow-cpu": "2.21.0"}

    def version(package):
        if package not in installed:
            raise metadata.PackageNotFoundError(package)
        return installed[package]

    monkeypatch.setattr(provenance.metadata, "version", version)
    monkeypatch.setattr(provenance, "_version", provenance._version.__wrapped__)
    found = provenance.made_with()
    names = ("numpy", "tensorflow", "numba")
    assert [found[name] for name in names] == ["1.26.4", "2.21.0", "unknown"]


def test_a_machine_is_described_by_what_the_kernel_and_the_driver_tell(tmp_path, monkeypatch):
    monkeypatch.delenv("MLPERF_BERT_IMAGE", raising=False)
    found = provenance.machine()
    assert found["host"] == platform.node() and str(os.cpu_count()) in found["processor"]
    monkeypatch.setattr(provenance, "_NVIDIA", tmp_path)
    assert (provenance.machine()["accelerator"], provenance.machine()["driver"]) == ("", "")
    for number in range(8):
        card = tmp_path / "gpus" / f"0000:{number}0:00.0" / "information"
        card.parent.mkdir(parents=True)
        card.write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 86\n")
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20  Release Build\n"
        "GCC version:  gcc version 12.2.0\n"
    )
    monkeypatch.setenv("MLPERF_BERT_IMAGE", "sha256:4711")  # a container has a name of its own
    found = provenance.machine()
    assert found["accelerator"] == "8 x NVIDIA H100 80GB HBM3"
    assert (found["driver"], found["host"]) == ("570.133.20", "")
