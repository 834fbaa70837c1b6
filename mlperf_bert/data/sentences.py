"""Text files to documents of sentences of token ids.

Words become numbers first, so that each distinct one is tokenized once, and numpy puts the ids of
the text together. A word is what stands between spaces and ends of lines: the tokenizer cuts it
further, also at other white space.

N = words and ends of lines of a piece of text, W = distinct words, L = lines, I = their token ids.
"""

import itertools
import re
from collections.abc import Iterator, Sequence

import numpy as np

from mlperf_bert.data import stages
from mlperf_bert.data.tokenization import Tokenizer
from mlperf_bert.data.vocabulary import text_of
from mlperf_bert.messages import Progress

_LINE_END = 0  # its number; words have numbers from 1
_PIECE_BYTES = 1 << 20


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


def _put_together(
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
    # Where the ids of each word stand among all, less where its tokens begin here.
    moved = (np.cumsum(lengths) - lengths)[numbers] - (stops - counts)
    tokens = ids[np.arange(stops[-1]) + np.repeat(moved, counts)]
    ends = np.flatnonzero(numbers == _LINE_END)
    num_words = np.cumsum(~is_blank[numbers])[ends]
    return tokens, np.diff(stops[ends], prepend=0), np.diff(num_words, prepend=0) == 0


def documents_of(content: bytes, tokenizer: Tokenizer) -> list[list[np.ndarray]]:
    """Documents of sentences of token ids [length] int32; blank lines end a document.

    The content is UTF-8.
    """
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
    lines = [_put_together(each, lengths, ids_of_all, is_blank_word) for each in numbered]
    tokens, num_tokens, is_blank = map(np.concatenate, zip(*lines))
    # A line of characters that the tokenizer drops is no sentence, and ends no document.
    is_sentence = num_tokens > 0
    bounds = itertools.pairwise([0, *np.cumsum(num_tokens[is_sentence]).tolist()])
    sentences = [tokens[start:end] for start, end in bounds]
    document = np.cumsum(is_blank)[is_sentence]
    _, firsts = np.unique(document, return_index=True)
    bounds = itertools.pairwise([*firsts.tolist(), len(sentences)])
    return [sentences[start:end] for start, end in bounds]


def read_documents(
    paths: Sequence[str], tokenizer: Tokenizer, progress: Progress | None = None
) -> list[list[np.ndarray]]:
    """The documents of files as `documents_of`; `progress` counts the files that are read.

    A document goes on from one file into the next unless a blank line stands between.

    Raises:
      ValueError: JSON or a list of digests, bytes that are not UTF-8, or no document at all.
    """
    texts = []
    for path in paths:
        stages.require_sentences(text := text_of(path), path)
        # Bytes: one hieroglyph makes a text four times as large in memory.
        texts.append(text.encode())
        # A last line without an end is one too, and no blank line comes between two files.
        texts.append(b"" if text[-1:] in ("", "\n") else b"\n")
        del text
        if progress:
            progress.advance(1)
    content = b"".join(texts)
    texts.clear()
    if progress and re.search(rb"\S", content):  # what is blank is refused in one line
        progress.line(f"read {len(content):,} bytes; tokenizing")
    if not (documents := documents_of(content, tokenizer)):
        raise ValueError(f"{', '.join(paths)}: no document, only blank lines; check the input")
    return documents
