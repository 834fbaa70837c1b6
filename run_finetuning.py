"""Fine-tunes a pre-trained BERT on GLUE or SQuAD, and evaluates it on the dev sets.

Exit codes: 0 done, 1 bad input or a failure, 75 run the same command again to resume: interrupted
by SIGTERM or SIGINT, with the checkpoint saved if training had begun.
"""

from mlperf_bert import signals

if __name__ == "__main__":
    signals.ends_at_once()  # first: the imports take seconds

import gc
import signal
from typing import Any

from mlperf_bert.tensorflow_import import tensorflow

gc.disable()  # What is imported is not garbage: looking for some takes a quarter of the time.
tensorflow()  # before other modules import it

import tensorflow as tf
from absl import flags, logging

from mlperf_bert import command_line
from mlperf_bert.command_line import in_range, not_empty
from mlperf_bert.finetuning import sweep, tasks
from mlperf_bert.finetuning.config import FinetuningConfig, Setting
from mlperf_bert.options import MAX_SEED
from mlperf_bert.training.config import DeviceConfig

gc.enable()

FLAGS = flags.FLAGS

# Input and output
flags.DEFINE_enum(
    "task",
    None,
    [*tasks.NAMES, tasks.ALL_OF_GLUE],
    "The task; glue: all of GLUE but WNLI and the diagnostics set, as the BERT paper does.",
    required=True,
)
flags.DEFINE_string(
    "data_dir",
    None,
    "GLUE: the folder with CoLA/train.tsv and so on; SQuAD: that with its JSON files.",
    required=True,
)
flags.DEFINE_string(
    "checkpoint",
    None,
    "Pre-trained weights: a checkpoint, TF1 or TF2, the folder of a run (its newest one), or "
    "a model in Hugging Face's layout.",
    required=True,
)
flags.DEFINE_string("output_dir", None, "Checkpoints and results go here.", required=True)
flags.DEFINE_string(
    "bert_config_file",
    None,
    "Its bert_config.json; Hugging Face's layout has its own.",
)
flags.DEFINE_string("vocab_file", None, "Its vocab.txt; Hugging Face's layout has its own.")
flags.DEFINE_bool(
    "do_lower_case",
    True,
    "Lower-case the text; False for cased models. A tokenizer_config.json beside the vocabulary "
    "decides.",
)
flags.DEFINE_integer(
    "max_seq_length",
    None,
    "Tokens per example; longer ones are cut, or become several windows. Default: 128, SQuAD: 384.",
)
flags.DEFINE_integer(
    "doc_stride", 128, "SQuAD: tokens from the start of a window of the text to that of the next."
)
flags.DEFINE_integer("max_query_length", 64, "SQuAD: tokens of a question; longer ones are cut.")
flags.DEFINE_bool(
    "do_predict",
    False,
    "Also write the answers to the test set (SQuAD: to the dev set), as the task's server takes "
    "them.",
)
not_empty("data_dir", "checkpoint", "output_dir", "bert_config_file", "vocab_file")
command_line.paths("data_dir", "checkpoint", "output_dir", "bert_config_file", "vocab_file")
command_line.no_wildcards("checkpoint", "output_dir")
in_range("max_seq_length", at_least=4)
in_range("doc_stride", "max_query_length", at_least=1)

# Training
flags.DEFINE_integer("train_batch_size", 32, "Examples per step, over all replicas; 16 or 32.")
flags.DEFINE_integer("eval_batch_size", 32, "Examples per evaluation step, over all replicas.")
flags.DEFINE_float("learning_rate", 3e-5, "Peak learning rate of AdamW.")
flags.DEFINE_integer("num_train_epochs", 3, "Passes over the training examples.")
flags.DEFINE_float(
    "warmup_proportion",
    0.1,
    "Part of the steps in which the learning rate warms up. The decay to 0 counts from step 0, as "
    "in BERT's own code.",
)
flags.DEFINE_integer("seed", 1, "Seed of the head, dropout and the order of the examples.")
flags.DEFINE_integer(
    "save_checkpoints_steps", 1000, "Steps between checkpoints; there is one after each epoch too."
)
flags.DEFINE_bool(
    "sweep", False, "Train with every one of --learning_rates and --seeds; report the median."
)
flags.DEFINE_list("learning_rates", ["2e-5", "3e-5", "4e-5", "5e-5"], "With --sweep.")
flags.DEFINE_list("seeds", ["1", "2", "3", "4", "5"], "With --sweep.")
in_range("train_batch_size", "eval_batch_size", "num_train_epochs", at_least=1)
in_range("save_checkpoints_steps", at_least=1)
in_range("learning_rate", above=0)
in_range("warmup_proportion", at_least=0, below=1)
in_range("seed", at_least=0, at_most=MAX_SEED)

# Speed and devices
flags.DEFINE_enum(
    "precision",
    "float32",
    ["float32", "bfloat16", "tf32"],
    "Precision of matrix products; weights stay float32.",
)
flags.DEFINE_integer("num_gpus", 0, "GPUs of this host; 0 = CPU.")
in_range("num_gpus", at_least=0)


def _settings() -> tuple[Setting, ...]:
    if not FLAGS.sweep:
        _require_absent("learning_rates", "seeds", reason="has an effect only with --sweep")
        return (Setting(learning_rate=FLAGS.learning_rate, seed=FLAGS.seed),)
    rates = _numbers("learning_rates", float, at_most=1)
    seeds = _numbers("seeds", int, at_most=MAX_SEED)
    _require_absent(
        *("learning_rate", "seed"), reason="--sweep takes --learning_rates and --seeds instead"
    )
    return tuple(Setting(learning_rate=rate, seed=seed) for rate in rates for seed in seeds)


def _require_absent(*names: str, reason: str) -> None:
    for name in names:
        if FLAGS[name].present:
            raise ValueError(f"{FLAGS[name].serialize()}: {reason}; leave the flag out")


def _numbers(flag: str, kind: type, *, at_most: float) -> list:
    """The numbers in a list; raises ValueError if one is none, out of range or stands twice."""
    given = FLAGS[flag].value or []
    try:
        found = [kind(value) for value in given]
    except ValueError:
        found = []
    lowest = 0 if kind is int else 1e-12
    names = {f"{number:g}" if kind is float else str(number) for number in found}  # of folders
    if not found or len(names) < len(found) or not all(lowest <= n <= at_most for n in found):
        raise ValueError(
            f"--{flag}={','.join(given)}: give different numbers from {lowest:g} to {at_most:g}, "
            "with commas between them"
        )
    return found


def _config() -> FinetuningConfig:
    names = FinetuningConfig.__dataclass_fields__
    given: dict[str, Any] = {name: FLAGS[name].value for name in names if name in FLAGS}
    if FLAGS.task not in tasks.SQUAD:
        _require_absent("doc_stride", "max_query_length", reason="has an effect only on SQuAD")
    if FLAGS.max_seq_length is None:
        given["max_seq_length"] = tasks.usual_max_seq_length(FLAGS.task)
    if not FLAGS["do_lower_case"].present:
        given["do_lower_case"] = None
    device = DeviceConfig(num_gpus=FLAGS.num_gpus)
    return FinetuningConfig(**given, settings=_settings(), device=device)


def main():
    """Fine-tunes, evaluates and predicts, as the flags say."""
    logging.set_verbosity(logging.ERROR)
    tf.get_logger().setLevel("ERROR")  # every run of a sweep traces its own step
    # SIGTERM acts as Ctrl-C until training handles it; process 1 of a container would ignore it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    advice = "lower --train_batch_size, --eval_batch_size or --max_seq_length"
    with command_line.tensorflow_explained(advice), command_line.resumable():
        _print(sweep.run(_config()))


def _print(results: sweep.Results) -> None:
    print(results.table())
    print(f"{FLAGS.output_dir}/{sweep.RESULTS_NAME}, {FLAGS.output_dir}/{sweep.PICTURE_NAME}")
    for path in results.prediction_files:
        print(path)
    print(results.line(), flush=True)


if __name__ == "__main__":
    command_line.run(main)
