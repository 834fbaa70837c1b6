"""The task of the miniature campaign: the demo's encyclopedia and a checkpoint that has learned.

As in the real benchmark, all runs start from one given checkpoint. It is made with a fixed seed by
a first training to accuracy 0.68, so that a run needs about half a minute from there.
"""

import shlex
import time
from pathlib import Path

from demo.__main__ import LENGTHS, make_data, run_steps

SEED = 1
"""The seed of text and first weights: the RCPs hold for this task alone."""
GLOBAL_BATCH_SIZE = 64
LEARNING_RATE = 0.005
NUM_TRAIN_STEPS = 280
NUM_WARMUP_STEPS = 5
EVAL_INTERVAL_SAMPLES = 960
FIRST_ACCURACY = 0.68

_READY_FILE = "ready"
_CHECKPOINT = "learned/model.ckpt-0"


def prepare(folder: Path) -> None:
    """Makes data and initial checkpoint, unless they are there from an earlier call."""
    if (folder / _READY_FILE).exists():
        print(f"{folder}: data and initial checkpoint are there")
        return
    start = time.monotonic()
    make_data(folder, SEED, start)
    flags = [
        *_model_flags(folder),
        f"--init_checkpoint={folder / 'checkpoint' / 'model.ckpt-0'}",
        f"--output_dir={folder / 'first'}",
        f"--seed={SEED}",
        f"--target_accuracy={FIRST_ACCURACY}",
        "--learning_rate=0.01",
        "--num_warmup_steps=100",
        "--num_train_steps=1500",
        "--eval_interval_samples=3200",
        "--submission_org=demo",
        "--submission_platform=this-machine",
    ]
    title = f"train to accuracy {FIRST_ACCURACY}: the initial checkpoint of all runs"
    first = (title, f"python run_pretraining.py --do_train {shlex.join(flags)}")
    run_steps([first], start)
    saved = (folder / "first").glob("model*.index")
    last = max(int(path.stem.rpartition("-")[2]) for path in saved)
    flags = [
        f"--bert_config_file={folder / 'checkpoint' / 'bert_config.json'}",
        f"--checkpoint_to_convert={folder / 'first'}/model.ckpt-{last}",
        f"--converted_checkpoint_path={folder / _CHECKPOINT}",
    ]
    command = f"python tf2_encoder_checkpoint_converter.py {shlex.join(flags)}"
    run_steps([("convert it to an initial checkpoint, of weights alone", command)], start)
    (folder / _READY_FILE).touch()


def run_flags(folder: Path) -> list[str]:
    """Returns the flags of run_pretraining.py for one run of the task."""
    return [
        "--do_train",
        *_model_flags(folder),
        f"--init_checkpoint={folder / _CHECKPOINT}",
        f"--learning_rate={LEARNING_RATE}",
        f"--num_warmup_steps={NUM_WARMUP_STEPS}",
        f"--num_train_steps={NUM_TRAIN_STEPS}",
        f"--eval_interval_samples={EVAL_INTERVAL_SAMPLES}",
        "--keep_checkpoint_max=1",
    ]


def _model_flags(folder: Path) -> list[str]:
    return [
        f"--bert_config_file={folder / 'checkpoint' / 'bert_config.json'}",
        f"--input_file={folder / 'train'}/*.tfrecord",
        f"--eval_input_file={folder / 'eval.tfrecord'}",
        *LENGTHS.flags.split(),
        f"--train_batch_size={GLOBAL_BATCH_SIZE}",
        "--eval_batch_size=100",
        "--optimizer=lamb",
        "--iterations_per_loop=100",
        "--save_checkpoints_steps=10000",
    ]
