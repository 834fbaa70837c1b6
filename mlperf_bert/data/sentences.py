"""Text files to documents of sentences of token ids.

A compiled loop numbers the words of a text in a table of its own, so that Python meets each
distinct word once, and never the text. A word is what stands between spaces and ends of lines: the
tokenizer cuts it further, also at other white space.

T = bytes of the text, N = words and ends of lines, W = distinct words, I = their token ids.
"""

import itertools
import re
from collections.abc import Sequence

import numpy as np

from mlperf_bert.data import stages
from mlperf_bert.data.jit import kernel
from mlperf_bert.data.tokenization import Tokenizer
from mlperf_bert.data.vocabulary import text_of
from mlperf_bert.messages import Progress

_SPACE, _LINE_END = ord(" "), ord("\n")
_END_OF_LINE = 0  # its number; words have numbers from 1
_PLACES = 1 << 13


@kernel
def _place_of(text, start, end, digest, table, firsts, digests):
    """Where in the table the word text[start:end] stands, or the free place where it belongs."""
    place = (digest ^ (digest >> 32)) & (len(table) - 1)
    while table[place]:
        first, stop = firsts[table[place]]
        if digests[table[place]] == digest and stop - first == end - start:
            same = 0
            while same < end - start and text[first + same] == text[start + same]:
                same += 1
            if same == end - start:
                break
        place = (place + 1) & (len(table) - 1)
    return place


@kernel
def _number_words(text):
    """Numbers the words of a text [T] uint8 by their first places.

    Returns numbers [N] int32 and where each word stands first [W + 1, 2] int64, start and end;
    number 0 is the end of a line, whose place is empty.
    """
    numbers = np.empty(len(text) + 1, np.int32)
    table = np.zeros(_PLACES, np.int32)  # a word's number; at least half of the places are free
    firsts = np.zeros((_PLACES // 2, 2), np.int64)
    digests = np.zeros(_PLACES // 2, np.int64)
    count, num_words, start, digest = 0, 1, 0, 0
    for at in range(len(text) + 1):
        byte = text[at] if at < len(text) else _LINE_END
        if byte != _SPACE and byte != _LINE_END:
            digest = (digest ^ byte) * 1099511628211  # Fowler, Noll and Vo's
            continue
        if at > start:
            place = _place_of(text, start, at, digest, table, firsts, digests)
            if not table[place]:
                table[place] = num_words
                firsts[num_words] = start, at
                digests[num_words] = digest
                num_words += 1
            numbers[count] = table[place]
            count += 1
            if num_words == len(firsts):
                firsts = np.concatenate((firsts, np.zeros_like(firsts)))
                digests = np.concatenate((digests, np.zeros_like(digests)))
                table = np.zeros(2 * len(table), np.int32)
                for number in range(1, num_words):
                    begin, end = firsts[number]
                    table[_place_of(text, begin, end, digests[number], table, firsts, digests)] = (
                        number
                    )
        if byte == _LINE_END:
            numbers[count] = _END_OF_LINE
            count += 1
        start, digest = at + 1, 0
    return numbers[:count], firsts[:num_words]


@kernel
def _put_together(numbers, id_starts, ids, is_blank):
    """The tokens of all lines, where each sentence begins, and which is the first of a document.

    Args:
      numbers: [N] int32.
      id_starts: [W + 2] int64: where each word's ids begin in `ids` [I] int32.
      ids: [I] int32.
      is_blank: [W + 1] bool: whether a word is nothing but white space.
    """
    num_tokens, num_lines = 0, 0
    for number in numbers:
        num_tokens += id_starts[number + 1] - id_starts[number]
        num_lines += number == _END_OF_LINE
    tokens = np.empty(num_tokens, np.int32)
    sentences = np.zeros(num_lines + 1, np.int64)
    documents = np.zeros(num_lines + 2, np.int64)
    at, sentence, document, is_blank_line = 0, 0, 0, True
    for number in numbers:
        for n in range(id_starts[number], id_starts[number + 1]):
            tokens[at] = ids[n]
            at += 1
        is_blank_line &= is_blank[number]
        if number == _END_OF_LINE:
            if at > sentences[sentence]:
                sentence += 1
                sentences[sentence] = at
            elif is_blank_line and sentence > documents[document]:
                document += 1
                documents[document] = sentence
            is_blank_line = True
    if sentence > documents[document]:
        document += 1
        documents[document] = sentence
    return tokens, sentences[: sentence + 1], documents[: document + 1]


def documents_of(content: bytes, tokenizer: Tokenizer) -> list[list[np.ndarray]]:
    """Documents of sentences of token ids [length] int32; blank lines end a document.

    The content is UTF-8.
    """
    numbers, firsts = _number_words(np.frombuffer(content, np.uint8))
    words = [content[start:end].decode() for start, end in firsts[1:].tolist()]
    ids: list[int] = []
    id_starts = [0]
    for word in words:
        id_starts.append(len(ids))
        ids += tokenizer.tokenize(word)
    tokens, sentence_starts, document_starts = _put_together(
        numbers,
        np.array([*id_starts, len(ids)]),
        np.array(ids, np.int32),
        np.array([True, *(word.isspace() for word in words)]),
    )
    bounds = itertools.pairwise(sentence_starts.tolist())
    sentences = [tokens[start:end] for start, end in bounds]
    return [sentences[start:end] for start, end in itertools.pairwise(document_starts.tolist())]


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
        del text
        if progress:
            progress.advance(1)
    content = b"\n".join(texts)
    texts.clear()
    if progress and re.search(rb"\S", content):  # what is blank is refused in one line
        progress.line(f"read {len(content):,} bytes; tokenizing (compiles the first time)")
    if not (documents := documents_of(content, tokenizer)):
        raise ValueError(f"{', '.join(paths)}: no document, only blank lines; check the input")
    return documents
