"""Empty the system's file caches, as the rules ask before a run, or say why it cannot be done."""

import os
from pathlib import Path

DROP_CACHES = Path("/proc/sys/vm/drop_caches")
_IN_CONTAINER = Path("/drop_caches")
"""start_training.sh mounts the control here for the host's root: /proc/sys is read-only."""
_PAGES_AND_INODES = "3\n"


def obstacle(control: Path | None = None) -> str | None:
    """Returns why the caches cannot be dropped; None if they can. Changes nothing."""
    control = control or _control()
    if not control.exists():
        return f"there is no {control}: this is no Linux host"
    if not os.access(control, os.W_OK):
        return f"{control} is not writable: run as root on the host, not in a container"
    return None


def _control() -> Path:
    return _IN_CONTAINER if _IN_CONTAINER.exists() else DROP_CACHES


def drop(control: Path | None = None) -> str | None:
    """Writes dirty pages back and empties the caches; returns why it failed, None if it worked."""
    control = control or _control()
    if reason := obstacle(control):
        return reason
    # Dirty pages are written first, because they cannot be dropped.
    os.sync()
    try:
        control.write_text(_PAGES_AND_INODES)
    except OSError as error:
        return f"{control}: {error.strerror}"
    return None
