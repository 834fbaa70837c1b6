"""Ends the log of a killed run, when the run is started again."""

import io
import logging
import re
import time
from pathlib import Path

from mlperf_bert.files.whole import write_whole
from mlperf_bert.mlperf.mllog_writer import MllogWriter
from mlperf_bert.mlperf.timed_run import Run


def close_log(path: Path) -> bool:
    """Adds train_samples and run_stop, status "aborted", to a log that has a run_start only.

    Both have the time of the last line, as the run may have ended right after it. `written_ms` in
    run_stop's metadata is the time of this call; it shows a reader that the run was killed. An
    incomplete last line is dropped.

    Returns: whether the log was changed.
    """
    text = path.read_text(encoding="utf-8", errors="replace")
    whole = text[: text.rfind("\n") + 1]
    if '"key": "run_start"' not in whole or '"key": "run_stop"' in whole:
        return False
    end = io.StringIO()
    run = Run(MllogWriter([logging.StreamHandler(end)]))
    run.samples = _last_number(whole, "samples_count")
    run.abort(time_ms=_last_number(whole, "time_ms"), written_ms=round(time.time() * 1000))
    write_whole(path, whole + end.getvalue())
    return True


def _last_number(text: str, name: str) -> int:
    found = re.findall(rf'"{name}": (\d+)', text)
    return int(found[-1]) if found else 0
