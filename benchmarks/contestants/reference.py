"""The reference's run_pretraining.py, unchanged, timed by a hook; see training_throughput.py.

Runs in the reference's interpreter (TensorFlow 2.4), in an empty folder.
"""

import json
import sys

task = json.loads(sys.argv[1])
sys.path.insert(0, task["reference"])

from absl import app  # noqa: E402

import run_pretraining  # noqa: E402 - found in the folder given

after_step = run_pretraining.CheckpointHook.after_run


def after_run(self, run_context, run_values):
    """Prints STEP after every step."""
    after_step(self, run_context, run_values)
    print("STEP", flush=True)


run_pretraining.CheckpointHook.after_run = after_run
sys.argv[1:] = [
    "--do_train",
    "--optimizer=lamb",
    "--max_seq_length=512",
    "--max_predictions_per_seq=76",
    "--learning_rate=1e-4",
    "--num_warmup_steps=0",
    "--num_train_steps=1000000",
    "--save_checkpoints_steps=1000000",
    "--output_dir=output",
    "--bert_config_file=" + task["bert_config_file"],
    "--input_file=" + task["record_file"],
    "--train_batch_size={}".format(task["batch_size"]),
]
app.run(run_pretraining.main)
