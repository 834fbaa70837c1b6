"""The page of the three questions: what stands on it is what the three commands say."""

import re

import pytest

from mlperf_bert.submission import compare, deciding, watch
from mlperf_bert.submission.expectation import Question
from mlperf_bert.submission.sides import read_side
from tests.mlperf.example_log import write_log


@pytest.fixture(name="pair")
def two_folders_of_runs(tmp_path):
    """Four runs each, A's with one evaluation less; their curves are those of batch 448."""
    rise = [0.38, 0.40, 0.46, 0.56, 0.64, 0.69, 0.705, 0.71, 0.713, 0.715, 0.716, 0.717, 0.718]
    for name, more in (("a", 0), ("b", 1)):
        for number in range(4):
            folder = tmp_path / name / str(number)
            folder.mkdir(parents=True)
            accuracies = [*rise, *[0.719] * (number + more), 0.7205]
            write_log(folder / "bert.log", accuracies, num_layers=24)
    return tmp_path / "a", tmp_path / "b"


def shown(page):
    """The text of a page, with spaces for tags."""
    text = re.sub(r"<style>.*?</style>|<svg.*?</svg>", " ", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))


@pytest.fixture
def page_of(tmp_path):
    """Makes a page of sides; returns it, and its text."""

    def made(*words):
        output = tmp_path / "page.html"
        assert deciding.main([*map(str, words), f"--output={output}"]) == 0
        return output.read_text(), shown(output.read_text())

    return made


def test_the_page_shows_all_three(pair, known, page_of):
    page, text = page_of(*pair, "--accelerator=H100", "--count=8")
    assert page.count("<svg") == 4 and "http-equiv" not in page and "<script" not in page
    compared = compare.compare(*(read_side(str(side)) for side in pair))
    for change in compared.changes:
        assert change.verdict in text
    expected = known.expectation(Question("H100 SXM", 8))
    assert str(expected.minutes) in text and str(expected.samples_per_second) in text
    assert "published runs at batch 448" in text and "0.7205 after 2.70 million samples" in text


def test_a_run_that_goes_on_has_a_forecast_and_one_outside_a_warning(tmp_path, page_of):
    log = tmp_path / "bert.log"
    write_log(log, [0.38, 0.40, 0.46, 0.56], num_layers=24)
    text = log.read_text()
    log.write_text(text[: text.index('"run_stop"')].rpartition("\n")[0] + "\n")
    _, text = page_of(log)
    assert "expected after" in text and "A or B?" not in text and "How long" not in text
    log = tmp_path / "other.log"
    write_log(log, [0.2, 0.2], num_layers=24)
    _, text = page_of(log)
    assert "Outside of the other runs" in text and "the weights are not loaded" in text


@pytest.mark.parametrize(
    "words, reason",
    [
        (["missing"], "missing: no such file or folder"),
        (["bert.log", "--accelerator=Abacus", "--count=8"], "nobody published"),
        (["bert.log", "bert.log"], "same"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(tmp_path, monkeypatch, refusal, words, reason):
    monkeypatch.chdir(tmp_path)
    write_log(tmp_path / "bert.log", [0.38, 0.73], num_layers=24)
    line = refusal(deciding, *words, "--output=page.html")
    assert line.startswith("deciding: ") and reason in line
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("count", ["0", "-3", "x"])
def test_a_count_is_a_number_of_accelerators(tmp_path, capsys, count):
    with pytest.raises(SystemExit) as ended:
        deciding.main(["a", "--output=b", "--accelerator=H100", f"--count={count}"])
    assert ended.value.code == 2 and "give a whole number from 1" in capsys.readouterr().err


def test_the_words_of_the_page_are_those_of_the_watch(pair, tmp_path):
    [run, *_] = deciding.read_runs(str(pair[0]))
    others = watch.reference_of_log(run)
    page = deciding.page([deciding.Watched("A", "a", [run], others)])
    usual = watch.lines(run, others)[-1].partition("others: ")[2]
    assert f"published runs at batch 448: {usual}" in shown(page)


def test_a_and_b_of_other_batches_have_bands_of_their_own(pair, tmp_path):
    """The same curve is usual at one batch and far outside at another."""
    for log in (tmp_path / "b").glob("*/bert.log"):
        change = '"key": "global_batch_size", "value": '
        log.write_text(log.read_text().replace(f"{change}448", f"{change}3072"))
    sides = deciding._watched([str(tmp_path / name) for name in "ab"], None)
    assert [side.others.words for side in sides] == [
        "published runs at batch 448", "published runs at batch 3,072"
    ]  # fmt: skip
    text = shown(page := deciding.page(sides))
    assert page.count("<svg") == 4 and "beside published runs at batch 3,072" in text


def test_a_campaign_whose_runs_alternate_is_a_and_b(pair, tmp_path, page_of):
    (tmp_path / "alternate.json").write_text('{"variants": ["a", "b"]}')
    text = page_of(tmp_path)[1]
    assert f"A: {pair[0]}, B: {pair[1]}" in text and "A or B?" in text


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("batch_size", 448, 256), "runs of different batch: 256 and 448; give a folder of each"),
        (("sequence_length", 512, 128), "runs of different tokens: 128 and 512; give a folder"),
    ],
)
def test_runs_of_several_kinds_have_no_band_in_common(pair, tmp_path, refusal, change, reason):
    key, old, new = change
    log = pair[0] / "3" / "bert.log"
    log.write_text(log.read_text().replace(f'{key}", "value": {old}', f'{key}", "value": {new}'))
    assert reason in refusal(deciding, pair[0], f"--output={tmp_path / 'page.html'}")


def test_b_of_another_length_is_not_judged_by_the_band_of_a(pair, tmp_path, refusal):
    log = write_log(tmp_path / "b.log", [0.2], num_layers=24, max_sequence_length=128)
    line = refusal(deciding, pair[0], log, f"--output={tmp_path / 'page.html'}")
    assert f"{log}: not BERT-large with 512 tokens" in line


def test_b_is_compared_only_after_both_have_reached_the_target(pair, tmp_path, page_of):
    log = tmp_path / "bert.log"
    write_log(log, [0.38, 0.40, 0.46], num_layers=24)
    assert "No run of B has reached the target." in page_of(pair[0], log)[1]


def test_logs_that_count_no_samples_are_compared_all_the_same(pair, tmp_path, page_of):
    for log in tmp_path.glob("*/*/bert.log"):
        log.write_text(re.sub(r'"epoch_num": \d+', '"epoch_num": 1', log.read_text()))
    _, text = page_of(*pair)
    assert "These logs have no evaluation that says its samples" in text and "A or B?" in text


def test_published_results_are_sides_by_their_names(page_of):
    names = ["3.1/Dell/XE9680x8H100-SXM-80GB", "4.1/Dell/XE9680x8H200-SXM-141GB"]
    runs = deciding.read_runs(names[0])
    assert len(runs) == 10 and all(run.evaluations[-1].accuracy >= 0.72 for run in runs)
    assert "one of 10 runs; none outside" in page_of(*names)[1]
