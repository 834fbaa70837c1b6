"""The official checker's verdicts on logs written through the API and on damaged ones."""

import re
import sys
from pathlib import Path

import mlperf_logging
import pytest

from mlperf_bert.mlperf import energy
from mlperf_bert.mlperf.log_reader import read_run
from mlperf_bert.submission import compliance
from tests.helpers import programs
from tests.mlperf.example_log import write_log

RULES = Path(mlperf_logging.__file__).parent / "compliance_checker"


@pytest.fixture(scope="module")
def bert_large_log(tmp_path_factory):
    """A log with the energy, which the checkers leave alone."""
    log = tmp_path_factory.mktemp("bert_large") / "result_0.txt"
    write_log(log, [0.3715, 0.55, 0.7205], num_layers=24, meter=energy.meter(power_watts=1))
    assert read_run(log).energy.joules > 0
    return log


@pytest.mark.parametrize("ruleset", compliance.RULESETS)
def test_log_of_bert_large_passes(bert_large_log, ruleset):
    verdict = compliance.check_log(bert_large_log, ruleset)
    assert verdict.passed, verdict
    assert verdict.messages == ()
    assert str(verdict) == f"{ruleset} SUCCESS {bert_large_log}"


@pytest.mark.parametrize("ruleset", ["2.1.0", "5.0.0"])
def test_smaller_model_fails_only_where_the_weights_of_bert_large_are_listed(tmp_path, ruleset):
    verdict = compliance.check_log(write_log(tmp_path / "log.txt", [0.73], num_layers=2), ruleset)
    assert verdict.passed == (ruleset != "2.1.0")
    if not verdict.passed:
        [message] = verdict.messages
        assert "sorted(s['initialized_tensors'])" in message


@pytest.mark.parametrize("ruleset", ["6.0.0", "6.1.0"])
def test_the_rules_of_today_for_all_benchmarks_are_kept(bert_large_log, tmp_path, ruleset):
    """A ruleset without BERT has its rules for all benchmarks, and BERT's own of its last round."""
    rules = (RULES / f"training_{ruleset}" / "common.yaml").read_text()
    own = f"training_{ruleset}/{{}}_common.yaml"
    assert rules.count(own) == 1
    path = tmp_path / "rules.yaml"
    path.write_text(rules.replace(own, "training_5.0.0/{}_common.yaml"))
    words = ["--usage", "training", "--ruleset", ruleset, "--config", path, bert_large_log]
    words += [f"--log_output={tmp_path / 'answer'}"]
    done = programs.run(sys.executable, "-m", "mlperf_logging.compliance_checker", *words)
    assert "INFO - SUCCESS" in done.stdout + done.stderr, done.stderr


def test_the_checker_knows_the_precisions_of_our_runs():
    rules = (RULES / "training_6.1.0" / "common.yaml").read_text()
    start = rules.index("lowest_numerical_precision_in_linear")
    listed = rules[rules.index("[", rules.index("in [", start)) :].partition("]")[0] + "]"
    assert {"fp32", "tf32", "bfloat16"} <= {name.strip(" '[]") for name in listed.split(",")}


# What becomes of a log that reached the target -> one of the findings.
DAMAGED = {
    "target not reached": (lambda text: text.replace("0.73", "0.7199"), "v['value'] >= 0.720"),
    "a line is missing": (
        lambda text: re.sub(".*opt_lamb_beta_1.*\n", "", text),
        "Required EXACTLY_ONE occurrence of 'opt_lamb_beta_1' but found 0",
    ),
    "cut": (lambda text: text[:-20], "Unterminated string"),
    "no log": (lambda text: "nothing of interest\n", "No log lines detected"),
    "the checker crashes": (
        lambda text: text + ':::MLLOG {"time_ms": 1, "key": "x"}\n',
        "KeyError: 'value'",
    ),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_log_that_fails_has_a_finding(tmp_path, kind):
    change, finding = DAMAGED[kind]
    log = write_log(tmp_path / "log.txt", [0.73])
    log.write_text(change(log.read_text()))
    verdict = compliance.check_log(log, "5.0.0")
    assert not verdict.passed
    assert any(finding in message for message in verdict.messages)


def test_an_unknown_ruleset_is_refused(bert_large_log):
    with pytest.raises(ValueError, match=r"ruleset '5.1.0' has no BERT; use one of 1.0.0, "):
        compliance.check_log(bert_large_log, "5.1.0")


def test_command_prints_one_line_per_ruleset_and_the_findings(bert_large_log, tmp_path, capsys):
    short = write_log(tmp_path / "log.txt", [0.5], num_layers=24)
    arguments = [str(bert_large_log), "--ruleset", "1.0.0", "--ruleset", "5.0.0"]
    assert compliance.main(arguments) == 0
    lines = [f"{ruleset} SUCCESS {bert_large_log}" for ruleset in ("1.0.0", "5.0.0")]
    assert capsys.readouterr().out.splitlines() == lines
    assert compliance.main([str(short), str(bert_large_log), "--ruleset", "4.1.0"]) == 1
    first, *findings, last = capsys.readouterr().out.splitlines()
    assert (first, last) == (f"4.1.0 FAILED {short}", f"4.1.0 SUCCESS {bert_large_log}")
    assert findings and all(line.startswith("    ") for line in findings)


def test_without_a_ruleset_the_command_asks_for_all(monkeypatch, capsys):
    def check(log, ruleset):
        return compliance.Verdict(log, ruleset, ruleset != "2.0.0", ())

    monkeypatch.setattr(compliance, "check_log", check)
    assert compliance.main(["a"]) == 1
    told = [line.split() for line in capsys.readouterr().out.splitlines()]
    words = {"2.0.0": "FAILED"}
    assert told == [[each, words.get(each, "SUCCESS"), "a"] for each in compliance.RULESETS]


def test_command_names_a_mistake_in_one_line(tmp_path, refusal):
    for path in (tmp_path / "absent.txt", tmp_path):
        assert f"{path}: no such log; give the path" in refusal(compliance, path)
    assert "gs://b/result_0.txt: give a local path" in refusal(compliance, "gs://b/result_0.txt")


def test_expected_verdicts_on_real_logs(shared):
    logs = shared / "real_logs"
    google = logs / "Google/results/tpu-v4-128-TF/bert/result_0.txt"
    assert compliance.check_log(google, "1.0.0").passed
    # its submission lines come last, and from 2.0.0 on the division decides the time for init
    assert not compliance.check_log(google, "5.0.0").passed
    aborted = logs / "Supermicro/results/as-2124gq-nart+/bert/result_1.txt"
    assert not compliance.check_log(aborted, "1.0.0").passed
