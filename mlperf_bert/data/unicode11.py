"""What Python 3.7 knows of characters (Unicode 11.0), on whatever Python runs us.

The reference data was made on Python 3.7. Later ones know more characters, and lower-case,
decompose and classify these otherwise, so `unicodedata` and `str.lower` of the running Python are
not the specification: the tables in unicode11.txt are, which tests/data/unicode_tables.py made.

White space (`str.split`, `str.strip`) is left to Python: its 29 characters are the same in
Unicode 6.3 to 16.0, and a test compares them.

Source: the Unicode Character Database 11.0; CPython 3.7 Objects/unicodeobject.c (final sigma).
"""

import re
from collections.abc import Iterator
from pathlib import Path

_HANGUL_FIRST, _HANGUL_LAST = 0xAC00, 0xD7A3  # decomposed by rule, not by table


def _codes(items: list[str]) -> Iterator[int]:
    for item in items:
        first, last = item.split("-")
        yield from range(int(first, 16), int(last, 16) + 1)


def _span(item: str) -> str:
    return "-".join(chr(int(end, 16)) for end in item.split("-"))


def _characters(items: list[str]) -> frozenset[str]:
    return frozenset(map(chr, _codes(items)))


def _translation(items: list[str]) -> dict[int, str]:
    pairs = (item.split(":") for item in items)
    return {
        int(code, 16): "".join(chr(int(char, 16)) for char in value.split("."))
        for code, value in pairs
    }


def _load() -> dict[str, list[str]]:
    text = Path(__file__).with_name("unicode11.txt").read_text(encoding="ascii")
    rows = (line.split() for line in text.splitlines() if line[0] != "#")
    return {name: items for name, *items in rows}


_TABLES = _load()
CONTROLS = _characters(_TABLES["control"])
"""Categories Cc and Cf."""
SPACES = _characters(_TABLES["space"])
"""Category Zs."""
PUNCTUATION = _characters(_TABLES["punctuation"])
"""Categories P*."""
NONSPACING_MARKS = _characters(_TABLES["nonspacing"])
"""Category Mn."""
UNASSIGNED = re.compile(f"[{''.join(map(_span, _TABLES['unassigned']))}]")
"""Matches a character that Unicode 11.0 does not have."""
_CASED = _characters(_TABLES["cased"])
_IGNORABLE = _characters(_TABLES["ignorable"])
_LOWER = _translation(_TABLES["lower"])
_DECOMPOSITION = _translation(_TABLES["decomposition"])
_COMBINING = {
    chr(code): int(value)
    for value, span in (item.split("=") for item in _TABLES["combining"])
    for code in _codes([span])
}


def lower(text: str) -> str:
    """`text.lower()` by Unicode 11.0; a capital sigma at the end of a word becomes a final one."""
    if text.isascii():
        return text.lower()
    if "\u03a3" in text:
        text = "".join(
            "\u03c2" if char == "\u03a3" and _ends_word(text, index) else char
            for index, char in enumerate(text)
        )
    return text.translate(_LOWER)


def _ends_word(text: str, index: int) -> bool:
    before = next((char for char in reversed(text[:index]) if char not in _IGNORABLE), "")
    after = next((char for char in text[index + 1 :] if char not in _IGNORABLE), "")
    return before in _CASED and after not in _CASED


def decompose(text: str) -> str:
    """Normalization form D by Unicode 11.0."""
    if text.isascii():
        return text
    text = "".join(map(_hangul, text)).translate(_DECOMPOSITION)
    if _COMBINING.keys().isdisjoint(text):
        return text
    ordered: list[str] = []
    marks: list[str] = []
    for char in text:
        if char in _COMBINING:
            marks.append(char)
        else:
            ordered += sorted(marks, key=_COMBINING.__getitem__)
            ordered.append(char)
            marks = []
    return "".join(ordered + sorted(marks, key=_COMBINING.__getitem__))


def _hangul(char: str) -> str:
    """A Hangul syllable as its two or three letters. Source: Unicode 11.0, section 3.12."""
    if not _HANGUL_FIRST <= ord(char) <= _HANGUL_LAST:
        return char
    lead, rest = divmod(ord(char) - _HANGUL_FIRST, 588)
    vowel, tail = divmod(rest, 28)
    letters = chr(0x1100 + lead) + chr(0x1161 + vowel)
    return letters + chr(0x11A7 + tail) if tail else letters
