"""SIGTERM, Ctrl-C and their like end a script while it imports, and a run between two steps.

This imports nothing slow, so that a script can call it before everything else.
"""

import os
import signal
import sys
from types import FrameType

# A terminal that is closed sends SIGHUP; schedulers send whatever a job asks for before its end.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def ends_at_once() -> None:
    """Lets these signals end this process, until a script handles them; ignored ones stay so."""
    # Process 1 of a container has no default action: without a handler it ignores them.
    action = _exit if os.getpid() == 1 else signal.SIG_DFL
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, action)


def raise_on_ctrl_c() -> None:
    """Undoes `ends_at_once` for Ctrl-C, which becomes KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) in (signal.SIG_DFL, _exit):
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _exit(number: int, _: FrameType | None) -> None:
    os._exit(128 + number)  # nothing has begun that must be ended in order


def handled() -> list[signal.Signals]:
    """`SIGNALS` without those that nohup, or whoever started this process, lets it ignore."""
    always = (signal.SIGTERM, signal.SIGINT)  # kill sends both; a shell's & ignores only Ctrl-C
    return [n for n in SIGNALS if n in always or signal.getsignal(n) != signal.SIG_IGN]


class Interrupted(Exception):
    """The same command resumes: a signal came and all is saved, or a failure may pass."""


class StopRequest:
    """Handles `SIGNALS`: they interrupt at once, and after `defer` between two steps.

    SIGHUP, SIGUSR1 and SIGUSR2 stay ignored if they are, as with nohup.

    A KeyboardInterrupt can be lost: TensorFlow swallows it while it builds a graph, and Python
    where it cannot be raised (a callback of the garbage collector). `defer` raises it again, so
    Python need not print it. After `defer` the first signal only sets `signal_name`, and a second
    SIGINT interrupts at once.
    """

    def __init__(self):
        self.signal_name: str | None = None
        self._defers = False

    def __enter__(self) -> "StopRequest":
        self._previous = {s: signal.signal(s, self._note) for s in handled()}
        self._previous_hook, sys.unraisablehook = sys.unraisablehook, self._unraisable
        return self

    def __exit__(self, *exc_info) -> None:
        sys.unraisablehook = self._previous_hook
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def defer(self) -> None:
        """Lets the first signal from now on only set `signal_name`.

        Raises:
          KeyboardInterrupt: there was a signal before.
        """
        self._defers = True
        if self.signal_name:
            raise KeyboardInterrupt

    def _note(self, number: int, frame) -> None:
        again, self.signal_name = self.signal_name, signal.Signals(number).name
        if not self._defers or (again and number == signal.SIGINT):
            raise KeyboardInterrupt

    def _unraisable(self, problem) -> None:
        if problem.exc_type is not KeyboardInterrupt:
            self._previous_hook(problem)
