"""finetune_model.sh and start_training.sh --finetune: what they start and refuse. Seconds."""

import os
import subprocess

import pytest

from tests.fixtures import REPOSITORY
from tests.helpers import programs


@pytest.fixture
def tools(tmp_path):
    """A folder with a container engine and a Python that print their arguments."""
    for name in ("docker", "python"):
        programs.stand_in(tmp_path / "bin" / name, 'printf "%s\\n" "$@"')
    return tmp_path / "bin"


def start(tools, script, *flags, **environment) -> subprocess.CompletedProcess:
    given = {"PATH": f"{tools}:{os.environ['PATH']}", "PYTHON": str(tools / "python")}
    return programs.run(REPOSITORY / script, *flags, cwd=tools.parent, env={**given, **environment})


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], "--seed=4"),
        (["--sweep"], "--seeds=4"),
        (["--sweep=true", "--task=rte"], "--seeds=4"),
        (["--sweep", "--nosweep"], "--seed=4"),
        (["--sweep=False"], "--seed=4"),
    ],
)
def test_the_seed_is_that_of_the_run_or_of_the_sweep(tools, flags, expected):
    done = start(tools, "finetune_model.sh", *flags, SEED="4", NUM_GPUS="0")
    words = done.stdout.splitlines()
    assert [word for word in words if word.startswith("--seed")] == [expected], done.stderr
    assert words[len(words) - len(flags) :] == flags


def test_start_training_refuses_an_output_in_a_bucket(tools, tmp_path):
    done = start(tools, "start_training.sh", "--dry-run", "--finetune", OUTPUT_DIR="gs://b/run")
    assert done.returncode == 1
    assert "OUTPUT_DIR=gs://b/run: fine-tuning writes to a local folder; name one" in done.stderr
