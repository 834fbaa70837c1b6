"""Starts run_pretraining.py in forks of a process that has imported it: seconds less a start."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_PARENT = """
import json, os, signal, sys
import run_pretraining

for line in sys.stdin:
    asked = json.loads(line)
    if "wait" in asked:
        print(os.waitstatus_to_exitcode(os.waitpid(asked["wait"], 0)[1]), flush=True)
        continue
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(asked["errors"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        signal.alarm(300)
        argv = ["run_pretraining.py", *asked["flags"]]
        run_pretraining.command_line.run(run_pretraining.main, argv)
    print(child, flush=True)
"""


class Forks:
    """The parent of all starts."""

    def __init__(self, parent: subprocess.Popen):
        """Wraps the running parent."""
        self._parent = parent

    def start(self, flags: Sequence[str], errors: Path) -> int:
        """Starts a run, whose standard error goes to a file; returns its PID."""
        return self._ask({"flags": list(flags), "errors": str(errors)})

    def wait(self, pid: int) -> int:
        """The exit code of a run, negative for a signal."""
        return self._ask({"wait": pid})

    def run(self, flags: Sequence[str], errors: Path) -> int:
        """Runs to the end."""
        return self.wait(self.start(flags, errors))

    def _ask(self, question: dict) -> int:
        print(json.dumps(question), file=self._parent.stdin, flush=True)
        return int(self._parent.stdout.readline())


@contextmanager
def forking(repository: Path) -> Iterator[Forks]:
    """Keeps a parent that has imported all."""
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=repository,
    ) as parent:
        yield Forks(parent)
        parent.stdin.close()
