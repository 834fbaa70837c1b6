"""A root script's `main`, called in the process of the tests."""

from typing import Any

from absl import flags

from mlperf_bert import command_line


def main_of(script: Any, *configurations: type, **given: object) -> None:
    """Calls it as with --name=value; None: not given. absl has the flags as long as it lasts."""
    others = set(flags.FLAGS)
    try:
        command_line.define(*configurations)
        words = [f"--{name}={value}" for name, value in given.items() if value is not None]
        flags.FLAGS([script.__name__, *words])
        script.main()
    finally:
        for name in set(flags.FLAGS) - others:
            delattr(flags.FLAGS, name)
