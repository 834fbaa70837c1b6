"""Writes a finished trace in the format of another tool.

    python -m tracing.export traces/20261121-080000-4711 --to=perfetto

docs/export.md says what each format holds. Exit codes: 0; 1 bad input, or no room; 2 wrong usage.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence

from tracing import ends_in_one_line, path_with_home
from tracing.loaded import Trace

OUTPUTS = {"perfetto": "trace.pftrace", "chakra": "trace.et"}
"""Target -> the output's name in the trace's folder where no other is given."""


def _parser() -> argparse.ArgumentParser:
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shown)
    parser.add_argument("trace", type=path_with_home, metavar="FOLDER", help="of a finished trace")
    parser.add_argument("--to", choices=OUTPUTS, required=True, help="the tool that reads it")
    parser.add_argument("--output", type=path_with_home, help="new file")
    return parser


@ends_in_one_line("export")
def main(arguments: Sequence[str] | None = None) -> None:
    """Writes one export."""
    options = _parser().parse_args(arguments)
    output = options.output or options.trace / OUTPUTS[options.to]
    trace = Trace(options.trace)
    if output.exists():
        raise ValueError(f"{output} exists: remove it, or name another --output")
    if not output.parent.is_dir():
        raise ValueError(f"{output}: there is no folder {output.parent}; make it first")
    # Each target imports what it needs only when it is asked for.
    target = importlib.import_module(f"tracing.exports.{options.to}")
    content = target.write(trace, output)
    print(output)
    print(f"export: {content}", file=sys.stderr)


if __name__ == "__main__":
    main()
