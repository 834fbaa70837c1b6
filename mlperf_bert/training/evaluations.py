"""The files that offline evaluation leaves in a run's directory."""

import dataclasses
import json
from pathlib import Path

from mlperf_bert.model.metrics import Evaluation

RESULTS_TEXT = "eval_results.txt"
RESULTS_LINES = "eval_results.jsonl"


def record(directory: Path, step: int, found: Evaluation) -> None:
    """Adds a line to eval_results.jsonl and rewrites eval_results.txt, the reference's format."""
    values = dataclasses.asdict(found)
    with (directory / RESULTS_LINES).open("a", encoding="utf-8") as lines:
        lines.write(json.dumps({"step": step, **values}) + "\n")
    listed = {"global_step": step, **values}
    text = "".join(f"{name} = {listed[name]}\n" for name in sorted(listed))
    partial = directory / f"{RESULTS_TEXT}.partial"
    partial.write_text(text, encoding="utf-8")
    partial.replace(directory / RESULTS_TEXT)


def read(directory: Path) -> dict[int, Evaluation]:
    """Step -> evaluation, oldest step first; a line that is being written is left out."""
    path = directory / RESULTS_LINES
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    entries = [json.loads(line) for line in lines if line.endswith("\n")]
    found = {entry.pop("step"): Evaluation(**entry) for entry in entries}
    return dict(sorted(found.items()))


def evaluated_steps(directory: Path) -> set[int]:
    """The steps that have been evaluated."""
    return set(read(directory))
