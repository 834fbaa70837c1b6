"""Records what whole runs leave, or compares it with what was recorded.

    python -m tests.frozen record [NAME...]     python -m tests.frozen compare [NAME...]

A redesign, which leaves all values as they are, is compared after every step: `compare` prints a
line for each difference (`run, key: then -> now`), and exits with 1 if there is one. What a run
leaves otherwise on purpose is recorded again. Without names, all runs are made: minutes.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.frozen import records


def main() -> None:
    """Takes a verb and names."""
    parser = argparse.ArgumentParser(prog="python -m tests.frozen", description=__doc__)
    parser.add_argument("verb", choices=["record", "compare"])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(records.NAMES))
    given = parser.parse_args()
    names = given.names or records.NAMES
    if unknown := set(names) - set(records.NAMES):
        parser.error(f"no run is named {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory(prefix="frozen-") as folder:
        if given.verb == "record":
            records.record(Path(folder), names)
            return
        num_found = 0
        for line in records.compare(Path(folder), names):
            print(line, flush=True)
            num_found += 1
    print(f"runs: {len(names)}, differences: {num_found}")
    sys.exit(num_found > 0)


if __name__ == "__main__":
    main()
