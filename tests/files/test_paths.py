"""Home folders in paths of a command line. CPU, a second."""

import shutil
from pathlib import Path

import pytest
import requests
from google.api_core.exceptions import BadRequest, RetryError
from google.auth import exceptions as auth

from mlperf_bert import options
from mlperf_bert.files import paths
from mlperf_bert.files.errors import StoreUnavailable


@pytest.fixture(autouse=True)
def home(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")


@pytest.mark.parametrize(
    "path, expected",
    [
        ("~", "/home/me"),
        ("~/run", "/home/me/run"),
        ("~/a*,b, ~/c?", "/home/me/a*,b, /home/me/c?"),
        ("~root/run", "/root/run"),
        ("./~/run", "./~/run"),
        ("a~/b,c~", "a~/b,c~"),
        ("~nobody of this name/run", "~nobody of this name/run"),
    ],
)
def test_the_home_folder_stands_for_a_tilde_at_the_start_of_a_path(path, expected):
    assert options.expand_home(path) == expected


@pytest.mark.parametrize(
    "path, expected",
    [
        ("gs://b//run", "gs://b/run"),
        ("gs://b/run/", "gs://b/run"),
        ("gs://b///a/.//c//.", "gs://b/a/c"),
        ("/x//y,gs://b//part-*, gs://b//d/", "/x//y,gs://b/part-*, gs://b/d"),
        ("gs://b/.a/b./c..", "gs://b/.a/b./c.."),
        ("gs:///run", "gs:///run"),  # refused later
    ],
)
def test_a_folder_of_a_bucket_has_one_name(path, expected):
    """To TensorFlow's client //run is another folder, to etils.epath the same."""
    assert options.expand_home(path) == expected
    found = options.expanded_arguments([f"--folder={path}", path])
    assert found == [f"--folder={expected}", expected]


def test_a_path_without_a_home_folder_is_refused():
    with pytest.raises(ValueError, match=r"^~x y/run: there is no such home .* or \./~x y/run$"):
        paths.location("~x y/run")


@pytest.mark.parametrize("name", ["./~x y", "gs:x", "./s3:x/y"])
def test_a_path_that_is_written_as_advised_is_a_local_one(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = paths.location(name)
    paths.make_folder(folder)
    (folder / "file").write_bytes(b"123")
    assert paths.size_bytes(folder / "file") == 3 and not paths.is_file(folder)
    assert paths.is_file(f"{folder}/file")


def test_a_bucket_that_was_made_a_local_path_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"^gs:/b/file: give a local path or gs://BUCKET/FOLDER$"):
        paths.opened(Path("gs://b/file")).__enter__()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (auth.DefaultCredentialsError("there are none"), PermissionError),
        (auth.TransportError("cut"), StoreUnavailable),  # of the way to the credentials
        (RetryError("no answer", None), StoreUnavailable),
        (requests.ConnectionError("cut"), StoreUnavailable),
        (BadRequest("no such name"), OSError),
    ],
)
def test_what_a_client_of_buckets_raises_has_the_kind_of_the_system(error, kind):
    with pytest.raises(OSError, match=r"^gs://b/x: ") as raised, paths.failures_named("gs://b/x"):
        raise error
    assert type(raised.value) is kind


def test_words_of_a_command_line_up_to_two_dashes():
    words = ["~/a", "--out=~/b", "--check", "-o=~", "--n=1", "--", "~/c", "--out=~/d", ""]
    expected = ["/home/me/a", "--out=/home/me/b", "--check", "-o=/home/me", "--n=1", *words[5:]]
    assert options.expanded_arguments(words) == expected


@pytest.mark.parametrize(
    ("words", "told"),
    [(["--out="], "--out="), (["--out", " "], "--out ''"), (["a", ""], "a word")],
)
def test_an_empty_value_ends_the_program(monkeypatch, words, told):
    monkeypatch.setattr("sys.argv", ["scripts/do_gather.py", *words, "--", ""])
    with pytest.raises(SystemExit, match=rf"^do_gather.py: {told}: is empty, perhaps a variable"):
        options.expanded_arguments()
    assert options.expanded_arguments(["--a=", "--b", ""], may_be_empty=["--a", "--b"])


def test_a_file_is_known_by_all_its_names(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    for path in (one, other):
        path.write_text("the same")  # copies are two files
    (tmp_path / "soft").symlink_to(one)
    (tmp_path / "folder").symlink_to(tmp_path)
    assert paths.named_twice(map(str, [one, other, tmp_path / "none"])) is None
    for again in (tmp_path / "soft", tmp_path / "folder" / "one"):
        told = paths.named_twice(map(str, [one, other, again]))
        assert told == f"{again} is the same file as {one}"
    told = paths.named_twice(["gs://b/a", "gs://b/c", "gs://b/a", "gs://b/c"])
    assert told == "gs://b/a is named twice"


def test_the_room_is_that_of_the_folder_above_which_is_there(tmp_path, monkeypatch):
    asked = []
    usage = type(shutil.disk_usage(tmp_path))(total=100, used=60, free=40)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: asked.append(path) or usage)
    assert paths.free_bytes(tmp_path / "new" / "run") == 40 and asked == [tmp_path]


def test_the_folders_that_are_made_are_told_the_innermost_first(tmp_path):
    made = paths.make_folder(tmp_path / "a" / "b" / "c")
    assert made == [tmp_path / "a" / "b" / "c", tmp_path / "a" / "b", tmp_path / "a"]
    assert paths.make_folder(tmp_path / "a") == []
