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
from mlperf_bert.data import manifest, tfrecord, validity, vocabulary
from mlperf_bert.files import paths
from mlperf_bert.input import pipeline
from mlperf_bert.mlperf import caches, convergence, ledger, rules
from mlperf_bert.mlperf.log import MlperfLog
from mlperf_bert.mlperf.timed_run import Run
from mlperf_bert.model import pretrainer
from mlperf_bert.model.config import BertConfig
from mlperf_bert.training import build, devices, memory, workers
from mlperf_bert.training.config import ERROR, NOTE, WARNING, Findings, RunConfig, Setup
from mlperf_bert.training.devices import choose_compilation
from mlperf_bert.training.memory import checkpoint_bytes, num_weights
from mlperf_bert.training.output import Origin, OutputDirectory
from mlperf_bert.training.steps import Evaluator

_FLOAT_BYTES = 4
_MEMORY_LIMITS = (  # of a container, with cgroup version 2 and 1
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_INITIAL_ACCURACY_TOLERANCE = 0.001


def prepare(
    config: RunConfig,
    *,
    goes_on: bool,
    say: Callable[[object], None],
    strategy: tf.distribute.Strategy | None = None,
) -> Setup:
    """Checks a run and prints all findings, also warnings; arguments as of `inspect`.

    Raises:
      ValueError: with a line for every error, and how to fix it.
    """
    setup = inspect(config, goes_on=goes_on, strategy=strategy)
    setup.findings.require_none()
    for finding in setup.findings:
        say(finding)
    return setup


def inspect(
    config: RunConfig, *, goes_on: bool = False, strategy: tf.distribute.Strategy | None = None
) -> Setup:
    """Runs the checks that every run makes before its clock starts, in about a second.

    Args:
      config: of the run, whose output directory has been checked.
      goes_on: whether the run has a checkpoint of its own, so that it loads no initial one.
      strategy: of the processes that are connected; None: of this one.
    """
    # Every check runs, whatever another has found: a user fixes all problems at once.
    findings = Findings()
    bert_config = findings.attempt(BertConfig.from_json_file, config.bert_config_file)
    expand = pipeline.expand_input
    files = findings.attempt(expand, config.input_file, flag="input_file") or []
    eval_files: list[str] = []
    if path := config.eval_input_file:
        eval_files = findings.attempt(expand, path, flag="eval_input_file") or []
    setup = Setup(
        config=config,
        findings=findings,
        bert_config=bert_config,
        strategy=strategy or findings.attempt(devices.create_strategy, config.device),
        files=files,
        eval_files=eval_files,
        manifests=_manifests(files, findings),
    )
    _check_batches(setup)
    check_data(setup)
    _check_speed_options(setup)
    if setup.bert_config:
        findings.attempt(
            require_fitting_model,
            setup.bert_config,
            config.shape,
            bert_config_file=config.bert_config_file,
        )
        if config.init_checkpoint and not goes_on:
            _check_checkpoint(setup)
        _check_disk(setup)
        _check_memory(setup)
        if shortfall := memory.shortfall(setup, host_bytes=memory_bytes()):
            findings.append(shortfall)
        if _is_bert_large(setup.bert_config):
            _check_reference_points(setup)
    if config.drop_caches and (obstacle := caches.obstacle()):
        findings.add(
            WARNING, f"--drop_caches: the log will say that it was not possible; {obstacle}"
        )
    return setup


def inspect_closely(config: RunConfig, *, measure_initial_accuracy: bool) -> Setup:
    """For --check, where no clock starts: also reads data, and reports what is active.

    Args:
      measure_initial_accuracy: evaluate the initial checkpoint, which takes as long as an
        evaluation does.

    Raises:
      ValueError: this is one of several processes, which would wait for the others.
    """
    if config.cluster:
        raise ValueError("--check runs in one process: unset TF_CONFIG, or start it without srun")
    setup = _inspect_with_output(config)
    if setup.eval_files:
        count_evaluation_examples(setup)
    if setup.bert_config:
        check_first_records(setup)
        for issue in departures(setup):
            setup.findings.add(WARNING, f"not a submission to the closed division: {issue}")
        setup.findings.add(NOTE, _way_of_saving(config, setup.bert_config))
        if _is_bert_large(setup.bert_config):
            _compare_with_reference_point(setup)
    if not config.drop_caches:
        way = caches.obstacle() or "add --drop_caches to empty them"
        setup.findings.add(NOTE, f"the log will not say that the file caches were emptied; {way}")
    setup.findings.add(NOTE, _active_devices(setup))
    setup.findings.add(NOTE, f"energy: {config.energy_meter().plan}")
    if measure_initial_accuracy and not setup.findings.errors:
        setup.findings.attempt(_measure_initial_accuracy, setup)
    return setup


def _inspect_with_output(config: RunConfig) -> Setup:
    """Also checks the directory, and reads the weights with which the run would begin there."""
    output = OutputDirectory.of(config)
    obstacle, latest_step = None, None
    try:
        output.require_available()
        latest_step = state.latest_step(config.output_dir) if output.resumes else None
        workers.require_known_course(config, output, latest_step=latest_step)
    except (ValueError, OSError) as error:
        obstacle = str(error)
    goes_on = latest_step is not None
    setup = inspect(config, goes_on=goes_on)
    if obstacle:
        setup.findings.add(ERROR, obstacle)
    _check_weights(setup, latest_step)
    # For a run that resumes also beside other errors: it says which file is not the same.
    if not setup.findings.errors or (output.resumes and not obstacle):
        setup.findings.attempt(Origin, setup, output, goes_on=goes_on)
    return setup


def departures(setup: Setup) -> list[rules.Issue]:
    """Every way in which a run departs from the closed division's rules."""
    of_data = departures_of_data(setup.files, setup.manifests)
    return setup.config.departures(setup.bert_config) + of_data


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


def _check_batches(setup: Setup) -> None:
    if setup.strategy:
        replicas = setup.strategy.num_replicas_in_sync
        for flag in ("train_batch_size", "eval_batch_size"):
            size = getattr(setup.config, flag)
            setup.findings.attempt(devices.replica_batch_size, size, replicas, flag=flag)


def _check_checkpoint(setup: Setup) -> None:
    """Checks the weights' names and shapes, the number of layers, and the data files' size."""
    prefix = setup.config.init_checkpoint
    stored = setup.findings.attempt(StoredCheckpoint, prefix)
    if stored is None:
        return
    setup.findings.attempt(initial.refuse_output_of_a_run, stored)
    _require_fitting(setup, stored)
    listed_bytes = sum(math.prod(shape) for shape in stored.shapes.values()) * _FLOAT_BYTES
    data_files = tf.io.gfile.glob(f"{prefix}.data-*")
    stored_bytes = sum(tf.io.gfile.stat(path).length for path in data_files)
    # A loose bound: not all numbers have four bytes (steps have eight). A cut file is far shorter.
    if stored_bytes < 0.9 * listed_bytes:
        setup.findings.add(
            ERROR,
            f"{prefix}: its data files hold {stored_bytes:,} bytes, its index lists about "
            f"{listed_bytes:,}; copy it here again",
        )


def _require_fitting(setup: Setup, stored: StoredCheckpoint) -> dict[names.Weight, tuple[int, ...]]:
    """Compares a checkpoint with the model; returns the shapes of the model's weights."""
    num_layers = setup.bert_config.num_hidden_layers
    shapes = {weight: weight.our_shape(setup.bert_config) for weight in names.weights(num_layers)}
    setup.findings.attempt(initial.require_fitting, stored, shapes, num_hidden_layers=num_layers)
    return shapes


def _check_weights(setup: Setup, latest_step: int | None) -> None:
    """Reads the weights that the run would load: damage and NaN do not show in the index."""
    config = setup.config
    if setup.findings.errors:
        return
    prefix = config.init_checkpoint
    if latest_step is not None:
        prefix = state.complete_checkpoints(config.output_dir)[latest_step]
    if not prefix or (stored := setup.findings.attempt(StoredCheckpoint, prefix)) is None:
        return
    shapes = _require_fitting(setup, stored)
    if not setup.findings.errors:
        for weight, shape in shapes.items():
            if setup.findings.attempt(stored.read, weight, shape) is None:
                break


def _check_disk(setup: Setup) -> None:
    config = setup.config
    each = checkpoint_bytes(setup.bert_config, steps_per_update=config.steps_per_update)
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
        setup.findings.add(
            WARNING if may_end_before else ERROR,
            f"--output_dir={config.output_dir}: {_size(free)} are free, {kept + 1} "
            f"checkpoints need {_size(needed)}; free some, or lower --keep_checkpoint_max",
        )
    elif not config.eval_input_file and free < needed + (num_all - kept - 1) * each:
        setup.findings.add(
            WARNING,
            f"--output_dir={config.output_dir}: {_size(free)} are free, all {num_all} checkpoints "
            f"need {_size(num_all * each)}, and without --eval_input_file none is removed before "
            "it is evaluated; evaluate meanwhile (--do_eval), raise --save_checkpoints_steps, or "
            "free some",
        )


def _check_memory(setup: Setup) -> None:
    """Warns if this host cannot hold a copy of the state too; activations are not counted."""
    config, gradients = setup.config, num_weights(setup.bert_config) * _FLOAT_BYTES
    if not config.saves_while_training:
        return
    copied = checkpoint_bytes(setup.bert_config, steps_per_update=config.steps_per_update)
    on_device = config.device.num_gpus or config.device.use_tpu
    needed = copied if on_device else 2 * copied + gradients
    available = memory_bytes()
    if available < needed:
        of_run = "" if on_device else f" and {_size(copied + gradients)} for the training"
        setup.findings.add(
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


def _check_reference_points(setup: Setup) -> None:
    batch_size = setup.config.global_batch_size
    bound = convergence.bound_of(batch_size)
    if bound.kind == "point":
        return
    if batch_size in convergence.reference_points():
        advice = "the reference has a point here, but the checker drops it"
    else:
        advice = "configs/ has a preset for each batch size with a reference point"
    setup.findings.add(WARNING, f"global batch size {batch_size}: {bound}; {advice}")


def _compare_with_reference_point(setup: Setup) -> None:
    """Notes free hyper-parameters that differ from the reference's, which is allowed."""
    config, optimizer = setup.config, setup.config.optimizer
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
        setup.findings.add(
            NOTE,
            f"global batch size {config.global_batch_size}: its reference point was made with "
            f"{', '.join(differing)}; others are allowed, configs/ has the reference's",
        )


def _is_bert_large(bert_config: BertConfig) -> bool:
    """Only this model has reference points."""
    model = dataclasses.asdict(bert_config)
    return all(model.get(name) == value for name, value in rules.BERT_LARGE.items())


def _check_speed_options(setup: Setup) -> None:
    config = setup.config
    gpus = tf.config.list_physical_devices("GPU")
    if config.precision == "tf32" and not (config.device.num_gpus and gpus):
        setup.findings.add(
            WARNING, "--precision=tf32 makes a difference on NVIDIA GPUs only: see --num_gpus"
        )
    if config.pack_sequences and config.device.use_tpu:
        setup.findings.add(
            ERROR, "--pack_sequences makes batches of several shapes, a TPU needs one; leave it out"
        )


def _active_devices(setup: Setup) -> str:
    """What TensorFlow will use: replicas, devices, precision, XLA."""
    config, devices = setup.config, setup.strategy
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


def _measure_initial_accuracy(setup: Setup) -> None:
    config = setup.config
    if not (config.init_checkpoint and setup.eval_files):
        raise ValueError("the initial accuracy needs --init_checkpoint and --eval_input_file")
    with setup.strategy.scope():
        model = pretrainer.build_pretrainer(setup.bert_config, seed=0)
    initial.load_initial_weights(
        pretrainer.trained_variables(model),
        config.init_checkpoint,
        num_hidden_layers=setup.bert_config.num_hidden_layers,
    )
    evaluator = Evaluator(model=model, strategy=setup.strategy)
    with pipeline.bad_input_named(setup.eval_files, setup.limits):
        accuracy = evaluator.evaluate(build.evaluation_batches(setup)).masked_lm_accuracy
    expected = rules.INITIAL_MASKED_LM_ACCURACY
    level = NOTE if abs(accuracy - expected) <= _INITIAL_ACCURACY_TOLERANCE else WARNING
    setup.findings.add(
        level,
        f"the initial checkpoint has masked-LM accuracy {accuracy:.5f}; the official one on the "
        f"official evaluation examples has {expected}",
    )


_OFFICIAL_DATA = {
    "random_seed": rules.DATA_SEED,
    "dupe_factor": rules.DUPE_FACTOR,
    "masked_lm_prob": rules.MASKED_LM_PROB,
}
"""Parameter of the data generation -> its value in the rules; config.py checks the lengths."""
_MOST_BAD_FILES = 5
"""So many files whose first record is bad are named; the cause is often one for all."""


def _manifests(
    files: list[str], findings: Findings
) -> dict[paths.Location, manifest.Manifest | None]:
    """The manifest of each folder; a folder with a damaged one is left out."""
    loaded: dict[paths.Location, manifest.Manifest | None] = {}
    for folder in sorted({paths.location(path).parent for path in files}, key=str):
        try:
            loaded[folder] = manifest.load(folder)
        except (ValueError, OSError) as error:
            findings.add(ERROR, str(error))
    return loaded


def check_data(setup: Setup) -> None:
    """Compares files with the manifests in their folders, by name and size; reads no content."""
    for folder, made in setup.manifests.items():
        if made is None:
            setup.findings.add(
                WARNING,
                f"{folder}: no {manifest.NAME}, so it is unknown whether the data are complete; "
                "create_pretraining_data.py --output_dir=... writes one",
            )
        else:
            _check_parts(setup, folder, made)
            _check_parameters(setup, folder, made)
    _check_evaluation_size(setup)


def check_at_first_touch(
    run: Run, log: MlperfLog, setup: Setup, *, say: Callable[[str], None]
) -> None:
    """Opens the data for the first time: the clock runs, and the log is not on disk yet.

    Raises:
      ValueError: the first record of a kind does not fit, or a file is damaged.
    """
    with run.ledger.counting(ledger.INPUT_WAIT):
        for path in [setup.files[0], *setup.eval_files[:1]]:
            validity.check_first_record(path, setup.limits)
        num_examples = sum(tfrecord.count_records(path) for path in setup.eval_files)
    if not setup.eval_files:
        return
    limit = (setup.config.max_eval_steps or num_examples) * setup.config.eval_batch_size
    run.eval_samples(min(num_examples, limit))
    if issue := rules.departure_of_evaluation(num_examples):
        say(rules.open_division([issue]))
        log.declare_open()


def _check_parts(setup: Setup, folder: paths.Location, made: manifest.Manifest) -> None:
    named = _names_in(folder, setup.files)
    if left_out := sorted(set(made.parts) - named):
        setup.findings.add(
            WARNING,
            f"--input_file leaves out {len(left_out)} of {len(made.parts)} parts of "
            f"{folder / manifest.NAME}, such as {left_out[0]}",
        )
    names = sorted(named & set(made.parts))
    sizes = paths.in_parallel(paths.size_bytes, [str(folder / name) for name in names])
    for name, size in zip(names, sizes):
        if size != made.parts[name].bytes:
            setup.findings.add(
                ERROR,
                f"{folder / name}: {size} bytes, {manifest.NAME} says {made.parts[name].bytes}; "
                "make this part again",
            )


def _check_parameters(setup: Setup, folder: paths.Location, made: manifest.Manifest) -> None:
    shape = dataclasses.asdict(setup.config.shape)
    for name, value in made.parameters.items():
        if name in shape and value != shape[name]:
            setup.findings.add(
                ERROR,
                f"--{name}={shape[name]}, but {folder} was made with {name}={value}; give that",
            )


def _check_evaluation_size(setup: Setup) -> None:
    """A file with the name of the published evaluation shard should have its size."""
    expected = manifest.PUBLISHED_RECORD_BYTES["eval_10k"]
    for path in setup.eval_files:
        if Path(path).name == "eval_10k" and (size := paths.size_bytes(path)) != expected:
            setup.findings.add(
                WARNING,
                f"{path}: {size} bytes, the published one has {expected}; make it with "
                f"pick_eval_samples.py --num_examples_to_pick={rules.NUM_EVAL_SAMPLES}",
            )


def check_first_records(setup: Setup) -> None:
    """Reads the first record of every file; a run reads one of the first files before it trains."""
    limits = setup.limits

    def problem_of(path: str) -> str | None:
        try:
            validity.check_first_record(path, limits)
        except (ValueError, OSError) as error:
            return str(error)
        return None

    problems = paths.in_parallel(problem_of, [*setup.files, *setup.eval_files])
    # A record that was refused before, as the first of its kind, is not told twice.
    bad = [problem for problem in problems if problem and problem not in setup.findings.errors]
    for problem in bad[:_MOST_BAD_FILES]:
        setup.findings.add(ERROR, problem)
    if (left := len(bad) - _MOST_BAD_FILES) > 0:
        setup.findings.add(ERROR, f"{left} more files are bad in their first record")


def count_evaluation_examples(setup: Setup) -> None:
    """Compares the number of evaluation examples with the rules; reads all their files."""
    counts = [setup.findings.attempt(tfrecord.count_records, path) for path in setup.eval_files]
    if None not in counts and (issue := rules.departure_of_evaluation(sum(counts))):
        setup.findings.add(
            WARNING,
            f"not a submission to the closed division: {issue}; make --eval_input_file with "
            "pick_eval_samples.py",
        )


def departures_of_data(
    files: list[str], manifests: dict[paths.Location, manifest.Manifest | None]
) -> list[rules.Issue]:
    """Every difference from the published data, according to the manifests of the folders."""
    issues = []
    for folder, made in manifests.items():
        if made is None:
            continue
        if not made.is_whole:
            first = f"the first {made.parameters['examples_per_part']} of each"
            issues.append(rules.Issue("input_file", "all examples of every part", first))
        named = _names_in(folder, files)
        if missing := len(manifest.PUBLISHED_PARTS - (named & set(made.parts))):
            num_published = len(manifest.PUBLISHED_PARTS)
            present = f"{num_published - missing} of them in {folder}"
            issues.append(
                rules.Issue("input_file", f"the {num_published} published parts", present)
            )
        for name, expected in _OFFICIAL_DATA.items():
            if (value := made.parameters.get(name, expected)) != expected:
                issues.append(rules.Issue(f"{name} of the data", expected, value))
    return issues


def _names_in(folder: paths.Location, files: list[str]) -> set[str]:
    locations = (paths.location(path) for path in files)
    return {path.name for path in locations if path.parent == folder}
