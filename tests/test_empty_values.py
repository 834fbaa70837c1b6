"""An empty value, as a variable that is not set gives it, is refused by every command. Seconds."""

import argparse
import contextlib
import os
import re
import runpy
import sys

import pytest

from tests.fixtures import REPOSITORY
from tests.helpers import programs
from tests.helpers.known_flags import SCRIPTS

ROOMS = ("mlperf_bert", "tracing", "demo", "benchmarks", "cleanup_scripts")
PROGRAMS = [
    str(path.relative_to(REPOSITORY))
    for room in ROOMS
    for path in sorted((REPOSITORY / room).rglob("*.py"))
    if "tests" not in path.parent.parts
    and ".parse_args(" in (text := path.read_text(encoding="utf-8"))
    and "__main__" in text
]
CLEAN_UP = "cleanup_scripts/clean_up.py"
STAGES = runpy.run_path(str(REPOSITORY / CLEAN_UP))["STAGES"]
MAY_BE_EMPTY = {"--input_suffix"}
"""Options of argparse: without a suffix the clean-up reads the raw files."""


class _Read(Exception):
    """The words were read to their end."""


@contextlib.contextmanager
def asked(monkeypatch, parsers: list):
    """Appends to a list the parser of a program, which ends before or after it reads its words."""
    read = argparse.ArgumentParser.parse_args

    def parse_args(parser, *words):
        parsers.append(parser)
        read(parser, *words)
        raise _Read

    with monkeypatch.context() as patched:
        patched.setattr(argparse.ArgumentParser, "parse_args", parse_args)
        yield


@pytest.mark.parametrize("program", sorted({*PROGRAMS, *STAGES} - {CLEAN_UP, *SCRIPTS}))
def test_no_option_of_a_program_may_be_empty(program, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(REPOSITORY))
    path = REPOSITORY / (CLEAN_UP if program in STAGES else program)
    main = runpy.run_path(str(path), run_name=program)["main"]
    parsers: list[argparse.ArgumentParser] = []

    def answer(*words: str) -> str:
        start = ["clean_up.py", program] if program in STAGES else [program]
        monkeypatch.setattr(sys, "argv", [*start, *words])
        with asked(monkeypatch, parsers):
            try:
                assert main() == 1
                ended = ""
            except (SystemExit, _Read) as error:
                ended = str(error)
        return ended + capsys.readouterr().err

    answer("--no_such_option")
    for action in parsers[0]._actions:
        if action.nargs == 0:
            continue
        name = action.option_strings[-1] if action.option_strings else ""
        for words in [[f"{name}="], [name, ""]] if name else [[""]]:
            told = answer(*words)
            if name in MAY_BE_EMPTY:
                assert "is empty" not in told
            else:
                assert name in told and re.search(r"is empty|invalid .*: ''", told), (words, told)
    assert not list(tmp_path.iterdir())


SCRIPTS = (
    "start_training.sh", "train_model.sh", "eval_model.sh", "finetune_model.sh",
    "cleanup_scripts/process_wiki.sh", "cloud/gcp_tpu.sh",
)  # fmt: skip
VARIABLES_THAT_MAY_BE_EMPTY = {
    "train_model.sh": "EVAL_FILE",  # no evaluation, which eval_model.sh does meanwhile
    "start_training.sh": "EVAL_FILE BUILD_OPTIONS DOCKER_HOST HOME",  # more words; not its own
    "cloud/gcp_tpu.sh": "BUCKET FLAGS CREATE",
}
"""Script -> what is empty for none."""
OF_OTHERS = re.compile("TF_|CUDA_|SLURM_|MALLOC_|TMPDIR|PYTHON")  # make exports an empty PYTHON


@pytest.mark.parametrize("script", SCRIPTS)
def test_no_setting_of_a_script_may_be_empty(script, tmp_path):
    text = (REPOSITORY / script).read_text()
    settings = set(re.findall(r"\$\{([A-Z][A-Z_]+)(?:\[[^]]*\])?:?[-+=]", text))
    settings -= set(VARIABLES_THAT_MAY_BE_EMPTY.get(script, "").split())
    settings = {name for name in settings if not OF_OTHERS.match(name)}
    assert len(settings) > 3
    for name in sorted(settings):
        for value in ("", " "):
            environment = {"PATH": os.environ["PATH"], "PYTHON": "/no", name: value}
            done = programs.run(REPOSITORY / script, "x", env=environment, cwd=tmp_path)
            assert done.returncode in (1, 2)
            assert done.stderr.startswith(f"{script.split('/')[-1]}: {name}= is empty, perhaps a ")
            assert done.stderr.count("\n") == 1
