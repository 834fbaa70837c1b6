"""What Python 3.7 knows of characters (Unicode 11.0), on whatever Python runs us.

The reference data was made on Python 3.7. Later ones know more characters, and take a few of the
old ones for others, so `unicodedata` and `str.lower` of the running Python are not the
specification. The classes are tables in unicode11.txt, which tests/data/unicode_tables.py made.
Letters are lower-cased and decomposed by the running Python, which is shown none of what Unicode
11.0 does not have: for all others Unicode keeps both as they were.

White space (`str.split`, `str.strip`) is left to Python: its 29 characters are the same in
Unicode 6.3 to 16.0, and a test compares them.

Source: the Unicode Character Database 11.0; Unicode's policies of stability; CPython 3.7
Objects/unicodeobject.c (final sigma).
"""

import re
import unicodedata
from pathlib import Path

_NEVER_ASSIGNED = "\uffff"
"""Stands for all that Unicode 11.0 has not: no letter, no digit, without case."""
# Character that later versions took for another kind -> one that is still of its old kind.
_CHANGED = str.maketrans(
    dict.fromkeys("\u055f\u1cf2\u1cf3\ua9bd", _NEVER_ASSIGNED)  # letters since 12.0
    | dict.fromkeys("\u1734\U0001171e", "\u0301")  # casing ignores them, until 14.0 and 16.0
    | {"\u10fc": "\u0640"}  # a letter without case, until 15.0
)
_SIGMA = "\u03a3"
# Small sigmas become a letter of their kind: then only capital ones are lower-cased to a sigma.
_NO_SMALL_SIGMA = str.maketrans("\u03c3\u03c2", "ss")


def _span(item: str) -> str:
    return "-".join(chr(int(end, 16)) for end in item.split("-"))


def _characters(items: list[str]) -> frozenset[str]:
    spans = ([int(end, 16) for end in item.split("-")] for item in items)
    return frozenset(chr(code) for first, last in spans for code in range(first, last + 1))


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
_UNASSIGNED = "".join(map(_span, _TABLES["unassigned"]))
_UNKNOWN, _KNOWN = re.compile(f"[{_UNASSIGNED}]"), re.compile(f"[^{_UNASSIGNED}]+")


def as_in_unicode_11(text: str) -> str:
    """The text with characters that every Python takes for what Python 3.7 took these for."""
    if text.isascii():
        return text
    return _UNKNOWN.sub(_NEVER_ASSIGNED, text).translate(_CHANGED)


def lower(text: str) -> str:
    """`text.lower()` by Unicode 11.0; a capital sigma at the end of a word becomes a final one."""
    if text.isascii():
        return text.lower()
    if _SIGMA in text:
        # Only a capital sigma depends on its neighbours: they decide between the two small ones.
        seen = as_in_unicode_11(text.translate(_NO_SMALL_SIGMA)).lower()
        small = iter(re.findall("[\u03c3\u03c2]", seen))
        text = re.sub(_SIGMA, lambda _: next(small), text)
    return _KNOWN.sub(lambda run: run[0].lower(), text)


def decompose(text: str) -> str:
    """Normalization form D by Unicode 11.0, in which no mark moves over an unknown character."""
    return _KNOWN.sub(lambda run: unicodedata.normalize("NFD", run[0]), text)
