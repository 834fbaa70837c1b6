"""The configuration of a training run: the flags of run_pretraining.py, checked."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from mlperf_logging.mllog import constants

from mlperf_bert.data.validity import ExampleShape
from mlperf_bert.messages import Problems
from mlperf_bert.mlperf import energy, rules
from mlperf_bert.mlperf.log import SubmissionInfo
from mlperf_bert.model.config import PRECISIONS, RECOMPUTE_CHOICES, RECOMPUTE_NONE, BertConfig
from mlperf_bert.optimization.config import ADAMW, OptimizerConfig
from mlperf_bert.options import (
    MAX_SEED,
    Option,
    free_to_change,
    option,
    options,
    parse_duration,
    variable,
)
from mlperf_bert.programs.config import NO_COMPILATION, Compilation

TWO_KINDS = "--use_tpu and --num_gpus exclude each other; give one of them"
_NAMES_OF_A_TPU = frozenset({"tpu_name", "tpu_zone", "gcp_project"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """What the user asked for."""

    num_gpus: int = 0
    """The number of this host's GPUs to use; 0 = the CPU."""
    use_tpu: bool = False
    tpu_name: str | None = None
    tpu_zone: str | None = None
    gcp_project: str | None = None
    num_tpu_cores: int = 8

    @property
    def kind(self) -> str:
        """What computes: CPU, GPU or TPU."""
        return "TPU" if self.use_tpu else "GPU" if self.num_gpus else "CPU"


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The processes of a run; the first is the chief."""

    size: int
    index: int
    """The number of this process, from 0."""
    num_hosts: int
    size_here: int
    """Processes on this host."""
    local_index: int
    """The number of this process among those on its host, from 0."""
    addresses: tuple[str, ...] = ()
    """host:port of every process, in the same order on all of them; (): jax finds the chief's."""

    @property
    def is_chief(self) -> bool:
        """Whether this process writes logs, checkpoints and results."""
        return self.index == 0


@dataclasses.dataclass(frozen=True)
class ProfileWindow:
    """Steps `first` to `last`, both included, counted from 1."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> "ProfileWindow":
        """Reads "first-last"."""
        first, dash, last = text.partition("-")
        if not (dash and first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
            raise ValueError(
                f"--profile_steps={text} must be two steps, the first and the last, as in 20-29"
            )
        return cls(int(first), int(last))


def _optimizer(
    *,
    optimizer: str,
    lamb_weight_decay_rate: float,
    lamb_beta_1: float,
    lamb_beta_2: float,
    log_epsilon: float,
) -> OptimizerConfig:
    lamb = OptimizerConfig(
        name="lamb",
        weight_decay_rate=lamb_weight_decay_rate,
        beta_1=lamb_beta_1,
        beta_2=lamb_beta_2,
        epsilon=10**log_epsilon,
    )
    return {"adamw": ADAMW, "lamb": lamb}[optimizer]  # an unknown name is an error


def _submission(
    *, submission_org: str, submission_platform: str, submission_status: str
) -> SubmissionInfo:
    return SubmissionInfo(
        org=submission_org, platform=submission_platform, status=submission_status
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What to train, on which data, how, and where the output goes."""

    # Input and output, on local disks or in a bucket (gs://BUCKET/FOLDER). A resumed run compares
    # the content of files, not their names; see output.py.
    bert_config_file: str = option(
        None, "The model: a bert_config.json.", required=True, path=True, identifies=False
    )
    input_file: str = option(
        None,
        "TFRecords to train on; globs and commas are allowed.",
        required=True,
        path=True,
        identifies=False,
    )
    output_dir: str = option(
        None,
        "Checkpoints, logs and metrics go here.",
        required=True,
        path=True,
        may_have_wildcards=False,
        identifies=False,
    )
    init_checkpoint: str | None = option(
        None,
        "Weights to start from; random if not given.",
        path=True,
        may_have_wildcards=False,
        identifies=False,
        page="checkpoints.md",
    )
    eval_input_file: str | None = option(
        None,
        "TFRecords to evaluate on; turns on evaluation.",
        path=True,
        may_be_empty=True,
        identifies=False,
    )
    """None: train without evaluation, for checkpoints that are evaluated later."""
    shape: ExampleShape = options(
        ExampleShape,
        max_seq_length=Option(128, "Tokens per example, as in the TFRecords.", at_least=1),
        max_predictions_per_seq=Option(
            20, "Masked tokens per example, as in the TFRecords.", at_least=1
        ),
    )
    shuffle: bool = option(
        True, "Shuffle the examples; --noshuffle reads the sorted files in order."
    )
    deterministic: bool = option(
        True,
        "The seed fixes the order of examples; --nodeterministic reads faster from slow storage.",
        page="speed.md",
    )
    num_parallel_files: int = option(
        8,
        "Training files that are read at once; the order of the examples depends on it.",
        at_least=1,
    )

    # How long, and how often to evaluate. A step is a micro-batch; steps_per_update make an update.
    train_batch_size: int = option(
        32, "Examples per step (micro-batch), over all replicas.", at_least=1
    )
    eval_batch_size: int = option(
        8, "Examples per evaluation step, over all replicas.", at_least=1, identifies=False
    )
    num_train_steps: int = option(
        100000,
        "Steps until the learning rate has decayed to 0; the run ends there at the latest.",
        at_least=1,
    )
    time_budget: float | None = option(
        None,
        "The run ends at the first update after this time from run_start: 90s, 45m, 24h, 1h30m.",
        parse=parse_duration,
        identifies=False,
        page="time_and_energy.md",
    )
    """Seconds; None: no limit. See `time_budget.TimeBudget`."""
    max_eval_steps: int | None = option(
        None,
        "Evaluation steps; all examples if not given.",
        kind=int,
        at_least=1,
        identifies=False,
    )
    target_accuracy: float = option(
        rules.TARGET_MASKED_LM_ACCURACY,
        "Stop at this masked-LM accuracy.",
        above=0,
        at_most=1,
        identifies=False,
    )
    eval_interval_samples: int | None = option(
        None,
        "Samples between evaluations; if not given, what the rules require.",
        kind=int,
        at_least=1,
        identifies=False,
    )
    seed: int | None = option(
        None,
        "Seed of weights, dropout and order; random if not given.",
        kind=int,
        at_least=0,
        at_most=MAX_SEED,
    )
    emulate_step_seconds: float | None = option(
        None,
        "Sleep instead of computing a step, to measure input and checkpoints.",
        kind=float,
        at_least=0,
        page="training.md",
    )
    drop_caches: bool = option(
        False, "Empty the file caches of the system before the run; needs root.", identifies=False
    )

    # Optimizer
    optimizer: OptimizerConfig = options(
        _optimizer,
        optimizer=Option("adamw", "The optimizer.", choices=("adamw", "lamb")),
        lamb_weight_decay_rate=Option(0.01, "Weight decay of LAMB.", at_least=0),
        lamb_beta_1=Option(0.9, "Decay of the first moment in LAMB.", at_least=0, below=1),
        lamb_beta_2=Option(0.999, "Decay of the second moment in LAMB.", at_least=0, below=1),
        log_epsilon=Option(  # epsilon is at least the smallest float32
            -6.0, "Base-10 logarithm of the epsilon of LAMB.", at_least=-37, at_most=0
        ),
    )
    learning_rate: float = option(5e-5, "Peak learning rate.", above=0)
    poly_power: float = option(
        1.0, "Power of the polynomial decay of the learning rate.", at_least=0
    )
    num_warmup_steps: int = option(
        10000, "Steps of linear warm-up of the learning rate; 0: none.", at_least=0
    )
    start_warmup_step: int = option(  # above 0, earlier steps would have a negative rate
        0, "Step at which the warm-up starts; 0 or negative.", at_most=0
    )
    steps_per_update: int = option(
        1, "Aggregate the gradients of this many steps for one update.", at_least=1
    )
    clip_by_global_norm_after_gradient_allreduce: bool = option(
        False, "Clip the aggregated gradient once per update, not the gradient of each step."
    )
    normalization: str = option(
        "global",
        "Losses and clipping over the global batch, or by each replica, whose gradients are summed "
        "(the reference on GPUs) or averaged (on TPUs).",
        choices=("global", "replica_sum", "replica_mean"),
        page="clusters.md",
    )

    connect_timeout_seconds: int = option(
        300,
        "How long the processes of a run wait for each other at the start.",
        at_least=1,
        identifies=False,
        page="clusters.md",
    )

    # Speed and memory
    precision: str = option(
        "float32",
        "Precision of matrix products; weights stay float32.",
        choices=PRECISIONS,
        page="speed.md",
    )
    jit_compile: str = option(
        "false",
        "Compile with XLA; auto compiles what is faster. No effect with jax: it always compiles.",
        choices=("auto", "true", "false"),
        page="speed.md",
    )
    compilation_cache_dir: str | None = option(
        None,
        "Local folder that keeps what jax compiled, so that later starts are faster.",
        path=True,
        identifies=False,
        page="speed.md",
    )
    pack_sequences: bool = option(
        False, "Pack several short examples into one row.", page="speed.md"
    )
    kernels: str = option(
        "auto",
        "Attention and LayerNorm by the compiler (xla; auto is that), or by this project's kernels "
        "(triton), which no GPU has run yet.",
        choices=("auto", "triton", "xla"),
        page="speed.md",
    )
    recompute: str = option(
        RECOMPUTE_NONE,
        "Compute activations again in the backward pass: less memory, more time.",
        choices=RECOMPUTE_CHOICES,
        page="speed.md",
    )

    # Saving and reporting
    save_checkpoints_steps: int = option(
        1000, "Steps between checkpoints.", at_least=1, identifies=False
    )
    async_checkpoint: bool | None = option(
        None,
        "Train on while a thread writes the checkpoint. On by default, except on TPUs.",
        kind=bool,
        identifies=False,
        page="resuming.md",
    )
    keep_checkpoint_max: int = option(
        5, "Checkpoints to keep; 0: all.", at_least=0, identifies=False
    )
    iterations_per_loop: int = option(
        1000, "At most this many steps in one device call.", at_least=1, identifies=False
    )
    log_every_steps: int = option(
        10, "Steps between lines of metrics.jsonl.", at_least=1, identifies=False
    )
    profile_steps: ProfileWindow | None = option(
        None,
        "First-last: the profiler of the runtime runs during these steps.",
        parse=ProfileWindow.parse,
        identifies=False,
        page="speed.md",
    )
    power_watts: float | None = option(
        None,
        "Power of the whole system, for its energy; measured if not given.",
        kind=float,
        above=0,
        identifies=False,
        page="time_and_energy.md",
    )
    submission: SubmissionInfo = options(
        _submission,
        submission_org=Option("unnamed", "Organisation in the MLPerf log."),
        submission_platform=Option("unnamed", "System in the MLPerf log."),
        submission_status=Option("onprem", "onprem, cloud, preview or research."),
    )

    # Devices and processes
    runtime: str = option(
        "auto",
        "What computes the steps; auto is jax on TPUs and GPUs.",
        choices=("auto", "tensorflow", "jax"),
        page="clusters.md",
    )
    device: DeviceConfig = options(
        DeviceConfig,
        num_gpus=Option(0, "GPUs of this host; 0: the CPU.", at_least=0, page="clusters.md"),
        use_tpu=Option(False, "Use a TPU.", page="clusters.md"),
        tpu_name=Option(None, "Accepted; the TPU is always this machine's.", page="clusters.md"),
        tpu_zone=Option(None, "Zone of the TPU.", page="clusters.md"),
        gcp_project=Option(None, "Project of the TPU.", page="clusters.md"),
        num_tpu_cores=Option(
            8, "Devices of the TPU, as jax counts them.", at_least=1, page="clusters.md"
        ),
    )
    cluster: Cluster | None
    """The processes of the run; None: only this one."""
    tf_xla_flags: str = variable("TF_XLA_FLAGS")
    """TensorFlow reads it too."""
    jax_compilation_cache_dir: str = variable("JAX_COMPILATION_CACHE_DIR")
    """What jax's runtime takes for --compilation_cache_dir, if that is not given."""
    cuda_visible_devices: str = variable("CUDA_VISIBLE_DEVICES")
    """CUDA reads it too."""

    def __post_init__(self):
        problems = []
        if self.num_train_steps % self.steps_per_update:
            problems.append(
                f"--num_train_steps={self.num_train_steps} must be a multiple of "
                f"--steps_per_update={self.steps_per_update}: the last update would be lost"
            )
        if self.profile_steps and self.profile_steps.last > self.num_train_steps:
            problems.append(
                f"--profile_steps ends at {self.profile_steps.last}, after "
                f"--num_train_steps={self.num_train_steps}"
            )
        if self.emulate_step_seconds is not None and self.eval_input_file:
            problems.append(
                f"--emulate_step_seconds={self.emulate_step_seconds} trains nothing that could be "
                "evaluated: leave out --eval_input_file"
            )
        if self.device.use_tpu and self.device.num_gpus:
            problems.append(TWO_KINDS)
        if problems:
            raise Problems(problems)

    @property
    def global_batch_size(self) -> int:
        """Samples per update of the weights."""
        return self.train_batch_size * self.steps_per_update

    @property
    def evaluation_interval_samples(self) -> int:
        """Samples between evaluations, rounded up to whole updates."""
        if self.eval_interval_samples is None:
            return rules.evaluation_interval_samples(self.global_batch_size)
        # Rounded to whole updates: within an update the weights do not change.
        updates = rules.samples_to_steps(self.eval_interval_samples, self.global_batch_size)
        return updates * self.global_batch_size

    @property
    def evaluation_interval_steps(self) -> int | None:
        """Steps between evaluations; None: none during the training."""
        if not self.eval_input_file:
            return None
        return self.evaluation_interval_samples // self.train_batch_size

    @property
    def saves_while_training(self) -> bool:
        """Whether a thread writes checkpoints; on a TPU, where it is not tested, only if asked."""
        if self.async_checkpoint is None:
            return not self.device.use_tpu
        return self.async_checkpoint

    @property
    def compilation(self) -> Compilation:
        """What XLA compiles; with --jit_compile=auto the fastest choice for the device.

        With --jit_compile=false, TF_XLA_FLAGS=--tf_xla_auto_jit=2 and --tf_xla_cpu_global_jit
        together still have an effect.

        The measurements are in benchmarks/NOTES.md.
        """
        if self.runtime == "jax":
            on_gpus = self.device.kind == "GPU"
            reason = "jax always compiles it"
            return Compilation(reason=reason, passes=True, exported=True, barriers=on_gpus)
        if self.jit_compile == "false":
            # Levels of 0 and below turn it off; the last of several counts.
            levels = re.findall(r"tf_xla_auto_jit=(\S+)", self.tf_xla_flags)
            on_cpus = re.findall(r"tf_xla_cpu_global_jit(?:=(\w+))?", self.tf_xla_flags)
            counts = on_cpus and on_cpus[-1].lower() not in ("false", "0")
            if counts and levels and levels[-1][0] not in "0-":
                return Compilation(reason=f"TF_XLA_FLAGS={self.tf_xla_flags}", clusters=True)
            return NO_COMPILATION
        if self.jit_compile == "true":
            return Compilation(reason="--jit_compile=true", passes=True, step=True, barriers=True)
        # In bfloat16 a step that is compiled whole takes twice as long on a CPU.
        return Compilation(reason="matrix products on a CPU are faster outside XLA", passes=True)

    def energy_meter(self) -> energy.Meter:
        """What measures the run's energy on this host."""
        processes = self.cluster.size_here if self.cluster else 1
        return energy.meter(
            power_watts=self.power_watts,
            num_gpus=self.device.num_gpus * processes,  # each process has its own
            visible=self.cuda_visible_devices if processes == 1 else None,
            num_hosts=self.cluster.num_hosts if self.cluster else 1,
        )

    def parameters(self) -> dict:
        """What run.json records of the run; parameters in `may_change` are not compared."""
        num_workers = self.cluster.size if self.cluster else 1
        return {**_values_to_record(vars(self)), "num_workers": num_workers}

    @property
    def may_change(self) -> frozenset[str]:
        """Parameters that may have another value when an interrupted run resumes.

        They do not change the computation. Input files and the initial checkpoint are compared by
        what is in them, not by their names; see output.py.
        """
        return free_to_change(RunConfig)

    def hyperparameters(self, *, seed: int) -> dict[str, object]:
        """MLLOG key -> value of what the log must contain before the run starts.

        `seed` is the drawn one if none was given. `checked_input` counts the evaluation examples
        after run_start, because their files are data too.
        """
        return {
            constants.SEED: seed,
            constants.GLOBAL_BATCH_SIZE: self.global_batch_size,
            constants.GRADIENT_ACCUMULATION_STEPS: self.steps_per_update,
            constants.MAX_SEQUENCE_LENGTH: self.shape.max_seq_length,
            "max_predictions_per_seq": self.shape.max_predictions_per_seq,
            constants.OPT_NAME: self.optimizer.name,
            constants.OPT_BASE_LR: self.learning_rate,
            constants.OPT_LR_TRAINING_STEPS: self.num_train_steps,
            constants.OPT_LR_WARMUP_STEPS: self.num_warmup_steps,
            constants.NUM_WARMUP_STEPS: self.num_warmup_steps,
            constants.START_WARMUP_STEP: self.start_warmup_step,
            **self.optimizer.hyperparameters(poly_power=self.poly_power),
        }

    def departures(self, bert_config: BertConfig) -> list[rules.Departure]:
        """Every way in which the run departs from the closed division's rules."""
        departures = []
        if self.emulate_step_seconds is not None:
            asleep = f"sleeps of {self.emulate_step_seconds} s"
            departures.append(rules.Departure("emulate_step_seconds", "computed steps", asleep))
        if not self.shuffle:
            departures.append(rules.Departure("shuffle", "a random order", "sorted files"))
        if self.init_checkpoint is None:
            departures.append(
                rules.Departure("init_checkpoint", "the official one", "random weights")
            )
        if self.max_eval_steps is not None:
            departures.append(
                rules.Departure("max_eval_steps", "all examples evaluated", self.max_eval_steps)
            )
        # If training does not evaluate, each checkpoint is evaluated later.
        interval_steps = self.evaluation_interval_steps or self.save_checkpoints_steps
        return departures + rules.departures_from_closed_rules(
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mode:
    """What run_pretraining.py is to do: the flags that do not describe a run."""

    do_train: bool = option(False, "Train.")
    do_eval: bool = option(
        False,
        "Without --do_train: evaluate the checkpoints of a run; without a run, --init_checkpoint.",
    )
    check: bool = option(
        False,
        "Report all problems at once, and do not train. With jax it also compiles the step.",
        page="submissions.md",
    )
    check_initial_accuracy: bool = option(
        False, "With --check: also evaluate the initial checkpoint.", page="submissions.md"
    )
    master: str | None = option(None, "Accepted for the reference's command lines; without effect.")


def _values_to_record(values: Mapping[str, Any]) -> dict:
    """Values of the fields of a run as run.json has them."""
    variables = ("tf_xla_flags", "jax_compilation_cache_dir", "cuda_visible_devices")
    left_out = ("submission", "cluster", *variables)
    kept = {name: value for name, value in values.items() if name not in left_out}
    for name, value in kept.items():
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            kept[name] = dataclasses.asdict(value)
    # A TPU that was created again may have another name.
    kept["device"] = {n: v for n, v in kept["device"].items() if n not in _NAMES_OF_A_TPU}
    return kept
