"""Runs a program that is killed at a line of its MLPerf log.

    python tests/frozen/disturbed.py '"eval_accuracy".*"step_num": 24' PROGRAM FLAGS

The kill happens in the call that writes the line, so it hits every run at the same point, however
fast the machine is. mlperf_logging writes every line by one method, which is where it is noticed;
nothing of the program needs to know of it.
"""

import os
import re
import runpy
import signal
import sys

from mlperf_logging.mllog.mllog import MLLogger


def main() -> None:
    """Runs the program as `python PROGRAM FLAGS` would; the pattern is a regular expression."""
    pattern, write = sys.argv[1], MLLogger._do_log

    def do_log(logger: MLLogger, level: int, message: str, clear_line: bool = False) -> None:
        write(logger, level, message, clear_line)
        if re.search(pattern, message):
            os.kill(os.getpid(), signal.SIGKILL)

    MLLogger._do_log = do_log
    sys.argv = sys.argv[2:]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
