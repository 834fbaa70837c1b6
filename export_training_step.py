"""Writes the training step as a portable program: StableHLO, its signature, batches and weights.

Takes the flags of run_pretraining.py, so also --flagfile=configs/batch_24.flags. run_step.py runs
the program on CPU, GPU or TPU with jax and numpy, without TensorFlow.
"""

from mlperf_bert import interruption

if __name__ == "__main__":
    interruption.ends_at_once()  # first: the imports take seconds

from pathlib import Path

from absl import flags, logging

import run_pretraining  # its flags are ours too; it sets what TensorFlow reads
from mlperf_bert import command_line
from mlperf_bert.command_line import in_range
from mlperf_bert.training import preflight, program_folder

FLAGS = flags.FLAGS

flags.DEFINE_bool("evaluation", False, "Also export the evaluation step.")
flags.DEFINE_integer("num_batches", 8, "Real batches to write into the folder.")
flags.DEFINE_integer(
    "num_recorded_steps",
    3,
    "Steps that TensorFlow runs, for run_step.py to compare with; 0 = none, in little memory.",
)
in_range("num_batches", at_least=1)
in_range("num_recorded_steps", at_least=0)


def _xla_cost(folder: Path, entry: dict) -> dict:
    """By jax, where it is installed; before XLA optimizes the program."""
    try:
        import run_step  # jax is no requirement
    except ImportError:
        return {}
    return run_step.xla_cost(run_step.lowered(folder, entry))


def main():
    """Writes the folder."""
    logging.set_verbosity(logging.ERROR)
    config = run_pretraining.run_config()
    wanted = program_folder.Wanted(
        num_batches=FLAGS.num_batches,
        num_recorded_steps=FLAGS.num_recorded_steps,
        evaluation=FLAGS.evaluation,
        seed=FLAGS.seed or 0,
        cost=_xla_cost,
    )
    with run_pretraining.failures_explained():
        setup = preflight.inspect(config).setup()
        print(program_folder.write(setup, FLAGS.output_dir, wanted))


if __name__ == "__main__":
    command_line.run(main)
