"""Reads and writes the results of offline evaluations: a line for each, and the newest as text.

All evaluations of a run must have the same examples; `data_of` tells examples apart.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Sequence

from mlperf_bert.data import tfrecord
from mlperf_bert.files import errors, json_text, paths
from mlperf_bert.files.whole import digest, read_regular_file, write_whole, written_beside
from mlperf_bert.mlperf.log_reader import RECORD_NAME, read_own_record
from mlperf_bert.model.metrics import Evaluation
from mlperf_bert.training.config import RunConfig

RESULTS_TEXT = "eval_results.txt"
RESULTS_LINES = "eval_results.jsonl"


def data_of(config: RunConfig, files: Sequence[str]) -> str:
    """Words with a digest that identify an evaluation's examples; reads all files.

    Copies of the same files, also with other names, give the same words.
    """
    digests = paths.in_parallel(lambda path: digest(path, "sha256"), list(files))
    limit = config.max_eval_steps and config.max_eval_steps * config.eval_batch_size
    part = ""
    if limit and limit < sum(map(tfrecord.count_records, files)):
        part = f", the first {limit:,} examples"  # the order of the files then counts
    else:
        digests.sort()
    num_bytes = sum(map(paths.size_bytes, files))
    together = hashlib.sha256("".join(digests).encode()).hexdigest()
    return f"{size_in_words(len(files), num_bytes)}, sha256:{together}{part}"


def size_in_words(num_files: int, num_bytes: int) -> str:
    """The amount of data, in words."""
    return f"{num_files} files, {num_bytes:,} bytes"


def require_same_data(directory: paths.Location, data: str) -> None:
    """Checks the examples of an evaluation against those of the figures in a run's directory.

    Args:
      directory: of the run.
      data: as `data_of`.
    """
    inputs = read_own_record(directory / RECORD_NAME).get("inputs")
    of_run = inputs.get("eval_input_file") if isinstance(inputs, dict) else None
    lines = directory / RESULTS_LINES
    remedies = {
        entry.data: f"remove {lines}, and all are evaluated again" for entry in _entries(directory)
    }
    remedies[str(of_run or "")] = (
        "copy its checkpoints, without run.json, into another --output_dir"
    )
    for there, remedy in remedies.items():
        if there and there != data:
            raise ValueError(
                f"{directory}: its figures are of other evaluation data (there {there}; now "
                f"{data}); give the same files, as a whole, or {remedy}"
            )


def record_evaluation(
    directory: paths.Location,
    step: int,
    evaluation: Evaluation,
    *,
    checkpoint: str | None = None,
    data: str = "",
) -> None:
    """Adds a line to eval_results.jsonl and rewrites eval_results.txt, the reference's format.

    Args:
      directory: of the run.
      step: of its checkpoint.
      evaluation: of that step's weights.
      checkpoint: the path of one that is not the run's own; `read_evaluations` leaves it out.
      data: on which examples, as `data_of`.
    """
    values = dataclasses.asdict(evaluation)
    of_whom = {} if checkpoint is None else {"checkpoint": checkpoint}
    of_what = {"data": data} if data else {}
    line = json.dumps({"step": step, **of_whom, **of_what, **values}).encode() + b"\n"
    with written_beside(directory / RESULTS_LINES) as file:
        # The whole file is written again, without a line that a kill has cut.
        file.writelines([*_whole_lines(directory), line])
    # Written after the lines, which alone count: a kill in between costs only this text.
    listed = {"global_step": step, **values}
    text = "".join(f"{name} = {listed[name]}\n" for name in sorted(listed))
    write_whole(directory / RESULTS_TEXT, text)


def read_evaluations(directory: paths.Location) -> dict[int, Evaluation]:
    """Step -> evaluation of the run's checkpoints, oldest first; an incomplete line is left out."""
    evaluations = {entry.step: entry.evaluation for entry in _entries(directory)}
    return dict(sorted(evaluations.items()))


@dataclasses.dataclass(frozen=True)
class _Entry:
    """A line."""

    step: int
    data: str
    """The examples, in the words of `data_of`; empty if they are not known."""
    is_own: bool
    """Whether it is of a checkpoint of the run."""
    evaluation: Evaluation


def _entries(directory: paths.Location) -> Iterator[_Entry]:
    """The lines of the run's own checkpoints; raises ValueError as `read_evaluations`."""
    for number, line in enumerate(_whole_lines(directory), start=1):
        remedy = "remove the line, and its checkpoint is evaluated again"
        with errors.named(f"{directory / RESULTS_LINES} line {number}", damaged=remedy):
            entry = _entry_of(line)
        if entry.is_own:
            yield entry


def _entry_of(line: bytes) -> _Entry:
    values = json_text.parse_object(line)
    step, is_own = values.pop("step"), values.pop("checkpoint", None) is None
    data = str(values.pop("data", ""))
    if type(step) is not int or not all(type(value) in (int, float) for value in values.values()):
        raise TypeError("a value is not a number")
    return _Entry(step, data, is_own, Evaluation(**values))


def _whole_lines(directory: paths.Location) -> list[bytes]:
    try:
        content = read_regular_file(directory / RESULTS_LINES)
    except FileNotFoundError:
        return []
    # A last line without an end was cut by a kill.
    return [line + b"\n" for line in content.split(b"\n")[:-1]]
