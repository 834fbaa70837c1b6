"""The third clean-up stage: one sentence a line.

The specification is the Punkt sentence splitter (Kiss and Strunk 2006, "Unsupervised Multilingual
Sentence Boundary Detection") as nltk 3.4.5 runs it with the published English tables on Python 3.7.
It is written out here: a current nltk searches for boundaries otherwise, knows more quotation
marks, and matches words and white space with another regular-expression engine and newer Unicode
tables. The section numbers below are the paper's.
"""

import functools
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from mlperf_bert.data import punkt
from mlperf_bert.data.punkt import PunktTables
from mlperf_bert.data.stages import lines_of, read_text
from mlperf_bert.data.unicode11 import as_in_unicode_11
from mlperf_bert.files.whole import write_whole

# Bits of ortho_context say how a word type was seen in training: at the beginning of a sentence,
# in its middle, or where that is unknown; with an upper- or a lower-case first letter.
_MIDDLE_UPPER = 1 << 2
_ANY_UPPER = 1 << 1 | 1 << 2 | 1 << 3
_BEGINNING_LOWER = 1 << 4
_ANY_LOWER = 1 << 4 | 1 << 5 | 1 << 6

_NON_WORD = r"[?!)\";}\]*:@'({\[]"
_DOTS_OR_DASHES = r"(?:-{2,}|\.{2,}|(?:\.\s){2,}\.)"
_WORD_END = rf"\s|$|{_NON_WORD}|{_DOTS_OR_DASHES}"
_WORD = re.compile(
    rf"{_DOTS_OR_DASHES}|(?=[^(\"`{{\[:;&#*@)}}\]\-,])\S+?(?={_WORD_END}|,(?={_WORD_END}))|\S"
)
_CANDIDATE = re.compile(rf"[.?!](?=({_NON_WORD}|\s+(\S+)))")
_CLOSING = re.compile(r"[\"')\]}]+?(?:\s+|(?=--)|$)", re.MULTILINE)
_NUMBER = re.compile(r"^-?[.,]?\d[\d,.-]*\.?$")
_INITIAL = re.compile(r"[^\W\d]\.$")
_ELLIPSIS = re.compile(r"\.\.+$")
_PUNCTUATION = frozenset(";:,.!?")


class SentenceSplitter:
    """Splits as nltk 3.4.5 on Python 3.7 does."""

    def __init__(self, tables: PunktTables):
        self._tables = tables
        self._collocated = frozenset(kind for kind, _ in tables.collocations)
        self._is_boundary = functools.lru_cache(maxsize=100_000)(self._decide)
        self._ends = functools.lru_cache(maxsize=100_000)(self._ends_whatever_follows)

    def tokenize(self, text: str) -> list[str]:
        """The sentences of a line, without the white space between them."""
        slices, start = [], 0
        for match, run in _candidates(text):
            # The run alone decides most cases, and its answer is kept: runs recur more often alone
            # than with the same words behind them.
            if (match[2] and self._ends(run)) or self._is_boundary(run + match[1]):
                slices.append((start, match.end()))
                start = match.end() if match[2] is None else match.start(2)
        slices.append((start, len(text.rstrip())))
        return list(_with_closing_punctuation(text, slices))

    def _decide(self, context: str) -> bool:
        """Whether a sentence ends within a candidate and what follows it, before the last word."""
        words = _WORD.findall(as_in_unicode_11(context))
        return any(
            self._ends_sentence(word, following)
            for word, following in itertools.pairwise(words)
            if word[-1] == "." or word in ("?", "!")
        )

    def _ends_whatever_follows(self, run: str) -> bool:
        """Whether a run ends a sentence whatever word follows; False means undecided."""
        word = _WORD.findall(as_in_unicode_11(run))[-1]
        if word[-1] != ".":
            return word in ("?", "!")
        kind = _without_period(_kind(word))
        depends = _INITIAL.match(word) or kind == "##number##" or kind in self._collocated
        return not depends and self._ends_by_itself(word)

    def _ends_sentence(self, word: str, following: str) -> bool:
        ends = self._ends_by_itself(word)
        if word[-1] != ".":
            return ends
        tables = self._tables
        kind = _without_period(_kind(word))
        following_kind = _kind(following)
        if self._ends_by_itself(following):
            following_kind = _without_period(following_kind)
        if (kind, following_kind) in tables.collocations:  # 4.1.2
            return False
        is_initial = _INITIAL.match(word) is not None
        starts = self._starts_sentence(following, following_kind)
        is_abbreviation_or_ellipsis = not ends and (word[-2:] != ".." or _ELLIPSIS.match(word))
        if is_abbreviation_or_ellipsis and not is_initial:  # 4.2
            if starts is True:
                return True
            if following[0].isupper() and following_kind in tables.sent_starters:  # 4.1.3
                return True
        if is_initial or kind == "##number##":  # 4.3
            if starts is False:
                return False
            never_lower = not tables.ortho_context.get(following_kind, 0) & _ANY_LOWER
            if starts is None and is_initial and following[0].isupper() and never_lower:
                return False
        return ends

    def _ends_by_itself(self, word: str) -> bool:
        """The first pass, which looks at the word alone."""
        if word in (".", "?", "!"):
            return True
        if word[-1] != "." or word.endswith(".."):
            return False
        stem = word[:-1].lower()
        known = self._tables.abbrev_types
        return stem not in known and stem.rsplit("-", 1)[-1] not in known

    def _starts_sentence(self, word: str, kind: str) -> bool | None:
        """The orthographic heuristic (4.1.1); None when it is undecided."""
        if word in _PUNCTUATION:
            return False
        seen = self._tables.ortho_context.get(kind, 0)
        if word[0].isupper() and seen & _ANY_LOWER and not seen & _MIDDLE_UPPER:
            return True
        if word[0].islower() and (seen & _ANY_UPPER or not seen & _BEGINNING_LOWER):
            return False
        return None


def _candidates(text: str) -> Iterator[tuple[re.Match, str]]:
    """The last possible boundary of each run without white space, and the run up to there."""
    matches = list(_CANDIDATE.finditer(text))
    for match, following in itertools.zip_longest(matches, matches[1:]):
        if following is not None and not match[2]:
            between = text[match.end() : following.end()]
            if between.split(maxsplit=1)[0] == between:
                continue  # no white space: the same run
        # The run begins behind the last space, or behind other white space after it.
        start = text.rfind(" ", 0, match.start()) + 1
        yield match, text[start : match.end()].split()[-1]


def _kind(word: str) -> str:
    """The type of a word: lower case, all numbers alike."""
    return _NUMBER.sub("##number##", word.lower())


def _without_period(kind: str) -> str:
    return kind[:-1] if len(kind) > 1 and kind[-1] == "." else kind


def _with_closing_punctuation(text: str, slices: list[tuple[int, int]]) -> Iterator[str]:
    """The slices as text; quotes and brackets that open a slice close the one before instead."""
    # What closed the slice before is missing at the start of this one.
    moved = 0
    for (start, stop), following in itertools.zip_longest(slices, slices[1:]):
        start += moved
        closing = following and _CLOSING.match(text, *following)
        moved = closing.end() - following[0] if closing else 0
        if closing:
            yield text[start : following[0] + len(closing[0].rstrip())]
        elif text[start:stop]:
            yield text[start:stop]


@functools.cache
def load_splitter(folder: Path) -> SentenceSplitter:
    """The splitter with the tables of a folder; raises as `punkt.read_tables`."""
    return SentenceSplitter(punkt.read_tables(folder))


def split_lines(text: str, splitter: SentenceSplitter) -> str:
    """Stage .3: each sentence on a line of its own, blank lines kept, one more at the end."""
    out = []
    for line in lines_of(text):
        # Quirk: a last line of one character without a line end gets a blank line before it too.
        if len(line) == 1:
            out.append("\n")
        out.extend(f"{sentence.strip()}\n" for sentence in splitter.tokenize(line))
    return "".join([*out, "\n"])


def write_stage_3(input_path: str, output_path: str, punkt: Path) -> None:
    """Stage .3 from file to file."""
    write_whole(output_path, split_lines(read_text(input_path), load_splitter(punkt)))
