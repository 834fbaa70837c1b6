"""Runs a program that is killed or signalled, or whose time is over, at a line of its MLPerf log.

    python tests/frozen/disturbed.py 'KILL at "eval_accuracy".*"step_num": 24' PROGRAM FLAGS

The disturbance happens in the call that writes the line, so it hits every run at the same point,
however fast the machine is. mlperf_logging writes every line by one method, which is where it is
noticed; nothing of the program needs to know of it.

Disturbances, several divided by " then ", each of which happens once: `KILL at PATTERN`,
`TERM at PATTERN`, `HOUR at PATTERN`, a regular expression of a line. With HOUR an hour passes at
once, by the clocks of Python and of the run.
"""

import os
import re
import runpy
import signal
import sys
import time

from mlperf_logging.mllog.mllog import MLLogger

from mlperf_bert.mlperf.ledger import Ledger

_hours = 0


def _pass_an_hour() -> None:
    global _hours
    _hours += 1


def _move_clocks() -> None:
    for name in ("time", "monotonic"):
        clock = getattr(time, name)
        setattr(time, name, lambda clock=clock: clock() + 3600 * _hours)
    assert len(Ledger.__init__.__defaults__) == 1
    Ledger.__init__.__defaults__ = (time.monotonic,)  # it took the clock when it was imported


class Disturbances:
    """What has still to happen, in order."""

    def __init__(self, words: str):
        self._left = [tuple(each.split(" at ", 1)) for each in words.split(" then ")]

    def at_line(self, line: str) -> None:
        """Disturbs the process if the next disturbance waits for this line."""
        if not self._left or not re.search(self._left[0][1], line):
            return
        action, _ = self._left.pop(0)
        if action in ("KILL", "TERM"):
            os.kill(os.getpid(), signal.Signals[f"SIG{action}"])
        else:
            assert action == "HOUR"
            _pass_an_hour()


def main() -> None:
    """Runs the program as `python PROGRAM FLAGS` would."""
    disturbances, write = Disturbances(sys.argv[1]), MLLogger._do_log

    def do_log(logger: MLLogger, level: int, message: str, clear_line: bool = False) -> None:
        write(logger, level, message, clear_line)
        disturbances.at_line(message)

    _move_clocks()
    MLLogger._do_log = do_log
    sys.argv = sys.argv[2:]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
