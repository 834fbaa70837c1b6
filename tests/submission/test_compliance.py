"""The official checker's verdicts on logs written through the API and on damaged ones."""

import sys
from pathlib import Path

import mlperf_logging
import pytest

from mlperf_bert.submission import compliance
from tests.helpers import programs
from tests.mlperf.example_log import write_log

RULES = Path(mlperf_logging.__file__).parent / "compliance_checker"


@pytest.fixture(scope="module")
def bert_large_log(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert_large")
    return write_log(folder / "result_0.txt", [0.3715, 0.55, 0.7205], num_layers=24)


@pytest.mark.parametrize("ruleset", compliance.RULESETS)
def test_log_of_bert_large_passes(bert_large_log, ruleset):
    verdict = compliance.check_log(bert_large_log, ruleset)
    assert verdict.passed, verdict
    assert verdict.messages == ()
    assert str(verdict) == f"{ruleset} SUCCESS {bert_large_log}"


@pytest.mark.parametrize("ruleset", compliance.RULESETS)
def test_smaller_model_fails_only_where_the_weights_of_bert_large_are_listed(tmp_path, ruleset):
    verdict = compliance.check_log(write_log(tmp_path / "log.txt", [0.73], num_layers=2), ruleset)
    assert verdict.passed == (ruleset not in ("1.1.0", "2.0.0", "2.1.0"))
    if not verdict.passed:
        [message] = verdict.messages
        assert "sorted(s['initialized_tensors'])" in message


def checked_by(ruleset: str, log: Path, *, config: Path | None = None) -> str:
    """What the official checker prints; `config` takes the place of the ruleset's own rules."""
    words = ["--usage", "training", "--ruleset", ruleset, f"--log_output={log}.answer", str(log)]
    if config:
        words += ["--config", str(config)]
    done = programs.run(sys.executable, "-m", "mlperf_logging.compliance_checker", *words)
    return done.stdout + done.stderr


@pytest.fixture(params=["6.0.0", "6.1.0"])
def common_rules_of_today(request, tmp_path) -> tuple[str, Path]:
    """A ruleset without BERT: its rules for all benchmarks, and BERT's own of its last round."""
    ruleset = request.param
    rules = (RULES / f"training_{ruleset}" / "common.yaml").read_text()
    own = f"training_{ruleset}/{{}}_common.yaml"
    assert rules.count(own) == 1
    path = tmp_path / "rules.yaml"
    path.write_text(rules.replace(own, "training_5.0.0/{}_common.yaml"))
    return ruleset, path


def test_the_rules_of_today_for_all_benchmarks_are_kept(bert_large_log, common_rules_of_today):
    ruleset, rules = common_rules_of_today
    answer = checked_by(ruleset, bert_large_log, config=rules)
    assert "INFO - SUCCESS" in answer and "closed_bert.yaml" in answer, answer


def test_rulesets_from_6_on_do_not_know_bert(bert_large_log, common_rules_of_today):
    ruleset, _ = common_rules_of_today
    answer = checked_by(ruleset, bert_large_log)
    assert "FileNotFoundError" in answer and "closed_bert.yaml" in answer


def test_precision_parallelism_and_configuration_are_required_from_6_1_on(
    tmp_path, common_rules_of_today
):
    ruleset, rules = common_rules_of_today
    log = write_log(tmp_path / "log.txt", [0.73])
    keys = ["_precision_in_linear", "_precision_in_attn", "_precision_in_comm"]
    keys += [f'"{kind}_parallelism"' for kind in ("tensor", "pipeline", "context", "expert")]
    keys += ['"micro_batch_size"', '"config_filename"']
    lines = log.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not any(key in line for key in keys)]
    assert len(kept) == len(lines) - len(keys)
    log.write_text("".join(kept))
    answer = checked_by(ruleset, log, config=rules)
    missing = answer.count("Required EXACTLY_ONE occurrence of")
    assert missing == (len(keys) if ruleset == "6.1.0" else 0)


def test_the_checker_knows_the_precisions_of_our_runs():
    rules = (RULES / "training_6.1.0" / "common.yaml").read_text()
    start = rules.index("lowest_numerical_precision_in_linear")
    listed = rules[rules.index("[", rules.index("in [", start)) :].partition("]")[0] + "]"
    assert {"fp32", "tf32", "bfloat16"} <= {name.strip(" '[]") for name in listed.split(",")}


def test_target_not_reached_fails(tmp_path):
    verdict = compliance.check_log(write_log(tmp_path / "log.txt", [0.7199]), "5.0.0")
    assert not verdict.passed
    assert any("v['value'] >= 0.720" in message for message in verdict.messages)


def test_missing_line_is_named(tmp_path):
    log = write_log(tmp_path / "log.txt", [0.73])
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(line for line in lines if "opt_lamb_beta_1" not in line))
    verdict = compliance.check_log(log, "5.0.0")
    assert not verdict.passed
    assert verdict.messages == ("Required EXACTLY_ONE occurrence of 'opt_lamb_beta_1' but found 0",)


def test_cut_line_and_a_file_that_is_no_log_fail(tmp_path):
    log = write_log(tmp_path / "log.txt", [0.73])
    log.write_text(log.read_text()[:-20])
    assert not compliance.check_log(log, "5.0.0").passed
    (tmp_path / "no_log.txt").write_text("nothing of interest\n")
    verdict = compliance.check_log(tmp_path / "no_log.txt", "5.0.0")
    assert not verdict.passed
    assert "No log lines detected" in verdict.messages


def test_crash_of_the_checker_is_a_failure_with_its_reason(tmp_path):
    log = write_log(tmp_path / "log.txt", [0.73])
    log.write_text(log.read_text() + ':::MLLOG {"time_ms": 1, "key": "x"}\n')
    verdict = compliance.check_log(log, "5.0.0")
    assert not verdict.passed
    assert verdict.messages


def test_an_unknown_ruleset_is_refused(bert_large_log):
    with pytest.raises(ValueError, match=r"ruleset '5.1.0' has no BERT; use one of 1.0.0, "):
        compliance.check_log(bert_large_log, "5.1.0")


def test_command_prints_one_line_per_ruleset(bert_large_log, capsys):
    arguments = [str(bert_large_log), "--ruleset", "1.0.0", "--ruleset", "5.0.0"]
    assert compliance.main(arguments) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"1.0.0 SUCCESS {bert_large_log}",
        f"5.0.0 SUCCESS {bert_large_log}",
    ]


def test_command_fails_with_the_findings(tmp_path, capsys):
    log = write_log(tmp_path / "log.txt", [0.5])
    assert compliance.main([str(log), "--ruleset", "4.1.0"]) == 1
    first, *findings = capsys.readouterr().out.splitlines()
    assert first == f"4.1.0 FAILED {log}"
    assert findings


def test_command_names_a_mistake_in_one_line(tmp_path, refusal):
    assert "absent.txt: no such log; give the path" in refusal(compliance, tmp_path / "absent.txt")


def test_expected_verdicts_on_real_logs(shared):
    logs = shared / "real_logs"
    google = logs / "Google/results/tpu-v4-128-TF/bert/result_0.txt"
    assert compliance.check_log(google, "1.0.0").passed
    # its submission lines come last, and from 2.0.0 on the division decides the time for init
    assert not compliance.check_log(google, "5.0.0").passed
    aborted = logs / "Supermicro/results/as-2124gq-nart+/bert/result_1.txt"
    assert not compliance.check_log(aborted, "1.0.0").passed
