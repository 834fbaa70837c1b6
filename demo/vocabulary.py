"""Learn a WordPiece vocabulary from cleaned text, with tensorflow-text's trainer.

    python -m demo.vocabulary --input_file='build/demo/cleaned/part-*' --output_file=vocab.txt

The real benchmark uses the published vocab.txt instead.
"""

import argparse
import sys
from pathlib import Path

from mlperf_bert.files import paths
from mlperf_bert.files.whole import matching_files, read_regular_file, write_whole
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.tensorflow_import import tensorflow

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def learn_vocabulary(files: list[str], vocab_size: int) -> list[str]:
    """Return about `vocab_size` lower-case pieces, the special tokens first.

    Raises:
      ValueError: there are no files, or one is not text.
      OSError: one cannot be read.
    """
    if not files:
        raise ValueError("no text to learn a vocabulary from: --input_file matches nothing")
    texts = [_text_of(file) for file in files]
    if not any(map(str.strip, texts)):
        raise ValueError(f"no text to learn a vocabulary from: {files[0]} has no word")
    lines = tensorflow().data.TextLineDataset(files)
    # It imports TensorFlow too, which is there by now.
    from tensorflow_text.tools.wordpiece_vocab.bert_vocab_from_dataset import (
        bert_vocab_from_dataset,
    )

    return bert_vocab_from_dataset(
        lines.batch(1000).prefetch(2),
        vocab_size=vocab_size,
        reserved_tokens=SPECIAL_TOKENS,
        bert_tokenizer_params={"lower_case": True},
    )


def _text_of(file: str) -> str:
    try:
        return read_regular_file(file).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: no UTF-8 at byte {error.start}; give cleaned text") from error


@ends_in_one_line("demo.vocabulary")
def main() -> None:
    """Writes the vocabulary of a text."""
    parser = argparse.ArgumentParser(prog="python -m demo.vocabulary", description=__doc__)
    parser.add_argument("--input_file", required=True, help="glob of the text")
    parser.add_argument("--output_file", type=Path, required=True)
    parser.add_argument("--vocab_size", type=int, default=2000, help="about so many tokens")
    given = parser.parse_args(paths.words_with_home())
    tokens = learn_vocabulary(matching_files(given.input_file), given.vocab_size)
    write_whole(given.output_file, "".join(f"{token}\n" for token in tokens))
    print(f"{len(tokens)} tokens in {given.output_file}")


if __name__ == "__main__":
    sys.exit(main())
