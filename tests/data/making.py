"""Data sets of three small parts, made by the command line."""

import json
import subprocess
import sys

from mlperf_bert.data import manifest
from tests.helpers import starts

FLAGS = {"max_seq_length": 32, "max_predictions_per_seq": 5, "dupe_factor": 2}


def command(work, **flags) -> list[str]:
    flags = {
        "input_file": f"{work}/part-*",
        "output_dir": work / "out",
        "vocab_file": work / "vocab.txt",
        "nworker": 2,
        **FLAGS,
        **flags,
    }
    given = (f"--{name}={value}" for name, value in flags.items() if value is not None)
    return [sys.executable, "create_pretraining_data.py", *given]


def run(repository, work, *, limit_kib=None, **flags) -> subprocess.CompletedProcess:
    words = command(work, **flags)
    if not limit_kib:
        return starts.run(words)
    words = ["bash", "-c", f'ulimit -f {limit_kib}; exec "$@"', "bash", *words]
    return subprocess.run(words, capture_output=True, text=True, cwd=repository)


def lines_of(work) -> dict[str, dict]:
    return json.loads((work / "out" / manifest.NAME).read_text())["parts"]


def visible(folder) -> set[str]:
    return {path.name for path in folder.iterdir()} - {".lock"}


def fails(done) -> str:
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr.strip().splitlines()[-1]
