"""Makes TFRecords of masked training examples from text with one sentence a line.

With --output_file all input becomes one set of examples, as in the reference. With --output_dir
every input file becomes a TFRecord of the same name. They are made in parallel, a repeated command
resumes, and parts.json records them.
"""

from mlperf_bert import signals

if __name__ == "__main__":
    signals.ends_at_once()  # first: the imports take seconds

import functools
import posixpath
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from mlperf_bert import command_line
from mlperf_bert.data import parts, published, tokenizer_files
from mlperf_bert.data.dataset import (
    DatasetConfig,
    Make,
    Request,
    make_in_processes,
    summary,
    write_dataset,
)
from mlperf_bert.data.examples import expand_input, write_examples
from mlperf_bert.files import errors, paths
from mlperf_bert.files.whole import require_apart, require_writable
from mlperf_bert.messages import Problems
from mlperf_bert.mlperf.convergence import reference_points

FLAGS = flags.FLAGS


def main():
    """Makes or verifies the data, as the flags say."""
    request = command_line.read(Request)
    for name in ("output_dir", "vocab_file"):
        paths.require_local(FLAGS[name].value or "", flag=name)
    if bool(request.output_file) == bool(request.output_dir):
        raise ValueError("give either --output_file or --output_dir")
    if request.verify:
        _verify(request)
        return
    if missing := [f"--{name}" for name in ("input_file", "vocab_file") if not FLAGS[name].value]:
        raise ValueError(f"{' and '.join(missing)} must be given")
    if request.output_dir:
        _make_dataset(request)
    else:
        _make_file(request)


def _config() -> DatasetConfig:
    config = command_line.read(DatasetConfig)
    tokenizer_files.require_casing(config.vocab_file, do_lower_case=config.do_lower_case)
    return config


def _make_file(request: Request) -> None:
    if FLAGS.examples_per_part:
        raise ValueError("--examples_per_part needs --output_dir, whose record says so")
    started = time.monotonic()
    texts = _texts(request.input_file)
    outputs = _outputs(request.output_file, [*texts, FLAGS.vocab_file])
    config = _config()
    tokenizer = config.tokenizer()
    files = write_examples(texts, outputs, tokenizer, config.instances)
    seconds = time.monotonic() - started
    parameters = config.parameters(tokenizer.vocabulary)
    made_from = {posixpath.basename(text): parts.describe(Path(text)) for text in texts}
    for output, file in zip(outputs, files):
        made = parts.DataSet(parameters=parameters, inputs=made_from, files={output.name: file})
        parts.write(output.parent, output.name, made)
    num_examples, num_bytes = (sum(getattr(f, n) for f in files) for n in ("examples", "bytes"))
    print(f"{num_examples:,} examples, {num_bytes:,} bytes in {request.output_file}")
    print(f"made in {seconds:.1f} s, {num_bytes / seconds / 1e6:,.0f} MB/s written")


def _texts(input_file: str) -> list[str]:
    texts = expand_input(input_file)
    if twice := paths.named_twice(texts):
        command_line.warn(f"--input_file: {twice}; its text is read twice: name each file once")
    return texts


def _outputs(output_file: str, inputs: Sequence[str]) -> list[Path]:
    """The files of --output_file, which are none of the `inputs`."""
    outputs: list[Path] = []
    for name in map(str.strip, output_file.split(",")):
        output = paths.require_local(name, flag="output_file")
        if not name or output.is_dir():
            raise ValueError(f"--output_file={output_file}: {name!r} is no file; name one")
        with errors.named("--output_file"):
            require_writable(output)
        outputs.append(output)
    require_apart([(f"--output_file={output}", output) for output in outputs], inputs)
    return outputs


def _make_dataset(request: Request) -> None:
    started = time.monotonic()
    texts = _texts(request.input_file)  # refuses first a pattern that matches nothing
    make: Make = functools.partial(make_in_processes, workers=request.nworker)
    if request.beam_options is not None:
        try:
            from mlperf_bert.data import beam_pipeline
        except ModuleNotFoundError as error:
            raise ValueError("--beam_options needs Apache Beam: pip install apache-beam") from error
        options = shlex.split(request.beam_options)
        make = functools.partial(beam_pipeline.make_parts, options=options)
    record, made = write_dataset(texts, Path(request.output_dir), _config(), make)
    seconds = time.monotonic() - started
    needed = {size: point.mean_samples for size, point in reference_points().items()}
    print(summary(record, num_made=len(made), seconds=seconds, samples_needed=needed))


def _verify(request: Request) -> None:
    if not request.output_dir:
        raise ValueError("--verify needs --output_dir, the folder of the parts")
    if issues := published.verify(Path(request.output_dir)):
        raise Problems(issues)
    print(f"{request.output_dir}: all parts are as recorded")


if __name__ == "__main__":
    command_line.run(main, Request, DatasetConfig)
