"""GLUE's files with any bytes in them are read, or refused in one line. Seconds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlperf_bert.finetuning import glue
from tests.helpers.fuzzing import seeded

_PIECES = [
    *(b"\t", b"\n", b"\r", b"\r\n", b'"', b"0", b"1", b"0.5", b"nan", b"1e400", b"entailment"),
    *(b"sentence", b"label", b"index", b"\x00", b"\xff", b"\xef\xbb\xbf", b"\x1b[31m"),
    *("é", "中", "\u2028", "\ufeff", "½"),
]
PIECES = st.lists(st.one_of(st.sampled_from(_PIECES), st.binary(max_size=6)), max_size=40).map(
    lambda pieces: b"".join(p.encode() if isinstance(p, str) else p for p in pieces)
)
NUM_CASES = 150


@pytest.mark.parametrize("name", glue.NAMES)
def test_any_bytes_are_examples_or_one_line(made, tmp_path, name):
    """After the true header, too, so that rows are reached."""
    task = glue.create(name, str(tmp_path))
    splits = ("train", task.test_splits[0])
    headers = {
        split: (made / "glue" / task.folder / f"{split}.tsv").read_bytes().split(b"\n")[0]
        for split in splits
    }
    (tmp_path / task.folder).mkdir()
    outcomes = set()

    @seeded(NUM_CASES)
    @given(PIECES, st.sampled_from(splits), st.booleans())
    def read(content: bytes, split: str, with_header: bool) -> None:
        begin = headers[split] + b"\n" if with_header else b""
        (tmp_path / task.folder / f"{split}.tsv").write_bytes(begin + content)
        try:
            examples = task.read(split)
        except ValueError as error:
            assert "\n" not in str(error) and "\x1b" not in str(error)
            assert f"{split}.tsv" in str(error)
            outcomes.add("refused")
        else:
            assert examples
            outcomes.add("read")

    read()
    assert "refused" in outcomes
