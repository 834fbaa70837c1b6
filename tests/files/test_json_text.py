"""JSON of others: taken, or refused in one line."""

import pytest

from mlperf_bert.files import json_text

REFUSED = {
    b"": r"not JSON \(Expecting value",
    b"{]": r"not JSON \(",
    b"\xff": r"not JSON \(",
    b"[" * 100_000: r"not JSON \(nested too deeply\)",
    b'{"a":' * 100_000: r"not JSON \(nested too deeply\)",
    b'{"a": 1' + b"0" * 5000 + b"}": r"not JSON \(Exceeds the limit",
    b"null": "expected a JSON object, got NoneType",
    b"[1]": "expected a JSON object, got list",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: repr(text[:20]))
def test_refused(text, tmp_path):
    (tmp_path / "x.json").write_bytes(text)
    with pytest.raises(ValueError, match=f"^{REFUSED[text]}") as error:
        json_text.parse_object(text)
    assert len(str(error.value).splitlines()) == 1
    with pytest.raises(ValueError, match=f"/x.json: {REFUSED[text]}"):
        json_text.read_object(tmp_path / "x.json")


def test_taken(tmp_path):
    text = '{"a": "é \\ud83d\\ude00", "b": [{"a": 1}, {"a": 2}]}'
    expected = {"a": "é \U0001f600", "b": [{"a": 1}, {"a": 2}]}
    assert json_text.parse_object(text) == json_text.parse_object(text.encode()) == expected
    (tmp_path / "x.json").write_text(text)
    assert json_text.read_object(tmp_path / "x.json") == expected
    (tmp_path / "x.json").write_text(text, encoding="utf-8-sig")
    assert json_text.read_object(tmp_path / "x.json") == expected
