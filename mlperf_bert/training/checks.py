"""Checks everything that can be checked before the clock starts, without reading data.

Reads names, sizes, records of data, the indexes of checkpoints, free disk space, free memory and
devices. Each finding is one line that says what, where and how to fix it.
"""

import contextlib
import dataclasses
import functools
import hashlib
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from mlperf_bert.checkpoints import names, one_vocabulary, reading
from mlperf_bert.checkpoints.reading import StoredCheckpoint
from mlperf_bert.data import parts, published, vocabulary
from mlperf_bert.data.validity import ExampleLimits
from mlperf_bert.files import paths
from mlperf_bert.input import pipeline
from mlperf_bert.messages import ERROR, NOTE, WARNING, Finding, Problems, problems_of
from mlperf_bert.mlperf import caches, convergence, rules
from mlperf_bert.model import kernels
from mlperf_bert.model.config import BertConfig
from mlperf_bert.training import devices
from mlperf_bert.training.config import RunConfig
from mlperf_bert.training.devices import Devices

_GROUPS, _OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_LIMITS = ("memory.max", "memory.high", "memory.limit_in_bytes")  # cgroup versions 2 and 1


class Findings(list[Finding]):
    """What the checks have found, in their order."""

    def refuse(self, text: str) -> None:
        """Adds an error: no such run begins."""
        if text not in self.errors:  # two checks may read one file
            self.append(Finding(ERROR, text))

    def doubt(self, text: str) -> None:
        """Adds a warning: the run begins."""
        self.append(Finding(WARNING, text))

    def remark(self, text: str) -> None:
        """Adds a note."""
        self.append(Finding(NOTE, text))

    def attempt(self, make: Callable[..., Any], *arguments, **keywords) -> Any:
        """The result of a call; a ValueError or OSError becomes an error finding, and None."""
        try:
            return make(*arguments, **keywords)
        except (ValueError, OSError) as error:
            for problem in problems_of(error):
                self.refuse(problem)

    @property
    def errors(self) -> list[str]:
        """The texts of the findings that stop the run."""
        return [finding.text for finding in self if finding.level == ERROR]

    def require_none(self) -> None:
        """Raises ValueError with all errors, if there are any."""
        if self.errors:
            raise Problems(self.errors)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inputs:
    """What a run reads."""

    config: RunConfig
    files: list[str]
    """To train on."""
    eval_files: list[str]
    """Empty: no evaluation during training."""
    data_sets: dict[paths.Location, list[parts.DataSet]]
    """Those in each folder of training data that hold some of the files; none: not recorded."""
    vocabulary: dict[str, str] = dataclasses.field(default_factory=dict)
    """What is known of that of data and model; as `Known.parameters`."""
    initial_checkpoint: StoredCheckpoint | None = None
    """Opened, to load its weights; None for random ones, and for a run that has a checkpoint."""
    departures: list[rules.Issue] = dataclasses.field(default_factory=list)
    """From the closed division's rules."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setup(Inputs):
    """What a run is built from, made and checked before it starts."""

    bert_config: BertConfig
    devices: Devices

    @property
    def replica_batch_size(self) -> int:
        """Examples of a step on one replica."""
        return self.config.train_batch_size // self.devices.num_replicas

    @property
    def step(self) -> str:
        """All that decides what a step computes of a batch, in words that do not change."""
        config = self.config
        others = config.may_change | {"seed", "device", "num_workers"}
        decides = {name: each for name, each in config.parameters().items() if name not in others}
        return f"{decides} {config.compilation} {config.compilation.barriers} {self.bert_config}"

    @property
    def limits(self) -> ExampleLimits:
        """What an example must keep to."""
        return self.config.shape.for_model(self.bert_config)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inspection(Inputs):
    """What the checks have found and made.

    A part that could not be made is None or empty; then there is an error among the findings.
    """

    findings: Findings
    bert_config: BertConfig | None
    devices: Devices | None

    def setup(self) -> Setup:
        """What the run is built from.

        Raises:
          ValueError: a check has found an error; the message has a line for each.
        """
        self.findings.require_none()
        return Setup(**{name: part for name, part in vars(self).items() if name != "findings"})


def inspect(
    config: RunConfig, *, goes_on: bool = False, connected: Devices | None = None
) -> Inspection:
    """Runs the checks that every run makes before its clock starts, in about a second.

    Args:
      config: of the run, whose output directory has been checked.
      goes_on: whether the run has a checkpoint of its own, so that it loads no initial one.
      connected: devices of several processes; None: of this one.
    """
    # Every check runs, whatever another has found: a user fixes all problems at once.
    findings = Findings()
    expand = functools.partial(pipeline.expand_input, on_doubt=findings.doubt)
    files = findings.attempt(expand, config.input_file, flag="input_file") or []
    eval_files: list[str] = []
    if path := config.eval_input_file:
        eval_files = findings.attempt(expand, path, flag="eval_input_file") or []
    trained_on = set(map(paths.identity, files))
    if both := next((name for name in eval_files if paths.identity(name) in trained_on), None):
        findings.doubt(
            f"--eval_input_file: {both} is a file of --input_file too; the accuracy says nothing "
            "of text that the model has not seen",
        )
    model: BertConfig | None = findings.attempt(BertConfig.from_json_file, config.bert_config_file)
    stored = None
    if model and config.init_checkpoint and not goes_on:
        stored = _initial_checkpoint(config.init_checkpoint, model, findings)
    known = findings.attempt(vocabulary_of, config, [*files, *eval_files])
    inspection = Inspection(
        config=config,
        findings=findings,
        bert_config=model,
        devices=connected or findings.attempt(devices.create, config),
        files=files,
        eval_files=eval_files,
        data_sets=findings.attempt(parts.of_files, files) or {},
        vocabulary=known.parameters() if known else {},
        initial_checkpoint=stored,
    )
    _raise_limit_of_open_files()
    _check_batches(inspection)
    _check_warm_up(inspection)
    check_data(inspection)
    if config.precision == "tf32" and not config.device.num_gpus:
        findings.doubt("--precision=tf32 makes a difference on NVIDIA GPUs only: see --num_gpus")
    if model:
        _check_model(inspection, model)
    if config.drop_caches and (obstacle := caches.obstacle()):
        findings.doubt(f"--drop_caches: the log will say that it was not possible; {obstacle}")
    return inspection


def vocabulary_of(config: RunConfig, files: list[str]) -> one_vocabulary.Known:
    """The one vocabulary of a run's data, its model and what the run has recorded of itself.

    Raises:
      ValueError: there are several, or a record or vocabulary is damaged.
    """
    named = filter(None, (config.bert_config_file, config.init_checkpoint))
    folders = [*(paths.location(each).parent for each in named), paths.location(config.output_dir)]
    return one_vocabulary.require_one(one_vocabulary.known_of(files=files, folders=folders))


def _check_model(inspection: Inspection, model: BertConfig) -> None:
    """What depends on the model: kernels, lengths, reference points."""
    config, findings = inspection.config, inspection.findings
    inspection.departures.extend(departures(inspection, model))
    if config.kernels == "triton":
        findings.attempt(_require_kernels, config, model)
    findings.attempt(
        require_fitting_model, model, config.shape, bert_config_file=config.bert_config_file
    )
    batch_size = config.global_batch_size
    if is_bert_large(model) and (bound := convergence.bound_of(batch_size)).kind != "point":
        advice = "configs/ has a preset for each batch size with a reference point"
        if batch_size in convergence.reference_points():
            advice = "the reference has a point here, but the checker drops it"
        findings.doubt(f"global batch size {batch_size}: {bound}; {advice}")


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


def _require_kernels(config: RunConfig, bert_config: BertConfig) -> None:
    """Checks what the kernels of model/kernels are made for.

    Raises:
      ValueError: the run computes in another precision, or has other sizes.
    """
    length, sizes = config.shape.max_seq_length, (kernels.NUM_HEADS, kernels.HEAD_SIZE)
    own_sizes = (bert_config.num_attention_heads, bert_config.head_size)
    obstacle = ""
    if config.precision != "bfloat16":
        obstacle = f"--precision={config.precision}, and the kernels compute in bfloat16"
    elif length % kernels.BLOCK:
        obstacle = f"--max_seq_length={length} is not a multiple of {kernels.BLOCK}"
    elif own_sizes != sizes:
        obstacle = "{} heads of {}, and the kernels are for {} of {}".format(*own_sizes, *sizes)
    if obstacle:
        raise ValueError(f"--kernels=triton: {obstacle}; change that, or give --kernels=xla")


def _raise_limit_of_open_files() -> None:
    """Where a file cannot be opened within TensorFlow, the process may end without a word."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # a hard limit above the system's own
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _check_batches(inspection: Inspection) -> None:
    if inspection.devices:
        replicas = inspection.devices.num_replicas
        for flag in ("train_batch_size", "eval_batch_size"):
            size = getattr(inspection.config, flag)
            inspection.findings.attempt(devices.replica_batch_size, size, replicas, flag=flag)


def _check_warm_up(inspection: Inspection) -> None:
    """Tells of a run whose last step is still in the warm-up, as the default of 10,000 steps is."""
    config = inspection.config
    last_of_warm_up = config.num_train_steps - 1 - config.start_warmup_step
    if last_of_warm_up < config.num_warmup_steps:
        highest = config.learning_rate * last_of_warm_up / config.num_warmup_steps
        since = config.start_warmup_step and f" from --start_warmup_step={config.start_warmup_step}"
        inspection.findings.doubt(
            f"--num_warmup_steps={config.num_warmup_steps}{since or ''}: the run ends within its "
            f"warm-up, at --num_train_steps={config.num_train_steps}; its highest learning rate is "
            f"{highest:.3g} of {config.learning_rate:.3g}; lower --num_warmup_steps",
        )


def _initial_checkpoint(
    prefix: str, model: BertConfig, findings: Findings
) -> StoredCheckpoint | None:
    """Opens it, or finds an error; checks names and shapes, number of layers, and files' sizes."""
    stored: StoredCheckpoint | None = findings.attempt(StoredCheckpoint, prefix)
    if stored is None:
        return None
    findings.attempt(reading.refuse_output_of_a_run, stored)
    or_else = ", or leave --init_checkpoint out to train this model from random weights"
    findings.attempt(
        reading.require_fitting, stored, shapes_to_load(stored, model), or_else=or_else
    )
    if stored.lacking_heads and not findings.errors:
        findings.doubt(
            f"{prefix}: has {stored.what_it_lacks}; what is missing is drawn from the seed, as "
            "for a new model",
        )
    if stored.held_bytes < stored.listed_bytes:
        findings.refuse(
            f"{prefix}: its data files hold {stored.held_bytes:,} bytes, its index lists about "
            f"{stored.listed_bytes:,}; copy it here again",
        )
    return stored


def shapes_of(model: BertConfig) -> dict[names.Weight, tuple[int, ...]]:
    """The weights of a model, which a checkpoint must have, with their shapes."""
    return {each: each.our_shape(model) for each in names.weights(model.num_hidden_layers)}


def shapes_to_load(
    stored: StoredCheckpoint, model: BertConfig
) -> dict[names.Weight, tuple[int, ...]]:
    """As `shapes_of`, without heads that an initial checkpoint lacks, which are drawn."""
    shapes = shapes_of(model)
    return {each: shapes[each] for each in shapes if not stored.is_of_a_lacking_head(each)}


def check_saving(inspection: Inspection) -> None:
    """Checks that checkpoints fit on the disk, and a copy of the state into memory.

    Who writes no checkpoint does not ask.
    """
    config, model = inspection.config, inspection.bert_config
    if not model:
        return
    each = names.checkpoint_bytes(model, steps_per_update=config.steps_per_update)
    available = memory_bytes()
    if config.saves_while_training and available < each:
        # No error: the memory available changes with other processes, and there may be swap.
        inspection.findings.doubt(
            f"--async_checkpoint: a copy of the state takes {_in_words(each)} of memory, and "
            f"{_in_words(available)} are available here; give --noasync_checkpoint"
        )
    # Without evaluation there is one of step 0 too, and none goes before it is evaluated elsewhere.
    is_evaluated = config.eval_input_file is not None
    num_all = -(-config.num_train_steps // config.save_checkpoints_steps) + (not is_evaluated)
    # A new one is written before the oldest goes.
    at_once = min((config.keep_checkpoint_max or num_all) + 1, num_all)
    saved = Path(config.output_dir).glob("model.ckpt-*")
    held = sum(file.stat().st_size for file in saved)  # when resuming
    free = paths.free_bytes(paths.location(config.output_dir))

    def shortage(number: int) -> str:
        return (
            f"--output_dir={config.output_dir}: {_in_words(free)} are free, {number} checkpoints "
            f"need {_in_words(number * each - held)}; free some, lower --keep_checkpoint_max, or "
            "raise --save_checkpoints_steps"
        )

    if free < at_once * each - held:
        # A time budget may end the run long before so many are written.
        may_end_before = config.time_budget is not None and not config.keep_checkpoint_max
        say = inspection.findings.doubt if may_end_before else inspection.findings.refuse
        say(shortage(at_once))
    elif not is_evaluated and free < num_all * each - held:
        evaluate = ", or evaluate them meanwhile (--do_eval)"
        inspection.findings.doubt(shortage(num_all) + evaluate)


def memory_bytes() -> int:
    """Memory that this process may take: what the host has left, or a job or container may have."""
    # That of the host, also in a container: limits stand in files of the control groups.
    available = psutil.virtual_memory().available
    for group in _groups():
        for name in _LIMITS:
            with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
                available = min(available, int((group / name).read_text()))
    return available


def _groups() -> Iterator[Path]:
    """The control groups of this process, and those above them, which may have a lower limit."""
    yield from (_GROUPS, _GROUPS / "memory")  # in a container its own
    with contextlib.suppress(OSError):
        for line in _OWN_GROUPS.read_text().splitlines():
            _, controllers, name = line.split(":", 2)
            # Version 2 names no controllers.
            if not controllers or "memory" in controllers.split(","):
                place = Path(name.lstrip("/"))
                root = _GROUPS / "memory" if controllers else _GROUPS
                yield from (root / above for above in (place, *place.parents))


def _in_words(num_bytes: float) -> str:
    """Bytes as a user reads them: 1.5 GB, 0.2 MB."""
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"


def is_bert_large(bert_config: BertConfig) -> bool:
    """Only this model has reference points."""
    return rules.is_bert_large(dataclasses.asdict(bert_config))


_OFFICIAL_DATA = {
    "random_seed": rules.DATA_SEED,
    "dupe_factor": rules.DUPE_FACTOR,
    "masked_lm_prob": rules.MASKED_LM_PROB,
}
"""Parameter of the data generation -> its value in the rules; config.py checks the lengths."""


def check_data(inspection: Inspection) -> None:
    """Compares files with the records of their folders, by name and size; reads no content."""
    for folder, data_sets in inspection.data_sets.items():
        if not data_sets:
            inspection.findings.doubt(
                f"{folder}: no {parts.NAME} of these files, so it is unknown whether the data are "
                "complete; create_pretraining_data.py --output_dir=... writes one",
            )
        for made in data_sets:
            _check_files(inspection, folder, made)
            _check_parameters(inspection, folder, made)


def _check_files(inspection: Inspection, folder: paths.Location, made: parts.DataSet) -> None:
    named = _names_in(folder, inspection.files)
    if left_out := sorted(made.files.keys() - named):
        inspection.findings.doubt(
            f"--input_file leaves out {len(left_out)} of {len(made.files)} parts of "
            f"{folder / parts.NAME}, such as {left_out[0]}",
        )
    names = sorted(named & made.files.keys())
    sizes = paths.in_parallel(paths.size_bytes, [str(folder / name) for name in names])
    for name, size in zip(names, sizes):
        if size != (recorded := made.files[name].bytes):
            inspection.findings.refuse(
                f"{folder / name}: {size} bytes, {parts.NAME} says {recorded}; "
                "make this part again",
            )


def _check_parameters(inspection: Inspection, folder: paths.Location, made: parts.DataSet) -> None:
    shape = dataclasses.asdict(inspection.config.shape)
    for name, value in made.parameters.items():
        if name in shape and value != shape[name]:
            inspection.findings.refuse(
                f"--{name}={shape[name]}, but {folder} was made with {name}={value}; give that",
            )


def departures(inputs: Inputs, model: BertConfig) -> list[rules.Issue]:
    """Every way in which a run departs from the closed division's rules.

    Of the data, every difference from the published ones, by the records in their folders.
    """
    issues = inputs.config.departures(model)
    if is_bert_large(model) and inputs.initial_checkpoint:
        issues += _departure_of_weights(inputs.initial_checkpoint.prefix)
    # Of data without a record nothing is known, so that no departure is either; `check_data` warns.
    recorded = [(folder, made) for folder, each in inputs.data_sets.items() for made in each]
    of_data: list[rules.Issue] = []
    for folder, made in recorded:
        if first_examples := made.parameters.get("examples_per_part"):
            first = f"the first {first_examples} of each"
            of_data.append(rules.Issue("input_file", "all examples of every part", first))
        named = _names_in(folder, inputs.files)
        if missing := len(published.PUBLISHED_PARTS - (named & made.files.keys())):
            num_published = len(published.PUBLISHED_PARTS)
            present = f"{num_published - missing} of them in {folder}"
            of_data.append(
                rules.Issue("input_file", f"the {num_published} published parts", present)
            )
        # What a record does not say counts as the rules have it.
        for name, expected in _OFFICIAL_DATA.items():
            if (value := made.parameters.get(name, expected)) != expected:
                of_data.append(rules.Issue(f"{name} of the data", expected, value))
    return issues + list(dict.fromkeys(of_data))


def _departure_of_weights(prefix: str) -> list[rules.Issue]:
    """Compares a checkpoint with both published ones, without reading gigabytes.

    The index has a checksum of every tensor, with which TensorFlow compares what it loads: so its
    MD5 and the size of the data are enough.
    """
    index, data = f"{prefix}.index", f"{prefix}.data-00000-of-00001"
    data_bytes = paths.size_bytes(data) if paths.status(data) else None
    for folder, published_bytes in published.CHECKPOINT_DATA_BYTES.items():
        if data_bytes == published_bytes:
            md5 = hashlib.md5(paths.read_bytes(index)).hexdigest()
            if md5 == published.MD5S[f"{folder}/model.ckpt-28252.index"]:
                return []
    expected_weights = "a published one, tf1_ckpt or tf2_ckpt, as it is"
    return [rules.Issue("init_checkpoint", expected_weights, f"{prefix}, another by size or MD5")]


def _names_in(folder: paths.Location, files: list[str]) -> set[str]:
    locations = (paths.location(path) for path in files)
    return {path.name for path in locations if path.parent == folder}
