"""What a run is made from: recorded in run.json, in its log and in provenance.json."""

import hashlib
import posixpath
from collections.abc import Sequence

from mlperf_bert.checkpoints.state import latest_step, saved_checkpoints
from mlperf_bert.data import provenance
from mlperf_bert.files import paths
from mlperf_bert.training.output import METRICS_NAME, OutputDirectory, read_record, run_logs
from mlperf_bert.training.setup import Inspection, Setup


class Origin:
    """The inputs of a run. Digests of data are those recorded when they were made: none is read."""

    def __init__(self, setup: Setup | Inspection, output: OutputDirectory, *, goes_on: bool):
        """Asks for the sizes and records of all inputs.

        Args:
          setup: names the inputs.
          output: of the run.
          goes_on: whether there is a checkpoint of the run; then the initial one may be gone, or
            not be named.

        Raises:
          ValueError: a record is damaged, or a resumed run was begun with other files.
        """
        config, self._output = setup.config, output
        known = provenance.known_digests([*setup.files, *setup.eval_files])
        self._parameters = config.parameters()
        self._before = read_record(output.path) if output.resumes else None
        self._data = self._described(setup.files, known)
        self._eval_data = self._described(setup.eval_files, known)
        # A checkpoint's index has a checksum of every tensor: gigabytes need not be read for it.
        weights = [f"{config.init_checkpoint}.index"] if config.init_checkpoint else []
        if goes_on:
            weights = [path for path in weights if paths.status(path)]
        self._weights = self._described(weights)
        self._model = self._described([config.bert_config_file])
        self._require_same_inputs(goes_on=goes_on)
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

    def inputs(self) -> dict[str, str]:
        """Flag -> what tells its files from others, wherever they are."""
        [model] = self._model
        return {
            "input_file": _names_and_sizes(self._data),
            "eval_input_file": _names_and_sizes(self._eval_data),
            "bert_config_file": model.digest,
            "init_checkpoint": self._index_of_weights(),
        }

    def _require_same_inputs(self, *, goes_on: bool) -> None:
        if self._before is None:
            return
        now = self.inputs()
        if not goes_on:
            now["init_checkpoint"] = self._weights[0].digest if self._weights else ""
        for flag, found in now.items():
            then = self._before.inputs.get(flag, found)
            if found != then:
                raise ValueError(
                    f"--{flag}: not what the run in {self._output.location} began with (then "
                    f"{_shortly(then)}; now {_shortly(found)}): give the same, or choose a new "
                    "--output_dir"
                )

    def _index_of_weights(self) -> str:
        if self._weights:
            return self._weights[0].digest
        return str(self._before.inputs.get("init_checkpoint", "")) if self._before else ""

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


def _names_and_sizes(files: Sequence[provenance.File]) -> str:
    """Number, size and a digest of names and sizes, in the order in which they are read."""
    names = "".join(f"{posixpath.basename(file.path)} {file.bytes}\n" for file in files)
    digest = hashlib.sha256(names.encode()).hexdigest()
    num_bytes = sum(file.bytes for file in files)
    return f"{len(files)} files, {num_bytes:,} bytes, sha256:{digest}" if files else ""


def _shortly(files: str) -> str:
    """Without the digest, where there is more."""
    return files.rpartition(",")[0] or files or "none"
