"""Writes a finished trace in the format of another tool.

    python -m tracing.export traces/20261121-080000-4711 --to=perfetto

docs/tracing.md says what each format holds. Exit codes: 0; 1 bad input, or no room.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from tracing import path_with_home
from tracing.exports import fio
from tracing.exports.finished import Finished

OUTPUTS = {
    "dftracer": "trace.pfw.gz", "fio": "fio", "dlio": "dlio.yaml", "perfetto": "trace.pftrace",
}  # fmt: skip
"""Target -> the output's name in the trace's folder where no other is given."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tracing.export", description=__doc__)
    parser.add_argument("trace", type=path_with_home, metavar="FOLDER", help="of a finished trace")
    parser.add_argument("--to", choices=OUTPUTS, required=True, help="the tool that reads it")
    parser.add_argument("--output", type=path_with_home, help="new file, or folder for fio")
    parser.add_argument("--per", choices=fio.GROUPS, help="fio: what a log is of; default: thread")
    return parser


def _export(given: argparse.Namespace) -> tuple[Path, str]:
    """Writes one; returns where, and what it holds, in words."""
    output = given.output or given.trace / OUTPUTS[given.to]
    if given.per and given.to != "fio":
        raise ValueError(f"--per={given.per} is for --to=fio alone; leave it out")
    trace = Finished(given.trace)
    if output.exists():
        raise ValueError(f"{output} exists: remove it, or name another --output")
    if not output.parent.is_dir():
        raise ValueError(f"{output}: there is no folder {output.parent}; make it first")
    # Each target imports what it needs only when it is asked for.
    target = importlib.import_module(f"tracing.exports.{given.to}")
    options = {"per": given.per or "thread"} if given.to == "fio" else {}
    return output, target.write(trace, output, **options)


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes one export."""
    given = _parser().parse_args(arguments)
    try:
        output, content = _export(given)
        print(output)
        print(f"export: {content}", file=sys.stderr)
    except ImportError as error:
        sys.exit(f"export: {error}; make setup, or pip install '.[tracing]'")
    except (ValueError, OSError) as error:
        sys.exit(f"export: {error}")
    except KeyboardInterrupt:
        sys.exit("export: interrupted; nothing was written")


if __name__ == "__main__":
    main()
