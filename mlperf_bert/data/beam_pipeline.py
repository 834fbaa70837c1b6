"""Whole data sets on a cluster: the work of `dataset`, as an Apache Beam pipeline.

One element is one part: fetched to a worker's disk, made there by the same function as everywhere,
and put into place. Globs, writing and renaming are those of Beam's file systems, so that input and
output may be gs://, hdfs:// or s3:// as well. Runner, project, workers and so on are Beam's own
options. Needs the extra `beam`.
"""

import dataclasses
import json
import posixpath
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from mlperf_bert.data import manifest
from mlperf_bert.data.dataset import DatasetConfig, by_name, make_part, open_manifest
from mlperf_bert.data.manifest import Manifest, Part
from mlperf_bert.reading import require_regular_file

_OUTCOME = ".outcome.json"


def write_dataset(
    *, input_file: str, output_dir: str, config: DatasetConfig, beam_options: list[str]
) -> tuple[Manifest, list[str]]:
    """Makes the parts that are missing; returns the manifest and the names made now.

    Args:
      input_file: globs separated by commas, of any file system that Beam knows.
      output_dir: gets one TFRecord per part and the manifest.
      config: how; its vocabulary is read here and travels with the work.
      beam_options: as on a command line, such as ["--runner=DataflowRunner", "--project=..."].

    Raises:
      ValueError: bad input, data made with other parameters, or parts that failed, by name; the
        other parts are kept.
    """
    text_sizes = _expand(input_file)
    inputs = by_name(text_sizes)
    folder = output_dir.rstrip("/")
    if not FileSystems.exists(folder):
        FileSystems.mkdirs(folder)
    sizes = {posixpath.basename(path): size for path, size in _sizes(f"{folder}/*").items()}
    path = f"{folder}/{manifest.NAME}"
    before = manifest.parse(_read(path), path) if manifest.NAME in sizes else None
    found = open_manifest(before, config, sizes.keys() & inputs.keys(), folder)
    missing = {n: p for n, p in inputs.items() if not _is_done(found, sizes, n, text_sizes[p])}
    if missing:
        with beam.Pipeline(options=PipelineOptions(beam_options)) as pipeline:
            _ = (
                pipeline
                | "parts" >> beam.Create(sorted(missing.items()))
                | "spread" >> beam.Reshuffle()
                | "make" >> beam.ParDo(_MakePart(folder, config))
                | "gather" >> beam.combiners.ToList()
                | "outcome" >> beam.Map(_write_json, f"{folder}/{_OUTCOME}")
            )
        outcome = json.loads(_read(f"{folder}/{_OUTCOME}"))
        FileSystems.delete([f"{folder}/{_OUTCOME}"])
        found.parts.update({name: Part(**part) for name, part, _ in outcome if part})
        _write_json(found.content(), path)
        manifest.raise_failures({n: reason for n, _, reason in outcome if reason}, len(inputs))
    return found, sorted(missing)


class _MakePart(beam.DoFn):
    """(name, input path) -> (name, the part as a dict or None, None or why it failed)."""

    def __init__(self, folder: str, config: DatasetConfig):
        self._folder, self._config = folder, config
        self._vocabulary = require_regular_file(config.vocab_file).read_bytes()

    def setup(self):
        self._scratch = Path(tempfile.mkdtemp())
        vocab_file = self._scratch / "vocab.txt"
        vocab_file.write_bytes(self._vocabulary)
        here = dataclasses.replace(self._config, vocab_file=str(vocab_file))
        self._tokenizer = here.tokenizer()

    def process(self, element: tuple[str, str]) -> Iterator[tuple[str, dict | None, str | None]]:
        name, path = element
        text, record = self._scratch / name, self._scratch / f"{name}.tfrecord"
        try:
            _copy(path, str(text))
            part = make_part(str(text), record, self._tokenizer, self._config)
            beside = f"{self._folder}/.{name}.partial"
            _copy(str(record), beside)
            _rename(beside, f"{self._folder}/{name}")
            yield name, dataclasses.asdict(part), None
        except ValueError as error:  # bad input: trying again would not help
            yield name, None, str(error).replace(str(text), path)
        finally:
            text.unlink(missing_ok=True)
            record.unlink(missing_ok=True)

    def teardown(self):
        shutil.rmtree(self._scratch, ignore_errors=True)


def _expand(input_file: str) -> dict[str, int]:
    """Path -> bytes of every text."""
    found: dict[str, int] = {}
    for pattern in input_file.split(","):
        matches = _sizes(pattern.strip())
        if not matches:
            raise ValueError(f"--input_file: no file matches {pattern!r}; quote the glob")
        found |= matches
    return found


def _sizes(pattern: str) -> dict[str, int]:
    found = FileSystems.match([pattern])[0].metadata_list
    return {entry.path: entry.size_in_bytes for entry in found}


def _is_done(found: Manifest, sizes: dict[str, int], name: str, text_bytes: int) -> bool:
    """By sizes alone: a bucket's files are not read again; `--verify` does on a local copy."""
    part = found.parts.get(name)
    return part is not None and (sizes.get(name), text_bytes) == (part.bytes, part.input_bytes)


def _open(path: str) -> BinaryIO:
    if "://" not in path:
        require_regular_file(path)
    return FileSystems.open(path)


def _read(path: str) -> bytes:
    with _open(path) as file:
        return file.read()


def _write_json(content, path: str) -> None:
    beside = posixpath.join(posixpath.dirname(path), f".{posixpath.basename(path)}.partial")
    with FileSystems.create(beside, mime_type="application/json") as file:
        file.write((json.dumps(content, indent=1) + "\n").encode())
    _rename(beside, path)


def _copy(source: str, target: str) -> None:
    with _open(source) as reader, FileSystems.create(target) as writer:
        shutil.copyfileobj(reader, writer, 1 << 20)


def _rename(source: str, target: str) -> None:
    if FileSystems.exists(target):
        FileSystems.delete([target])
    FileSystems.rename([source], [target])
