"""What a run is made from: recorded in run.json, in its log and in provenance.json."""

import hashlib
import posixpath
from collections.abc import Sequence

from mlperf_bert import paths
from mlperf_bert.checkpoints.state import latest_step, saved_checkpoints
from mlperf_bert.data import provenance
from mlperf_bert.training.findings import Setup
from mlperf_bert.training.output import METRICS_NAME, OutputDirectory, read_record, run_logs


class Origin:
    """The inputs of a run. Digests of data are those recorded when they were made: none is read."""

    def __init__(self, setup: Setup, output: OutputDirectory, *, goes_on: bool = False):
        """Asks for the sizes and records of all inputs.

        Args:
          setup: names the inputs.
          output: of the run.
          goes_on: whether there is a checkpoint of the run; then the initial one may be gone.

        Raises:
          ValueError: a record is damaged, or a resumed run was begun with other training files.
        """
        config, self._output = setup.config, output
        known = provenance.known_digests([*setup.files, *setup.eval_files])
        self._parameters = config.parameters()
        self._before = read_record(output.path) if output.resumes else None
        self._data = self._described(setup.files, known)
        self._require_same_files()
        self._eval_data = self._described(setup.eval_files, known)
        # A checkpoint's index has a checksum of every tensor: gigabytes need not be read for it.
        weights = [f"{config.init_checkpoint}.index"] if config.init_checkpoint else []
        if goes_on:
            weights = [path for path in weights if paths.status(path)]
        self._weights = self._described(weights)
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

    def data_files(self) -> str:
        """Number, size and a digest of names and sizes of the training files."""
        names = sorted(f"{posixpath.basename(file.path)} {file.bytes}\n" for file in self._data)
        digest = hashlib.sha256("".join(names).encode()).hexdigest()
        num_bytes = sum(file.bytes for file in self._data)
        return f"{len(names)} files, {num_bytes:,} bytes, sha256:{digest}"

    def _require_same_files(self) -> None:
        before, now = self._before and self._before.data_files, self.data_files()
        if before and before != now:
            then, now = (files.rpartition(",")[0] for files in (before, now))
            raise ValueError(
                f"--input_file: not the files that the run in {self._output.location} began with "
                f"(then {then}; now {now}): give the same, or choose a new --output_dir"
            )

    def _digest_of_weights(self) -> str:
        if self._weights:
            return provenance.digest_of_files(self._weights)
        return str(self._before.provenance.get("initial_weights", "")) if self._before else ""

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
            outputs += self._described([f"{saved_checkpoints(str(location))[step]}.index"])
        found = provenance.Record(
            step="training",
            inputs=[*self._data, *self._eval_data, *self._weights, *self._model],
            outputs=outputs,
            parameters=self._parameters,
            made_with=self._made_with,
        )
        provenance.add(local, found, continues=True)
