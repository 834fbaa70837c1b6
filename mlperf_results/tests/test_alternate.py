"""A campaign of two variants that run in turn, over a stand-in for run_pretraining.py."""

import json
import shutil
import statistics
from pathlib import Path

import pytest

from mlperf_bert.files.locks import lock_of
from mlperf_bert.submission import campaign
from mlperf_results import alternate as alternating
from mlperf_results import compare
from tests.submission import stand_in
from tests.submission.timed_log import write_log

# Both become slower with time; the second takes 1% more, always.
MINUTES = {"old": [10, 12, 14, 17, 20], "new": [10.1, 12.11, 14.14, 17.18, 20.2]}


@pytest.fixture
def alternate(tmp_path, monkeypatch):
    """Returns a function that gives the command, with a plan of what happens to runs by number."""
    order = []

    def call_here(command):
        folder = Path(command[-1].removeprefix("--output_dir="))
        variant, number = folder.parents[1].name, int(folder.name.partition(".")[0])
        order.append(f"{variant} {number}")
        code = stand_in.run(tmp_path, command[2:])
        if code == 0:  # its own times are some milliseconds
            write_log(folder / "bert.log", MINUTES[variant][number])
        return code

    monkeypatch.setattr(campaign, "_call", call_here)
    for name in ("old", "new"):
        (tmp_path / f"{name}.flags").write_text(f"# {name}\n\n--is_{name}=1\n")

    def alternate(*words, plan=None, num_runs=4):
        (tmp_path / "plan.json").write_text(json.dumps(plan or {}))
        files = [str(tmp_path / f"{name}.flags") for name in ("old", "new")]
        given = ["--org=o", "--system=s", f"--runs={num_runs}", f"--output_dir={tmp_path / 'ab'}"]
        return alternating.main(["--variants", *files, *given, *words, "--", "--x=1"])

    alternate.order = order
    return alternate


def test_variants_run_in_turn_each_with_its_own_flags(alternate, tmp_path, capsys):
    assert alternate() == 0
    assert alternate.order == [
        "old 0", "new 0", "new 1", "old 1", "old 2", "new 2", "new 3", "old 3",
    ]  # fmt: skip
    for name in ("old", "new"):
        record = json.loads((tmp_path / "ab" / name / "campaign.json").read_text())
        assert record["flags"] == ["--x=1", f"--is_{name}=1"]
    printed = capsys.readouterr().out
    assert f"A: {tmp_path}/ab/old: 4 runs\nB: {tmp_path}/ab/new: 4 runs" in printed


def test_a_stopped_one_goes_on_where_it_was(alternate, tmp_path):
    assert alternate(plan={"1": "exit 75"}) == campaign.EXIT_TRY_AGAIN
    assert alternate.order == ["old 0", "new 0", "new 1"]
    assert alternate() == 0
    assert alternate.order[3:] == ["new 1", "old 1", "old 2", "new 2", "new 3", "old 3"]
    assert (tmp_path / "ab" / "new" / "runs" / "1.repeat-1").is_dir()


def test_flags_that_were_changed_meanwhile_are_refused(alternate, tmp_path, capsys):
    assert alternate() == 0
    (tmp_path / "new.flags").write_text("--is_new=2\n")
    assert alternate() == 1
    assert "ab/new holds another campaign (differing: flags)" in capsys.readouterr().err


def test_a_failed_run_takes_its_partner_out_of_the_pairs(alternate, tmp_path, capsys):
    alternate(num_runs=5)
    write_log(tmp_path / "ab" / "old" / "runs" / "3" / "bert.log", 60, status="aborted")
    capsys.readouterr()
    compare.main([str(tmp_path / "ab")])
    printed = capsys.readouterr().out
    assert "old: 4 runs, 1 left out (3: aborted, without the target)" in printed
    assert "new: 5 runs" in printed and "paired t on logarithms, 4 pairs" in printed


def test_compare_reads_the_folder_as_pairs(alternate, tmp_path, capsys):
    alternate(num_runs=5)
    capsys.readouterr()
    assert compare.main([str(tmp_path / "ab")]) == 0
    whole = capsys.readouterr().out
    old, new = (statistics.geometric_mean(MINUTES[name]) for name in ("old", "new"))
    assert f"time to train: {old:.4g} -> {new:.4g} minutes" in whole
    assert "B is 1.0% slower (0.9 to 1.1)\n" in whole
    assert "95% intervals of B/A by paired t on logarithms, 5 pairs\n" in whole
    assert compare.main([str(tmp_path / "ab" / name) for name in ("old", "new")]) == 0
    assert capsys.readouterr().out == whole
    # Runs of two campaigns are no pairs: they never met the same moods of the machine.
    shutil.copytree(tmp_path / "ab", tmp_path / "cd")
    assert compare.main([str(tmp_path / "ab" / "old"), str(tmp_path / "cd" / "new")]) == 0
    assert "95% intervals of B/A by Welch's t on logarithms\n" in capsys.readouterr().out
    assert compare.main([str(tmp_path / "ab"), str(tmp_path / "ab" / "old")]) == 1
    assert (
        "ab: holds A and B, whose runs alternate; compare takes it alone" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.with_name("new.flags").unlink(), "new.flags: no file of flags"),
        (lambda path: path.write_text("x=1"), "'x=1' is not a flag: --NAME=VALUE"),
        (lambda path: path.write_text("--seed=1"), "--seed is given by the campaign to every run"),
        (lambda path: (path.parent / "ab" / "x").mkdir(parents=True), "ab is not empty; choose"),
    ],
)
def test_mistakes_are_told_before_any_run(alternate, tmp_path, capsys, spoil, message):
    spoil(tmp_path / "old.flags")
    assert alternate() == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("alternate: ") and message in line
    assert not alternate.order


def test_other_variants_are_refused(alternate, tmp_path, capsys):
    alternate()
    record = tmp_path / "ab" / "alternate.json"
    record.write_text('{"variants": ["new", "old"]}')
    assert alternate() == 1
    assert "ab holds other variants, ['new', 'old']; give the same files" in capsys.readouterr().err
    with pytest.raises(ValueError, match="both files are called a; rename one"):
        alternating.variants_of(None, ["x/a.flags", "y/a.flags"])
    with pytest.raises(ValueError, match="--variants='a b' names folders"):
        alternating.variants_of(None, ["a b.flags", "y/a.flags"])


def test_a_variant_in_which_another_campaign_works_is_left_to_it(alternate, tmp_path, capsys):
    lock = lock_of(tmp_path / "ab" / "new")
    assert alternate(num_runs=0) == 1  # nothing is made for bad options
    assert not (tmp_path / "ab").exists()
    lock.acquire()
    (tmp_path / "ab" / "alternate.json").write_text('{"variants": ["old", "new"]}')
    assert alternate() == 1
    assert "ab/new: another campaign works in it; wait for it" in capsys.readouterr().err
    assert not alternate.order
    lock.release()
