"""Of text that the project wraps for the clean-up itself nothing is lost. Plain Python, seconds."""

from pathlib import Path

import pytest

from mlperf_bert.data import articles, documents, segmentation, wiki
from tests.data import doors

OWN_TEXTS = [
    "Start it with <docker-name> on a host.\nThis follows it. So does this.",
    '<doc id="1" url="u" title="A title">\nA title\n\nA text.\n\n</doc>',
    "</doc>",
    "In a line </doc> and <doc . And <doc>\n\n</doc>\nA last line.",
    "<DOC>\nIt has < doc >, <  doc, </ doc>, <docs/>, <doc<doc and </doc</doc>.\n</DOC>",
    "It has\x0ba line\x0cwith\x1cmany\x85other\u2028ends\ufeff. And\r\none\rmore.",
    "\ufeffIt begins with a mark.\n \x85\n\u2028\nIt ends here.",
    "<doc",
]


@pytest.mark.parametrize("door", documents.SUFFIXES)
def test_nothing_is_lost_of_what_a_documents_own_text_has(tmp_path, punkt, door):
    given = [{"id": "1", "title": "<doc> a\rtitle </doc>", "text": text} for text in OWN_TEXTS]
    doors.write(tmp_path / "own.jsonl", given)
    documents.write_stage_3(f"{tmp_path}/own.jsonl", f"{tmp_path}/own.3", punkt)
    path = doors.write(tmp_path / f"own{door}", given)
    articles.write_articles(str(path), tmp_path / "own", "text")
    name = f"{tmp_path}/own/wiki_000000"
    wiki.write_stage_1(name, f"{name}.1")
    wiki.write_stage_2(f"{name}.1", f"{name}.2")
    segmentation.write_stage_3(f"{name}.2", f"{name}.3", punkt)
    assert Path(f"{name}.3").read_bytes() == Path(tmp_path / "own.3").read_bytes()
    sentences = Path(f"{name}.3").read_text(encoding="utf-8")
    assert sentences.split() == " ".join(OWN_TEXTS).split()
    assert len(sentences.strip().split("\n\n")) == len(OWN_TEXTS)


def test_wikiextractors_own_text_keeps_the_quirk_of_its_tags():
    text = "<doc>\nTitle\n\nIt has <docks>.\nThis is lost.\nThis </doc> too.\nIt ends.\n</doc>\n"
    assert wiki.drop_tags_and_titles(text) == "\n\nIt ends.\n"
    assert wiki.apply_rules("<doc of a stage>\nOf </doc> a text.\n") == "Of \r a text.\n"


def test_a_nul_in_a_tag_of_ones_own_is_refused_as_any_other(tmp_path):
    doors.write(tmp_path / "own.jsonl", [{"text": "One.\nTwo <\0doc."}])
    articles.write_articles(f"{tmp_path}/own.jsonl", tmp_path / "own", "text")
    name = f"{tmp_path}/own/wiki_000000"
    wiki.write_stage_1(name, f"{name}.1")
    with pytest.raises(ValueError, match=r"wiki_000000\.1: a NUL character; remove it \(.*JSON"):
        wiki.write_stage_2(f"{name}.1", f"{name}.2")
