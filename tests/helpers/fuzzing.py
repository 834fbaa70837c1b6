"""Odd inputs by Hypothesis: JSON texts and logs as accidents, programs and malice leave them."""

import copy
import functools
import json
import operator
from collections.abc import Iterator

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

ODD_NUMBERS = [0, -1, 1, 2, 0.5, 1e308, -0.0, 2**31, 2**63, -(2**63), 10**400]
ODD_NUMBERS += [float("nan"), float("inf"), float("-inf")]
ODD_TEXTS = ["", " ", "\0", "\n", "../../etc/passwd", "/dev/zero", "<b>", "\ud800", "é" * 300, "1"]
ODD_TEXTS += ["x" * 70_000, "\x1b[2J", "{{7*7}}", "NaN", "%s%n"]
ODD_VALUES = [None, True, False, [], {}, [[]], [None], {"": None}, *ODD_NUMBERS, *ODD_TEXTS]
HOPELESS = [b"", b"null", b"[]", b"{}", b'""', b"0", b"NaN", b"\xef\xbb\xbf{}", b"\xff\xfe{\0}\0"]
HOPELESS += [b"[" * 100_000, b'{"a":' * 100_000, b"[" * 5_000 + b"]" * 5_000, b"\0" * 1_000]
HOPELESS += [b'{"a": 1' + b"0" * 5_000 + b"}", b'{"a": 1, "a": 2}', b'{"a": "\\ud800"}']

odd_values = st.sampled_from(ODD_VALUES) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=6,
)


def seeded(num_cases: int) -> settings:
    """So many cases, the same in every run; nothing is stored, and a slow machine is no failure."""
    return settings(
        max_examples=num_cases,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def _places(content, place: tuple = ()) -> Iterator[tuple]:
    """Of all values in a value, as the keys that lead there."""
    named = enumerate(content) if isinstance(content, list) else ()
    for key, value in content.items() if isinstance(content, dict) else named:
        yield (*place, key)
        yield from _places(value, (*place, key))


@st.composite
def changed_values(draw, content):
    """The JSON text of a value of which parts were replaced, removed or doubled."""
    held = {"": content}
    for _ in range(draw(st.integers(1, 3))):
        held = copy.deepcopy(held)  # what is drawn or doubled is another's too
        *way, last = draw(st.sampled_from(list(_places(held))))
        around = functools.reduce(operator.getitem, way, held)
        kind = draw(st.sampled_from(["replace", "replace", "replace", "remove", "add"]))
        if kind == "replace" or not way:
            around[last] = draw(odd_values)
        elif kind == "remove":
            del around[last]
        elif isinstance(around, dict):
            around[draw(st.sampled_from(ODD_TEXTS))] = around[last]
        else:
            around.insert(last, draw(odd_values))
    return json.dumps(held[""]).encode()


@st.composite
def changed_bytes(draw, text: bytes):
    """A text that was cut, or of which pieces were overwritten, doubled or moved."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(len(text), start + 40)))
        piece = draw(
            st.sampled_from([b"", text[start:end] * 2, b"\0", b"\xff\xfe", b"\n", b'"', b"{", b"]"])
            | st.binary(max_size=8)
        )
        text = draw(st.sampled_from([text[:start], text[:start] + piece + text[end:]]))
    return text


def damaged(content):
    """Any of these, for a file that holds one JSON value."""
    whole = json.dumps(content, indent=1).encode()
    return st.sampled_from(HOPELESS) | changed_values(content) | changed_bytes(whole)


@st.composite
def damaged_lines(draw, lines: list[dict], *, mark: bytes):
    """The same for a file with one JSON object a line, each behind a mark."""
    texts = [mark + json.dumps(line).encode() for line in lines]
    for _ in range(draw(st.integers(1, 3))):
        number = draw(st.integers(0, len(lines) - 1))
        others = [b"", texts[number] + b"\n" + texts[number], *(mark + each for each in HOPELESS)]
        texts[number] = draw(
            changed_values(lines[number]).map(mark.__add__)
            | changed_bytes(texts[number])
            | st.sampled_from(others)
        )
    text = b"\n".join(texts) + b"\n"
    return draw(st.just(text) | changed_bytes(text))
