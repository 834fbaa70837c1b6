"""Traces a command, a container or a process; tracing/trace.sh calls this.

Exit codes: the command's; 1 bad input or a trace that could not be written; 2 wrong usage; 128 + n:
signal n.
"""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tracing import ends_in_one_line, path_with_home, signals_blocked, word


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tracing",
        usage="%(prog)s [options] -- COMMAND...\n"
        "       %(prog)s [options] --container NAME | --pid PID\n"
        "       %(prog)s --convert FOLDER",
        description="Records what a training run does to storage, memory, processors and GPUs.",
    )
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    parser.add_argument("--output", type=path_with_home, default=Path("traces") / name,
        help="new folder; default: traces/DATE-TIME-PID")  # fmt: skip
    from tracing.backends import NAMES

    parser.add_argument("--backend", choices=NAMES, help="default: the best that works")
    parser.add_argument("--container", type=word, help="trace a running container until it ends")
    parser.add_argument(
        "--engine", type=word, default="docker", help="whose container: docker or podman"
    )
    parser.add_argument("--pid", type=int, help="trace a running process and what it starts")
    parser.add_argument(
        "--interval_s", type=float, default=1.0, help="between samples of the counters"
    )
    parser.add_argument("--keep_raw", action="store_true", help="keep the tracer's own lines")
    parser.add_argument(
        "--convert", type=path_with_home, metavar="FOLDER", help="finish a broken-off trace"
    )
    words = list(sys.argv[1:] if arguments is None else arguments)
    end = words.index("--") if "--" in words else len(words)
    return argparse.Namespace(**vars(parser.parse_args(words[:end])), command=words[end + 1 :])


def _say(line: str) -> None:
    # Lines go to standard error: standard output is the command's.
    print(f"trace: {line}", file=sys.stderr, flush=True)


def _user():
    """The user who called sudo; None without sudo."""
    from tracing.tracers import User

    if os.geteuid() != 0 or "SUDO_UID" not in os.environ:
        return None
    return User(os.environ["SUDO_USER"], int(os.environ["SUDO_UID"]), int(os.environ["SUDO_GID"]))


def _convert(folder: Path, *, keep_raw: bool) -> None:
    # Imported only now: tables and pictures take a second, for which the command would wait.
    from tracing import outputs
    from tracing.recording import RAW, load

    recording = load(folder)  # comes first: a folder that is no trace stays as it is
    try:
        for line in outputs.write_all(folder, recording):
            _say(line)
        if not keep_raw:
            shutil.rmtree(folder / RAW)
    except (OSError, KeyboardInterrupt) as error:
        reason = str(error) or "interrupted"
        raise ValueError(
            f"{folder}: {reason}; what was recorded lies in {folder / RAW}: make room, then "
            f"python -m tracing --convert {folder}"
        ) from None
    finally:
        _give_to_user(folder)


def _give_to_user(folder: Path) -> None:
    user = _user()
    if user is None:
        return
    above = [parent for parent in [folder.parent] if parent.name == "traces"]
    for path in [folder, *folder.rglob("*"), *above]:
        os.chown(path, user.uid, user.gid, follow_symlinks=False)


@ends_in_one_line("trace")
def main(arguments: Sequence[str] | None = None) -> None:
    """Takes one trace."""
    with signals_blocked():
        # Imported only now: the imports start threads, one of which would take the signal.
        from tracing import recorder

        options = _arguments(arguments)
        recording = None if options.convert else recorder.record(options, _user(), _say)
    if recording is None:
        _convert(options.convert, keep_raw=options.keep_raw)
        return
    _convert(options.output, keep_raw=options.keep_raw)
    sys.exit(recording.exit_code or 0)


if __name__ == "__main__":
    main()
