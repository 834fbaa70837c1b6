"""Empty the system's file caches, as the rules ask before a run, or say why it cannot be done."""

import os
from pathlib import Path

DROP_CACHES = Path("/proc/sys/vm/drop_caches")
_PAGES_AND_INODES = "3\n"


def obstacle(control: Path = DROP_CACHES) -> str | None:
    """Return why the caches cannot be dropped; None if they can. Changes nothing."""
    if not control.exists():
        return f"there is no {control}: this is no Linux host"
    if not os.access(control, os.W_OK):
        return f"{control} is not writable: run as root on the host, not in a container"
    return None


def drop(control: Path = DROP_CACHES) -> str | None:
    """Write dirty pages back and empty the caches; return why it failed, None if it worked."""
    if reason := obstacle(control):
        return reason
    os.sync()  # a dirty page cannot be dropped
    try:
        control.write_text(_PAGES_AND_INODES)
    except OSError as error:
        return f"{control}: {error.strerror}"
    return None
