"""The most samples/s that the compilers allow a step: tables of mlperf_bert.portable.compile_step.

A row says what one step, compiled for one kind of device, takes at least: what its products need at
the device's peak, or its kernels at the full speed of its memory. It is a bound of that step, which
computes padding, in bfloat16, on as many devices without any communication. Published systems that
leave padding out or compute in 8 bits pass it; nothing is said of how near to it a step comes.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlperf_bert.files import json_text
from mlperf_bert.files.whole import read_regular_file
from mlperf_bert.mlperf.rules import BERT_LARGE, MAX_SEQ_LENGTH
from mlperf_bert.submission.entry import family_of

_FLOP_PER_EXAMPLE = (0.98e12, 1.4e12)
"""Of products in a training step of BERT-large with 512 tokens: 0.99e12, or 1.31e12 if blocks are
recomputed; of an evaluation 0.33e12. benchmarks/compiled.json has all three."""


@dataclass(frozen=True)
class Bound:
    """Of the best step of a device."""

    device: str
    """As compile_step.py names it: a GPU, a core of TPU v2 and v3, a chip of later TPUs."""
    samples_per_second: float
    """Of one device."""
    num_examples: int
    """Of the step on one device."""

    def __str__(self) -> str:
        return (
            f"{self.samples_per_second:,.4g} on each {self.device} in a step of "
            f"{self.num_examples} examples"
        )


def read_bounds(path: str | os.PathLike) -> list[Bound]:
    """Return the bound of each device in a table of compile_step.py, or in a list of its rows.

    Raises:
      ValueError: the file is damaged, or a row is of another model or sequence length; one line.
      OSError: it cannot be read.
    """
    try:
        value: Any = json_text.parse(read_regular_file(path))
        rows = value["rows"] if isinstance(value, dict) else value
        bounds = [bound for row in rows if (bound := _bound(row))]
    except (ValueError, LookupError, TypeError, ArithmeticError) as error:
        raise ValueError(
            f"{path}: not a table of compile_step.py for BERT-large ({type(error).__name__}: "
            f"{error}); make one with its --output=TABLE.json"
        ) from error
    return bounds


def _bound(row: Mapping) -> Bound | None:
    """Return the bound of a row; None for evaluations, and for what does not compile or fit.

    Neither has a program that jax cannot read, which has a reason in place of figures.
    """
    if row["result"] != "fits" or row.get("kind") == "evaluation" or row.get("reason"):
        return None
    of_one = row["num_examples"] // row["num_devices"]
    flop = row["product_flop"] / of_one
    if not _FLOP_PER_EXAMPLE[0] <= flop <= _FLOP_PER_EXAMPLE[1]:
        least = _FLOP_PER_EXAMPLE[0] / 1e9
        raise ValueError(
            f"step {row.get('step')} on {row['device']}: its products take {flop / 1e9:.0f} Gflop "
            f"an example, those of a training step of BERT-large with {MAX_SEQ_LENGTH} tokens "
            f"{least:.0f} or more; another model or length, an evaluation, or packed"
        )
    rate = row["samples_per_second_bound"] / row["num_devices"]
    if not (math.isfinite(rate) and rate > 0 and isinstance(row["device"], str)):
        raise ValueError(f"samples_per_second_bound of {row['device']} is {rate}")
    return Bound(row["device"], rate, of_one)


def bound_of(bounds: Sequence[Bound], accelerator: str, *, source: object) -> Bound:
    """Return the highest bound of an accelerator, by the device's name or else its family.

    Raises:
      ValueError: it has none; names the devices that have.
    """
    name = accelerator.lower().replace(" ", "-")
    found = [b for b in bounds if b.device == name] or [
        b for b in bounds if family_of(b.device, None) == family_of(accelerator, None)
    ]
    if not found:
        known = ", ".join(sorted({bound.device for bound in bounds})) or "none at all"
        raise ValueError(
            f"{source}: no training step that fits is compiled for {accelerator}; it has {known}"
        )
    return max(found, key=lambda bound: bound.samples_per_second)


def compile_bounds(step: Path, accelerator: str) -> list[Bound]:
    """Return the bound of an exported step, by its compiler, which takes minutes and gigabytes.

    Raises:
      ValueError: the step is of another model or length, or does not compile; one line.
    """
    try:
        signature = json_text.read_object(step / "signature.json")
        model = {name: signature["bert_config"].get(name) for name in BERT_LARGE}
        tokens = {p["num_tokens"] for p in signature["programs"] if p["kind"] == "training"}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"--step={step}: not an exported step ({type(error).__name__}: {error}); make one with "
            "python -m mlperf_bert.portable.export"
        ) from error
    if model != dict(BERT_LARGE) or tokens != {MAX_SEQ_LENGTH}:
        raise ValueError(
            f"--step={step}: not a training step of BERT-large with {MAX_SEQ_LENGTH} tokens "
            f"({model.get('num_hidden_layers')} layers, {', '.join(map(str, tokens)) or 'no'} "
            "tokens): export that model"
        )
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder, "table.json")
        device = accelerator.lower().replace(" ", "-")
        command = [sys.executable, "-m", "mlperf_bert.portable.compile_step", str(step)]
        command += [f"--devices={device}", f"--output={table}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not table.exists():
            raise ValueError((done.stderr.strip().splitlines() or ["compile_step.py failed"])[-1])
        [row] = json.loads(table.read_text())["rows"]
        if "samples_per_second_bound" not in row:
            raise ValueError(f"--step={step}: {device}: {row['result']}: {row.get('reason')}")
        return read_bounds(table)
