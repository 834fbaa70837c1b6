"""Learn a WordPiece vocabulary from cleaned text, with tensorflow-text's trainer.

    python -m demo.vocabulary --input_file='build/demo/results/part-*' --output_file=vocab.txt

The real benchmark uses the published vocab.txt instead.
"""

import argparse
from pathlib import Path

import tensorflow as tf
from tensorflow_text.tools.wordpiece_vocab.bert_vocab_from_dataset import bert_vocab_from_dataset

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def learn_vocabulary(files: list[str], vocab_size: int) -> list[str]:
    """Return about `vocab_size` lower-case pieces, the special tokens first.

    Raises:
      ValueError: there are no files.
    """
    if not files:
        raise ValueError("no text to learn a vocabulary from: --input_file matches nothing")
    lines = tf.data.TextLineDataset(files)
    return bert_vocab_from_dataset(
        lines.batch(1000).prefetch(2),
        vocab_size=vocab_size,
        reserved_tokens=SPECIAL_TOKENS,
        bert_tokenizer_params={"lower_case": True},
    )


def write_vocabulary(path: Path, tokens: list[str]) -> None:
    """Write one token per line, under a temporary name first."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")
    partial.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m demo.vocabulary", description=__doc__)
    parser.add_argument("--input_file", required=True, help="glob of the text")
    parser.add_argument("--output_file", type=Path, required=True)
    parser.add_argument("--vocab_size", type=int, default=2000, help="about so many tokens")
    given = parser.parse_args()
    tokens = learn_vocabulary(sorted(tf.io.gfile.glob(given.input_file)), given.vocab_size)
    write_vocabulary(given.output_file, tokens)
    print(f"{len(tokens)} tokens in {given.output_file}")


if __name__ == "__main__":
    main()
