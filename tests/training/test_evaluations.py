"""Files of a run with one JSON object a line, damaged: eval_results.jsonl and metrics.jsonl."""

import json

import pytest

from mlperf_bert.model.metrics import Evaluation
from mlperf_bert.training.evaluations import RESULTS_LINES, read_evaluations, record_evaluation
from mlperf_bert.training.reporting import MetricsWriter

FIGURES = dict.fromkeys(Evaluation.__annotations__, 1)
ENTRY = json.dumps({"step": 5, **FIGURES}).encode()

# A line -> why it is refused.
DAMAGED = {
    b"[]": "expected a JSON object, got list",
    b"[" * 100_000: "nested too deeply",
    b"\xff": "can't decode byte 0xff",
    b'{"step"': "not JSON",
    b"{}": "step",
    ENTRY.replace(b"5", b'"5"', 1): "not a number|not supported between",
}


@pytest.mark.parametrize("line", DAMAGED, ids=lambda line: repr(line[:20]))
def test_a_damaged_line_is_named(line, tmp_path):
    for name in (RESULTS_LINES, "metrics.jsonl"):
        (tmp_path / name).write_bytes(ENTRY + b"\n" + line + b"\n" + ENTRY + b"\n")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    message = f"line 2: damaged .*({DAMAGED[line]}).*; remove the line"
    with pytest.raises(ValueError, match=f"{RESULTS_LINES} {message}, and its check"):
        read_evaluations(tmp_path)
    with pytest.raises(ValueError, match=f"metrics.jsonl {message}"):
        MetricsWriter(tmp_path, resumed_step=5)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("given_first", [False, True])
def test_a_given_checkpoint_does_not_count_as_that_of_the_run(given_first, tmp_path):
    own, given = (Evaluation(**FIGURES | {"loss": loss}) for loss in (0.25, 0.5))
    entries = [(own, None), (given, "elsewhere/model.ckpt-5")]
    for evaluation, checkpoint in reversed(entries) if given_first else entries:
        record_evaluation(tmp_path, 5, evaluation, checkpoint=checkpoint)
    assert read_evaluations(tmp_path) == {5: own}


def test_other_figures_are_refused(tmp_path):
    entry = json.dumps({"step": 5, **FIGURES, "more": 1})
    (tmp_path / RESULTS_LINES).write_text(f"{entry}\n")
    with pytest.raises(ValueError, match=r"line 1: damaged .*'more'"):
        read_evaluations(tmp_path)


def test_a_line_that_was_cut_is_left_out_and_replaced(tmp_path):
    path = tmp_path / RESULTS_LINES
    path.write_bytes(ENTRY + b"\n" + ENTRY[:20])
    found = Evaluation(**FIGURES)
    assert read_evaluations(tmp_path) == {5: found}
    record_evaluation(tmp_path, 9, found)
    assert read_evaluations(tmp_path) == {5: found, 9: found}
    assert path.read_bytes().startswith(ENTRY + b"\n{")
