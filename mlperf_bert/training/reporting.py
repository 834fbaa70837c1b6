"""What a run writes while it trains: metrics.jsonl and TensorBoard summaries."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import tensorflow as tf

from mlperf_bert.files import json_text, paths
from mlperf_bert.files.writing import write_whole
from mlperf_bert.training.output import METRICS_NAME


class MetricsWriter:
    """Appends one JSON object per line to metrics.jsonl and writes the same for TensorBoard."""

    def __init__(self, output_dir: Path | None, *, resumed_step: int | None = None):
        """Opens both; drops lines of steps after `resumed_step`, which are trained again.

        Without an `output_dir` (None) nothing is written.
        """
        self._file: TextIO | None = None
        if output_dir is None:
            return
        self._path = output_dir / METRICS_NAME
        if resumed_step is not None and self._path.exists():
            self._drop_after(resumed_step)
        self._file = self._path.open("a", encoding="utf-8")
        self._summaries = tf.summary.create_file_writer(str(output_dir))

    def write(self, kind: str, *, step: int, samples: int, **values: float) -> None:
        """Writes a line of `kind` train or eval; float32 values keep 9 significant digits."""
        if self._file is None:
            return
        rounded = {name: float(f"{value:.9g}") for name, value in values.items()}
        line = {"kind": kind, "step": step, "samples": samples, **rounded}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        with self._failures_named(), self._summaries.as_default(step=step):
            for name, value in values.items():
                tf.summary.scalar(f"{kind}/{name}", value)

    def flush(self) -> None:
        """Puts all that was written into the files; metrics.jsonl always is."""
        if self._file is not None:
            with self._failures_named():
                self._summaries.flush()

    def close(self) -> None:
        """Flushes and closes both."""
        if self._file is not None:
            self._file.close()
            with self._failures_named():
                self._summaries.close()

    @contextlib.contextmanager
    def _failures_named(self) -> Iterator[None]:
        """TensorFlow's writer says of a full disk that resources are exhausted."""
        try:
            yield
        except tf.errors.OpError as error:
            raise OSError(
                f"{self._path.parent}: TensorBoard's file cannot be written "
                f"({paths.reason(error)}); make room and repeat the command"
            ) from error

    def _drop_after(self, step: int) -> None:
        kept = []
        for number, line in enumerate(self._path.read_bytes().split(b"\n")[:-1], start=1):
            try:
                is_kept = json_text.parse_object(line)["step"] <= step
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"{self._path} line {number}: damaged ({error!r:.300}); remove the line"
                ) from error
            if is_kept:
                kept.append(line.decode() + "\n")
        write_whole(self._path, "".join(kept))
