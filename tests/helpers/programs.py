"""Programs that end by themselves, their refusals, and stand-ins for those of others.

`starts` is for the root scripts, whose imports take seconds.
"""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fixtures import REPOSITORY


def run(*words: object, check: bool = False, **options) -> subprocess.CompletedProcess:
    """Runs a program to its end, in the repository's root if the options name no other folder."""
    given = {"cwd": REPOSITORY, "capture_output": True, "text": True, **options}
    done = subprocess.run(list(map(str, words)), **given)
    assert not check or done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done


def refusal(main: Callable, *words: object, name: str | None = None) -> str:
    """The one line with which the main of a command ends this process.

    It begins with the command's name, which is its module's where no other is given.
    """
    with pytest.raises(SystemExit) as raised:
        main(list(map(str, words)))
    line = str(raised.value)
    name = name or main.__module__.rpartition(".")[2]
    assert len(line.splitlines()) == 1 and line.startswith(f"{name}: "), line
    return line


def stand_in(path: Path, text: str) -> Path:
    """Writes a program into its folder, which is made; a script of sh without its first line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path
