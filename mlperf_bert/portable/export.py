"""Writes the training step as a portable program: StableHLO, its signature, batches and weights.

Takes the flags of run_pretraining.py, so also --flagfile=configs/batch_24.flags; those of its mode
have no effect. run_step.py runs the program on CPU, GPU or TPU with jax and numpy, without
TensorFlow.
"""

from mlperf_bert import signals
from mlperf_bert.tensorflow_import import tensorflow

if __name__ == "__main__":
    signals.ends_at_once()  # first: the imports take seconds
    tensorflow()  # before other modules import it

import dataclasses

from absl import flags

from mlperf_bert import command_line
from mlperf_bert.portable import program_folder
from mlperf_bert.portable.program_folder import Wanted
from mlperf_bert.training import checks, memory
from mlperf_bert.training.config import Mode, RunConfig
from mlperf_bert.training.workers import read_cluster

FLAGS = flags.FLAGS


def main():
    """Writes the folder."""
    # No checkpoint is written, so no copy of the state takes memory.
    config = dataclasses.replace(
        command_line.read(RunConfig, cluster=read_cluster()), async_checkpoint=False
    )
    with command_line.tensorflow_explained("lower --train_batch_size, or give --recompute=blocks"):
        setup = checks.inspect(config).setup()
        wanted = command_line.read(Wanted)
        recorded = dataclasses.replace(config, runtime="tensorflow")  # whatever the export's
        shortfall = memory.shortfall(recorded, setup.bert_config)
        if shortfall and wanted.num_recorded_steps:
            command_line.warn(f"{shortfall.text}; or give --num_recorded_steps=0")
        print(program_folder.write(setup, FLAGS.output_dir, wanted))


if __name__ == "__main__":
    command_line.run(main, RunConfig, Mode, Wanted)
