"""The checkpoints of tests/checkpoints, and vocabularies for them."""

from tests.checkpoints.conftest import generated, start  # noqa: F401 - fixtures


def write_vocabulary(path, size: int):
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"token{n}" for n in range(5, size))]
    path.write_text("".join(f"{token}\n" for token in tokens))
    return str(path)
