"""The configuration of a training run: the flags of run_pretraining.py, checked."""

import dataclasses

from mlperf_bert.data.validity import ExampleShape
from mlperf_bert.mlperf import budget, energy, rules
from mlperf_bert.mlperf.log import SubmissionInfo
from mlperf_bert.model.config import RECOMPUTE_NONE, BertConfig
from mlperf_bert.optimization.config import OptimizerConfig

_FREE = frozenset(
    "bert_config_file input_file eval_input_file init_checkpoint output_dir eval_batch_size "
    "max_eval_steps eval_interval_samples target_accuracy save_checkpoints_steps "
    "iterations_per_loop log_every_steps keep_checkpoint_max async_checkpoint drop_caches "
    "profile_steps power_watts compilation_cache_dir".split()
)
_NAMES_OF_A_TPU = frozenset({"tpu_name", "tpu_zone", "gcp_project"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """What the user asked for."""

    num_gpus: int = 0
    """GPUs of this host; 0 = the CPU."""
    use_tpu: bool = False
    tpu_name: str | None = None
    tpu_zone: str | None = None
    gcp_project: str | None = None
    num_tpu_cores: int = 8


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The processes of a run, one address each; the first is the chief."""

    addresses: tuple[str, ...]
    """host:port of every worker, in the same order on all of them."""
    index: int
    """The position of this process in `addresses`."""

    @property
    def is_chief(self) -> bool:
        """Whether this process writes logs, checkpoints and results."""
        return self.index == 0

    def host_and_port(self, index: int) -> tuple[str, int]:
        """The address of a process; without brackets if it is an IPv6 address."""
        host, _, port = self.addresses[index].rpartition(":")
        return host.removeprefix("[").removesuffix("]"), int(port)


@dataclasses.dataclass(frozen=True)
class ProfileWindow:
    """Steps `first` to `last`, both included, counted from 1."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> "ProfileWindow":
        """Reads "first-last".

        Raises:
          ValueError: the text has another form.
        """
        first, dash, last = text.partition("-")
        if not (dash and first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
            raise ValueError(
                f"--profile_steps={text} must be two steps, the first and the last, as in 20-29"
            )
        return cls(int(first), int(last))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """When to evaluate, save and log, in steps (micro-batches)."""

    num_train_steps: int
    evaluation_interval_steps: int | None
    """None: no evaluation during training."""
    save_checkpoints_steps: int
    log_every_steps: int
    iterations_per_loop: int
    """At most this many steps in one device call."""

    def next_stop(self, step: int) -> int:
        """The first step after `step` at which the outer loop has something to do."""
        every = [self.log_every_steps, self.save_checkpoints_steps, self.evaluation_interval_steps]
        stops = [(step // interval + 1) * interval for interval in every if interval]
        return min([*stops, step + self.iterations_per_loop, self.num_train_steps])

    def evaluation_is_due(self, step: int) -> bool:
        """True every interval, and after the last step."""
        if self.evaluation_interval_steps is None:
            return False
        return step % self.evaluation_interval_steps == 0 or step == self.num_train_steps

    def next_evaluation(self, step: int) -> int:
        """The first step after `step` with an evaluation, or the last step."""
        interval = self.evaluation_interval_steps or self.num_train_steps
        return min((step // interval + 1) * interval, self.num_train_steps)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What to train, on which data, how, and where the output goes."""

    bert_config_file: str
    input_file: str
    eval_input_file: str | None
    """None: train without evaluation, for checkpoints that are evaluated later."""
    output_dir: str
    init_checkpoint: str | None
    """None: random weights."""
    shape: ExampleShape
    train_batch_size: int
    """Examples of one micro-batch, over all replicas."""
    eval_batch_size: int
    max_eval_steps: int | None
    optimizer: OptimizerConfig
    learning_rate: float
    poly_power: float
    num_train_steps: int
    time_budget: float | None
    """Seconds from run_start on after which the run ends; None: no limit. See budget.py."""
    decay_over_budget: bool
    """The learning rate decays over the time budget, in place of `num_train_steps`."""
    num_warmup_steps: int
    start_warmup_step: int
    steps_per_update: int
    clip_by_global_norm_after_gradient_allreduce: bool
    normalization: str
    """global, or as the reference on GPUs (replica_sum) or TPUs (replica_mean); see steps.py."""
    precision: str
    """float32, bfloat16 or tf32; see model/pretrainer.py."""
    jit_compile: str
    """auto, true or false; see devices.py."""
    compilation_cache_dir: str | None
    """Keeps what XLA compiled, for later starts; None: nothing is kept."""
    pack_sequences: bool
    """Short examples share rows; the number of examples of a batch stays the same."""
    recompute: str
    """none, attention or blocks: what the backward pass computes again, to save memory."""
    save_checkpoints_steps: int
    async_checkpoint: bool | None
    """Train on while a checkpoint is written; None: as `saves_while_training` decides."""
    iterations_per_loop: int
    log_every_steps: int
    keep_checkpoint_max: int
    shuffle: bool
    deterministic: bool
    """The order of the examples is a function of the seed; False reads faster."""
    num_parallel_files: int
    """Files read at once; the order of the examples depends on it."""
    emulate_step_seconds: float | None
    """Sleep so long instead of computing a step; None: compute. See emulation.py."""
    seed: int | None
    """None: drawn from the system's randomness, as the rules require."""
    target_accuracy: float
    eval_interval_samples: int | None
    """None: computed by the rules."""
    drop_caches: bool
    """Empty the system's file caches before the run, and log whether that was possible."""
    power_watts: float | None
    """Of the whole system; None: its energy is measured."""
    profile_steps: ProfileWindow | None
    """None: TensorFlow's profiler stays off."""
    submission: SubmissionInfo
    device: DeviceConfig
    cluster: Cluster | None
    """The processes of the run; None: only this one."""
    tf_xla_flags: str
    """TF_XLA_FLAGS, which TensorFlow reads too."""
    tpu_type: str
    """TPU_ACCELERATOR_TYPE, such as v3-128; empty if the host does not say it."""

    def __post_init__(self):
        if self.num_train_steps % self.steps_per_update:
            raise ValueError(
                f"--num_train_steps={self.num_train_steps} must be a multiple of "
                f"--steps_per_update={self.steps_per_update}: the last update would be lost"
            )
        if self.profile_steps and self.profile_steps.last > self.num_train_steps:
            raise ValueError(
                f"--profile_steps ends at {self.profile_steps.last}, after "
                f"--num_train_steps={self.num_train_steps}"
            )

        if self.decay_over_budget and self.time_budget is None:
            raise ValueError(
                "--decay_over_budget needs a time over which the learning rate decays: give "
                "--time_budget too"
            )
        if self.emulate_step_seconds is not None and self.eval_input_file:
            raise ValueError(
                f"--emulate_step_seconds={self.emulate_step_seconds} trains nothing that could be "
                "evaluated: leave out --eval_input_file"
            )

    @property
    def global_batch_size(self) -> int:
        """Samples per update of the weights."""
        return self.train_batch_size * self.steps_per_update

    @property
    def evaluation_interval_samples(self) -> int:
        """Samples between evaluations, rounded up to whole updates."""
        if self.eval_interval_samples is None:
            return rules.evaluation_interval_samples(self.global_batch_size)
        steps = rules.samples_to_steps(self.eval_interval_samples, self.global_batch_size)
        return steps * self.global_batch_size

    @property
    def schedule(self) -> Schedule:
        """When to evaluate, save and log, in steps."""
        interval_steps = self.evaluation_interval_samples // self.train_batch_size
        return Schedule(
            num_train_steps=self.num_train_steps,
            evaluation_interval_steps=interval_steps if self.eval_input_file else None,
            save_checkpoints_steps=self.save_checkpoints_steps,
            log_every_steps=self.log_every_steps,
            iterations_per_loop=self.iterations_per_loop,
        )

    @property
    def saves_while_training(self) -> bool:
        """Whether a thread writes checkpoints; on a TPU, where it is not tested, only if asked."""
        if self.async_checkpoint is None:
            return not self.device.use_tpu
        return self.async_checkpoint

    def energy_meter(self) -> energy.Meter:
        """What measures the run's energy on this host."""
        addresses = self.cluster.addresses if self.cluster else ("",)
        hosts = [address.rpartition(":")[0] for address in addresses]
        here = hosts[self.cluster.index if self.cluster else 0]
        return energy.meter(
            power_watts=self.power_watts,
            num_gpus=self.device.num_gpus * hosts.count(here),  # each process has its own
            use_tpu=self.device.use_tpu,
            num_hosts=len(set(hosts)),
        )

    def parameters(self) -> dict:
        """What run.json records of the run; the names of `may_change` among it are not compared."""
        kept = dataclasses.asdict(self)
        for name in ("submission", "cluster", "tf_xla_flags", "tpu_type"):  # the log has them
            del kept[name]
        # A TPU that was made again may have another name.
        kept["device"] = {n: v for n, v in kept["device"].items() if n not in _NAMES_OF_A_TPU}
        # Recomputed gradients are equal only up to rounding. None is what older runs have recorded.
        kept["recompute"] = None if self.recompute == RECOMPUTE_NONE else self.recompute
        return {**kept, "num_workers": len(self.cluster.addresses) if self.cluster else 1}

    @property
    def may_change(self) -> frozenset[str]:
        """Parameters with which an interrupted run may go on with another value.

        They do not change the computation. Input files and the initial checkpoint are compared by
        what is in them, not by their names; see origin.py. A time budget only ends a run, unless
        the learning rate decays over it.
        """
        return _FREE if self.decay_over_budget else _FREE | {"time_budget"}

    def departures(self, bert_config: BertConfig) -> list[rules.Issue]:
        """Every way in which the run departs from the closed division's rules."""
        issues = []
        if self.emulate_step_seconds is not None:
            asleep = f"sleeps of {self.emulate_step_seconds} s"
            issues.append(rules.Issue("emulate_step_seconds", "computed steps", asleep))
        if self.decay_over_budget:
            over_time = f"over the {budget.in_words(self.time_budget or 0)} of its time budget"
            issues.append(rules.Issue("decay of the learning rate", "over steps", over_time))
        if not self.shuffle:
            issues.append(rules.Issue("shuffle", "a random order", "sorted files"))
        if self.init_checkpoint is None:
            issues.append(rules.Issue("init_checkpoint", "the official one", "random weights"))
        if self.max_eval_steps is not None:
            issues.append(
                rules.Issue("max_eval_steps", "all examples evaluated", self.max_eval_steps)
            )
        # Without evaluation during training, each checkpoint is evaluated later.
        interval_steps = self.schedule.evaluation_interval_steps or self.save_checkpoints_steps
        return issues + rules.departures_from_closed_rules(
            global_batch_size=self.global_batch_size,
            interval_samples=interval_steps * self.train_batch_size,
            seed_is_random=self.seed is None,
            model=dataclasses.asdict(bert_config),
            optimizer=self.optimizer.name,
            poly_power=self.poly_power,
            max_seq_length=self.shape.max_seq_length,
            max_predictions_per_seq=self.shape.max_predictions_per_seq,
            target_masked_lm_accuracy=self.target_accuracy,
        )
