"""Makes the tables of mlperf_bert/data/unicode11.txt, on the Python of the reference data:

python3.7 tests/data/unicode_tables.py > mlperf_bert/data/unicode11.txt
"""

from __future__ import annotations  # for Python 3.7

import sys
import unicodedata

_CLASSES = {"Cc": "control", "Cf": "control", "Zs": "space", "Mn": "nonspacing", "Cn": "unassigned"}


def _class_of(char: str) -> str | None:
    category = unicodedata.category(char)
    return "punctuation" if category[0] == "P" else _CLASSES.get(category)


def generate() -> str:
    """Returns the tables of the Python that runs this, one on a line, of spans in hexadecimal."""
    tables: dict[str, list[str]] = {}
    start, current = 0, None
    for code in range(sys.maxunicode + 2):
        value = _class_of(chr(code)) if code <= sys.maxunicode else None
        if value != current:
            if current:
                tables.setdefault(current, []).append(f"{start:x}-{code - 1:x}")
            start, current = code, value
    lines = [f"# Unicode {unicodedata.unidata_version}"]
    lines += [" ".join([name, *items]) for name, items in tables.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(generate())
