"""Writes the training step as a portable program: StableHLO, its signature, batches and weights.

Takes the flags of run_pretraining.py, so also --flagfile=configs/batch_24.flags. run_step.py runs
the program on CPU, GPU or TPU with jax and numpy, without TensorFlow.
"""

from mlperf_bert import signals
from mlperf_bert.tensorflow_import import tensorflow

if __name__ == "__main__":
    signals.ends_at_once()  # first: the imports take seconds
    tensorflow()  # before other modules import it

import dataclasses

from absl import flags, logging

from mlperf_bert import command_line
from mlperf_bert.command_line import in_range
from mlperf_bert.portable import program_folder
from mlperf_bert.training import checks, memory
from mlperf_bert.training.config import RunConfig
from mlperf_bert.training.workers import read_cluster

FLAGS = flags.FLAGS

command_line.define(RunConfig, script="run_pretraining.py")
_ACCEPTED = "Accepted, without effect."
for _name in ("do_train", "do_eval", "check", "check_initial_accuracy"):
    flags.DEFINE_bool(_name, False, _ACCEPTED)
flags.DEFINE_string("master", None, _ACCEPTED)
flags.DEFINE_multi_string("observer", [], _ACCEPTED)
flags.DEFINE_bool("evaluation", False, "Also export the evaluation step.")
flags.DEFINE_bool("data_parallel", True, "Also export the halves of a step of many devices.")
flags.DEFINE_bool("barriers", True, "Tell XLA what to keep: for GPUs. Give --nobarriers for TPUs.")
flags.DEFINE_integer("num_batches", 8, "Real batches to write into the folder.")
flags.DEFINE_integer(
    "num_recorded_steps",
    None,
    "Steps that TensorFlow runs, to compare with; if not given, 3 where memory suffices.",
)
in_range("num_batches", at_least=1)
in_range("num_recorded_steps", at_least=0)


def main():
    """Writes the folder."""
    logging.set_verbosity(logging.ERROR)
    # No checkpoint is written, so no copy of the state takes memory.
    config = dataclasses.replace(
        command_line.read(RunConfig, cluster=read_cluster()), async_checkpoint=False
    )
    with command_line.tensorflow_explained("lower --train_batch_size, or give --recompute=blocks"):
        setup = checks.inspect(config)
        setup.findings.require_none()
        given, shortfall = FLAGS.num_recorded_steps, memory.shortfall(config, setup.bert_config)
        wanted = program_folder.Wanted(
            num_batches=FLAGS.num_batches,
            num_recorded_steps=program_folder.num_recorded_steps(given, shortfall=shortfall),
            evaluation=FLAGS.evaluation,
            data_parallel=FLAGS.data_parallel,
            barriers=FLAGS.barriers,
            seed=FLAGS.seed or 0,
        )
        print(program_folder.write(setup, FLAGS.output_dir, wanted))


if __name__ == "__main__":
    command_line.run(main)
