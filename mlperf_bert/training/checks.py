"""Checks everything that can be checked before the clock starts, without reading data.

Reads names, sizes, manifests, the indexes of checkpoints, free disk space and devices. Each finding
is one line that says what, where and how to fix it.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import psutil
import tensorflow as tf

from mlperf_bert.checkpoints import initial, names, state
from mlperf_bert.checkpoints.reading import StoredCheckpoint
from mlperf_bert.data import vocabulary
from mlperf_bert.files import paths
from mlperf_bert.input import pipeline
from mlperf_bert.mlperf import caches, convergence, rules
from mlperf_bert.model import pretrainer
from mlperf_bert.model.config import BertConfig
from mlperf_bert.training import agreement, checks_of_data, devices, memory
from mlperf_bert.training.config import RunConfig
from mlperf_bert.training.devices import choose_compilation
from mlperf_bert.training.memory import checkpoint_bytes, num_weights
from mlperf_bert.training.origin import Origin
from mlperf_bert.training.output import OutputDirectory
from mlperf_bert.training.setup import ERROR, NOTE, WARNING, Inspection, Setup
from mlperf_bert.training.steps import Evaluator

_FLOAT_BYTES = 4
_MEMORY_LIMITS = (  # of a container, with cgroup version 2 and 1
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_INITIAL_ACCURACY_TOLERANCE = 0.001


def prepare(config: RunConfig, *, goes_on: bool, say: Callable[[object], None]) -> Setup:
    """Checks a run and prints all findings, also warnings.

    Raises:
      ValueError: with a line for every error, and how to fix it.
    """
    found = inspect(config, goes_on=goes_on)
    setup = found.setup()
    for finding in found.findings:
        say(finding)
    return setup


def inspect(config: RunConfig, *, goes_on: bool = False) -> Inspection:
    """Runs the checks that every run makes before its clock starts, in about a second.

    Args:
      config: of the run, whose output directory has been checked.
      goes_on: whether the run has a checkpoint of its own, so that it loads no initial one.
    """
    found = Inspection(config=config)
    found.bert_config = found.attempt(BertConfig.from_json_file, config.bert_config_file)
    expand = pipeline.expand_input
    found.files = found.attempt(expand, config.input_file, flag="input_file") or []
    if path := config.eval_input_file:
        found.eval_files = found.attempt(expand, path, flag="eval_input_file") or []
    found.strategy = found.attempt(devices.create_strategy, config.device, config.cluster)
    _check_batches(found)
    checks_of_data.check_data(found)
    _check_speed_options(found)
    if found.bert_config:
        found.attempt(
            require_fitting_model,
            found.bert_config,
            config.shape,
            bert_config_file=config.bert_config_file,
        )
        if config.init_checkpoint and not goes_on:
            _check_checkpoint(found, found.bert_config)
        _check_disk(found, found.bert_config)
        _check_memory(found, found.bert_config)
        shortfall = memory.shortfall(found, found.bert_config, host_bytes=memory_bytes())
        found.findings += [shortfall] if shortfall else []
        if _is_bert_large(found.bert_config):
            _check_reference_points(found)
    if config.drop_caches and (obstacle := caches.obstacle()):
        found.add(WARNING, f"--drop_caches: the log will say that it was not possible; {obstacle}")
    return found


def inspect_closely(config: RunConfig, *, measure_initial_accuracy: bool) -> Inspection:
    """For --check, where no clock starts: also reads data, and reports what is active.

    Args:
      measure_initial_accuracy: evaluate the initial checkpoint, which takes as long as an
        evaluation does.

    Raises:
      ValueError: this is one of several processes, which would wait for the others.
    """
    if config.cluster:
        raise ValueError("--check runs in one process: unset TF_CONFIG, or start it without srun")
    found = _inspect_with_output(config)
    if found.eval_files:
        checks_of_data.count_evaluation_examples(found)
    if found.bert_config:
        checks_of_data.check_first_records(found)
        for issue in departures(found):
            found.add(WARNING, f"not a submission to the closed division: {issue}")
        found.add(NOTE, _way_of_saving(config, found.bert_config))
        if _is_bert_large(found.bert_config):
            _compare_with_reference_point(found)
    if not config.drop_caches:
        way = caches.obstacle() or "add --drop_caches to empty them"
        found.add(NOTE, f"the log will not say that the file caches were emptied; {way}")
    found.add(NOTE, _active_devices(found))
    found.add(NOTE, f"energy: {config.energy_meter().plan}")
    if measure_initial_accuracy and not found.errors:
        found.attempt(_measure_initial_accuracy, found)
    return found


def _inspect_with_output(config: RunConfig) -> Inspection:
    """Also checks the directory, and reads the weights with which the run would begin there."""
    output = OutputDirectory(config.output_dir, config.parameters(), may_change=config.may_change)
    output.time_budget = config.time_budget
    obstacle, latest_step = None, None
    try:
        output.require_available()
        latest_step = state.latest_step(config.output_dir) if output.resumes else None
        agreement.require_known_course(config, output, latest_step=latest_step)
    except (ValueError, OSError) as error:
        obstacle = str(error)
    goes_on = latest_step is not None
    found = inspect(config, goes_on=goes_on)
    if obstacle:
        found.add(ERROR, obstacle)
    _check_weights(found, latest_step)
    if not found.errors or (output.resumes and not obstacle):
        found.attempt(Origin, found, output, goes_on=goes_on)
    return found


def departures(found: Inspection | Setup) -> list[rules.Issue]:
    """Every way in which a run departs from the closed division's rules."""
    assert found.bert_config is not None  # a model that is not there has no departures
    of_data = checks_of_data.departures_of_data(found.files, found.manifests)
    return found.config.departures(found.bert_config) + of_data


def require_fitting_model(
    bert_config: BertConfig, shape: pipeline.ExampleShape, *, bert_config_file: str
) -> None:
    """Checks the model against the examples' length and the vocab.txt in its folder.

    Raises:
      ValueError: they do not fit.
    """
    if shape.max_seq_length > bert_config.max_position_embeddings:
        raise ValueError(
            f"--max_seq_length={shape.max_seq_length} is more than the model's "
            f"max_position_embeddings={bert_config.max_position_embeddings}"
        )
    beside = paths.location(bert_config_file).with_name(vocabulary.NAME)
    if paths.is_file(beside):
        vocabulary.read_fitting(str(beside), bert_config.vocab_size, of=bert_config_file)


def _check_batches(found: Inspection) -> None:
    if found.strategy:
        replicas = found.strategy.num_replicas_in_sync
        for flag in ("train_batch_size", "eval_batch_size"):
            size = getattr(found.config, flag)
            found.attempt(devices.replica_batch_size, size, replicas, flag=flag)


def _check_checkpoint(found: Inspection, bert_config: BertConfig) -> None:
    """Checks the weights' names and shapes, the number of layers, and the data files' size."""
    prefix = found.config.init_checkpoint
    stored = found.attempt(StoredCheckpoint, prefix)
    if stored is None:
        return
    found.attempt(initial.refuse_output_of_a_run, stored)
    _require_fitting(found, stored, bert_config)
    listed_bytes = sum(math.prod(shape) for shape in stored.shapes.values()) * _FLOAT_BYTES
    data_files = tf.io.gfile.glob(f"{prefix}.data-*")
    stored_bytes = sum(tf.io.gfile.stat(path).length for path in data_files)
    # A loose bound: not all numbers have four bytes (steps have eight). A cut file is far shorter.
    if stored_bytes < 0.9 * listed_bytes:
        found.add(
            ERROR,
            f"{prefix}: its data files hold {stored_bytes:,} bytes, its index lists about "
            f"{listed_bytes:,}; copy it here again",
        )


def _require_fitting(
    found: Inspection, stored: StoredCheckpoint, bert_config: BertConfig
) -> dict[names.Weight, tuple[int, ...]]:
    """Compares a checkpoint with the model; returns the shapes of the model's weights."""
    num_layers = bert_config.num_hidden_layers
    shapes = {weight: weight.our_shape(bert_config) for weight in names.weights(num_layers)}
    found.attempt(initial.require_fitting, stored, shapes, num_hidden_layers=num_layers)
    return shapes


def _check_weights(found: Inspection, latest_step: int | None) -> None:
    """Reads the weights that the run would load: damage and NaN do not show in the index."""
    config, bert_config = found.config, found.bert_config
    if found.errors or not bert_config:
        return
    prefix = config.init_checkpoint
    if latest_step is not None:
        prefix = state.complete_checkpoints(config.output_dir)[latest_step]
    if not prefix or (stored := found.attempt(StoredCheckpoint, prefix)) is None:
        return
    shapes = _require_fitting(found, stored, bert_config)
    if not found.errors:
        for weight, shape in shapes.items():
            if found.attempt(stored.read, weight, shape) is None:
                break


def _check_disk(found: Inspection, bert_config: BertConfig) -> None:
    config = found.config
    each = checkpoint_bytes(bert_config, steps_per_update=config.steps_per_update)
    num_all = -(-config.num_train_steps // config.save_checkpoints_steps)
    num_all += config.eval_input_file is None  # that of step 0
    kept = min(config.keep_checkpoint_max or num_all, num_all)
    needed = (kept + 1) * each  # a new one is written before the oldest is removed
    saved = Path(config.output_dir).glob("model.ckpt-*")
    needed -= sum(file.stat().st_size for file in saved)  # when resuming
    free = paths.free_bytes(paths.location(config.output_dir))
    if free < needed:
        # A time budget may end the run long before so many are written.
        may_end_before = config.time_budget is not None and not config.keep_checkpoint_max
        found.add(
            WARNING if may_end_before else ERROR,
            f"--output_dir={config.output_dir}: {_size(free)} are free, {kept + 1} "
            f"checkpoints need {_size(needed)}; free some, or lower --keep_checkpoint_max",
        )
    elif not config.eval_input_file and free < needed + (num_all - kept - 1) * each:
        found.add(
            WARNING,
            f"--output_dir={config.output_dir}: {_size(free)} are free, all {num_all} checkpoints "
            f"need {_size(num_all * each)}, and without --eval_input_file none is removed before "
            "it is evaluated; evaluate meanwhile (--do_eval), raise --save_checkpoints_steps, or "
            "free some",
        )


def _check_memory(found: Inspection, bert_config: BertConfig) -> None:
    """Warns if this host cannot hold a copy of the state too; activations are not counted."""
    config, gradients = found.config, num_weights(bert_config) * _FLOAT_BYTES
    if not config.saves_while_training:
        return
    copied = checkpoint_bytes(bert_config, steps_per_update=config.steps_per_update)
    on_device = config.device.num_gpus or config.device.use_tpu
    needed = copied if on_device else 2 * copied + gradients
    available = memory_bytes()
    if available < needed:
        of_run = "" if on_device else f" and {_size(copied + gradients)} for the training"
        found.add(
            WARNING,
            f"asynchronous checkpoints: {_size(copied)} of memory for a copy of weights and slots"
            f"{of_run}, but {_size(available)} are available; give --noasync_checkpoint",
        )


def memory_bytes() -> int:
    """Memory that this process may take: what the host has left, or a container's limit."""
    available = psutil.virtual_memory().available
    for limit in _MEMORY_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            available = min(available, int(limit.read_text()))
    return available


def _way_of_saving(config: RunConfig, bert_config: BertConfig) -> str:
    size = _size(checkpoint_bytes(bert_config, steps_per_update=config.steps_per_update))
    if config.saves_while_training:
        return f"asynchronous checkpoints: {size} of memory for a copy of weights and slots"
    return f"the training waits for each checkpoint, {size} written; see --async_checkpoint"


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"


def _check_reference_points(found: Inspection) -> None:
    batch_size = found.config.global_batch_size
    bound = convergence.bound_of(batch_size)
    if bound.kind == "point":
        return
    if batch_size in convergence.reference_points():
        advice = "the reference has a point here, but the checker drops it"
    else:
        advice = "configs/ has a preset for each batch size with a reference point"
    found.add(WARNING, f"global batch size {batch_size}: {bound}; {advice}")


def _compare_with_reference_point(found: Inspection) -> None:
    """Notes free hyper-parameters that differ from the reference's, which is allowed."""
    config, optimizer = found.config, found.config.optimizer
    point = convergence.reference_points().get(config.global_batch_size)
    if point is None:
        return
    ours = {
        "opt_base_learning_rate": config.learning_rate,
        "opt_learning_rate_training_steps": config.num_train_steps / config.steps_per_update,
        "num_warmup_steps": config.num_warmup_steps / config.steps_per_update,
        "start_warmup_step": config.start_warmup_step / config.steps_per_update,
        "opt_epsilon": optimizer.epsilon,
        "opt_lamb_beta_1": optimizer.beta_1,
        "opt_lamb_beta_2": optimizer.beta_2,
        "opt_lamb_weight_decay_rate": optimizer.weight_decay_rate,
    }
    differing = [
        f"{name} {point.hyperparameters[name]} (here {value:g})"
        for name, value in ours.items()
        if not math.isclose(value, point.hyperparameters[name], rel_tol=1e-6)
    ]
    if differing:
        found.add(
            NOTE,
            f"global batch size {config.global_batch_size}: its reference point was made with "
            f"{', '.join(differing)}; others are allowed, configs/ has the reference's",
        )


def _is_bert_large(bert_config: BertConfig) -> bool:
    """Only this model has reference points."""
    model = dataclasses.asdict(bert_config)
    return all(model.get(name) == value for name, value in rules.BERT_LARGE.items())


def _check_speed_options(found: Inspection) -> None:
    config = found.config
    gpus = tf.config.list_physical_devices("GPU")
    if config.precision == "tf32" and not (config.device.num_gpus and gpus):
        found.add(
            WARNING, "--precision=tf32 makes a difference on NVIDIA GPUs only: see --num_gpus"
        )
    if config.pack_sequences and config.device.use_tpu:
        found.add(
            ERROR, "--pack_sequences makes batches of several shapes, a TPU needs one; leave it out"
        )


def _active_devices(found: Inspection) -> str:
    """What TensorFlow will use: replicas, devices, precision, XLA."""
    config, devices = found.config, found.strategy
    kinds = sorted({device.device_type for device in tf.config.list_logical_devices()})
    replicas = devices.num_replicas_in_sync if devices else 0
    compiled = f"--jit_compile={config.jit_compile}"
    if devices:
        chosen = choose_compilation(
            config.jit_compile,
            strategy=devices,
            packs_sequences=config.pack_sequences,
            tf_xla_flags=config.tf_xla_flags,
        )
        compiled = str(chosen)
    return (
        f"active: replicas: {replicas}, on {', '.join(kinds)}; "
        f"computing in {config.precision}, weights in float32; {compiled}"
    )


def _measure_initial_accuracy(found: Inspection) -> None:
    config = found.config
    if not (config.init_checkpoint and found.eval_files):
        raise ValueError("the initial accuracy needs --init_checkpoint and --eval_input_file")
    setup = found.setup()
    with setup.strategy.scope():
        model = pretrainer.build_pretrainer(setup.bert_config, seed=0)
    initial.load_initial_weights(
        pretrainer.trained_variables(model),
        config.init_checkpoint,
        num_hidden_layers=setup.bert_config.num_hidden_layers,
    )
    evaluator = Evaluator(model=model, strategy=setup.strategy)
    with pipeline.bad_input_named(setup.eval_files, setup.limits):
        accuracy = evaluator.evaluate(setup.evaluation_batches()).masked_lm_accuracy
    expected = rules.INITIAL_MASKED_LM_ACCURACY
    level = NOTE if abs(accuracy - expected) <= _INITIAL_ACCURACY_TOLERANCE else WARNING
    found.add(
        level,
        f"the initial checkpoint has masked-LM accuracy {accuracy:.5f}; the official one on the "
        f"official evaluation examples has {expected}",
    )
