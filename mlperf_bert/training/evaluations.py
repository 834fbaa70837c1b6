"""Where the results of offline evaluations are kept: a line for each, and the newest as text."""

import dataclasses
import json

from mlperf_bert.files import json_text, paths
from mlperf_bert.files.whole import read_regular_file, write_whole, written_beside
from mlperf_bert.model.metrics import Evaluation

RESULTS_TEXT = "eval_results.txt"
RESULTS_LINES = "eval_results.jsonl"


def record_evaluation(
    directory: paths.Location, step: int, evaluation: Evaluation, *, checkpoint: str | None = None
) -> None:
    """Adds a line to eval_results.jsonl and rewrites eval_results.txt, the reference's format.

    Args:
      directory: of the run.
      step: of its checkpoint.
      evaluation: of that step's weights.
      checkpoint: the path of one that is not the run's own; `read_evaluations` leaves it out.
    """
    values = dataclasses.asdict(evaluation)
    of_whom = {} if checkpoint is None else {"checkpoint": checkpoint}
    line = json.dumps({"step": step, **of_whom, **values}).encode() + b"\n"
    with written_beside(directory / RESULTS_LINES) as file:
        # The file is written again as a whole: a line that a kill has cut is left out.
        file.writelines([*_whole_lines(directory), line])
    # After the lines, which alone say what is evaluated: a kill in between costs only this text.
    listed = {"global_step": step, **values}
    text = "".join(f"{name} = {listed[name]}\n" for name in sorted(listed))
    write_whole(directory / RESULTS_TEXT, text)


def read_evaluations(directory: paths.Location) -> dict[int, Evaluation]:
    """Step -> evaluation of the run's checkpoints, oldest first; an incomplete line is left out.

    Raises:
      ValueError: a line was not written by `record_evaluation`.
    """
    evaluations = {}
    for number, line in enumerate(_whole_lines(directory), start=1):
        try:
            step, evaluation, is_own = _entry(line)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{directory / RESULTS_LINES} line {number}: damaged ({error!r:.300}); remove the "
                "line, and its checkpoint is evaluated again"
            ) from error
        if is_own:
            evaluations[step] = evaluation
    return dict(sorted(evaluations.items()))


def _entry(line: bytes) -> tuple[int, Evaluation, bool]:
    values = json_text.parse_object(line)
    step, is_own = values.pop("step"), values.pop("checkpoint", None) is None
    if type(step) is not int or not all(type(value) in (int, float) for value in values.values()):
        raise TypeError("a value is not a number")
    return step, Evaluation(**values), is_own


def _whole_lines(directory: paths.Location) -> list[bytes]:
    try:
        content = read_regular_file(directory / RESULTS_LINES)
    except FileNotFoundError:
        return []
    # What stands behind the last end of a line was cut by a kill.
    return [line + b"\n" for line in content.split(b"\n")[:-1]]
