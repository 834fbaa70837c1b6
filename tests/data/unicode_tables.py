"""Makes the tables of mlperf_bert/data/unicode11.txt, on the Python of the reference data:

python3.7 tests/data/unicode_tables.py > mlperf_bert/data/unicode11.txt
"""

from __future__ import annotations  # for Python 3.7

import sys
import unicodedata

_HANGUL_FIRST, _HANGUL_LAST = 0xAC00, 0xD7A3  # decomposed by rule, not by table
_UNASSIGNED = {"Cn": "unassigned"}
_CLASSES = {"Cc": "control", "Cf": "control", "Zs": "space", "Mn": "nonspacing"}


def _is_final_sigma(text: str) -> bool:
    return text.lower().endswith("\u03c2")


def _class_of(char: str) -> str | None:
    category = unicodedata.category(char)
    return "punctuation" if category[0] == "P" else _CLASSES.get(category)


def _case_of(char: str) -> str | None:
    """Cased or ignorable, found by what a capital sigma after the character becomes."""
    if _is_final_sigma(char + "\u03a3"):
        return "cased"
    return "ignorable" if _is_final_sigma("A" + char + "\u03a3") else None


def _ranges(property_of) -> dict[str, list[str]]:
    """Value -> "first-last" in hexadecimal, over all characters."""
    found: dict[str, list[str]] = {}
    start, current = 0, None
    for code in range(sys.maxunicode + 2):
        value = property_of(chr(code)) if code <= sys.maxunicode else None
        if value != current:
            if current:
                found.setdefault(current, []).append(f"{start:x}-{code - 1:x}")
            start, current = code, value
    return found


def _mapping(function) -> list[str]:
    """code:code.code in hexadecimal for every character that `function` changes."""
    return [
        f"{code:x}:" + ".".join(f"{ord(char):x}" for char in function(chr(code)))
        for code in range(sys.maxunicode + 1)
        if not _HANGUL_FIRST <= code <= _HANGUL_LAST and function(chr(code)) != chr(code)
    ]


def generate() -> str:
    """Returns the tables of the Python that runs this, one table on a line."""
    tables: dict[str, list[str]] = {}
    tables.update(_ranges(_class_of))
    tables.update(_ranges(_case_of))
    tables.update(_ranges(lambda char: _UNASSIGNED.get(unicodedata.category(char))))
    combining = _ranges(lambda char: str(unicodedata.combining(char) or "") or None)
    tables["combining"] = [value + "=" + item for value in combining for item in combining[value]]
    tables["lower"] = _mapping(str.lower)
    tables["decomposition"] = _mapping(lambda char: unicodedata.normalize("NFD", char))
    lines = [f"# Unicode {unicodedata.unidata_version}"]
    lines += [" ".join([name, *items]) for name, items in tables.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(generate())
