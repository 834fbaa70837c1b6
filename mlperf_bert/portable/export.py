"""Writes the training step as a portable program: StableHLO, its signature, batches and weights.

Takes the flags of run_pretraining.py, also --flagfile=configs/batch_24.flags; its flags of mode and
of output files have no effect. run_step.py runs the program on CPU, GPU or TPU with jax and numpy,
without TensorFlow.
"""

from mlperf_bert import signals
from mlperf_bert.tensorflow_import import tensorflow

if __name__ == "__main__":
    signals.ends_at_once()  # first: the imports take seconds
    tensorflow()  # before other modules import it

from absl import flags

from mlperf_bert import command_line
from mlperf_bert.portable import program_folder
from mlperf_bert.portable.program_folder import Wanted
from mlperf_bert.training import checks
from mlperf_bert.training.config import Mode, RunConfig
from mlperf_bert.training.workers import read_cluster

FLAGS = flags.FLAGS


def main():
    """Writes the folder."""
    config = command_line.read(RunConfig, cluster=read_cluster())
    setup = checks.inspect(config)
    setup.findings.require_none()
    print(program_folder.write(setup, FLAGS.output_dir, command_line.read(Wanted)))


if __name__ == "__main__":
    smaller = "lower --train_batch_size, or give --recompute=blocks"
    command_line.run(main, RunConfig, Mode, Wanted, out_of_memory=smaller)
