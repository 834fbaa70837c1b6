"""What a run tells while it trains: metrics.jsonl, TensorBoard summaries, a bar or plain lines."""

import json
import sys
import time
from pathlib import Path

import tensorflow as tf
from tqdm import tqdm

SECONDS_BETWEEN_LINES = 10


class MetricsWriter:
    """Appends one JSON object a line to metrics.jsonl and writes the same to TensorBoard."""

    def __init__(self, output_dir: str, *, resumed_step: int | None = None):
        """Opens both; lines of steps after `resumed_step` are dropped: they are trained again."""
        self._path = Path(output_dir) / "metrics.jsonl"
        if resumed_step is not None and self._path.exists():
            self._drop_after(resumed_step)
        self._file = self._path.open("a", encoding="utf-8")
        self._summaries = tf.summary.create_file_writer(output_dir)

    def write(self, kind: str, *, step: int, samples: int, **values: float) -> None:
        """Writes a line of `kind` train or eval; float32 values keep 9 significant digits."""
        rounded = {name: float(f"{value:.9g}") for name, value in values.items()}
        line = {"kind": kind, "step": step, "samples": samples, **rounded}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        with self._summaries.as_default(step=step):
            for name, value in values.items():
                tf.summary.scalar(f"{kind}/{name}", value)

    def close(self) -> None:
        """Flushes and closes both."""
        self._file.close()
        self._summaries.close()

    def _drop_after(self, step: int) -> None:
        lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= step]
        partial = self._path.with_suffix(".partial")
        partial.write_text("".join(kept), encoding="utf-8")
        partial.replace(self._path)


class Progress:
    """A bar on a terminal, a line every ten seconds elsewhere."""

    def __init__(self, *, total: int, initial: int, unit: str, description: str):
        self._bar = None
        if sys.stderr.isatty():
            self._bar = tqdm(total=total, initial=initial, unit=unit, desc=description)
        self._total, self._done, self._unit, self._description = total, initial, unit, description
        self._initial, self._began = initial, time.monotonic()
        self._next_line = self._began + SECONDS_BETWEEN_LINES

    def advance(self, amount: int, note: str = "") -> None:
        """Moves on by `amount` units; `note` stands at the end."""
        self._done += amount
        if self._bar:
            self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(amount)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + SECONDS_BETWEEN_LINES
            rate = (self._done - self._initial) / (time.monotonic() - self._began)
            left = tqdm.format_interval((self._total - self._done) / rate)
            self.line(
                f"{self._description}: {self._done:,} of {self._total:,} {self._unit}, "
                f"{rate:,.0f}/s, at most {left} left, {note}"
            )

    def line(self, text: str) -> None:
        """A line of its own, above the bar."""
        if self._bar:
            self._bar.write(text, file=sys.stderr)
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leaves the bar as it stands."""
        if self._bar:
            self._bar.close()
