"""Flags of all kinds of wrong values: one line for each that is wrong, or a run that can begin.

Hypothesis makes the command lines from a fixed seed: some hundred, and some thousand in the slow
tests. Nothing is trained: parsing, the configuration and the preflight run in this process.
"""

import contextlib
import json

import numpy as np
import pytest
from absl import flags
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import run_pretraining
from mlperf_bert import command_line
from mlperf_bert.data import example_codec, tfrecord
from mlperf_bert.problems import as_lines
from mlperf_bert.training import preflight
from tests.test_cli import RUN_PRETRAINING_FLAGS, TINY, example

# What looks at devices or the network is left out, as is what others than the parser act on.
_LEFT_OUT = {"use_tpu", "tpu_name", "tpu_zone", "gcp_project", "check", "num_gpus"}
NAMES = sorted(RUN_PRETRAINING_FLAGS.keys() - _LEFT_OUT)
HOSTILE = [
    *("", " ", "nan", "-inf", "inf", "1e400", "-0", "0", "1", "-1", "2", "0.5", "1e-300", "3.5"),
    *("2147483648", "4294967296", "9223372036854775808", "-9223372036854775809", "1" * 400),
    *(
        "true",
        "None",
        "[]",
        "{}",
        "a,b",
        ",",
        "*",
        "[",
        "../..",
        "/",
        "/dev/null",
        "/proc/self/mem",
    ),
    *(
        "x" * 300,
        "\u00e9\u4e16",
        "\ud800",
        "a\nb",
        "\x1b[31m",
        "--",
        "=",
        "-",
        "1-2",
        "5-1",
        "global",
    ),
]
VALUES = st.one_of(
    st.sampled_from(HOSTILE),
    st.integers().map(str),
    st.floats().map(repr),
    st.text(st.characters(exclude_characters="\0"), max_size=12),
)


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> dict[str, str]:
    """Flags of a run that could begin."""
    folder = tmp_path_factory.mktemp("flags")
    rng = np.random.default_rng(1)
    (folder / "bert_config.json").write_text(json.dumps(TINY))
    (folder / "train").write_bytes(tfrecord.frame(example_codec.encode(example(rng))))
    return {
        "bert_config_file": f"{folder}/bert_config.json",
        "input_file": f"{folder}/train",
        "output_dir": f"{folder}/out",
        "max_seq_length": "16",
        "max_predictions_per_seq": "4",
    }


def begin(argv: list[str]) -> None:
    """What a start does before it builds a model; ends in SystemExit or ValueError if refused."""
    flags.FLAGS.unparse_flags()
    command_line.parse("run_pretraining.py", ["run_pretraining.py", *argv])
    preflight.inspect(run_pretraining._run_config()).require_no_errors()


def require_lines(text: str) -> None:
    first, *rest = text.splitlines()
    assert first.isprintable() and all(line.startswith("  - ") for line in rest), text


@pytest.mark.parametrize("num_cases", [300, pytest.param(20_000, marks=pytest.mark.slow)])
def test_any_flags_are_refused_in_lines_or_a_run_can_begin(good, monkeypatch, tmp_path, num_cases):
    monkeypatch.chdir(tmp_path)
    ends = []

    @settings(
        max_examples=num_cases,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.dictionaries(st.sampled_from(NAMES), VALUES, min_size=1, max_size=4))
    def begin_with(changed):
        with contextlib.ExitStack() as stack:
            stack.callback(flags.FLAGS.unparse_flags)
            try:
                begin([f"--{name}={value}" for name, value in {**good, **changed}.items()])
                ends.append("begins")
            except SystemExit as refusal:
                require_lines(str(refusal))
                ends.append("refused")
            except (ValueError, OSError) as refusal:
                require_lines(as_lines(refusal))
                ends.append("refused")

    begin_with()
    assert not list(tmp_path.iterdir())
    assert ends.count("refused") > num_cases / 3 and ends.count("begins") > num_cases / 50
