"""Writes a finished trace in the format of another tool.

    python -m tracing.export traces/20261121-080000-4711 --to=perfetto

docs/export.md says what each format holds. Exit codes: 0; 1 bad input, or no room.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Any

from tracing import ends_in_one_line, parser_of, path_with_home
from tracing.exports import fio
from tracing.exports.finished import Finished, readable

OUTPUTS = {
    "dftracer": "trace.pfw.gz", "fio": "fio", "dlio": "dlio.yaml", "perfetto": "trace.pftrace",
    "chakra": "trace.et",
}  # fmt: skip
"""Target -> the output's name in the trace's folder where no other is given."""


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("export", __doc__)
    parser.add_argument("trace", type=path_with_home, metavar="FOLDER", help="of a finished trace")
    parser.add_argument("--to", choices=OUTPUTS, required=True, help="the tool that reads it")
    parser.add_argument("--output", type=path_with_home, help="new file; folder for fio")
    parser.add_argument("--per", choices=fio.GROUPS, help="fio: what a log is of; default: thread")
    parser.add_argument("--seconds", metavar="BEGIN:END", help="chakra: only what begins in these")
    return parser


def _options(given: argparse.Namespace) -> dict[str, Any]:
    """What the target alone takes."""
    of_target = {"per": "fio", "seconds": "chakra"}
    found = {name: getattr(given, name) for name in of_target if getattr(given, name) is not None}
    for name, value in found.items():
        if of_target[name] != given.to:
            raise ValueError(f"--{name}={value} is for --to={of_target[name]} alone; leave it out")
    if given.to == "fio":
        return {"per": "thread"} | found
    if given.seconds is not None:
        try:
            begin, end = (float(part) for part in given.seconds.split(":"))
        except ValueError:
            begin, end = 0.0, 0.0
        if not 0 <= begin < end:
            raise ValueError(f"--seconds={given.seconds}: give two, BEGIN:END, the second later")
        found["seconds"] = begin, end
    return found


@ends_in_one_line("export")
def main(arguments: Sequence[str] | None = None) -> None:
    """Writes one export."""
    given = _parser().parse_args(arguments)
    options = _options(given)
    output = given.output or given.trace / OUTPUTS[given.to]
    trace = Finished(given.trace)
    if output.exists():
        raise ValueError(f"{output} exists: remove it, or name another --output")
    if not output.parent.is_dir():
        raise ValueError(f"{output}: there is no folder {output.parent}; make it first")
    try:
        # Each target imports what it needs only when it is asked for.
        target = importlib.import_module(f"tracing.exports.{given.to}")
        with readable(given.trace):
            content = target.write(trace, output, **options)
        print(output)
        print(f"export: {content}", file=sys.stderr)
    except ImportError as error:
        sys.exit(f"export: {error}; run make setup, or pip install ./tracing")
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted; nothing was written") from None


if __name__ == "__main__":
    main()
