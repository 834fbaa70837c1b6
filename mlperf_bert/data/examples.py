"""Text files to TFRecords: read, tokenize, cut and mask, encode, write beside and rename."""

import contextlib
import glob
from pathlib import Path

from mlperf_bert.data import example_codec
from mlperf_bert.data.instances import InstanceConfig, Statistics, batches, make_instances
from mlperf_bert.data.tokenization import Tokenizer, read_documents
from mlperf_bert.progress import Progress
from mlperf_bert.writing import written_beside


def expand_input(input_file: str) -> list[str]:
    """The files behind globs separated by commas, each glob sorted as TensorFlow sorts.

    Raises:
      ValueError: a glob matches nothing.
    """
    paths = []
    for pattern in input_file.split(","):
        matches = sorted(glob.glob(pattern.strip()))  # noqa: PTH207 - patterns may be absolute
        if not matches:
            raise ValueError(f"--input_file: no file matches {pattern!r}; quote the glob")
        paths += matches
    return paths


def write_examples(
    *,
    input_file: str,
    output_file: str,
    vocab_file: str,
    do_lower_case: bool,
    preserve_unused_tokens: bool,
    config: InstanceConfig,
) -> Statistics:
    """Makes all examples of the input; returns what they are at a glance.

    Several outputs, separated by commas, get the examples in turn. Nothing takes the place of an
    output before all are written.

    Raises:
      ValueError: bad input or vocabulary.
    """
    outputs = [name.strip() for name in output_file.split(",")]
    paths = expand_input(input_file)
    tokenizer = Tokenizer(
        vocab_file, do_lower_case=do_lower_case, preserve_unused_tokens=preserve_unused_tokens
    )
    input_bytes = sum(Path(path).stat().st_size for path in paths)
    with Progress(total=input_bytes, unit="B", description="tokenize") as progress:
        documents = read_documents(paths, tokenizer, on_bytes=progress.advance)
        progress.line(f"tokenized {len(documents):,} documents; cutting and masking")
    instances = make_instances(documents, tokenizer.vocabulary, config)
    del documents
    with contextlib.ExitStack() as files:
        written = [files.enter_context(written_beside(name)) for name in outputs]
        progress = files.enter_context(
            Progress(total=len(instances), unit="examples", description="write")
        )
        for batch in batches(instances, tokenizer.vocabulary, config):
            if len(written) == 1:
                written[0].write(example_codec.encode_records(batch))
            else:
                _deal_out(batch, written)
            progress.advance(len(batch.weights))
    return instances.statistics(config)


def _deal_out(batch: example_codec.Batch, files: list) -> None:
    """Writes example n to file n modulo the number of files (batches hold a multiple of it)."""
    for index, file in enumerate(files):
        mine = slice(index, None, len(files))
        file.write(
            example_codec.encode_records(
                example_codec.Batch(
                    batch.tokens[:, mine].copy(),
                    batch.predictions[:, mine].copy(),
                    batch.weights[mine].copy(),
                    batch.next_sentence[mine].copy(),
                )
            )
        )
