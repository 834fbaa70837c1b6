"""What a user asked for."""

import dataclasses

from mlperf_bert.training.config import DeviceConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """What the runs of a sweep differ in."""

    learning_rate: float
    seed: int

    def __str__(self) -> str:
        return f"learning rate {self.learning_rate:g}, seed {self.seed}"

    @property
    def folder(self) -> str:
        """The name of the run's folder."""
        return f"learning_rate_{self.learning_rate:g}_seed_{self.seed}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuningConfig:
    """Flags of run_finetuning.py."""

    task: str
    data_dir: str
    checkpoint: str
    output_dir: str
    settings: tuple[Setting, ...]
    """One for each run of a task."""
    bert_config_file: str | None = None
    vocab_file: str | None = None
    do_lower_case: bool | None = None
    """None: as tokenizer_config.json beside the vocabulary says; without it true."""
    max_seq_length: int = 128
    doc_stride: int = 128
    max_query_length: int = 64
    train_batch_size: int = 32
    eval_batch_size: int = 32
    num_train_epochs: int = 3
    warmup_proportion: float = 0.1
    save_checkpoints_steps: int = 1000
    precision: str = "float32"
    do_predict: bool = False
    device: DeviceConfig = dataclasses.field(default_factory=DeviceConfig)
