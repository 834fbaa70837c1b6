"""The third clean-up stage: one sentence a line.

The specification is nltk 3.4.5's Punkt sentence splitter with the published English tables. Later
versions of nltk search for boundaries otherwise and know more quotation marks; the classes below
give a current nltk the old behaviour back.
"""

import functools
import hashlib
import os
import re
import sys
from pathlib import Path

import nltk
from nltk.tabdata import PunktDecoder
from nltk.tokenize.punkt import PunktLanguageVars, PunktParameters, PunktSentenceTokenizer

from mlperf_bert.data.records import written_beside
from mlperf_bert.data.stages import lines_of, read_text

# nltk's package punkt_tab, folder english: the tables of the reference's english.pickle.
PUBLISHED_SHA256 = {
    "abbrev_types.txt": "ae74df7220c09ecedff75f33e3fcc09dbd038e39ddf554b6ebc8f07ff5bdee7f",
    "collocations.tab": "987336cd468bf07bbab45a3a92276cbebff56e6686b29567dbbaf16060492d62",
    "ortho_context.tab": "4bbcca25ed3d3f06c02402abf8419b9f033b8adc06e7b482eca4e45f81a5dc4c",
    "sent_starters.txt": "568b989cf4818ad9cb50efaf76bd0685ef20b83a1cbce49023bad45dcd8aceb9",
}


class _LanguageVars(PunktLanguageVars):
    """The patterns of nltk 3.4.5."""

    re_boundary_realignment = re.compile(r"[\"')\]}]+?(?:\s+|(?=--)|$)", re.MULTILINE)
    _re_non_word_chars = r"(?:[?!)\";}\]\*:@'\({\[])"
    _period_context_fmt = r"""
        \S*%(SentEndChars)s
        (?=(?P<after_tok>%(NonWord)s|\s+(?P<next_tok>\S+)))"""


class SentenceSplitter(PunktSentenceTokenizer):
    """Splits as nltk 3.4.5 does."""

    def __init__(self, parameters: PunktParameters):
        super().__init__(lang_vars=_LanguageVars())
        self._params = parameters

    def _slices_from_text(self, text: str):
        start = 0
        for match in self._lang_vars.period_context_re().finditer(text):
            if self.text_contains_sentbreak(match.group() + match.group("after_tok")):
                yield slice(start, match.end())
                start = match.start("next_tok") if match.group("next_tok") else match.end()
        yield slice(start, len(text.rstrip()))


def find_punkt(folder: str | None = None) -> Path:
    """The folder with Punkt's four tables: the given one, or nltk's punkt_tab/english.

    Raises:
      ValueError: there is none, or a table is missing.
    """
    if folder is None:
        try:
            folder = nltk.data.find("tokenizers/punkt_tab/english")
        except LookupError as error:
            raise ValueError(
                "the sentence splitter's tables are missing: run "
                "`python -m nltk.downloader punkt_tab`, or name their folder with --punkt"
            ) from error
    path = Path(os.fspath(folder))
    missing = [name for name in PUBLISHED_SHA256 if not (path / name).is_file()]
    if missing:
        raise ValueError(f"{path}: {', '.join(missing)} missing; --punkt names a folder with them")
    return path


def warn_if_not_published(folder: Path) -> None:
    """Says so when the tables are not the published ones: the result is not the official data."""
    for name, expected in PUBLISHED_SHA256.items():
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != expected:
            print(f"note: {folder / name} is not the published table", file=sys.stderr)


@functools.cache
def load_splitter(folder: Path) -> SentenceSplitter:
    """The splitter with the tables of a folder."""
    decoder, parameters = PunktDecoder(), PunktParameters()
    with (folder / "abbrev_types.txt").open(encoding="utf-8") as lines:
        parameters.abbrev_types = decoder.txt2set(lines)
    with (folder / "collocations.tab").open(encoding="utf-8") as lines:
        parameters.collocations = set(decoder.tab2tups(lines))
    with (folder / "sent_starters.txt").open(encoding="utf-8") as lines:
        parameters.sent_starters = decoder.txt2set(lines)
    with (folder / "ortho_context.tab").open(encoding="utf-8") as lines:
        parameters.ortho_context = decoder.tab2intdict(lines)
    return SentenceSplitter(parameters)


def split_lines(text: str, splitter: SentenceSplitter) -> str:
    """Stage .3: each sentence on a line of its own, blank lines kept, one more at the end."""
    out = []
    for line in lines_of(text):
        if line == "\n":
            out.append("\n")
        out.extend(f"{sentence.strip()}\n" for sentence in splitter.tokenize(line))
    return "".join([*out, "\n"])


def write_stage_3(input_path: str, output_path: str, punkt: Path) -> None:
    """Stage .3 from file to file."""
    text = split_lines(read_text(input_path), load_splitter(punkt))
    with written_beside(output_path) as output:
        output.write(text.encode())
