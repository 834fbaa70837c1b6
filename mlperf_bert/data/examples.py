"""Text files to TFRecords: read, tokenize, cut and mask, encode, write beside and rename."""

import contextlib
import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mlperf_bert.data import example_encoder, stages
from mlperf_bert.data.instances import InstanceConfig, batches, make_instances
from mlperf_bert.data.parts import File
from mlperf_bert.data.sentences import Text, read_documents
from mlperf_bert.data.tokenization import Tokenizer
from mlperf_bert.files.whole import written_beside
from mlperf_bert.messages import Progress


def expand_input(input_file: str) -> list[str]:
    """The files behind globs separated by commas, each glob sorted as TensorFlow sorts."""
    alone = "the parts alone, such as results/part-*"
    return [
        path
        for pattern in input_file.split(",")
        for path in stages.input_files(pattern.strip(), flag="input_file", alone=alone)
    ]


_MOST_UNKNOWN = 0.01
"""Clean English text has a ten-thousandth of [UNK] by its vocabulary."""


def hint_of_unknown(
    where: str, num_unknown: int, num_tokens: int, lacking: float | None = None
) -> str | None:
    """What to do if a vocabulary knows little of a text; None if it knows enough.

    Args:
      where: names the text.
      num_unknown: tokens that are [UNK].
      num_tokens: all.
      lacking: share of the characters that the vocabulary lacks.
    """
    share = num_unknown / max(num_tokens, 1)
    if max(share, lacking or 0) < _MOST_UNKNOWN:
        return None
    of_characters = "" if lacking is None else f", and it lacks {lacking:.1%} of the characters"
    return (
        f"hint: {where}: {num_unknown:,} of {num_tokens:,} tokens ({share:.1%}) are [UNK], which "
        f"the vocabulary does not know{of_characters}; compare the text's language and "
        "--do_lower_case with the vocabulary's"
    )


def _hint(text: Text, where: str) -> str | None:
    """What makes the next-sentence labels of a text worthless; None if nothing does."""
    if text.num_documents == 1:
        what = "the text is one document, so the next sentences that shall be wrong are its own"
    elif len(text.sentence_starts) == len(text.document_starts):
        what = "every document is one line, so all next sentences are random, with label 1"
    else:
        return None
    layout = "one sentence a line, and a blank line after each document"
    return f"hint: {where}: {what}; the format is {layout}"


def write_examples(
    inputs: Sequence[str],
    outputs: Sequence[str | os.PathLike],
    tokenizer: Tokenizer,
    config: InstanceConfig,
    *,
    at_most: int = 0,
    silent: bool = False,
) -> list[File]:
    """Makes all examples of the inputs; returns what is recorded of each output.

    The inputs are taken as one text; several outputs get the examples in turn, and are put into
    place when all are written.

    Args:
      at_most: the number of examples that are written, the first ones; 0 for all.

    Raises:
      ValueError: bad input.
      OSError: an output cannot be written, as on a full disk; nothing is left of it then.
    """
    with Progress(total=len(inputs), unit="files", description="read", silent=silent) as progress:
        text = read_documents(inputs, tokenizer, progress)
        progress.line(
            f"tokenized {text.num_documents:,} documents; cutting and masking (compiles the first "
            "time)"
        )
    where = f"{inputs[0]}{' and others' if len(inputs) > 1 else ''}"
    num_unknown = int(np.count_nonzero(text.tokens == tokenizer.vocabulary["[UNK]"]))
    unknown = hint_of_unknown(where, num_unknown, len(text.tokens), text.lacking)
    for hint in filter(None, (_hint(text, where), unknown)):
        print(hint, file=sys.stderr)
    instances = make_instances(text, tokenizer.vocabulary, config)
    del text  # memory: what follows needs the instances alone
    if at_most:
        # Cut off after all random calls, so that the examples are those that come first anyway.
        instances = instances._replace(order=instances.order[:at_most])
    with (
        contextlib.ExitStack() as files,
        Progress(
            total=len(instances.order), unit="examples", description="write", silent=silent
        ) as progress,
    ):
        written = [files.enter_context(written_beside(name)) for name in outputs]
        digests = [hashlib.md5() for _ in outputs]  # 391 GB of parts need not be read again
        for batch in batches(instances, tokenizer.vocabulary, config):
            # Example n goes to file n modulo the number of files.
            for index, file in enumerate(written):
                own = slice((index - progress.done) % len(written), None, len(written))
                own_batch = example_encoder.Batch(*(values[own] for values in batch))
                encoded = example_encoder.encode_records(own_batch)
                file.write(encoded)
                digests[index].update(encoded)
            progress.advance(len(batch.input_ids))
    return [
        File(
            bytes=Path(name).stat().st_size,
            md5=digest.hexdigest(),
            examples=len(range(index, len(instances.order), len(outputs))),
        )
        for index, (name, digest) in enumerate(zip(outputs, digests))
    ]
