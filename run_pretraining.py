"""Trains BERT to masked-LM accuracy 0.720, or evaluates the checkpoints of a run.

Exit codes: 0 the run went to its end, and the RESULT line says whether it reached the target; 1 bad
input or a failure; 75 a signal interrupted the run, or a bucket or device did not answer: the same
command resumes. A signal saves a checkpoint if training had begun.
"""

from mlperf_bert import signals

if __name__ == "__main__":
    signals.ends_at_once()  # first: the imports take seconds

import gc
import sys
from collections.abc import Mapping
from typing import Any

from mlperf_bert.tensorflow_import import tensorflow

gc.disable()  # Imports make no garbage: looking for some takes a quarter of their time.
tensorflow()  # before other modules import it

from absl import flags

from mlperf_bert import command_line
from mlperf_bert.messages import Problems, problems_of
from mlperf_bert.training import run, workers
from mlperf_bert.training.config import Mode, RunConfig
from mlperf_bert.training.devices import with_runtime
from mlperf_bert.training.reporting import StartUp, process_age

gc.freeze()  # Without this the first collection would look through everything imported.
gc.enable()

_OUT_OF_MEMORY = (
    "lower --train_batch_size (and raise --steps_per_update to keep the updates), give "
    "--recompute=blocks, or lower --eval_batch_size"
)
FLAGS = flags.FLAGS


def _config() -> RunConfig:
    return with_runtime(command_line.read(RunConfig, cluster=workers.read_cluster()))


def _bad_files(values: Mapping[str, Any]) -> list[str]:
    """Finds, with --check, problems of the files that other flags name if a flag is wrong."""
    if values.get("check") is not True:
        return []
    from mlperf_bert.training.inspection import problems_of_files  # a run does not load it

    return problems_of_files(values)


def _check() -> None:
    from mlperf_bert.training.inspection import inspect_closely  # a run does not load it

    try:
        config = _config()
    except ValueError as error:
        raise Problems([*problems_of(error), *_bad_files(FLAGS.flag_values_dict())]) from error
    if config.cluster and not config.cluster.is_chief:
        print(f"process {config.cluster.index}: --check is answered by process 0")
        return
    setup = inspect_closely(config, measure_initial_accuracy=FLAGS.check_initial_accuracy)
    print(*setup.findings, sep="\n")
    print(f"errors: {len(setup.findings.errors)}; no training was started")
    if setup.findings.errors:
        sys.exit(1)


def _train() -> None:
    own_config, start_up = _config(), StartUp()
    config, team = workers.agree(own_config)
    if outcome := run.train(config, team, start_up):  # only the chief has an outcome
        print(outcome.in_words(config.target_accuracy))
        seconds = process_age()
        line = outcome.line(seed=team.seed, start_time=start_up.start_time, seconds=seconds)
        print(line, flush=True)


def _evaluate() -> None:
    from mlperf_bert.training import offline  # a run does not load it

    print(offline.evaluate(_config()))


def main():
    """Checks, trains or evaluates, as the flags say."""
    with command_line.resumable():
        if FLAGS.check_initial_accuracy and not FLAGS.check:
            raise ValueError("--check_initial_accuracy has an effect only with --check; add it")
        if FLAGS.check:
            _check()
        elif FLAGS.do_train:
            _train()
        elif FLAGS.do_eval:
            _evaluate()
        else:
            raise ValueError("nothing to do: give --do_train or --do_eval")


if __name__ == "__main__":
    command_line.run(main, RunConfig, Mode, beside=_bad_files, out_of_memory=_OUT_OF_MEMORY)
