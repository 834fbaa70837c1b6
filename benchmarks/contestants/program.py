"""This project's step as an exported program, run by jax; see training_throughput.py.

The export happens before the first step, so it is not timed.
"""

import json
import subprocess
import sys
from pathlib import Path

from mlperf_bert.portable import run_step

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Exports the step of the task, runs it, and prints STEP after every step."""
    task, folder = json.loads(sys.argv[1]), Path("step").absolute()
    flags = [
        f"--bert_config_file={task['bert_config_file']}", f"--input_file={task['record_file']}",
        f"--output_dir={folder}", f"--train_batch_size={task['batch_size']}",
        f"--precision={task['precision']}", "--max_seq_length=512", "--max_predictions_per_seq=76",
        "--optimizer=lamb", "--num_recorded_steps=0", "--seed=1",
    ]  # fmt: skip
    export = [sys.executable, "-m", "mlperf_bert.portable.export", *flags]
    subprocess.run(export, check=True, cwd=ROOT)
    exported = run_step.Exported(folder, "training")
    for _ in run_step.steps(exported, exported.real_batches(), [], num_steps=10**9):
        print("STEP", flush=True)


if __name__ == "__main__":
    main()
