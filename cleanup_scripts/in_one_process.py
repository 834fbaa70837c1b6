"""Runs scripts of this folder one after the other in one process: SCRIPT FLAGS -- SCRIPT FLAGS ...

Of few files, importing what the scripts need takes as long as what they do. A name without .py is
a module of mlperf_bert.data, whose `main` is called. The first that fails ends the process as it
would end its own.
"""

import importlib
import itertools
import runpy
import sys
from pathlib import Path


def main() -> None:
    """Gives each script the words up to the next --."""
    folder = Path(__file__).resolve().parent
    sys.path.insert(0, str(folder.parent))
    words = sys.argv[1:]
    for is_end, command in itertools.groupby(words, "--".__eq__):
        if is_end:
            continue
        sys.argv = list(command)
        try:
            if sys.argv[0].endswith(".py"):
                runpy.run_path(str(folder / sys.argv[0]), run_name="__main__")
            else:
                sys.exit(importlib.import_module(f"mlperf_bert.data.{sys.argv[0]}").main())
        except SystemExit as end:
            if end.code:
                raise


if __name__ == "__main__":
    main()
