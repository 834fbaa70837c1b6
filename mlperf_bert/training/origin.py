"""What a run is made from: recorded in run.json, in its log and in provenance.json."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf

from mlperf_bert import paths
from mlperf_bert.checkpoints.state import latest_step, saved_checkpoints
from mlperf_bert.data import provenance
from mlperf_bert.training.findings import Setup
from mlperf_bert.training.output import METRICS_NAME, OutputDirectory, run_logs


class Origin:
    """The inputs of a run. Digests of data are those recorded when they were made: none is read."""

    def __init__(self, setup: Setup, output: OutputDirectory):
        """Asks for the sizes and records of all inputs.

        Raises:
          ValueError: a record is damaged.
        """
        config, self._output = setup.config, output
        known = provenance.known_digests([*setup.files, *setup.eval_files])
        self._parameters = config.parameters()
        self._data = self._described(setup.files, known)
        self._eval_data = self._described(setup.eval_files, known)
        self._initial_checkpoint = config.init_checkpoint
        # Beside the building of the model: the published checkpoint has four gigabytes.
        self._weights = ThreadPoolExecutor(1).submit(self._files_of, config.init_checkpoint)
        self._model = self._described([config.bert_config_file])
        self._made_with = provenance.made_with()

    def _described(self, files: Sequence[str], known: dict[str, str] | None = None):
        def described(path: str) -> provenance.File:
            digest = known[path] if known else None
            return provenance.describe(path, self._output.location, digest=digest)

        return paths.in_parallel(described, files)

    def summary(self) -> dict[str, str]:
        """What the run is known by: commit, image, and one digest for each kind of input."""
        return {name: self._made_with[name] for name in ("commit", "image")} | {
            "data": provenance.digest_of_files(self._data),
            "evaluation_data": provenance.digest_of_files(self._eval_data),
            "initial_weights": self._digest_of_weights(),
        }

    def record(self) -> None:
        """Writes provenance.json: what there is of logs and metrics, and the newest checkpoint.

        Raises:
          OSError: it cannot be written.
        """
        local, location = self._output.path, self._output.location
        outputs = [
            provenance.describe(path, local)
            for path in [*run_logs(local), local / METRICS_NAME]
            if path.exists()
        ]
        step = latest_step(str(location))
        if step is not None:
            outputs += self._files_of(saved_checkpoints(str(location))[step])
        found = provenance.Record(
            step="training",
            inputs=[*self._data, *self._eval_data, *self._weights.result(), *self._model],
            outputs=outputs,
            parameters=self._parameters,
            made_with=self._made_with,
        )
        provenance.add(local, found, continues=True)

    def _digest_of_weights(self) -> str:
        """Of the index, which has a checksum of every tensor; empty for random weights."""
        if not self._initial_checkpoint:
            return ""
        return provenance.digest_of_files(self._described([f"{self._initial_checkpoint}.index"]))

    def _files_of(self, prefix: str | None) -> list[provenance.File]:
        """Index and data of a checkpoint; in a bucket the data are not read for a digest."""
        if not prefix:
            return []
        data = sorted(tf.io.gfile.glob(f"{prefix}.data-*"))
        known = dict.fromkeys(data, "") if paths.is_remote(prefix) else None
        return [*self._described([f"{prefix}.index"]), *self._described(data, known)]
