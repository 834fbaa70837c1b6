"""The configuration of fine-tuning: the flags of run_finetuning.py, checked."""

import dataclasses

from mlperf_bert.finetuning import glue, squad
from mlperf_bert.options import MAX_SEED, Option, option, options, variable
from mlperf_bert.training.config import DeviceConfig

TASKS = (*glue.NAMES, squad.NAME)
ALL_OF_GLUE = "glue"
Task = glue.GlueTask | squad.SquadTask


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """What the runs of a sweep differ in."""

    learning_rate: float = option(3e-5, "Peak learning rate of AdamW.", above=0)
    seed: int = option(
        1, "Seed of the head, dropout and the order of the examples.", at_least=0, at_most=MAX_SEED
    )

    def __str__(self) -> str:
        return f"learning rate {self.learning_rate:g}, seed {self.seed}"

    @property
    def folder(self) -> str:
        """The name of the run's folder."""
        return f"learning_rate_{self.learning_rate:g}_seed_{self.seed}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuningConfig:
    """What to fine-tune, on which tasks, how, and where the output goes."""

    # Input and output
    task: str = option(
        None,
        "The task; glue: all of GLUE but WNLI and the diagnostics set, as the BERT paper does.",
        choices=(*TASKS, ALL_OF_GLUE),
        required=True,
    )
    data_dir: str = option(
        None,
        "GLUE: the folder with CoLA/train.tsv and so on; SQuAD: the folder with its JSON files.",
        required=True,
        path=True,
    )
    checkpoint: str = option(
        None,
        "Pre-trained weights: a checkpoint, TF1 or TF2, or the folder of a run (its newest one).",
        required=True,
        path=True,
        may_have_wildcards=False,
    )
    output_dir: str = option(
        None,
        "Checkpoints and results go here.",
        required=True,
        path=True,
        may_have_wildcards=False,
    )
    bert_config_file: str = option(None, "The model's bert_config.json.", required=True, path=True)
    vocab_file: str = option(None, "The model's vocab.txt.", required=True, path=True)
    do_lower_case: bool = option(True, "Lower-case the text; False for cased models.")
    max_seq_length: int = option(
        None,
        "Tokens per example; longer ones are cut, or become several windows. Default: 128, SQuAD: "
        "384.",
        kind=int,
        at_least=4,
    )
    doc_stride: int = option(
        128,
        "SQuAD: tokens from the start of a window of the text to that of the next.",
        at_least=1,
    )
    max_query_length: int = option(
        64, "SQuAD: tokens of a question; longer ones are cut.", at_least=1
    )
    do_predict: bool = option(
        False,
        "Also write the answers to the test set (SQuAD: to the dev set, and to test-v1.1.json), as "
        "the task's server takes them.",
    )

    # Training
    settings: tuple[Setting, ...]
    """One for each run of a task."""
    train_batch_size: int = option(32, "Examples per step; 16 or 32.", at_least=1)
    eval_batch_size: int = option(32, "Examples per evaluation step.", at_least=1)
    num_train_epochs: int = option(3, "Passes over the training examples.", at_least=1)
    warmup_proportion: float = option(
        0.1,
        "Part of the steps in which the learning rate warms up. The decay to 0 counts from step 0, "
        "as in BERT's own code.",
        at_least=0,
        below=1,
    )

    # Speed and devices
    precision: str = option(
        "float32",
        "Precision of matrix products; weights stay float32.",
        choices=("float32", "bfloat16", "tf32"),
    )
    runtime: str = option(
        "auto",
        "What computes the steps; auto is jax on a GPU or a TPU.",
        choices=("auto", "tensorflow", "jax"),
    )
    device: DeviceConfig = options(
        DeviceConfig,
        num_gpus=Option(0, "1: a GPU of this host; 0: the CPU.", at_least=0, at_most=1),
        use_tpu=Option(False, "Use one core of this host's TPU."),
    )
    jax_compilation_cache_dir: str = variable("JAX_COMPILATION_CACHE_DIR")
    """Keeps what jax compiles."""

    def create(self, name: str) -> Task:
        """One of `TASKS`, over the files in `data_dir`."""
        # Flags that are not given keep the default of the task's field.
        own_length = {"max_seq_length": self.max_seq_length} if self.max_seq_length else {}
        if name in glue.NAMES:
            return glue.create(name, self.data_dir, **own_length)
        task = squad.SquadTask(
            data_dir=self.data_dir,
            doc_stride=self.doc_stride,
            max_query_length=self.max_query_length,
            **own_length,
        )
        if self.doc_stride >= task.room:
            raise ValueError(
                f"--doc_stride={self.doc_stride}: windows would not overlap, because besides "
                f"--max_query_length={self.max_query_length} and the special tokens "
                f"--max_seq_length={task.max_seq_length} has room for {task.room} tokens; lower "
                "--doc_stride or --max_query_length, or raise --max_seq_length"
            )
        return task
