"""Whole data sets on a cluster: the work of `dataset`, as an Apache Beam pipeline.

One element is one part, which a worker reads, makes and puts into place by the same functions as
everywhere. So input and output may be gs:// as well, or a folder that all workers share. Not by
Beam's file systems, which would be a second way to authenticate. Runner, project, workers and so
on are Beam's own options. Needs the extra `beam`.
"""

import dataclasses
import json
from collections.abc import Iterator

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from mlperf_bert.data import manifest
from mlperf_bert.data.dataset import (
    LOCK_PATIENCE_SECONDS,
    DatasetConfig,
    by_name,
    make_part,
    missing_parts,
    note_provenance,
    open_manifest,
)
from mlperf_bert.data.examples import expand_input
from mlperf_bert.data.manifest import Manifest, Part
from mlperf_bert.files import locks, paths
from mlperf_bert.files.whole import write_whole

_OUTCOME = ".outcome.json"


def write_dataset(
    *, input_file: str, output_dir: str, config: DatasetConfig, beam_options: list[str]
) -> tuple[Manifest, list[str]]:
    """Makes the parts that are missing; returns the manifest and the names made now.

    Args:
      input_file: globs separated by commas, which mean the same to every worker.
      output_dir: gets one TFRecord per part and the manifest.
      config: how; its vocabulary is read here and travels with the work.
      beam_options: as on a command line, such as ["--runner=DataflowRunner", "--project=..."].

    Raises:
      ValueError: bad input, data made with other parameters, or parts that failed, by name; the
        other parts are kept.
    """
    inputs = by_name(expand_input(input_file))
    make = _MakePart(output_dir, config)
    folder = paths.location(output_dir)
    paths.require_no_file(folder)
    with locks.held(folder, patience_seconds=LOCK_PATIENCE_SECONDS) as lock:
        found = open_manifest(folder, config, inputs)
        missing = missing_parts(folder, found, inputs)
        if not missing:
            return found, []
        with beam.Pipeline(options=PipelineOptions(beam_options)) as pipeline:
            _ = (
                pipeline
                | "parts" >> beam.Create(sorted(missing.items()))
                | "spread" >> beam.Reshuffle()
                | "make" >> beam.ParDo(make)
                | "gather" >> beam.combiners.ToList()
                | "outcome" >> beam.Map(_write_json, str(folder / _OUTCOME))
            )
        outcome = json.loads(paths.read_bytes(folder / _OUTCOME))
        with paths.failures_named(folder / _OUTCOME):
            (folder / _OUTCOME).unlink()
        lock.require_held()
        found.parts.update({name: Part(**part) for name, part, _ in outcome if part})
        found.save(folder)
    manifest.raise_failures({n: reason for n, _, reason in outcome if reason}, len(inputs))
    note_provenance(folder, found, inputs, vocab_file=config.vocab_file)
    return found, sorted(missing)


class _MakePart(beam.DoFn):
    """(name, input path) -> (name, the part as a dict or None, None or why it failed)."""

    def __init__(self, output_dir: str, config: DatasetConfig):
        self._output_dir, self._config = output_dir, config
        self._tokenizer = config.tokenizer()

    def process(self, element: tuple[str, str]) -> Iterator[tuple[str, dict | None, str | None]]:
        name, path = element
        try:
            output = paths.location(self._output_dir) / name
            part = make_part(path, output, self._tokenizer, self._config)
            yield name, dataclasses.asdict(part), None
        except (ValueError, OSError) as error:
            # Not left to Beam, which would end the pipeline: the other parts are kept.
            yield name, None, str(error)


def _write_json(content: object, path: str) -> None:
    write_whole(path, json.dumps(content) + "\n")
