"""Trains BERT until masked-LM accuracy 0.720, or evaluates the checkpoints of a run.

Exit codes: 0 the run went to its end (the RESULT line says whether the target was reached),
1 bad input or a failure, 75 run the same command again to resume: interrupted by SIGTERM or SIGINT,
with the checkpoint saved if training had begun, or a bucket or device does not answer.
"""

from mlperf_bert import signals

if __name__ == "__main__":
    signals.ends_at_once()  # first: the imports take seconds

import contextlib
import dataclasses
import gc
import os
import re
import signal
import sys
from collections.abc import Iterator

from mlperf_bert.tensorflow_import import tensorflow

gc.disable()  # What is imported is not garbage: looking for some takes a quarter of the time.
tensorflow()  # before other modules import it

import tensorflow as tf
from absl import flags, logging

from mlperf_bert import command_line
from mlperf_bert.command_line import MAX_SEED, in_range, not_empty
from mlperf_bert.files import paths
from mlperf_bert.input.pipeline import NUM_PARALLEL_FILES, ExampleShape
from mlperf_bert.mlperf import budget, rules
from mlperf_bert.mlperf.log import SubmissionInfo
from mlperf_bert.model.config import RECOMPUTE_CHOICES
from mlperf_bert.optimization.config import ADAMW, OptimizerConfig
from mlperf_bert.training import checks, offline, run
from mlperf_bert.training.cluster import read_cluster
from mlperf_bert.training.config import DeviceConfig, ProfileWindow, RunConfig
from mlperf_bert.training.devices import compilation_cache_flags

gc.enable()

FLAGS = flags.FLAGS

# Input and output, on local disks or in a bucket (gs://BUCKET/FOLDER)
flags.DEFINE_string("bert_config_file", None, "The model: a bert_config.json.", required=True)
flags.DEFINE_string(
    "input_file", None, "TFRecords to train on; globs and commas are allowed.", required=True
)
flags.DEFINE_string("output_dir", None, "Checkpoints, logs and metrics go here.", required=True)
flags.DEFINE_string("init_checkpoint", None, "Weights to start from; random if not given.")
flags.DEFINE_string("eval_input_file", None, "TFRecords to evaluate on; turns on evaluation.")
flags.DEFINE_integer("max_seq_length", 128, "Tokens per example, as in the TFRecords.")
flags.DEFINE_integer(
    "max_predictions_per_seq", 20, "Masked tokens per example, as in the TFRecords."
)
flags.DEFINE_bool(
    "shuffle", True, "Shuffle the examples; --noshuffle reads the sorted files in order."
)
flags.DEFINE_bool(
    "deterministic",
    True,
    "The seed fixes the order of examples; --nodeterministic reads faster from slow storage.",
)
flags.DEFINE_integer(
    "num_parallel_files",
    NUM_PARALLEL_FILES,
    "Training files that are read at once; the order of the examples depends on it.",
)
not_empty("bert_config_file", "input_file", "output_dir", "init_checkpoint")
command_line.paths("bert_config_file", "input_file", "output_dir", "init_checkpoint")
command_line.paths("eval_input_file")
command_line.no_wildcards("output_dir", "init_checkpoint")
in_range("max_seq_length", "max_predictions_per_seq", "num_parallel_files", at_least=1)

# What to do
flags.DEFINE_bool("do_train", False, "Train.")
flags.DEFINE_bool(
    "do_eval",
    False,
    "Without --do_train: evaluate the checkpoints of a run; without a run, --init_checkpoint.",
)
flags.DEFINE_integer("train_batch_size", 32, "Examples per step (micro-batch), over all replicas.")
flags.DEFINE_integer("eval_batch_size", 8, "Examples per evaluation step, over all replicas.")
flags.DEFINE_integer(
    "num_train_steps",
    100000,
    "Steps until the learning rate has decayed to 0; the run ends there at the latest.",
)
flags.DEFINE_string(
    "time_budget",
    None,
    "The run ends at the first update after this time from run_start: 90s, 45m, 24h, 1h30m.",
)
flags.DEFINE_bool(
    "decay_over_budget",
    False,
    "The learning rate decays over --time_budget, in place of --num_train_steps.",
)
flags.DEFINE_integer("max_eval_steps", None, "Evaluation steps; all examples if not given.")
flags.DEFINE_float(
    "target_accuracy", rules.TARGET_MASKED_LM_ACCURACY, "Stop at this masked-LM accuracy."
)
flags.DEFINE_integer(
    "eval_interval_samples",
    None,
    "Samples between evaluations; if not given, what the rules require.",
)
flags.DEFINE_integer("seed", None, "Seed of weights, dropout and order; random if not given.")
in_range("train_batch_size", "eval_batch_size", "num_train_steps", "max_eval_steps", at_least=1)
flags.DEFINE_float(
    "emulate_step_seconds",
    None,
    "Sleep instead of computing a step, to measure input and checkpoints; that is not a result.",
)
in_range("eval_interval_samples", at_least=1)
in_range("emulate_step_seconds", at_least=0)
in_range("target_accuracy", above=0, at_most=1)
in_range("seed", at_least=0, at_most=MAX_SEED)

flags.DEFINE_bool("check", False, "Check the input, report all problems at once, and do not train.")
flags.DEFINE_bool(
    "check_initial_accuracy", False, "With --check: also evaluate the initial checkpoint."
)
flags.DEFINE_bool(
    "drop_caches", False, "Empty the file caches of the system before the run; needs root."
)

# Optimizer
flags.DEFINE_enum("optimizer", "adamw", ["adamw", "lamb"], "The optimizer.")
flags.DEFINE_float("learning_rate", 5e-5, "Peak learning rate.")
flags.DEFINE_float("poly_power", 1.0, "Power of the polynomial decay of the learning rate.")
flags.DEFINE_integer(
    "num_warmup_steps", 10000, "Steps of linear warm-up of the learning rate; 0 = none."
)
flags.DEFINE_integer("start_warmup_step", 0, "Step at which the warm-up starts; 0 or negative.")
flags.DEFINE_float("lamb_weight_decay_rate", 0.01, "Weight decay of LAMB.")
flags.DEFINE_float("lamb_beta_1", 0.9, "Decay of the first moment in LAMB.")
flags.DEFINE_float("lamb_beta_2", 0.999, "Decay of the second moment in LAMB.")
flags.DEFINE_float("log_epsilon", -6, "Base-10 logarithm of the epsilon of LAMB.")
flags.DEFINE_integer(
    "steps_per_update", 1, "Aggregate the gradients of this many steps for one update."
)
flags.DEFINE_bool(
    "clip_by_global_norm_after_gradient_allreduce",
    False,
    "Clip the aggregated gradient once per update, not the gradient of each step.",
)
flags.DEFINE_enum(
    "normalization",
    "global",
    ["global", "replica_sum", "replica_mean"],
    "What losses and clipping are computed over: the global batch, or each replica by itself, "
    "whose gradients are then summed (the reference on GPUs) or averaged (on TPUs).",
)
in_range("learning_rate", above=0)
in_range("poly_power", "num_warmup_steps", "lamb_weight_decay_rate", at_least=0)
in_range("start_warmup_step", at_most=0)  # else the rate would be negative in the steps before it
in_range("lamb_beta_1", "lamb_beta_2", at_least=0, below=1)
in_range("log_epsilon", at_least=-37, at_most=0)  # of float32
in_range("steps_per_update", at_least=1)

# Speed
flags.DEFINE_enum(
    "precision",
    "float32",
    ["float32", "bfloat16", "tf32"],
    "Precision of matrix products; weights stay float32.",
)
flags.DEFINE_enum(
    "jit_compile",
    "false",
    ["auto", "true", "false"],
    "Compile with XLA; auto compiles what is faster on the device.",
)
flags.DEFINE_string(
    "compilation_cache_dir",
    None,
    "Local folder that keeps what XLA compiled, so that later starts are faster.",
)
not_empty("compilation_cache_dir")
command_line.paths("compilation_cache_dir")
flags.DEFINE_bool("pack_sequences", False, "Pack several short examples into one row.")
flags.DEFINE_enum(
    "recompute",
    "none",
    RECOMPUTE_CHOICES,
    "Compute activations again in the backward pass, of attention or of whole blocks: needs less "
    "memory, takes longer.",
)

# Saving and reporting
flags.DEFINE_integer("save_checkpoints_steps", 1000, "Steps between checkpoints.")
flags.DEFINE_bool(
    "async_checkpoint",
    None,
    "Train on while a thread writes the checkpoint; needs memory for a copy of weights and slots. "
    "If not given: on, but for TPUs.",
)
flags.DEFINE_integer("keep_checkpoint_max", 5, "Checkpoints to keep; 0 = all.")
flags.DEFINE_integer("iterations_per_loop", 1000, "At most this many steps in one device call.")
flags.DEFINE_integer("log_every_steps", 10, "Steps between lines of metrics.jsonl.")
flags.DEFINE_string(
    "profile_steps", None, "First-last: TensorFlow's profiler runs during these steps."
)
flags.DEFINE_float(
    "power_watts", None, "Power of the whole system, for its energy; measured if not given."
)
flags.DEFINE_string("submission_org", "unnamed", "Organisation in the MLPerf log.")
flags.DEFINE_string("submission_platform", "unnamed", "System in the MLPerf log.")
flags.DEFINE_string("submission_status", "onprem", "onprem, cloud, preview or research.")
in_range("save_checkpoints_steps", "iterations_per_loop", "log_every_steps", at_least=1)
in_range("keep_checkpoint_max", at_least=0)
in_range("power_watts", above=0)

# Devices
flags.DEFINE_integer("num_gpus", 0, "GPUs of this host; 0 = CPU.")
flags.DEFINE_bool("use_tpu", False, "Use a TPU.")
flags.DEFINE_string("tpu_name", None, "Name or grpc:// address of the TPU.")
flags.DEFINE_string("tpu_zone", None, "Zone of the TPU.")
flags.DEFINE_string("gcp_project", None, "Project of the TPU.")
flags.DEFINE_string("master", None, "Accepted for the reference's command lines; without effect.")
flags.DEFINE_integer("num_tpu_cores", 8, "Cores of the TPU.")
in_range("num_gpus", at_least=0)
in_range("num_tpu_cores", at_least=1)


def _flags_of(configuration: type) -> dict:
    """The values of the flags that are fields of a dataclass."""
    names = (field.name for field in dataclasses.fields(configuration))
    return {name: FLAGS[name].value for name in names if name in FLAGS}


def _optimizer() -> OptimizerConfig:
    if FLAGS.optimizer == "adamw":
        return ADAMW
    return OptimizerConfig(
        weight_decay_rate=FLAGS.lamb_weight_decay_rate,
        beta_1=FLAGS.lamb_beta_1,
        beta_2=FLAGS.lamb_beta_2,
        epsilon=10**FLAGS.log_epsilon,
    )


def _time_budget() -> float | None:
    return None if FLAGS.time_budget is None else budget.parse(FLAGS.time_budget)


def run_config() -> RunConfig:
    """The run that the flags describe."""
    given = _flags_of(RunConfig) | {
        "shape": ExampleShape(**_flags_of(ExampleShape)),
        "optimizer": _optimizer(),
        "device": DeviceConfig(**_flags_of(DeviceConfig)),
        "cluster": read_cluster(),
        "tf_xla_flags": os.environ.get("TF_XLA_FLAGS", ""),
        "tpu_type": os.environ.get("TPU_ACCELERATOR_TYPE", ""),
        "profile_steps": (
            ProfileWindow.parse(FLAGS.profile_steps) if FLAGS.profile_steps else None
        ),
        "time_budget": _time_budget(),
        "submission": SubmissionInfo(
            org=FLAGS.submission_org,
            platform=FLAGS.submission_platform,
            status=FLAGS.submission_status,
        ),
    }
    return RunConfig(**given)


def _offline_config() -> offline.OfflineConfig:
    _time_budget()  # without effect, and refused if it is bad
    given = _flags_of(offline.OfflineConfig) | {
        "input_file": FLAGS.eval_input_file or FLAGS.input_file,
        "shape": ExampleShape(**_flags_of(ExampleShape)),
        "device": DeviceConfig(**_flags_of(DeviceConfig)),
        "cluster": read_cluster(),
    }
    return offline.OfflineConfig(**given)


def _check() -> None:
    found = checks.inspect_closely(
        run_config(), measure_initial_accuracy=FLAGS.check_initial_accuracy
    )
    print(*found.findings, sep="\n")
    print(f"errors: {len(found.errors)}; no training was started")
    if found.errors:
        sys.exit(1)


def _train() -> None:
    if result := run.train(run_config()):  # only the chief has one
        print(result.line(), flush=True)


def _use_compilation_cache() -> None:
    """TensorFlow reads the variable once, when it first looks for devices."""
    if FLAGS.compilation_cache_dir:
        cache = compilation_cache_flags(FLAGS.compilation_cache_dir)
        os.environ["TF_XLA_FLAGS"] = f"{os.environ.get('TF_XLA_FLAGS', '')} {cache}".strip()


def main():
    """Checks, trains or evaluates, as the flags say."""
    logging.set_verbosity(logging.ERROR)
    # SIGTERM acts as Ctrl-C until training handles it; process 1 of a container would ignore it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with failures_explained(), command_line.resumable():
        if FLAGS.check:
            _check()
        elif FLAGS.do_train:
            _train()
        elif FLAGS.do_eval:
            print(offline.evaluate(_offline_config()))
        else:
            raise ValueError("nothing to do: give --do_train or --do_eval")


@contextlib.contextmanager
def failures_explained() -> Iterator[None]:
    """TensorFlow's failures become ValueErrors; what may pass has its own exit code."""
    try:
        yield
    except paths.StoreUnavailable as error:
        command_line.end_for_now(str(error))
    except FloatingPointError as error:
        raise ValueError(str(error)) from error
    except tf.errors.ResourceExhaustedError as error:
        raise ValueError(
            f"out of memory ({_first_line(error)}); lower --train_batch_size (and raise "
            "--steps_per_update to keep the updates), give --recompute=blocks, or lower "
            "--eval_batch_size"
        ) from error
    except tf.errors.UnavailableError as error:  # a device is gone, such as the host of a TPU
        command_line.end_for_now(
            f"TensorFlow failed: {_first_line(error)}; repeat the command later"
        )
    except tf.errors.OpError as error:
        if not paths.is_answer_of_a_store(error):
            raise ValueError(f"TensorFlow failed: {_first_line(error)}") from error
        if paths.kind_of(error) is paths.StoreUnavailable:
            command_line.end_for_now(paths.reason(error))
        raise ValueError(paths.reason(error)) from error


def _first_line(error: tf.errors.OpError) -> str:
    """The reason without the names of TensorFlow's own operations."""
    return re.sub(r"\{\{.*?\}\}\s*", "", error.message.splitlines()[0]).split(" [Op:")[0]


if __name__ == "__main__":
    command_line.run(main, prepare=_use_compilation_cache)
