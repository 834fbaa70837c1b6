"""What tracing.benchmarks.overhead runs and prints."""

import sys

import pytest

from tests.helpers import programs
from tracing import backends
from tracing.benchmarks import overhead
from tracing.tests import by_hand

NONE_BETTER = backends.Backends("strace", {"bpftrace": "it needs root"})


def test_every_ratio_is_to_the_untraced_one_of_its_round(monkeypatch, tmp_path, capsys):
    seconds = {"untraced": [1.0, 2.0, 4.0], "strace": [2.0, 3.0, 4.4], "proc": [1.0, 2.2, 4.0]}
    asked = []

    def measure(folder, variant, number, *_):
        asked.append((variant, number))
        return seconds[variant][number]

    monkeypatch.setattr(backends, "choose", lambda wanted: NONE_BETTER)
    monkeypatch.setattr(overhead, "NUM_RECORDS", 3)
    monkeypatch.setattr(overhead, "seconds_of_reading", measure)
    monkeypatch.setattr(overhead, "seconds_of_training", lambda *_: 1 / 0)
    monkeypatch.setattr(sys, "argv", ["overhead", "--workload=reading"])
    overhead.main()
    assert asked == [(variant, number) for number in range(3) for variant in seconds]
    found = capsys.readouterr().out
    assert found.startswith("bpftrace: it needs root\nreading: ") and "; 3 rounds\n" in found
    assert found.splitlines()[-3:] == [
        "  untraced     2.00 s   1.000 of untraced (1.000 to 1.000)",
        "  strace       3.00 s   1.500 of untraced (1.100 to 2.000)",
        "  proc         2.20 s   1.000 of untraced (1.000 to 1.100)",
    ]
    for words in (["--rounds=0"], ["--num_steps=1"]):
        monkeypatch.setattr(sys, "argv", ["overhead", *words])
        line = programs.refusal(lambda _: overhead.main(), name="overhead")
        assert line == "overhead: give at least one round and two steps"


def test_a_training_is_timed_by_its_log_and_half_of_its_steps_by_a_checkpoint(
    monkeypatch, tmp_path
):
    def run(variant, command, trace):
        assert (variant, trace) == ("strace", tmp_path / "training-strace-2")
        assert {"--num_train_steps=600", "--save_checkpoints_steps=300"} < set(command)
        [output] = (tmp_path / word[13:] for word in command if word.startswith("--output_dir="))
        output.mkdir()
        events = [("init_start", 1), ("run_start", 2), ("run_stop", 5.25), ("x_start", 9)]
        log = by_hand.log([(key, at - by_hand.BEGIN_S, None, {}) for key, at in events])
        (output / "bert.log").write_text(log)

    monkeypatch.setattr(overhead, "run", run)
    assert overhead.seconds_of_training(tmp_path, "strace", 2, 600) == 3.25


def test_a_program_that_fails_ends_the_measurement(monkeypatch, tmp_path):
    (tmp_path / "part").write_bytes(bytes(10_000))
    assert 0 < overhead.seconds_of_reading(tmp_path, "untraced", 0, [tmp_path / "part"]) < 60
    monkeypatch.setattr(overhead, "READING", "import sys; sys.exit('no right: ' + sys.argv[1])")
    with pytest.raises(SystemExit, match=r"^untraced: exit code 1: no right: /x$"):
        overhead.seconds_of_reading(tmp_path, "untraced", 0, ["/x"])


def test_what_is_traced_is_traced_by_the_checkouts_script(monkeypatch, tmp_path):
    programs.stand_in(tmp_path / "tracing" / "trace.sh", 'echo "$@" 1.5')
    monkeypatch.setattr(overhead, "REPOSITORY", tmp_path)
    said = overhead.run("proc", ["cat", "x"], tmp_path / "trace")
    assert said == f"--output={tmp_path}/trace --backend=proc -- cat x 1.5\n"
    assert overhead.seconds_of_reading(tmp_path, "strace", 3, ["/x"]) == 1.5
