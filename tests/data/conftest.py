"""Texts with their vocabulary, and the tables that split sentences as the recorded runs did."""

import pytest
from nltk.tokenize.punkt import PunktParameters

from mlperf_bert.data import segmentation
from mlperf_bert.data.punkt import PunktTables, write_tables
from tests.data.generated_wiki import sentences, vocabulary


@pytest.fixture
def work(tmp_path):
    (tmp_path / "vocab.txt").write_bytes(vocabulary(1).encode())
    for number in range(3):
        (tmp_path / f"part-{number}").write_bytes(sentences(number + 1).encode())
    return tmp_path


def small_splitter() -> segmentation.SentenceSplitter:
    """The tables that the recorded run used, instead of the published ones."""
    parameters = PunktParameters()
    parameters.abbrev_types = {"dr", "st", "u.s", "e.g", "i.e", "inc", "vs"}
    parameters.collocations = {("##number##", "next")}
    parameters.sent_starters = {"it", "he"}
    parameters.ortho_context.update({"the": 46, "word": 34, "next": 18})
    return segmentation.SentenceSplitter(parameters)


@pytest.fixture
def punkt(tmp_path):
    tables = small_splitter()._tables
    write_tables(
        PunktTables(
            frozenset(tables.abbrev_types),
            frozenset(tables.collocations),
            frozenset(tables.sent_starters),
            dict(tables.ortho_context),
        ),
        tmp_path / "punkt",
    )
    return tmp_path / "punkt"
