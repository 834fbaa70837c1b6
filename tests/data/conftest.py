"""Texts with their vocabulary, and the tables that split sentences as the recorded runs did."""

import multiprocessing
import runpy
import sys
from collections.abc import Callable

import pytest

from mlperf_bert.data.punkt import PunktTables
from tests.data.generated_wiki import sentences, vocabulary
from tests.data.making import write_tables
from tests.fixtures import REPOSITORY, lacking


@pytest.fixture
def work(tmp_path):
    (tmp_path / "vocab.txt").write_bytes(vocabulary(1).encode())
    for number in range(3):
        (tmp_path / f"part-{number}").write_bytes(sentences(number + 1).encode())
    return tmp_path


# The tables that the recorded run used, instead of the published ones.
SMALL_TABLES = PunktTables(
    abbrev_types=frozenset({"dr", "st", "u.s", "e.g", "i.e", "inc", "vs"}),
    collocations=frozenset({("##number##", "next")}),
    sent_starters=frozenset({"it", "he"}),
    ortho_context={"the": 46, "word": 34, "next": 18},
)


@pytest.fixture
def punkt(tmp_path):
    write_tables(SMALL_TABLES, tmp_path / "punkt")
    return tmp_path / "punkt"


@pytest.fixture
def worker_processes() -> None:
    """Workers are processes, and not the one thread of a machine that cannot have them."""
    try:
        multiprocessing.Lock()
    except OSError:
        lacking("no processes of workers can be had here: /dev/shm is not writable")


@pytest.fixture
def clean_up() -> Callable[[], int]:
    """The command of the clean-up's scripts; it reads its words from sys.argv."""
    return runpy.run_path(str(REPOSITORY / "cleanup_scripts" / "clean_up.py"))["main"]


@pytest.fixture
def stage(clean_up, monkeypatch, capsys) -> Callable[..., str]:
    """Runs a stage of the clean-up in this process, as its script does.

    Returns the one line with which it is refused, or nothing.
    """

    def stage(name: str, *words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["clean_up.py", name, *words])
        code = clean_up()
        *notes, last = capsys.readouterr().err.splitlines() or [""]
        assert all(line.startswith("note: ") for line in notes) and code in (0, 1)
        return last if code else ""

    return stage
