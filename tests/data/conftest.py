"""Texts with their vocabulary, and the tables that split sentences as the recorded runs did."""

import pytest

from mlperf_bert.data.punkt import PunktTables
from tests.data.generated_wiki import sentences, vocabulary
from tests.data.making import write_tables


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
