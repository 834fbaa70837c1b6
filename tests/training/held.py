"""Runs a program that goes no further than a step of its metrics, or than `init_stop` of its log.

    python tests/training/held.py 60 FILE PROGRAM FLAGS

There it waits for a file. What a test does to a program that trains meets one that trains, too,
where the machine lets the test wait for seconds: it would have come to its end meanwhile.
"""

import runpy
import sys
import time
from pathlib import Path

from mlperf_bert.mlperf.log import MlperfLog
from mlperf_bert.training.reporting import MetricsWriter


def main() -> None:
    """Runs the program as `python PROGRAM FLAGS` would."""
    last, file, *sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    write, init_stop = MetricsWriter.write, MlperfLog.init_stop

    def wait() -> None:
        while not Path(file).exists():
            time.sleep(0.01)

    def write_and_wait(writer: MetricsWriter, kind: str, *, step: int, **values) -> None:
        write(writer, kind, step=step, **values)
        if step >= int(last):
            wait()

    def wait_and_stop(log: MlperfLog) -> None:
        wait()
        init_stop(log)

    if last == "init_stop":
        MlperfLog.init_stop = wait_and_stop
    else:
        MetricsWriter.write = write_and_wait
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
