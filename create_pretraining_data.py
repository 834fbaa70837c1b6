"""Makes TFRecords of masked training examples from text with one sentence a line.

With --output_file all input becomes one set of examples, as in the reference. With --output_dir
every input file becomes a TFRecord of the same name, in parallel, resumable, with a manifest.
"""

from mlperf_bert import signals

if __name__ == "__main__":
    signals.ends_at_once()  # first: the imports take seconds

import dataclasses
import functools
import shlex
import time
from collections.abc import Sequence

from absl import flags

from mlperf_bert import command_line
from mlperf_bert.command_line import in_range
from mlperf_bert.data import casing, overview, provenance, verification, vocabulary
from mlperf_bert.data.dataset import DatasetConfig, write_dataset
from mlperf_bert.data.examples import expand_input, write_examples
from mlperf_bert.data.instances import InstanceConfig
from mlperf_bert.files import paths
from mlperf_bert.files.whole import require_apart, require_writable
from mlperf_bert.messages import Problems
from mlperf_bert.mlperf.convergence import reference_points
from mlperf_bert.options import MAX_SEED

FLAGS = flags.FLAGS

flags.DEFINE_string("input_file", None, "Text files; globs and commas are allowed.")
flags.DEFINE_string("output_file", None, "TFRecord, or several with commas, filled in turn.")
flags.DEFINE_string("vocab_file", None, "WordPiece vocabulary.")
flags.DEFINE_bool(
    "do_lower_case",
    True,
    "Lower-case the text; False for cased vocabularies. A tokenizer_config.json beside the "
    "vocabulary decides.",
)
flags.DEFINE_bool("preserve_unused_tokens", False, "Keep [unused7] in the text as one token.")
flags.DEFINE_integer("max_seq_length", 128, "Tokens per example.")
flags.DEFINE_integer("max_predictions_per_seq", 20, "Masked tokens per example at most.")
flags.DEFINE_integer("random_seed", 12345, "Seed; the benchmark's data have 12345.")
flags.DEFINE_integer("dupe_factor", 10, "Copies of the text, each masked differently.")
flags.DEFINE_float("masked_lm_prob", 0.15, "Share of masked tokens.")
flags.DEFINE_float("short_seq_prob", 0.1, "Share of documents cut to shorter examples.")
in_range("max_seq_length", at_least=5)
in_range("max_predictions_per_seq", "dupe_factor", at_least=1)
in_range("random_seed", at_least=0, at_most=MAX_SEED)
in_range("masked_lm_prob", above=0, at_most=1)
in_range("short_seq_prob", at_least=0, at_most=1)
# not in the reference
flags.DEFINE_string("output_dir", None, "Folder for one TFRecord per input file, and a manifest.")
flags.DEFINE_integer("nworker", 0, "Parts of --output_dir made at once; 0: one per core.")
flags.DEFINE_float("memory_budget_gib", 0, "Lowers --nworker to fit; 0: no limit.")
flags.DEFINE_integer("examples_per_part", 0, "Only the first so many of each part; 0: all.")
flags.DEFINE_string(
    "beam_options", None, "Make --output_dir with Apache Beam: its options, as '--runner=...'."
)
flags.DEFINE_bool("verify", False, "Only check --output_dir against its manifest, make nothing.")
command_line.paths("input_file", "output_file", "vocab_file", "output_dir")
in_range("nworker", "memory_budget_gib", "examples_per_part", at_least=0)


def main():
    """Makes or verifies the data, as the flags say."""
    if bool(FLAGS.output_file) == bool(FLAGS.output_dir):
        raise ValueError("give either --output_file or --output_dir")
    if FLAGS.verify:
        _verify()
        return
    if missing := [f"--{name}" for name in ("input_file", "vocab_file") if not FLAGS[name].value]:
        raise ValueError(f"{' and '.join(missing)} must be given")
    if FLAGS.output_dir:
        _make_dataset()
    else:
        _make_file()


def _config() -> DatasetConfig:
    given = FLAGS.do_lower_case if FLAGS["do_lower_case"].present else None
    do_lower_case = casing.lower_casing(FLAGS.vocab_file, given)
    words = vocabulary.read_vocabulary(FLAGS.vocab_file)
    for doubt in casing.doubts(FLAGS.vocab_file, words, do_lower_case=do_lower_case):
        command_line.warn(doubt)
    names = [field.name for field in dataclasses.fields(InstanceConfig)]
    return DatasetConfig(
        vocab_file=FLAGS.vocab_file,
        do_lower_case=do_lower_case,
        preserve_unused_tokens=FLAGS.preserve_unused_tokens,
        examples_per_part=FLAGS.examples_per_part,
        instances=InstanceConfig(**{name: getattr(FLAGS, name) for name in names}),
    )


def _make_file() -> None:
    if FLAGS.examples_per_part:
        raise ValueError("--examples_per_part needs --output_dir, whose manifest records it")
    started = time.monotonic()
    texts = _texts()
    outputs = _outputs(texts)
    config = _config()
    found = write_examples(texts, outputs, config.tokenizer(), config.instances)
    seconds = time.monotonic() - started
    provenance.note(
        outputs[0].parent,
        step="training examples",
        inputs=[*texts, FLAGS.vocab_file],
        outputs=outputs,
        parameters=config.parameters(),
    )
    num_bytes = sum(map(paths.size_bytes, outputs))
    print(f"{found.examples:,} examples, {num_bytes:,} bytes in {FLAGS.output_file}")
    print(f"made in {seconds:.1f} s, {num_bytes / seconds / 1e6:,.0f} MB/s written")


def _texts() -> list[str]:
    texts = expand_input(FLAGS.input_file)
    if twice := paths.named_twice(texts):
        command_line.warn(f"--input_file: {twice}; its text is read twice: name each file once")
    return texts


def _outputs(texts: Sequence[str]) -> list[paths.Location]:
    """The files of --output_file, which are none of the `texts` to read.

    Raises:
      ValueError: a name is empty, a folder, in no folder, an input, or given twice.
      OSError: a bucket does not let this process write.
    """
    outputs: list[paths.Location] = []
    for name in map(str.strip, FLAGS.output_file.split(",")):
        if not name:
            raise ValueError(f"--output_file={FLAGS.output_file}: a name is empty")
        output = paths.location(name)
        if output.is_dir():
            raise ValueError(f"--output_file={name} is a folder; name a file, or give --output_dir")
        try:
            require_writable(output)
        except ValueError as error:
            raise ValueError(f"--output_file={error}") from error
        outputs.append(output)
    named = [(f"--output_file={output}", output) for output in outputs]
    require_apart(named, [*texts, FLAGS.vocab_file])
    return outputs


def _make_dataset() -> None:
    started = time.monotonic()
    _texts()  # a pattern that matches nothing is told first
    make = None
    if FLAGS.beam_options is not None:
        try:
            from mlperf_bert.data import beam_pipeline
        except ModuleNotFoundError as error:
            raise ValueError("--beam_options needs Apache Beam: pip install apache-beam") from error
        options = shlex.split(FLAGS.beam_options)
        make = functools.partial(beam_pipeline.make_parts, options=options)
    found, made = write_dataset(
        input_file=FLAGS.input_file,
        output_dir=FLAGS.output_dir,
        config=_config(),
        nworker=FLAGS.nworker,
        memory_budget_bytes=FLAGS.memory_budget_gib * 2**30,
        make=make,
    )
    seconds = time.monotonic() - started
    needed = {size: point.mean_samples for size, point in reference_points().items()}
    print(overview.summary(found, num_made=len(made), seconds=seconds, samples_needed=needed))
    picture = paths.location(FLAGS.output_dir) / overview.PICTURE_NAME
    overview.save_picture(
        picture,
        found.parts.values(),
        max_seq_length=FLAGS.max_seq_length,
        max_predictions_per_seq=FLAGS.max_predictions_per_seq,
    )
    print(f"histograms: {picture}")


def _verify() -> None:
    if not FLAGS.output_dir:
        raise ValueError("--verify needs --output_dir, the folder with the manifest")
    texts = map(paths.location, expand_input(FLAGS.input_file)) if FLAGS.input_file else ()
    issues = verification.verify(paths.location(FLAGS.output_dir), texts)
    if issues:
        raise Problems(issues)
    print(f"{FLAGS.output_dir}: all parts agree with the manifest")


if __name__ == "__main__":
    command_line.run(main)
