"""Text files to token ids, with where sentences and documents begin.

Words become numbers first, so that each distinct one is tokenized once, and numpy puts the ids of
the text together. A word is what stands between spaces and ends of lines: the tokenizer cuts it
further, also at other white space.

N = words and ends of lines of a piece of text, W = distinct words, L = lines, I = their token ids;
T = tokens of the text, D = documents.
"""

import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mlperf_bert.data import stages
from mlperf_bert.data.tokenization import Tokenizer
from mlperf_bert.data.vocabulary import text_of
from mlperf_bert.messages import Progress

_LINE_END = 0  # the number of a line's end; words have numbers from 1
_PIECE_BYTES = 1 << 20


class Text(NamedTuple):
    """Documents, one after the other."""

    tokens: np.ndarray
    """[T] int32: ids."""
    sentence_starts: np.ndarray
    """int64: where each sentence begins in `tokens`, and at last T."""
    document_starts: np.ndarray
    """[D + 1] int64: which sentence is the first of each document, and at last their number."""
    lacking: float = 0.0
    """Share of the characters that the vocabulary lacks."""

    @property
    def num_documents(self) -> int:
        """The number of documents, D."""
        return len(self.document_starts) - 1

    def in_order(self, order: np.ndarray) -> "Text":
        """The same documents in another order, [D] numbers of documents."""
        firsts = self.document_starts[1:-1]
        tokens = np.split(self.tokens, self.sentence_starts[firsts])
        lengths = np.split(np.diff(self.sentence_starts), firsts)
        return Text(
            tokens=np.concatenate([tokens[number] for number in order]),
            sentence_starts=_starts(np.concatenate([lengths[number] for number in order])),
            document_starts=_starts(np.diff(self.document_starts)[order]),
        )


def _starts(lengths: np.ndarray) -> np.ndarray:
    """Where each of consecutive pieces of these lengths begins, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(lengths)])


class _Numbers(dict):
    """Word -> its number, which it gets when it is looked up first."""

    def __missing__(self, word: bytes) -> int:
        return self.setdefault(word, len(self))


def _pieces(content: bytes) -> Iterator[bytes]:
    """The content in pieces of whole lines: as lists of words, all of it would fill the memory."""
    begin = 0
    while begin <= len(content):
        end = content.find(b"\n", begin + _PIECE_BYTES)
        end = len(content) if end < 0 else end
        yield content[begin:end] + b"\n"
        begin = end + 1


def _join(
    numbers: np.ndarray, lengths: np.ndarray, ids: np.ndarray, is_blank: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The tokens [I] of a piece, how many each line has [L], and which lines are blank [L].

    Args:
      numbers: [N] of the piece; each line ends with `_LINE_END`.
      lengths: [W] how many ids a word has.
      ids: the ids of all words, one after the other.
      is_blank: [W] whether a word is nothing but white space.
    """
    counts = lengths[numbers]
    stops = np.cumsum(counts)
    # The place of each word's ids among all ids, minus the place where its tokens begin here.
    moved = (np.cumsum(lengths) - lengths)[numbers] - (stops - counts)
    tokens = ids[np.arange(stops[-1]) + np.repeat(moved, counts)]
    ends = np.flatnonzero(numbers == _LINE_END)
    num_words = np.cumsum(~is_blank[numbers])[ends]
    return tokens, np.diff(stops[ends], prepend=0), np.diff(num_words, prepend=0) == 0


def text_of_bytes(content: bytes, tokenizer: Tokenizer) -> Text:
    """The sentences and documents of UTF-8; a blank line ends a document."""
    number_of = _Numbers({b"\n": _LINE_END})
    numbered = []
    for piece in _pieces(content):
        words = piece.replace(b"\n", b" \n ").split(b" ")
        numbered.append(np.fromiter(map(number_of.__getitem__, words), np.int32, len(words)))
    distinct = [word.decode() for word in number_of]
    ids = list(map(tokenizer.tokenize, distinct))
    lengths = np.array(list(map(len, ids)))
    ids_of_all = np.fromiter(itertools.chain.from_iterable(ids), np.int32)
    is_blank_word = np.array([not word.strip() for word in distinct])
    lines = [_join(each, lengths, ids_of_all, is_blank_word) for each in numbered]
    tokens, num_tokens, is_blank = map(np.concatenate, zip(*lines))
    # A line of characters that the tokenizer drops is no sentence, and ends no document.
    is_sentence = num_tokens > 0
    _, firsts = np.unique(np.cumsum(is_blank)[is_sentence], return_index=True)
    return Text(
        tokens=tokens,
        sentence_starts=_starts(num_tokens[is_sentence]),
        document_starts=np.append(firsts, np.count_nonzero(is_sentence)),
        lacking=_share_lacking(distinct, ids, numbered, tokenizer),
    )


def _share_lacking(
    words: Sequence[str],
    ids: Sequence[Sequence[int]],
    numbered: Sequence[np.ndarray],
    tokenizer: Tokenizer,
) -> float:
    """The share of the characters of a text that the vocabulary lacks.

    Args:
      words: [W], distinct.
      ids: [W] of each word.
      numbered: pieces of [N] numbers of words.
      tokenizer: that of `ids`.
    """
    counts = np.sum([np.bincount(each, minlength=len(words)) for each in numbered], axis=0)
    unknown = tokenizer.vocabulary["[UNK]"]
    num_lacking = sum(
        tokenizer.num_lacking(word) * int(count)
        for word, own, count in zip(words, ids, counts)
        if unknown in own
    )
    num_all = sum(len(word.strip()) * int(count) for word, count in zip(words, counts))
    return num_lacking / max(num_all, 1)


def read_documents(
    paths: Sequence[str], tokenizer: Tokenizer, progress: Progress | None = None
) -> Text:
    """The documents of files as `text_of_bytes`; `progress` counts the files that are read.

    A document continues from one file into the next unless a blank line is between them.
    """
    texts = []
    for path in paths:
        stages.require_sentences(text := text_of(path), path)
        if hint := stages.hint_of_markup(text, path):
            print(hint, file=sys.stderr)
        # Read as bytes: as text, one hieroglyph would make all of it four times as large in memory.
        texts.append(text.encode())
        # A last line without a line end is a line too, and adds no blank line between two files.
        texts.append(b"" if text[-1:] in ("", "\n") else b"\n")
        del text
        if progress:
            progress.advance(1)
    content = b"".join(texts)
    texts.clear()
    if progress and re.search(rb"\S", content):  # what is blank is refused in one line
        progress.line(f"read {len(content):,} bytes; tokenizing")
    whole = text_of_bytes(content, tokenizer)
    if not whole.num_documents:
        raise ValueError(f"{', '.join(paths)}: no document, only blank lines; check the input")
    return whole
