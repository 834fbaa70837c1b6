"""Runs WikiExtractor with a fixed date: wikiextractor.py PROGRAM YYYY-MM-DD.

For Python 3.7 to 3.10, so it imports nothing of this package. The dump comes on standard input.
Each article goes to standard output in one piece, after a line with its number of bytes, so that
its reader knows where articles end and counts also those on which the program failed (0 bytes).
"""

import io
import multiprocessing
import queue
import runpy
import sys
import threading
import time


class _Output:
    """Standard output; the program writes each article to its `buffer` with one call."""

    def __init__(self, file):
        self._file = file
        self.buffer = self

    def write(self, article):
        self._file.write(b"%d\n" % len(article) + article)

    def flush(self):
        self._file.flush()


def main():
    """Sets date, input and output, and runs the program as Python itself would."""
    program, date = sys.argv[1:]
    day = time.strptime(date, "%Y-%m-%d")
    strftime = time.strftime
    # The program's only use of it: the magic words.
    time.strftime = lambda form: strftime(form, day)  # type: ignore[assignment, misc]
    # One process: the program would wait without end for one of its own that dies. Many copies of
    # it run beside each other instead, each on other articles.
    multiprocessing.Process = threading.Thread  # type: ignore[assignment, misc]
    multiprocessing.Queue = lambda maxsize: queue.Queue()  # type: ignore[assignment, misc]
    sys.stdin = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8")  # reads \r\n as a file's
    sys.stdout = _Output(sys.stdout.buffer)
    sys.argv = [program, "-", "--output=-", "--quiet", "--processes=1"]
    runpy.run_path(program, run_name="__main__")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
