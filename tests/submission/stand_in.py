"""Stands for run_pretraining.py in a campaign: writes the log and the record of a run at once."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.mlperf.example_log import write_log


def run(here: Path, flags: Sequence[str]) -> int:
    """One training or evaluation; returns its exit code.

    What happens to run N is in `here`/plan.json: "exit 75" (once), "refuses", "seed 7",
    "fails", "unevaluated". The names of the runs are noted in `here`/calls.
    """
    given = dict(flag.lstrip("-").split("=", 1) for flag in flags if "=" in flag)
    folder = Path(given["output_dir"])
    with (here / "calls").open("a") as calls:
        calls.write(f"{folder.name}\n")
    plan = json.loads((here / "plan.json").read_text())
    word, _, value = plan.pop(folder.name, "").partition(" ")
    if word == "refuses":
        return _refusal("bad input")
    folder.mkdir(parents=True, exist_ok=True)
    if word == "exit":
        (here / "plan.json").write_text(json.dumps(plan))
        write_log(folder / "bert.log", [0.5])
        (folder / "run.json").write_text('{"status": "running"}')
        return int(value)
    changes = {"seed": int(value) if word == "seed" else 100 + int(folder.name.partition(".")[0])}
    accuracies = [0.5] * 16 + [0.5 if word == "fails" else 0.73]
    if "--nodo_train" in flags:
        if word == "unevaluated":
            return _refusal("bad evaluation examples")
        write_log(folder / "bert.offline.log", accuracies, **changes)
        return 0
    write_log(folder / "bert.log", accuracies, **changes)
    status = "aborted" if word == "fails" else "success"
    (folder / "run.json").write_text(json.dumps({"status": status}))
    return 0


def _refusal(reason: str) -> int:
    print(f"run_pretraining.py: {reason}", file=sys.stderr)
    return 1
