"""A whole sweep whose traces take no time: its calls, rows and page, as text.

A stand-in takes the place of the tracing: it leaves the summary of the whole trace. `whole.main`
writes what is expected.
"""

import contextlib
import io
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pandas as pd

from tests.helpers import programs
from tracing import limits, look, sweep
from tracing.tests.whole import drawn

# Batch 20 fails, 30 is killed, 40 does not end by itself.
_STAND_IN = """
for word; do case $word in
  --output=*) trace=${word#*=};; --output_dir=*) run=${word#*=};;
  --train_batch_size=*) batch=${word#*=};;
esac; done
echo "traced $*" >> CALLS
mkdir -p "$trace" "$run"
trained=$((20 + $(wc -l < CALLS)))  # another number for each point
sed "s/.num_trained.: [0-9]*/\\"num_trained\\": $trained/" SUMMARY > "$trace/summary.json"
sed "s/0.6/0.$trained/" METRICS > "$run/metrics.jsonl"
echo "trace: its own"
case $batch in
  20) echo "this batch is no good"; echo "trace: its last"; exit 3;;
  30) exit 137;;
  40) trap 'sleep 0.3; echo "ended in order" >> CALLS; exit 75' TERM
      while :; do sleep 0.01; done;;
esac
"""
_LEDGER = {
    "input_wait_seconds": 0.25, "compute_seconds": 0.6, "saving_seconds": 0.1,
    "evaluation_input_wait_seconds": 0.02, "evaluation_compute_seconds": 0.03,
    "host_seconds": 0.05,
}  # fmt: skip


def called(*arguments: object) -> tuple[object, str]:
    """The command in this process: its exit message or code, and what it said."""
    before = signal.getsignal(signal.SIGTERM)
    said, code = io.StringIO(), 0
    try:
        with contextlib.redirect_stderr(said):
            sweep.main([*map(str, arguments)])
    except SystemExit as end:
        code = end.code
    finally:
        signal.signal(signal.SIGTERM, before)
    return code, said.getvalue()


def parts(folder: Path, summary: dict) -> Iterator[tuple[str, str]]:
    """(name, text) of a sweep of twelve points, and of one that takes too long."""
    folder.mkdir(exist_ok=True)
    calls = folder / "calls.txt"
    calls.touch()
    texts = {"CALLS": calls, "SUMMARY": folder / "summary.json", "METRICS": folder / "metrics"}
    text = _STAND_IN
    for name, path in texts.items():
        text = text.replace(name, str(path))
    python = programs.stand_in(folder / "python", text)
    command = programs.stand_in(folder / "run_pretraining.py", "exit 1")
    for number, name in enumerate(("part-0", "part-1", "other"), 1):
        (folder / name).write_bytes(bytes(7000 * number))
    texts["SUMMARY"].write_text(json.dumps(summary))
    lines = [{"kind": "train", "step": 2 * n, **_LEDGER} for n in range(1, 6)]
    lines.append({"kind": "evaluation", "step": 999, **_LEDGER})
    texts["METRICS"].write_text("".join(json.dumps(line) + "\n" for line in lines))

    def note(line: str) -> None:
        with calls.open("a") as file:
            file.write(f"{line}\n")

    @contextlib.contextmanager
    def group(name: str) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(
            limit=lambda size: note(f"limited to {size}"), num_kills=0,
            joined=lambda words: ["env", "GROUP=1", *words],
        )  # fmt: skip
        note("the group is gone")

    def call(*options: str) -> str:
        words = [command, f"--input_file={folder}/part-*"]
        code, said = called(f"--output={folder / 'out'}", *options, "--", *words)
        return f"{said}{code}\n" if code else said

    with (
        mock.patch.object(sys, "executable", str(python)),
        mock.patch.object(look, "svg", drawn),
        mock.patch.object(limits, "missing", lambda: None),
        mock.patch.object(limits, "memory_group", group),
        mock.patch.object(limits, "drop_from_cache", lambda files: note(f"dropped {files}")),
        mock.patch.object(subprocess, "run", lambda words, **_: note(f"ran {words}")),
    ):
        grid = ["--batch=16,20,30", "--compute=sleep,real", "--workers=3", "--backend=proc"]
        told = call("--memory=1g,none", *grid, "--cache=warm")
        rows = pd.read_parquet(folder / "out" / "runs.parquet")
        page = (folder / "out" / "sweep.html").read_text()
        told += call("--batch=40", "--timeout_s=0.5", "--backend=proc", "--cache=cold")
    yield "calls.txt", calls.read_text() + told
    yield "runs.csv", rows.to_csv(index=False)
    yield "sweep.txt", page + "\n"
