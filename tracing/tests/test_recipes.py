"""The blocks of code of docs/record.md, run as they stand there."""

import os
import re
import shlex

from tests.helpers import programs
from tracing.tests.conftest import TRACE

PAGE = (TRACE.parent / "docs" / "record.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def block_with(text: str) -> str:
    """The one block of code that holds this text."""
    [code] = [code for _, code in BLOCKS if text in code]
    return code


def test_the_loop_over_memory_starts_a_container_with_each_limit(tmp_path):
    """With the real launcher, which prints its command; the trace's own words are left out."""
    code = block_with("MEMORY=")
    programs.stand_in(tmp_path / "tracing/trace.sh", 'echo "$1"; shift 2; exec "$@"')
    launcher = f'"{TRACE.parent.parent}/start_training.sh" --dry-run "$@"; exit 137'
    programs.stand_in(tmp_path / "start_training.sh", launcher)
    programs.stand_in(tmp_path / "bin/docker", "exit 1")
    for name in ("tfrecords/part-0", "tfrecords/part-1", "wiki/bert_config.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(bytes(8192))
    bare = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = programs.run("bash", "-euc", code, cwd=tmp_path, env=bare)
    assert done.returncode == 0 and not done.stderr, done.stderr
    for memory, told in zip(("2g", "4g", "8g"), done.stdout.split("--output=")[1:], strict=True):
        output, command, end = told.splitlines()
        assert (output, end) == (f"sweep/{memory}/trace", f"{memory}: exit code 137")
        words = shlex.split(command)
        at = words.index("--memory")
        assert words[at : at + 4] == ["--memory", memory, "--memory-swap", memory]
        mounts = {word for word in words if word.startswith("type=bind")}
        assert f"type=bind,source={tmp_path}/sweep/{memory}/run,target=/output" in mounts
        assert f"type=bind,source={tmp_path}/tfrecords,target=/data,readonly" in mounts
        assert "EVAL_FILE=" in words
        assert words[-2:] == ["--emulate_step_seconds=0.1", "--num_train_steps=2000"]
