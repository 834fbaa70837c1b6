"""Hypothesis strategies: JSON texts and logs as accidents, other programs and malice leave them."""

import copy
import json

from hypothesis import strategies as st

ODD_NUMBERS = [0, -1, 1, 2, 0.5, 1e308, -0.0, 2**31, 2**63, -(2**63), 10**400]
ODD_NUMBERS += [float("nan"), float("inf"), float("-inf")]
ODD_TEXTS = ["", " ", "\0", "\n", "../../etc/passwd", "/dev/zero", "<b>", "\ud800", "é" * 300, "1"]
ODD_TEXTS += ["x" * 70_000, "\x1b[2J", "{{7*7}}", "NaN", "%s%n"]
ODD_VALUES = [None, True, False, [], {}, [[]], [None], {"": None}, *ODD_NUMBERS, *ODD_TEXTS]

odd_values = st.sampled_from(ODD_VALUES) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=6,
)


@st.composite
def changed_values(draw, content):
    """The JSON text of a value that was changed at some places."""
    for _ in range(draw(st.integers(1, 3))):
        content = draw(_changed_once(content))
    return json.dumps(content).encode()


@st.composite
def _changed_once(draw, content):
    """One node replaced, removed, or doubled; the content given stays."""
    if not content or not isinstance(content, dict | list) or draw(st.integers(0, 4)) == 0:
        return draw(odd_values)
    content = copy.deepcopy(content)
    places = list(content) if isinstance(content, dict) else list(range(len(content)))
    place = draw(st.sampled_from(places))
    kind = draw(st.sampled_from(["deeper", "deeper", "deeper", "remove", "add"]))
    if kind == "deeper":
        content[place] = draw(_changed_once(content[place]))
    elif kind == "remove":
        del content[place]
    elif isinstance(content, dict):
        content[draw(st.sampled_from(ODD_TEXTS))] = content[place]
    else:
        content.insert(place, draw(odd_values))
    return content


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


HOPELESS = [
    b"",
    b"null",
    b"[]",
    b"{}",
    b'""',
    b"0",
    b"NaN",
    b"\xef\xbb\xbf{}",
    b"\xff\xfe{\0}\0",
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"[" * 5_000 + b"]" * 5_000,
    b'{"a": 1' + b"0" * 5_000 + b"}",
    b'{"a": 1, "a": 2}',
    b'{"a": "\\ud800"}',
    b"\0" * 1_000,
]


def damaged(content):
    """Any of these, for a file that holds one JSON value."""
    whole = json.dumps(content, indent=1).encode()
    return st.sampled_from(HOPELESS) | changed_values(content) | changed_bytes(whole)


@st.composite
def damaged_lines(draw, lines: list[dict], *, mark: bytes = b""):
    """The same for a file with one JSON object a line, each behind a mark."""
    texts = [mark + json.dumps(line).encode() for line in lines]
    for _ in range(draw(st.integers(1, 3))):
        number = draw(st.integers(0, len(lines) - 1))
        kind = draw(st.sampled_from(["value", "value", "bytes", "hopeless", "remove", "twice"]))
        if kind == "value":
            texts[number] = mark + draw(changed_values(lines[number]))
        elif kind == "bytes":
            texts[number] = draw(changed_bytes(texts[number]))
        elif kind == "hopeless":
            texts[number] = mark + draw(st.sampled_from(HOPELESS))
        elif kind == "remove":
            texts[number] = b""
        else:
            texts[number] = texts[number] + b"\n" + texts[number]
    text = b"\n".join(texts) + b"\n"
    return draw(st.just(text) | changed_bytes(text))
