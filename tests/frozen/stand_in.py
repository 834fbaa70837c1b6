"""A training for campaigns: writes the log of a run of so many minutes, and ends at once.

    python tests/frozen/stand_in.py --output_dir=RUNS/3 ...

All its times and figures follow from the number of the run.
"""

import json
import re
import sys
from pathlib import Path

from mlperf_bert.mlperf.logs import LOG_NAME, RECORD_NAME
from tests.mlperf.example_log import write_log

_BEGAN_MS = 1_700_000_000_000


def main() -> None:
    """Takes --output_dir, and leaves the other flags alone."""
    given = dict(flag.lstrip("-").split("=", 1) for flag in sys.argv[1:] if "=" in flag)
    folder = Path(given["output_dir"])
    folder.mkdir(parents=True, exist_ok=True)
    number = int(folder.name)
    accuracies = [0.5] * (15 + number % 3) + [0.721 + number / 1000]
    log = write_log(folder / LOG_NAME, accuracies, seed=100 + number)
    log.write_text("\n".join(_timed(log.read_text().splitlines(), number)) + "\n")
    (folder / RECORD_NAME).write_text(json.dumps({"status": "success"}))


def _timed(lines: list[str], number: int) -> list[str]:
    """From a line to the next ten seconds, in every later run one more; nothing is measured."""
    found = []
    for place, line in enumerate(lines):
        time_ms = _BEGAN_MS + place * (10_000 + 1000 * number)
        timed = re.sub(r'"time_ms": \d+', f'"time_ms": {time_ms}', line)
        found.append(re.sub(r'(_seconds|_utilization)": [\d.e-]+', r'\1": 0.5', timed))
    return found


if __name__ == "__main__":
    main()
