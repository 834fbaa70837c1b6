"""The files that offline evaluation leaves in a run's directory."""

import dataclasses
import json
from pathlib import Path

from mlperf_bert.model.metrics import Evaluation
from mlperf_bert.writing import write_whole

RESULTS_TEXT = "eval_results.txt"
RESULTS_LINES = "eval_results.jsonl"


def record(directory: Path, step: int, found: Evaluation) -> None:
    """Adds a line to eval_results.jsonl and rewrites eval_results.txt, the reference's format."""
    values = dataclasses.asdict(found)
    line = json.dumps({"step": step, **values}) + "\n"
    write_whole(directory / RESULTS_LINES, "".join([*_whole_lines(directory), line]))
    listed = {"global_step": step, **values}
    text = "".join(f"{name} = {listed[name]}\n" for name in sorted(listed))
    write_whole(directory / RESULTS_TEXT, text)


def read(directory: Path) -> dict[int, Evaluation]:
    """Step -> evaluation, oldest step first; a line that was cut is left out."""
    entries = [json.loads(line) for line in _whole_lines(directory)]
    found = {entry.pop("step"): Evaluation(**entry) for entry in entries}
    return dict(sorted(found.items()))


def evaluated_steps(directory: Path) -> set[int]:
    """The steps that have been evaluated."""
    return set(read(directory))


def _whole_lines(directory: Path) -> list[str]:
    path = directory / RESULTS_LINES
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return [line for line in lines if line.endswith("\n")]
