"""Whole data sets on a cluster: the work of `dataset`, as an Apache Beam pipeline.

One element is one part, which a worker reads, makes and puts into place by the same functions as
everywhere, in folders that all workers share. Runner, project, workers and so on are Beam's own
options. Needs the extra `beam`.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from mlperf_bert.data.dataset import DatasetConfig, Results, make_part
from mlperf_bert.data.parts import File
from mlperf_bert.data.tokenization import Tokenizer
from mlperf_bert.files.whole import write_whole

_OUTCOME = ".outcome.json"


def make_parts(
    inputs: dict[str, str],
    folder: Path,
    tokenizer: Tokenizer,
    config: DatasetConfig,
    *,
    options: Sequence[str],
) -> Results:
    """A `dataset.Make`: all parts at the end of a pipeline.

    Args:
      inputs: paths that mean the same to every worker, as `folder` does.
      folder: gets one TFRecord per part.
      tokenizer: travels with the work.
      config: how.
      options: as on a command line, such as ["--runner=DataflowRunner", "--project=..."].
    """
    if not inputs:
        return
    with beam.Pipeline(options=PipelineOptions(options)) as pipeline:
        _ = (
            pipeline
            | "parts" >> beam.Create(sorted(inputs.items()))
            | "spread" >> beam.Reshuffle()
            | "make" >> beam.Map(_make, folder, tokenizer, config)
            | "gather" >> beam.combiners.ToList()
            | "outcome" >> beam.Map(_write_json, folder / _OUTCOME)
        )
    outcome = json.loads((folder / _OUTCOME).read_text())
    (folder / _OUTCOME).unlink()
    for name, result in outcome:
        yield name, result if isinstance(result, str) else (File(**result[0]), File(**result[1]))


def _make(
    element: tuple[str, str], folder: Path, tokenizer: Tokenizer, config: DatasetConfig
) -> tuple[str, list[dict] | str]:
    """(name, input path) -> (name, text and part as dicts, or why it failed)."""
    name, path = element
    # A failure is not left to Beam, which would end the pipeline: the other parts are kept.
    result = make_part(path, folder / name, tokenizer, config)
    return name, result if isinstance(result, str) else list(map(dataclasses.asdict, result))


def _write_json(content: object, path: Path) -> None:
    write_whole(path, json.dumps(content) + "\n")
