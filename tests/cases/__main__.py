"""The public reports of ../shared/cases, each tried again: a table of what is right.

    python -m tests.cases [--list] [ROW...]

A row is a command of that folder's tables, what it must print, and what it must not. What it prints
stays in a file cases.ROW.txt of the temporary folder.
"""

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.cases import earlier, third
from tests.fixtures import REPOSITORY, SHARED

FOLDER = SHARED / "cases"
SOURCED = {
    kind: f'. "{FOLDER}/third/{kind}/env.sh"; export HERE' for kind in ("training", "watching")
}
# Name -> the preparation in a shell, the command, what must be there, and what must not.
ROWS = {
    **{name: (earlier.PREPARED.format(shared=SHARED), *row) for name, row in earlier.ROWS.items()},
    **{name: (SOURCED["training"], *row) for name, row in third.TRAINING.items()},
    **{name: (SOURCED["watching"], *row) for name, row in third.WATCHING.items()},
}


def tried(name: str) -> list[str]:
    """Runs a row; returns what is not right of its output, which stays in a file."""
    prepared, command, must, not_ = ROWS[name]
    if command == name:
        command = f"bash $HERE/failing.sh {name}"
    done = subprocess.run(
        ["bash", "-c", f"{prepared}\n{command}"],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    Path(tempfile.gettempdir(), f"cases.{name}.txt").write_text(done.stdout)
    wrong = [f"lacks {each}" for each in must if not re.search(each, done.stdout)]
    return wrong + [f"has {each}" for each in not_ if re.search(each, done.stdout)]


def main() -> None:
    """Tries the rows that are named, or all."""
    if not FOLDER.is_dir():
        sys.exit(f"cases: {FOLDER} is absent: the reports are not at hand, and nothing was tried")
    names = sys.argv[1:] or list(ROWS)
    if "--list" in names:
        print(*ROWS, sep="\n")
        return
    if unknown := set(names) - ROWS.keys():
        sys.exit(f"cases: no row {', '.join(sorted(unknown))}; --list prints the names")
    failed = 0
    for name in names:
        began = time.monotonic()
        wrong = tried(name)
        failed += bool(wrong)
        verdict = "; ".join(wrong) or "right"
        print(f"{name:20} {time.monotonic() - began:5.0f} s  {verdict}", flush=True)
    print(f"{len(names) - failed} of {len(names)} right")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
