"""A or B: ratios, intervals and verdicts; what is refused or left out; exit codes."""

import json
import math

import numpy as np
import pytest
from scipy import stats

from mlperf_results import compare, sides
from tests.submission.timed_log import write_log, write_results

SLOW = [20.0, 21.0, 22.0, 20.5, 21.5]
FAST = [18.0, 18.5, 19.5, 19.0, 18.2]


def compared(a, b):
    return compare.compare(sides.read_side(str(a)), sides.read_side(str(b)))


def write_campaign(folder, all_minutes, *, flags, hosts=(), python="3.11", **log):
    """A campaign whose runs have host after host; their input was made on another one."""
    for number, minutes in enumerate(all_minutes):
        run = folder / "runs" / str(number)
        write_log(run / "bert.log", minutes, **log)
        parameters = {"output_dir": str(run), "seed": minutes, "device": flags}
        parameters["batch"] = len(all_minutes)
        record = {"status": "success", "parameters": parameters}
        if hosts:
            record["made_with"] = {"host": hosts[number % len(hosts)], "python": python}
        (run / "run.json").write_text(json.dumps(record))
    (folder / "campaign.json").write_text("{}")
    return folder


def test_an_interval_is_that_of_welchs_test_on_logarithms(tmp_path):
    """Against scipy's own test."""
    found = compared(
        write_results(tmp_path / "a", SLOW), write_results(tmp_path / "b", FAST[:3])
    ).change_of("time_to_train")
    expected = stats.ttest_ind(np.log(FAST[:3]), np.log(SLOW), equal_var=False)
    low, high = expected.confidence_interval(0.95)
    assert found.interval == pytest.approx((math.exp(low), math.exp(high)))
    ratio = stats.gmean(FAST[:3]) / stats.gmean(SLOW)
    assert found.ratio == pytest.approx(ratio)
    less, least, most = (100 * (1 - value) for value in (ratio, *found.interval[::-1]))
    assert found.verdict == f"B is {less:.1f}% faster ({least:.1f} to {most:.1f})"


def test_one_run_is_compared_with_the_scatter_of_the_others():
    a, b = np.array(SLOW), np.array(FAST)
    # A regression on whether a run is of B has the scatter of A alone as its residuals.
    one = compare.intervals_of_logarithms(a, b[:1])
    regression = stats.linregress([0] * 5 + [1], np.log([*SLOW, FAST[0]]))
    half = stats.t.ppf(0.975, 4) * regression.stderr
    assert one == pytest.approx((regression.slope - half, regression.slope + half))


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        ([10.0] * 10, [10.5] * 10, "no interval, so no verdict: the figures of each are equal"),
        ([20.0], [19.0], "one run of each: no interval, so no verdict; two of each are the least"),
        ([20.0, 20.0], [19.0, 19.0], "no interval, so no verdict: the figures of each are equal"),
        ([20.0, 20.0001], [19.0], "no interval, so no verdict: the figures of each are equal"),
        ([20.0, 20.3, 20.4], [20.1, 20.2, 20.5], "not distinguishable"),
        ([20.0, 20.1], [60.0, 60.1], "B is much slower: 3 times A's minutes (2.9"),
    ],
)  # fmt: skip
def test_small_numbers_are_treated_honestly(tmp_path, a, b, words):
    found = compared(write_results(tmp_path / "a", a), write_results(tmp_path / "b", b))
    assert found.change_of("time_to_train").verdict.startswith(words)


def test_equal_figures_are_not_called_slower(tmp_path, call):
    write_results(tmp_path / "a", [10.0] * 10)
    write_results(tmp_path / "b", [10.5] * 10)
    code, printed, _ = call("a", "b", "--fail_if_slower=3%")
    assert code == 4 and "95%" not in printed
    assert printed.endswith("slower by 3% or more: cannot tell, there is no interval\n")


def test_a_run_that_is_far_off_is_named(tmp_path, call):
    write_results(tmp_path / "a", SLOW)
    write_results(tmp_path / "b", [60.0, *FAST])
    printed = call("a", "b")[1]
    named = "FAR OFF in B: result_0.txt: time to train 60 minutes, the median is 18.75\n"
    assert printed.startswith(f"A: a: 5 runs\nB: b: 6 runs\n{named}")
    assert "FAR OFF" not in call("a", "a/result_1.txt")[1]


def test_runs_that_do_not_count_are_left_out_and_told(tmp_path, call):
    for number, minutes in enumerate(SLOW):
        write_log(tmp_path / "mine" / f"seed-{number}" / "bert.log", minutes)
    write_log(tmp_path / "mine" / "seed-0" / "bert.resumed-1.log", 3)
    folder = write_results(tmp_path / "org" / "results" / "System" / "bert", FAST)
    write_log(folder / "result_5.txt", 60, status="aborted")
    write_log(folder / "result_6.txt", 20, accuracy=math.nan)
    resumed = "was resumed, none of its logs has all of its time"
    left_out = "result_5.txt: aborted, without the target; result_6.txt: says success with accuracy"
    assert call("mine", "org/results/System")[1].startswith(
        f"A: mine: 4 runs, 1 left out (seed-0: {resumed})\n"
        f"B: org/results/System: 5 runs, 2 left out ({left_out} nan)\n"
    )


def test_another_batch_is_told_and_another_division_compares_rates_alone(tmp_path, call):
    write_results(tmp_path / "a", SLOW)
    write_results(tmp_path / "b", FAST, batch=256)
    write_results(tmp_path / "c", FAST, division="open")
    _, printed, _ = call("a", "b")
    assert "ANOTHER TASK: batch: 448 -> 256" in printed and "time to train: 20.99 ->" in printed
    code, printed, _ = call("a", "c", "--fail_if_slower=3%", "--figure=samples_per_second")
    why = "not compared, the divisions differ (closed and open)"
    assert code == 0
    assert f"time to train: {why}" in printed and f"samples to converge: {why}" in printed
    assert call("a", "c", "--fail_if_slower=3%")[::2] == (1, f"compare: time to train: {why}\n")


def test_hosts_that_differ_are_told(tmp_path, call):
    """The last record of each run counts; which run was on which host is no difference."""
    write_campaign(tmp_path / "a", SLOW, hosts="xz", flags={"jit": False})
    write_campaign(tmp_path / "b", FAST, hosts="zx", flags={"jit": True})
    write_campaign(tmp_path / "c", FAST, hosts=["yy"], python="3.12", flags={"jit": False})
    write_campaign(tmp_path / "d", FAST, flags={"jit": True})
    head, others = "A: a: 5 runs\nB: {}: 5 runs\n", "DIFFERENT HOSTS, which may explain the"
    beginnings = {
        "b": "different device.jit: False -> True\n  time to train",
        "c": f"{others} differences below:\n  host: x or z -> yy\n"
        "different python: 3.11 -> 3.12\n  time to",
        "d": "on which hosts they ran is not recorded of both\ndifferent device.jit: False -> True",
    }
    for name, lines in beginnings.items():
        assert call("a", name)[1].startswith(head.format(name) + lines)
    logs = (f"{name}/runs/0/bert.log" for name in ("a", "c"))
    assert "  host: x -> yy\n" in call(*logs)[1]
    # Of a vendor's runs the description of the system says it.
    for org, name in (("b", "H200"), ("c", "H100")):
        folder = write_results(tmp_path / org / "results/box/bert", FAST if org == "c" else SLOW)
        (tmp_path / org / "systems").mkdir()
        described = {"accelerator_model_name": name, "number_of_nodes": "2", "framework": "X"}
        (folder.parents[2] / "systems" / "box.json").write_text(json.dumps(described))
    printed = call("b/results/box", "c/results/box")[1]
    changed = "accelerator: H200 -> H100\n  time to train: 20.99 -> "
    assert f"{others} differences below:\n  {changed}" in printed


@pytest.mark.parametrize(("number", "more"), [(7, ""), (8, "and 1 more differences\n")])
def test_of_many_differences_the_first_are_told(tmp_path, call, number, more):
    for name, minutes in (("a", SLOW), ("b", FAST[:4])):
        write_campaign(
            tmp_path / name, minutes, hosts="x", flags=dict.fromkeys(range(number), name)
        )
    told = "".join(f"different device.{n}: a -> b\n" for n in range(7))
    assert f"runs\ndifferent batch: 5 -> 4\n{told}{more}  time to train" in call("a", "b")[1]


def side(name, *runs, **about):
    """Without logs: runs of (minutes, samples, samples/s), as far as they are known."""
    found = {f"run {n}": dict(zip(sides.FIGURE_KEYS, run)) for n, run in enumerate(runs)}
    return sides.Side(name=name, runs=found, **about)


def test_a_comparison_line_by_line():
    """Hosts first, hardware in its own order; then what else is unlike, sorted and cut."""

    def flags(value):
        return {f"flag {letter}": (value,) for letter in "jihgfedcba"}

    def hardware(value):
        return dict.fromkeys(("nodes", "memory", "host", "driver", "accelerators"), (value,))

    a = side(
        "a", (1000.0, 2e6, 30.0), (1040.0, 2.1e6, 20.2), (1020.0, 2.2e6, 20.4),
        left_out=("x: aborted", "y: aborted"), unknown="samples unknown",
        task={"tokens": 512, "batch": 448, "division": "closed"},
        made_on={"accelerator": ("H100",), "zone": ("1",), "processor": ("x" * 70, "y"),
                 "shell": ("2",), **hardware("1"), **flags("1")},
    )  # fmt: skip
    task = {"division": "closed", "batch": 256, "weights": 398, "tokens": 512}
    made_on = {"processor": ("z",), "shell": ("2",), "accelerator": ("H200",), "kernel": ("6",)}
    b = side("b", (1530.0, 3e6), task=task, made_on={**flags("2"), **hardware("3"), **made_on})
    assert compare.compare(a, b).lines() == [
        "A: a: 3 runs, 2 left out (x and 1 more: aborted); samples unknown",
        "B: b: 1 run",
        "FAR OFF in A: run 0: samples/s 30, the median is 20.4",
        "DIFFERENT HOSTS, which may explain the differences below:",
        "  host: 1 -> 3",
        f"  processor: {'x' * 60} -> z",
        "  accelerator: H100 -> H200",
        *(f"  {name}: 1 -> 3" for name in ("accelerators", "driver", "nodes", "memory")),
        "ANOTHER TASK: batch: 448 -> 256",
        *(f"different flag {letter}: 1 -> 2" for letter in "abcdefgh"),
        "and 2 more differences",
        "  time to train: 1,020 -> 1,530 minutes, B/A 1.500 (1.361 to 1.654): B is 50.0% slower "
        "(36.1 to 65.4)",
        "  samples to converge: 2,098,411 -> 3,000,000, B/A 1.430 (1.128 to 1.812): B needs 43.0% "
        "more samples (12.8 to 81.2)",
        "  95% intervals of B/A by Welch's t on logarithms, as if the single run scattered as the "
        "others do",
    ]
    *_, minutes, samples, intervals = compare.compare(b, a).lines()
    assert "B/A 0.667 (0.605 to 0.735): B is 33.3% faster (26.5 to 39.5)" in minutes
    assert "samples to converge" in samples and "as if the single run" in intervals


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        ((100, 101), (201, 202), "2.005 (1.937 to 2.075): B is much slower: 2 times A's minutes"),
        ((100, 100.1), (40, 40.1), "B is 60.0% faster (59."),
        ((1e5, 1.01e5), (10, 10.1), "100,499 -> 10.05 minutes, B/A 0.0001 (9.7e-05 to 0.0001): B"),
        ((999.9, 999), (99.8, 99.99), "time to train: 999.4 -> 99.89 minutes, B/A 0.100"),
    ],
)  # fmt: skip
def test_ratios_are_words_and_digits(a, b, words):
    assert words in compare.compare(side("a", *zip(a)), side("b", *zip(b))).lines()[3]


def test_twice_as_much_is_said_in_the_words_of_its_figure():
    """Of a run that lacks a figure the others count; a side that says no division is compared."""
    a = side("a", (10.0, 2e6, 9.0), (10.1,), (10.2, 2.1e6, 9.1), task={"division": "open"})
    b = side("b", (10.0, 6e6, 27.0), (10.2, 6.3e6, 27.3))
    _, *verdicts = (change.verdict.partition(" (")[0] for change in compare.compare(a, b).changes)
    assert verdicts == [
        "B needs much more samples: 3 times A's samples",
        "B is much faster: 3 times A's samples/s",
    ]
    _, *verdicts = (change.verdict.partition(" (")[0] for change in compare.compare(b, a).changes)
    assert verdicts == ["B needs 66.7% fewer samples", "B is 66.7% slower"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokens": 128}, "A and B differ in tokens (512 and 128): a sample of one is not the"),
        ({"weights": 46}, "A and B differ in weights (398 and 46): a sample of one is not the "),
        ({"benchmark": "gpt3"}, "A and B differ in benchmark (bert and gpt3): a sample of one is "),
        ({"division": "open"}, "a and b have no figure in common: nothing to compare"),
    ],
)  # fmt: skip
def test_what_is_not_the_same_work_is_not_compared(changes, words):
    task = {"benchmark": "bert", "tokens": 512, "weights": 398, "division": "closed"}
    a, b = side("a", (20.0, 2e6, 9.0), task=task), side("b", (19.0, 2e6), task=task | changes)
    with pytest.raises(ValueError) as refused:
        compare.compare(a, b)
    assert str(refused.value).startswith(words)


def test_runs_under_other_numbers_are_the_same_runs():
    runs = (20.0, 2e6, 9.0), (21.0, 2e6, 8.0), (22.0, 2e6, 7.0)
    compare.compare(side("a", *runs), side("b", *runs[:2], (22.0, 2e6, 7.5)))
    with pytest.raises(ValueError, match="a and b are the same runs, time for time"):
        compare.compare(side("a", *runs), side("b", *runs[::-1]))


def test_bad_input_is_told_in_one_line(tmp_path, call):
    for name, minutes in (("a", SLOW), ("b", FAST)):
        write_results(tmp_path / name, minutes)
    write_results(tmp_path / "gpt3", FAST, benchmark="gpt3")
    write_results(tmp_path / "short", FAST, tokens=128)
    (tmp_path / "empty").mkdir()
    (tmp_path / "metrics.jsonl").write_text('{"kind": "train"}')
    write_results(tmp_path / "again", SLOW)
    write_log(tmp_path / "running" / "bert.log", 20)
    (tmp_path / "running" / "run.json").write_text('{"status": "running"}')
    for name in ("A", "B"):
        write_results(tmp_path / "org" / "results" / name / "bert", FAST)
    write_results(tmp_path / "rate", FAST, division="open", samples=1)
    for words, message in [
        (["a", "empty"], "empty: no run in it; give a log, a folder with bert.log"),
        (["a", "metrics.jsonl"], "metrics.jsonl: no run in it counts; metrics.jsonl: no line star"),
        (["a", "./a"], "a and ./a are the same runs, time for time; give those of two"),
        (["a", "again"], "a and again are the same runs, time for time; give those of two"),
        (["a", "gpt3"], "gpt3: no run in it counts; result_0.txt and 4 more: a log of gpt3, not"),
        (["a", "short"], "A and B differ in tokens (512 and 128): a sample of one is not the"),
        (["a", "running"], "running: no run in it counts; running: has not ended"),
        (["a", "org"], "org: results of 2 systems; give one, as org/results/A/bert"),
        (["a", "rate"], "a and rate have no figure in common: nothing to compare"),
        (["a", "none"], "none: no such file or folder, and no published result ROUND/ORG/SYSTEM"),
    ]:
        code, printed, error = call(*words)
        assert (code, printed) == (1, "")
        assert error.startswith("compare: ") and message in error and error.count("\n") == 1


def test_a_share_may_have_decimals():
    assert compare.share_of("12.5%") == 0.125


@pytest.mark.parametrize("share", ["3", "0%", "100%", "x%", "-3%"])
def test_a_share_is_a_percentage(call, share, capsys):
    with pytest.raises(SystemExit) as ended:
        call("a", "b", f"--fail_if_slower={share}")
    assert ended.value.code == 2
    assert "give a percentage, such as 3%" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("minutes", "code", "words"),
    [
        ([20.0, 20.1, 20.2], 0, "no"),  # the same but for noise
        ([21.2, 21.3, 21.4], 3, "yes"),  # 6% slower
        ([20.6, 20.75, 20.9], 3, "yes"),  # slower for sure, and by 3% as measured
        ([20.3, 20.4, 20.5], 0, "no"),  # slower for sure, and for sure by less than 3%
        ([20.5, 20.6, 20.7], 4, "cannot tell, more runs are needed"),  # 2.5%
        ([19.0, 22.0, 23.0], 4, "cannot tell, more runs are needed"),
        ([15.0, 15.1, 15.2], 0, "no"),  # faster
    ],
)
def test_the_exit_code_says_whether_b_is_slower(tmp_path, call, minutes, code, words):
    write_results(tmp_path / "a", [20.0, 20.05, 20.1, 20.15])
    write_results(tmp_path / "b", minutes)
    found, printed, _ = call("a", "b", "--fail_if_slower=3%")
    assert printed.splitlines()[-1] == (f"verdict on time to train, slower by 3% or more: {words}")
    assert found == code
    assert call("a", "b")[0] == 0
    # The same by the rate, of which less is slower.
    by_rate = ["--fail_if_slower=3%", "--figure=samples_per_second"]
    assert call("a", "b", *by_rate)[0] == code


def test_samples_that_a_log_does_not_say_are_not_compared(tmp_path, call):
    write_results(tmp_path / "a", SLOW)
    write_results(tmp_path / "b", FAST, samples=1)  # epochs
    code, printed, _ = call("a", "b")
    assert code == 0 and "time to train" in printed
    assert "samples/s" not in printed and "samples to converge:" not in printed
    assert "B: b: 5 runs; samples unknown: the logs do not say them" in printed
    asked = call("a", "b", "--fail_if_slower=3%", "--figure=samples_per_second")
    assert asked == (1, "", "compare: samples/s: A or B does not have it; choose --figure\n")
