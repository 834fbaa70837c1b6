"""Takes the flags of the real one: reads its files in passes and logs, in a second."""

import argparse
import json
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--input_file", type=Path)
parser.add_argument("--output_dir", type=Path)
parser.add_argument("--train_batch_size", type=int, default=10)
parser.add_argument("--num_parallel_files", type=int, default=8)
parser.add_argument("--emulate_step_seconds", type=float)
parser.add_argument("--eval_input_file", default="x")
parser.add_argument("--wait_s", type=float, default=0)
given = parser.parse_args()

STEPS = 20
(given.output_dir / "is_running").parent.mkdir()
(given.output_dir / "is_running").touch()
time.sleep(given.wait_s)
log = (given.output_dir / "bert.log").open("w", buffering=1)


def event(key: str, kind: str, **metadata: int) -> None:
    fields = {"key": key, "event_type": kind, "value": None, "metadata": metadata}
    log.write(f":::MLLOG {json.dumps(fields | {'time_ms': round(time.time() * 1000)})}\n")


event("block_start", "INTERVAL_START", first_epoch_num=0)
files = sorted(given.input_file.parent.glob(given.input_file.name))
for _ in range(2):
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.read(1 << 18):
                pass
step_s = 0.02 if given.emulate_step_seconds is None else given.emulate_step_seconds
with (given.output_dir / "metrics.jsonl").open("w") as metrics:
    for step in range(1, STEPS + 1):
        time.sleep(step_s)
        rate = given.train_batch_size / step_s if step_s else 1e9
        metrics.write(
            json.dumps({"kind": "train", "step": step, "samples_per_second": rate}) + "\n"
        )
event("block_stop", "INTERVAL_END", first_epoch_num=0, samples_count=STEPS * given.train_batch_size)
time.sleep(1.2)  # until the counters are sampled once more
