"""Flags of all kinds of wrong values: lines that name what is wrong, or a run that can begin.

Hypothesis makes the values from a fixed seed. Nothing is trained: parsing, the configuration and
the preflight run in this process.
"""

import collections
from collections.abc import Iterator
from pathlib import Path

import pytest
from absl import flags
from hypothesis import given
from hypothesis import strategies as st

from mlperf_bert import command_line
from mlperf_bert.messages import as_lines
from mlperf_bert.training import checks
from mlperf_bert.training.config import Mode, RunConfig
from tests.helpers.fuzzing import seeded
from tests.helpers.tiny_examples import write_inputs

# What looks at devices or the network is left out, as is what others than the parser act on.
LEFT_OUT = {"use_tpu", "tpu_name", "tpu_zone", "gcp_project", "check", "num_gpus"}
HOSTILE = (
    "nan -inf inf 1e400 -0 0 1 -1 2 0.5 1e-300 3.5 2147483648 4294967296 9223372036854775808 "
    "-9223372036854775809 true None [] {} a,b , * [ ../.. / /dev/null /proc/self/mem é世 -- = - "
    "1-2 5-1 global"
).split()
HOSTILE += ["", " ", "1" * 400, "x" * 300, "\ud800", "a\nb", "\x1b[31m"]
VALUES = st.one_of(
    st.sampled_from(HOSTILE),
    st.integers().map(str),
    st.floats().map(repr),
    st.text(st.characters(exclude_characters="\0"), max_size=12),
)


@pytest.fixture
def names() -> Iterator[list[str]]:
    """The flags of a run, which absl has as long as the test lasts."""
    others = set(flags.FLAGS)
    command_line.define(RunConfig, Mode)
    defined = set(flags.FLAGS) - others
    yield sorted(defined - LEFT_OUT)
    for name in defined:
        delattr(flags.FLAGS, name)


def end_of(argv: list[str]) -> str:
    """How a start ends before it builds a model; a refusal must be lines, one for each problem."""
    flags.FLAGS.unparse_flags()
    try:
        command_line.parse(["run_pretraining.py", *argv])
        checks.inspect(command_line.read(RunConfig, cluster=None)).findings.require_none()
        return "begins"
    except SystemExit as refusal:
        lines = str(refusal)
    except (ValueError, OSError) as refusal:
        lines = as_lines(refusal)
    first, *rest = lines.splitlines()
    assert first.isprintable() and all(line.startswith("  - ") for line in rest), lines
    return "refused"


@pytest.mark.all
def test_any_flags_are_refused_in_lines_or_a_run_can_begin(names, tmp_path, monkeypatch):
    folder, ends = write_inputs(tmp_path), collections.Counter[str]()
    good = {"bert_config_file": folder / "bert_config.json", "input_file": folder / "train"}
    good |= {"max_seq_length": 16, "max_predictions_per_seq": 4, "output_dir": folder / "out"}
    (folder / "work").mkdir()
    monkeypatch.chdir(folder / "work")

    @seeded(3000)
    @given(st.dictionaries(st.sampled_from(names), VALUES, min_size=1, max_size=4))
    def try_out(changed):
        ends[end_of([f"--{name}={value}" for name, value in {**good, **changed}.items()])] += 1

    try_out()
    assert not any(Path.cwd().iterdir()), "something was written"
    assert ends["refused"] > 1000 and ends["begins"] > 60
