"""Checks everything that can be checked before the clock starts, without reading data.

Reads names, sizes, records of data, the indexes of checkpoints, free disk space, free memory and
devices. Each finding is one line that says what, where and how to fix it.
"""

import contextlib
import dataclasses
import hashlib
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from mlperf_bert.checkpoints import names, reading
from mlperf_bert.checkpoints.reading import StoredCheckpoint
from mlperf_bert.data import parts, published, vocabulary
from mlperf_bert.files import paths
from mlperf_bert.input import pipeline
from mlperf_bert.mlperf import caches, convergence, rules
from mlperf_bert.model import kernels
from mlperf_bert.model.config import BertConfig
from mlperf_bert.training import devices
from mlperf_bert.training.config import RunConfig
from mlperf_bert.training.devices import Devices
from mlperf_bert.training.setup import Setup

_GROUPS, _OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_LIMITS = ("memory.max", "memory.high", "memory.limit_in_bytes")  # cgroup versions 2 and 1


def inspect(
    config: RunConfig, *, has_checkpoint: bool = False, connected: Devices | None = None
) -> Setup:
    """Runs the checks that every run makes before its clock starts, in about a second.

    Args:
      config: of the run, whose output directory has been checked.
      has_checkpoint: whether the run has a checkpoint of its own, so that it loads no initial one.
      connected: devices of several processes; None: this process alone.

    Returns: what the run is made of, with what was found.
    """
    setup = Setup(config=config, has_checkpoint=has_checkpoint, connected=connected)
    _raise_limit_of_open_files()
    # Every check runs, whatever another has found: a user fixes all problems at once.
    for check in _CHECKS:
        with setup.findings.collecting():
            check(setup)
    return setup


def _check_files(setup: Setup) -> None:
    """Expands both flags, and compares their files."""
    for flag in ("files", "eval_files"):
        with setup.findings.collecting():
            getattr(setup, flag)
    trained_on = set(map(paths.identity, setup.files))
    both = [file for file in setup.eval_files if paths.identity(file) in trained_on]
    if both:
        setup.findings.add_warning(
            f"--eval_input_file: {both[0]} is a file of --input_file too; the accuracy says "
            "nothing of text that the model has not seen",
        )


def _check_options(setup: Setup) -> None:
    """Warns of options that make no difference in this run."""
    config = setup.config
    if config.precision == "tf32" and not config.device.num_gpus:
        setup.findings.add_warning(
            "--precision=tf32 makes a difference on NVIDIA GPUs only: see --num_gpus"
        )
    if config.jit_compile != "false" and config.runtime == "jax":
        setup.findings.add_warning(
            f"--jit_compile={config.jit_compile}: makes no difference; jax compiles the whole step"
        )
    if config.compilation_cache_dir and config.runtime != "jax":
        setup.findings.add_warning(
            "--compilation_cache_dir: keeps what jax compiles; TensorFlow compiles at every start"
        )
    if config.drop_caches and (obstacle := caches.obstacle()):
        setup.findings.add_warning(
            f"--drop_caches: the log will say that it was not possible; {obstacle}"
        )


def _check_model(setup: Setup) -> None:
    """Compares the model with kernels, examples and vocabulary, the batch with RCPs."""
    config, findings, model = setup.config, setup.findings, setup.bert_config
    with findings.collecting():
        if config.kernels == "triton":
            _require_kernels(config, model)
    with findings.collecting():
        require_fitting_model(model, config.shape, bert_config_file=config.bert_config_file)
    batch_size = config.global_batch_size
    if is_bert_large(model) and (bound := convergence.bound_of(batch_size)).kind != "point":
        advice = "configs/ has a preset for each batch size with an RCP"
        if batch_size in convergence.reference_points():
            advice = "the reference has a point here, but the checker drops it"
        findings.add_warning(f"global batch size {batch_size}: {bound}; {advice}")


def require_fitting_model(
    bert_config: BertConfig, shape: pipeline.ExampleShape, *, bert_config_file: str
) -> None:
    """Checks the model against the examples' length and the vocab.txt in its folder."""
    if shape.max_seq_length > bert_config.max_position_embeddings:
        raise ValueError(
            f"--max_seq_length={shape.max_seq_length} is more than the model's "
            f"max_position_embeddings={bert_config.max_position_embeddings}"
        )
    beside = paths.location(bert_config_file).with_name(vocabulary.NAME)
    if paths.is_file(beside):
        vocabulary.read_fitting(str(beside), bert_config.vocab_size, of=bert_config_file)


def _require_kernels(config: RunConfig, bert_config: BertConfig) -> None:
    """Checks that the run is of the sizes for which model/kernels are made."""
    length, sizes = config.shape.max_seq_length, (kernels.NUM_HEADS, kernels.HEAD_SIZE)
    own_sizes = (bert_config.num_attention_heads, bert_config.head_size)
    obstacle = ""
    if config.precision != "bfloat16":
        obstacle = f"--precision={config.precision}, but the kernels compute in bfloat16"
    elif length % kernels.BLOCK:
        obstacle = f"--max_seq_length={length} is not a multiple of {kernels.BLOCK}"
    elif own_sizes != sizes:
        obstacle = "{} heads of {}, but the kernels are for {} of {}".format(*own_sizes, *sizes)
    if obstacle:
        raise ValueError(f"--kernels=triton: {obstacle}; change that, or give --kernels=xla")


def _raise_limit_of_open_files() -> None:
    """Raises the limit of open files: TensorFlow may end without a word if it has too few."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # the hard limit may exceed the system's
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _check_batches(setup: Setup) -> None:
    replicas = setup.num_replicas
    for flag in ("train_batch_size", "eval_batch_size"):
        with setup.findings.collecting():
            devices.replica_batch_size(getattr(setup.config, flag), replicas, flag=flag)


def _check_warm_up(setup: Setup) -> None:
    """Warns of a run that ends within its warm-up, as with the default of 10,000 steps."""
    config = setup.config
    last_of_warm_up = config.num_train_steps - 1 - config.start_warmup_step
    if last_of_warm_up < config.num_warmup_steps:
        highest = config.learning_rate * last_of_warm_up / config.num_warmup_steps
        since = config.start_warmup_step and f" from --start_warmup_step={config.start_warmup_step}"
        setup.findings.add_warning(
            f"--num_warmup_steps={config.num_warmup_steps}{since or ''}: the run ends within its "
            f"warm-up, at --num_train_steps={config.num_train_steps}; its highest learning rate is "
            f"{highest:.3g} of {config.learning_rate:.3g}; lower --num_warmup_steps",
        )


def _check_initial_checkpoint(setup: Setup) -> None:
    """Checks names and shapes, number of layers, and sizes of files."""
    findings, stored = setup.findings, setup.initial_checkpoint
    if stored is None:
        return
    with findings.collecting():
        reading.refuse_output_of_a_run(stored)
    with findings.collecting():
        or_else = ", or leave --init_checkpoint out to train this model from random weights"
        shapes = shapes_to_load(stored, setup.bert_config)
        reading.require_fitting(stored, shapes, or_else=or_else)
    if stored.lacking_heads and not findings.errors:
        findings.add_warning(
            f"{stored.prefix}: has {stored.what_it_lacks}; what is missing is drawn from the "
            "seed, as for a new model",
        )
    if stored.held_bytes < stored.listed_bytes:
        findings.add_error(
            f"{stored.prefix}: its data files hold {stored.held_bytes:,} bytes, its index lists "
            f"about {stored.listed_bytes:,}; copy it here again",
        )


def shapes_of(model: BertConfig) -> dict[names.Weight, tuple[int, ...]]:
    """The weights of a model, which a checkpoint must have, with their shapes."""
    return {each: each.our_shape(model) for each in names.weights(model.num_hidden_layers)}


def shapes_to_load(
    stored: StoredCheckpoint, model: BertConfig
) -> dict[names.Weight, tuple[int, ...]]:
    """`shapes_of` without the heads that an initial checkpoint lacks: their weights are drawn."""
    shapes = shapes_of(model)
    return {each: shapes[each] for each in shapes if not stored.is_of_a_lacking_head(each)}


def check_saving(setup: Setup) -> None:
    """Checks that checkpoints fit on the disk, and a copy of the state into memory.

    A process that writes no checkpoint does not call this.
    """
    config, model = setup.config, setup.bert_config
    state_bytes = names.checkpoint_bytes(model, steps_per_update=config.steps_per_update)
    available = memory_bytes()
    if config.saves_while_training and available < state_bytes:
        # Only a warning: available memory changes with other processes, and there may be swap.
        setup.findings.add_warning(
            f"--async_checkpoint: a copy of the state takes {_size_of(state_bytes)} of memory, "
            f"and {_size_of(available)} are available here; give --noasync_checkpoint"
        )
    # Without evaluation step 0 is saved too, and checkpoints stay until another process evaluates.
    is_evaluated = config.eval_input_file is not None
    num_all = -(-config.num_train_steps // config.save_checkpoints_steps) + (not is_evaluated)
    # A new checkpoint is written before the oldest is removed.
    at_once = min((config.keep_checkpoint_max or num_all) + 1, num_all)
    saved = Path(config.output_dir).glob("model.ckpt-*")
    held = sum(file.stat().st_size for file in saved)  # when resuming
    free = paths.free_bytes(paths.location(config.output_dir))

    def shortage(number: int) -> str:
        return (
            f"--output_dir={config.output_dir}: {_size_of(free)} are free, {number} checkpoints "
            f"need {_size_of(number * state_bytes - held)}; free some, "
            "lower --keep_checkpoint_max, or raise --save_checkpoints_steps"
        )

    if free < at_once * state_bytes - held:
        # A time budget may end the run long before so many are written.
        may_end_before = config.time_budget is not None and not config.keep_checkpoint_max
        say = setup.findings.add_warning if may_end_before else setup.findings.add_error
        say(shortage(at_once))
    elif not is_evaluated and free < num_all * state_bytes - held:
        evaluate = ", or evaluate them meanwhile (--do_eval)"
        setup.findings.add_warning(shortage(num_all) + evaluate)


def memory_bytes() -> int:
    """Bytes of memory that this process may take: what the host, job or container has left."""
    # psutil has the host's, also in a container: limits are in files of the control groups.
    available = psutil.virtual_memory().available
    for group in _groups():
        for name in _LIMITS:
            with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
                available = min(available, int((group / name).read_text()))
    return available


def _groups() -> Iterator[Path]:
    """The control groups of this process, and those above them, which may have a lower limit."""
    yield from (_GROUPS, _GROUPS / "memory")  # in a container these are its own groups
    with contextlib.suppress(OSError):
        for line in _OWN_GROUPS.read_text().splitlines():
            _, controllers, name = line.split(":", 2)
            # Version 2 names no controllers.
            if not controllers or "memory" in controllers.split(","):
                group = Path(name.lstrip("/"))
                root = _GROUPS / "memory" if controllers else _GROUPS
                yield from (root / above for above in (group, *group.parents))


def _size_of(num_bytes: float) -> str:
    """Bytes as a user reads them: 1.5 GB, 0.2 MB."""
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"


def is_bert_large(bert_config: BertConfig) -> bool:
    """Whether it is the benchmark's model; only this one has RCPs."""
    return rules.is_bert_large(dataclasses.asdict(bert_config))


_OFFICIAL_DATA = {
    "random_seed": rules.DATA_SEED,
    "dupe_factor": rules.DUPE_FACTOR,
    "masked_lm_prob": rules.MASKED_LM_PROB,
}
"""Parameter of data generation -> its value in the rules; config.py checks the lengths."""


def _check_data(setup: Setup) -> None:
    """Compares files with the records of their folders, by name and size; reads no content."""
    for folder, data_sets in setup.data_sets.items():
        if not data_sets:
            setup.findings.add_warning(
                f"{folder}: no {parts.NAME} of these files, so it is unknown whether the data are "
                "complete; create_pretraining_data.py --output_dir=... writes one",
            )
        for data_set in data_sets:
            _check_parts(setup, folder, data_set)
            _check_parameters(setup, folder, data_set)


def _check_parts(setup: Setup, folder: paths.Location, data_set: parts.DataSet) -> None:
    named = _names_in(folder, setup.files)
    if left_out := sorted(data_set.files.keys() - named):
        setup.findings.add_warning(
            f"--input_file leaves out {len(left_out)} of {len(data_set.files)} parts of "
            f"{folder / parts.NAME}, such as {left_out[0]}",
        )
    listed = sorted(named & data_set.files.keys())
    sizes = paths.in_parallel(paths.size_bytes, [str(folder / name) for name in listed])
    for name, size in zip(listed, sizes):
        if size != (recorded := data_set.files[name].bytes):
            setup.findings.add_error(
                f"{folder / name}: {size} bytes, {parts.NAME} says {recorded}; "
                "make this part again",
            )


def _check_parameters(setup: Setup, folder: paths.Location, data_set: parts.DataSet) -> None:
    shape = dataclasses.asdict(setup.config.shape)
    for name, value in data_set.parameters.items():
        if name in shape and value != shape[name]:
            setup.findings.add_error(
                f"--{name}={shape[name]}, but {folder} was made with {name}={value}; give that",
            )


def departures(setup: Setup) -> list[rules.Departure]:
    """Every way in which a run departs from the closed division's rules.

    Data are compared with the published data, by the records in their folders.

    Raises:
      ValueError, OSError: a part of the run cannot be made, or its checkpoint not be read.
    """
    return [each for list_departures in DEPARTURES for each in list_departures(setup)]


def _departures_of_options(setup: Setup) -> list[rules.Departure]:
    return setup.config.departures(setup.bert_config)


def _departures_of_weights(setup: Setup) -> list[rules.Departure]:
    if is_bert_large(setup.bert_config) and setup.initial_checkpoint:
        return _departure_of_weights(setup.initial_checkpoint.prefix)
    return []


def _departures_of_data(setup: Setup) -> list[rules.Departure]:
    # Data without a record have no known departure; `_check_data` warns of them.
    recorded = [(folder, data_set) for folder, each in setup.data_sets.items() for data_set in each]
    departures: list[rules.Departure] = []
    for folder, data_set in recorded:
        if first_examples := data_set.parameters.get("examples_per_part"):
            first = f"the first {first_examples} of each"
            departures.append(rules.Departure("input_file", "all examples of every part", first))
        named = _names_in(folder, setup.files)
        if missing := len(published.PUBLISHED_PARTS - (named & data_set.files.keys())):
            num_published = len(published.PUBLISHED_PARTS)
            present = f"{num_published - missing} of them in {folder}"
            departures.append(
                rules.Departure("input_file", f"the {num_published} published parts", present)
            )
        # A parameter that a record does not have counts as in the rules.
        for name, expected in _OFFICIAL_DATA.items():
            if (value := data_set.parameters.get(name, expected)) != expected:
                departures.append(rules.Departure(f"{name} of the data", expected, value))
    return list(dict.fromkeys(departures))


def _departure_of_weights(prefix: str) -> list[rules.Departure]:
    """Compares a checkpoint with both published ones, without reading gigabytes.

    The index has a checksum of every tensor, and TensorFlow compares what it loads with them: so
    the index's MD5 and the size of the data are enough.
    """
    index, data = f"{prefix}.index", f"{prefix}.data-00000-of-00001"
    data_bytes = paths.size_bytes(data) if paths.is_file(data) else None
    for folder, published_bytes in published.CHECKPOINT_DATA_BYTES.items():
        if data_bytes == published_bytes:
            md5 = hashlib.md5(paths.read_bytes(index)).hexdigest()
            if md5 == published.MD5S[f"{folder}/model.ckpt-28252.index"]:
                return []
    expected_weights = "a published one, tf1_ckpt or tf2_ckpt, as it is"
    return [
        rules.Departure("init_checkpoint", expected_weights, f"{prefix}, another by size or MD5")
    ]


def _names_in(folder: paths.Location, files: list[str]) -> set[str]:
    locations = (paths.location(path) for path in files)
    return {path.name for path in locations if path.parent == folder}


DEPARTURES = (_departures_of_options, _departures_of_weights, _departures_of_data)
"""Each says how one part of a run departs from the rules, whatever is wrong with the others."""

_CHECKS: tuple[Callable[[Setup], object], ...] = (
    _check_files,
    _check_initial_checkpoint,
    lambda setup: setup.vocabulary,
    _check_batches,
    _check_warm_up,
    _check_data,
    _check_model,
    _check_options,
)
