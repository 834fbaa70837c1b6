"""Fine-tunes a pre-trained BERT on GLUE or SQuAD, and evaluates it on the dev sets.

Exit codes: 0 done; 1 bad input or a failure; 75 interrupted by a signal: the same command resumes
from the end of the last epoch.
"""

from mlperf_bert import signals

if __name__ == "__main__":
    signals.ends_at_once()  # first: the imports take seconds

import dataclasses
import gc

from mlperf_bert.tensorflow_import import tensorflow

gc.disable()  # Imports make no garbage: looking for some takes a quarter of their time.
tensorflow()  # before other modules import it

import tensorflow as tf
from absl import flags

from mlperf_bert import command_line
from mlperf_bert.finetuning import squad, sweep
from mlperf_bert.finetuning.config import FinetuningConfig, Setting
from mlperf_bert.options import flags_of, option

gc.enable()

FLAGS = flags.FLAGS


@dataclasses.dataclass(frozen=True)
class Sweep:
    """The flags of a sweep, which replace those of one setting."""

    sweep: bool = option(
        False, "Train with every one of --learning_rates and --seeds; report the median."
    )
    learning_rates: str = option("2e-5,3e-5,4e-5,5e-5", "With --sweep.")
    seeds: str = option("1,2,3,4,5", "With --sweep.")


def _settings() -> tuple[Setting, ...]:
    """The settings of one run, or of all runs of a sweep: all different, and in range."""
    if not FLAGS.sweep:
        _require_absent("learning_rates", "seeds", reason="has an effect only with --sweep")
        return (command_line.read(Setting),)
    lists, about = command_line.read(Sweep), flags_of(Setting)
    rates, seeds = lists.learning_rates.split(","), lists.seeds.split(",")
    try:
        settings = [Setting(learning_rate=float(x), seed=int(n)) for x in rates for n in seeds]
    except ValueError:
        settings = []
    values = [(name, value) for setting in settings for name, value in vars(setting).items()]
    folders = {setting.folder for setting in settings}
    if len(folders) < len(rates) * len(seeds) or any(about[name].problem(x) for name, x in values):
        ranges = " and ".join(f"{name} {each.range}" for name, each in about.items())
        raise ValueError(
            f"--learning_rates={lists.learning_rates} --seeds={lists.seeds}: give different "
            f"numbers with commas between them, {ranges}"
        )
    instead = "--sweep takes --learning_rates and --seeds instead"
    _require_absent("learning_rate", "seed", reason=instead)
    return tuple(settings)


def _require_absent(*names: str, reason: str) -> None:
    for name in names:
        if FLAGS[name].present:
            raise ValueError(f"{FLAGS[name].serialize()}: {reason}; leave the flag out")


def _config() -> FinetuningConfig:
    config = command_line.read(FinetuningConfig, settings=_settings())
    if config.task != squad.NAME:
        _require_absent("doc_stride", "max_query_length", reason="has an effect only on SQuAD")
    return config


def main():
    """Fine-tunes, evaluates and predicts, as the flags say."""
    tf.get_logger().setLevel("ERROR")  # every run of a sweep traces its own step
    with command_line.resumable():
        records, prediction_files = sweep.run(_config())
        print(sweep.table(records))
        print(f"{FLAGS.output_dir}/{sweep.RESULTS_NAME}")
        for path in prediction_files:
            print(path)
        print(sweep.line(records), flush=True)


if __name__ == "__main__":
    smaller = "lower --train_batch_size, --eval_batch_size or --max_seq_length"
    command_line.run(main, FinetuningConfig, Setting, Sweep, out_of_memory=smaller)
