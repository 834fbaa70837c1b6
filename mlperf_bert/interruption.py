"""SIGTERM and Ctrl-C while a script imports: it ends at once, without a traceback.

This imports nothing slow, so that a script can call it before everything else.
"""

import os
import signal
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def ends_at_once() -> None:
    """Lets both signals end this process, until a script handles them; ignored ones stay so."""
    # Process 1 of a container has no default action: without a handler it ignores both.
    action = _exit if os.getpid() == 1 else signal.SIG_DFL
    for number in _SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, action)


def raise_on_ctrl_c() -> None:
    """Undoes it for Ctrl-C, which becomes KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) in (signal.SIG_DFL, _exit):
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _exit(number: int, _: FrameType | None) -> None:
    os._exit(128 + number)  # nothing has begun that would have to be ended
