"""Command lines of run_pretraining.py with wrong values, made by Hypothesis from a fixed seed.

    python -m tests.helpers.fuzzed_flags NUM_CASES FOLDER

Nothing is trained: parsing, the configuration and the preflight run in this process, which has
absl's flags for itself. Fails with the first case that ends badly; else prints how all ended.
"""

import collections
import json
import os
import sys
from pathlib import Path

import numpy as np
from absl import flags
from hypothesis import given
from hypothesis import strategies as st

from mlperf_bert import command_line
from mlperf_bert.data import example_encoder, tfrecord
from mlperf_bert.messages import as_lines
from mlperf_bert.training import checks
from mlperf_bert.training.config import Mode, RunConfig
from tests.helpers.fuzzing import seeded
from tests.helpers.known_flags import flags_of
from tests.helpers.tiny_examples import TINY, example

# What looks at devices or the network is left out, as is what others than the parser act on.
_LEFT_OUT = {"use_tpu", "tpu_name", "tpu_zone", "gcp_project", "check", "num_gpus"}
NAMES = sorted(flags_of("run_pretraining.py") - _LEFT_OUT)
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
    *("x" * 300, "é世", "\ud800", "a\nb", "\x1b[31m", "--", "=", "-", "1-2", "5-1", "global"),
]
VALUES = st.one_of(
    st.sampled_from(HOSTILE),
    st.integers().map(str),
    st.floats().map(repr),
    st.text(st.characters(exclude_characters="\0"), max_size=12),
)


command_line.define(RunConfig, Mode)


def good_flags(folder: Path) -> dict[str, str]:
    """Flags of a run that could begin."""
    rng = np.random.default_rng(1)
    (folder / "bert_config.json").write_text(json.dumps(TINY))
    (folder / "train").write_bytes(tfrecord.frame(example_encoder.encode(example(rng))))
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
    command_line.parse(["run_pretraining.py", *argv])
    checks.inspect(command_line.read(RunConfig, cluster=None)).setup()


def end_of(argv: list[str]) -> str:
    """How a start ends; a refusal must be printable lines, one for each problem."""
    try:
        begin(argv)
        return "begins"
    except SystemExit as refusal:
        lines = str(refusal)
    except (ValueError, OSError) as refusal:
        lines = as_lines(refusal)
    first, *rest = lines.splitlines()
    assert first.isprintable() and all(line.startswith("  - ") for line in rest), lines
    return "refused"


def main() -> None:
    num_cases, folder = int(sys.argv[1]), Path(sys.argv[2])
    good, ends = good_flags(folder), collections.Counter()
    (folder / "work").mkdir()
    os.chdir(folder / "work")

    @seeded(num_cases)
    @given(st.dictionaries(st.sampled_from(NAMES), VALUES, min_size=1, max_size=4))
    def try_out(changed):
        ends[end_of([f"--{name}={value}" for name, value in {**good, **changed}.items()])] += 1

    try_out()
    assert not any(Path.cwd().iterdir()), "something was written"
    print(json.dumps(ends))


if __name__ == "__main__":
    main()
