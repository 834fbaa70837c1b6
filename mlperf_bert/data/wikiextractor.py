"""Runs WikiExtractor with a fixed date: wikiextractor.py PROGRAM YYYY-MM-DD ARGUMENTS...

For Python 3.7 to 3.10, so it imports nothing of this package. The dump comes on standard input.
Each article goes to standard output in one piece, after a line with its number of bytes, so that
its reader knows where articles end and counts also those on which the program failed (0 bytes).
"""

import io
import multiprocessing
import os
import runpy
import sys
import threading
import time

_SECONDS_BETWEEN_LOOKS = 0.5


class _Output:
    """Standard output; the program writes each article to its `buffer` with one call."""

    def __init__(self, file):
        self._file = file
        self.buffer = self

    def write(self, article):
        self._file.write(b"%d\n" % len(article) + article)
        self._file.flush()

    def flush(self):
        self._file.flush()


class _Process(multiprocessing.Process):
    """A process that is remembered by the one that starts it."""

    started: list = []

    def start(self):
        super().start()
        self.started.append(self)


def _end_when_a_process_dies():
    """The program itself would wait for a dead process without end."""
    while True:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        dead = [process for process in _Process.started if process.exitcode]
        if dead:
            code = dead[0].exitcode
            print(f"a process ended with exit code {code}", file=sys.stderr, flush=True)
            for process in _Process.started:
                process.kill()
            os._exit(1)


def main():
    """Sets date, input and output, and runs the program as Python itself would."""
    program, date = sys.argv[1:3]
    day = time.strptime(date, "%Y-%m-%d")
    strftime = time.strftime
    # The program's only use of it: the magic words.
    time.strftime = lambda form: strftime(form, day)  # type: ignore[assignment, misc]
    multiprocessing.Process = _Process  # type: ignore[misc]
    sys.stdin = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8")  # reads \r\n as a file's
    sys.stdout = _Output(sys.stdout.buffer)
    sys.argv = [program, *sys.argv[3:]]
    threading.Thread(target=_end_when_a_process_dies, daemon=True).start()
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
