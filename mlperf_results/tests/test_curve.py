"""A run's evaluations beside the published ones after as many samples."""

import json
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from mlperf_results import curve, published
from tests.mlperf.example_log import write_curve


def test_the_least_and_greatest_of_ten_curves_by_hand(shipped):
    """A line between evaluations, level after the last; only runs that were evaluated."""
    points = [((), ())] + [((10, 20), (n / 100, n / 10)) for n in range(10)]
    samples, accuracies = zip(*points)
    known = next(entry for entry in published.comparable(shipped))
    entry = replace(known, evaluation_samples=samples, evaluation_accuracy=accuracies)
    entries = [
        replace(entry, system=str(batch), global_batch_size=batch)
        for batch in (512, 448, 630, 900, 640)
    ]
    none = {"evaluation_samples": ((),), "evaluation_accuracy": ((),)}
    entries += [
        replace(entry, global_batch_size=None),
        replace(entry, global_batch_size=448, division="open"),
        replace(entry, global_batch_size=640, **none),
    ]
    found = curve.band_of(448, entries)
    assert (found.batches, len(found.curves)) == ((448, 512, 630), 30)
    assert curve.band_of(640, entries[3:4]).batches == (900,)
    assert curve.band_of(2, entries).batches == (448,)
    [ends] = curve.band_of(448, entries[1:2]).ends([15])
    assert ends == pytest.approx((0, 0.495))
    assert curve.band_of(448, entries[1:2]).ends([9, 20, 99]) == [None, (0, 0.9), (0, 0.9)]
    few = replace(entries[1], evaluation_samples=samples[:-1], evaluation_accuracy=accuracies[:-1])
    assert curve.band_of(448, [few]).ends([15]) == [None]


@pytest.mark.parametrize(
    ("accuracies", "code", "words"),
    [
        ([0.5], 0, "within what was published, or above it"),
        ([0.499], 0, "below all published runs, by 0.0010"),
        ([0.1, 0.47, 0.45], 3, "FAR BELOW: 0.0500 less than the least published accuracy; look"),
        ([0.1, 0.49, 0.45], 0, "below all published runs, by 0.0500"),
        ([0.1, 0.45, 0.49], 0, "below all published runs, by 0.0100"),
    ],
)
def test_a_verdict_is_on_the_last_evaluations(accuracies, code, words):
    """Evaluations where too few runs are known do not count."""
    ends = [*[(0.5, 0.6)] * len(accuracies), None]
    found = curve.verdict_of([*accuracies, 0.0], ends)
    assert (found[0], found[1][: len(words)]) == (code, words)


def test_a_picture_shows_the_run_within_the_band(tmp_path, monkeypatch):
    drawn = []
    kept = lambda **given: drawn.append(Figure(**given)) or drawn[-1]  # noqa: E731
    monkeypatch.setattr(curve, "Figure", kept)
    band = curve.Band((448,), ((np.array([10, 20]), np.array([0.1, 0.5])),) * 10)
    curve.draw([12, 40], [0.2, 0.7], band, tmp_path / "a picture")
    assert (tmp_path / "a picture").read_bytes().startswith(b"\x89PNG")
    [axes] = drawn[0].axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("samples", "masked-LM accuracy")
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["published runs", "this run", "target 0.720"]
    run, target = axes.lines
    assert run.get_xydata().tolist() == [[12, 0.2], [40, 0.7]]
    assert list(target.get_ydata()) == [0.72, 0.72]
    [(least_x, least_y), (most_x, most_y)] = (
        axes.collections[0].get_datalim(axes.transData).get_points()
    )
    assert (most_x, most_y) == pytest.approx((44, 0.5)) and 10 <= least_x < 10.3 and least_y < 0.12


@pytest.mark.parametrize(
    ("points", "code", "words"),
    [
        ([(1_000_000, 0.60), (2_000_000, 0.619), (2_500_000, 0.6201)], 3, "FAR BELOW: 0.09"),
        ([(2_000_000, 0.62)], 3, "FAR BELOW"),
        ([(1_000_000, 0.5), (2_000_000, 0.712)], 0, "below all published runs, by 0.00"),
        ([(1_000, 0.1)], 0, "too few published runs were evaluated after so few samples"),
        ([(1_500_000, "NaN"), (2_000_000, "NaN")], 3, "FAR BELOW: inf"),
    ],
)
@pytest.mark.parametrize("ended", [True, False])
def test_a_run_is_judged_by_its_last_evaluations(tmp_path, capsys, points, code, words, ended):
    """The log is whole, or still written."""
    log = write_curve(tmp_path / "bert.log", points, ended=ended)
    assert curve.main([str(log.parent)]) == code
    *_, last, said = capsys.readouterr().out.splitlines()
    assert words in said
    assert f"{points[-1][0]:,}" in last


def test_published_runs_are_not_far_below_those_of_other_submitters(shipped):
    """How often it would be said, at every evaluation of each run."""
    known = [e for e in published.comparable(shipped) if e.global_batch_size]
    said = []
    for entry in known[::7]:
        band = curve.band_of(entry.global_batch_size, [e for e in known if e.org != entry.org])
        for samples, accuracy in list(zip(entry.evaluation_samples, entry.evaluation_accuracy))[:2]:
            ends = band.ends(samples)
            codes = [curve.verdict_of(accuracy[:n], ends[:n])[0] for n in range(1, len(ends) + 1)]
            said += [code == curve.EXIT_FAR_BELOW for code in codes]
    assert len(said) > 500 and np.mean(said) < 0.01


def test_the_real_logs_give_the_curves_of_the_table(shared, shipped):
    by_name = {entry.name: entry for entry in shipped}
    for folder in (shared / "real_logs").glob("*/results/*/bert"):
        entry = by_name[f"1.0/{folder.parents[2].name}/{folder.parent.name}"]
        log, *_ = sorted(folder.glob("result_*.txt"))
        if not any(entry.evaluation_samples):
            with pytest.raises(ValueError, match="no evaluation in it says after how many"):
                curve.read_curve(str(log))
            continue
        batch, evaluations = curve.read_curve(str(log))
        samples, accuracies = zip(*evaluations)
        rounded = tuple(round(accuracy, 4) for accuracy in accuracies)
        assert batch == entry.global_batch_size
        assert (samples, rounded) in zip(entry.evaluation_samples, entry.evaluation_accuracy)


def test_a_resumed_run_is_one_curve_and_a_picture_is_drawn(tmp_path, capsys):
    """Of a run that is far below, too."""
    write_curve(tmp_path / "bert.log", [(1_000_000, 0.60)])
    write_curve(tmp_path / "bert.resumed-1.log", [(2_000_000, 0.62)])
    (tmp_path / "run.json").write_text(json.dumps({"status": "running"}))
    picture = tmp_path / "curve.png"
    assert curve.main([str(tmp_path), f"--png={picture}"]) == 3
    assert picture.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "1,000,000    0.6000" in printed and "2,000,000    0.6200" in printed


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_sequence_length": 128}, "sequences of 128 tokens; published runs have 512"),
        ({"global_batch_size": None}, "does not say global_batch_size"),
        ({"weights_initialization": None}, "a miniature; published runs are of BERT-large"),
    ],
)
def test_what_no_published_run_is_like_is_refused(tmp_path, refusal, changes, words):
    log = write_curve(tmp_path / "result_0.txt", [(1_000_000, 0.7)], **changes)
    text = log.read_text().replace('"weights_initialization", "value": null, "metadata": {}',
                                   '"weights_initialization", "value": null, "metadata": '
                                   '{"tensor": "one"}')  # fmt: skip
    log.write_text(text)
    assert words in refusal(curve, log)


def test_one_run_and_a_picture_are_asked_for(tmp_path, refusal):
    for number in (0, 1, 2):
        log = write_curve(tmp_path / "two" / f"result_{number}.txt", [(1_000_000, 0.7)])
    (tmp_path / "begun" / "runs" / "1").mkdir(parents=True)
    (tmp_path / "begun" / "campaign.json").write_text("{}")
    for name, what in (("two", "3 runs"), ("begun", "no log")):
        line = f"curve: {tmp_path / name}: {what}; give the log of one run"
        assert refusal(curve, tmp_path / name) == line
    assert "give the name of a picture" in refusal(curve, log, "--png=result_0.txt")
    assert "--png=gs://b/x.png: give a local path" in refusal(curve, log, "--png=gs://b/x.png")
