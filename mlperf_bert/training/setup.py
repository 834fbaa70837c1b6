"""What a run is built from, and what the checks before it have found."""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from mlperf_bert.data.manifest import Manifest
from mlperf_bert.data.validity import ExampleLimits
from mlperf_bert.files import paths
from mlperf_bert.input import pipeline
from mlperf_bert.messages import Problems, printable
from mlperf_bert.model.config import BertConfig
from mlperf_bert.training.config import RunConfig

ERROR, WARNING, NOTE = "error", "warning", "note"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One finding: an error stops the run, a warning does not, a note only informs."""

    level: str
    text: str

    def __str__(self) -> str:
        return printable(f"{self.level}: {self.text}")


@dataclasses.dataclass(kw_only=True)
class Inspection:
    """The findings, and the parts of a run that the checks made; None or empty where one failed."""

    config: RunConfig
    findings: list[Finding] = dataclasses.field(default_factory=list)
    bert_config: BertConfig | None = None
    files: list[str] = dataclasses.field(default_factory=list)
    eval_files: list[str] = dataclasses.field(default_factory=list)
    strategy: tf.distribute.Strategy | None = None
    manifests: dict[paths.Location, Manifest | None] = dataclasses.field(default_factory=dict)
    """The manifest of each folder of training data; None where there is none."""

    def add(self, level: str, text: str) -> None:
        """Adds a finding."""
        self.findings.append(Finding(level, text))

    def attempt(self, make: Callable, *arguments, **keywords):
        """The result of a call; a ValueError or OSError becomes an error finding, and None."""
        try:
            return make(*arguments, **keywords)
        except (ValueError, OSError) as error:
            self.add(ERROR, str(error))

    @property
    def errors(self) -> list[str]:
        """The texts of the findings that stop the run."""
        return [finding.text for finding in self.findings if finding.level == ERROR]

    def setup(self) -> "Setup":
        """The parts that the checks made.

        Raises:
          ValueError: with all errors, if there are any.
        """
        if self.errors:
            raise Problems(self.errors)
        assert self.bert_config is not None  # else there is an error
        return Setup(
            config=self.config,
            bert_config=self.bert_config,
            strategy=self.strategy,
            files=self.files,
            eval_files=self.eval_files,
            limits=self.config.shape.for_model(self.bert_config),
            manifests=self.manifests,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setup:
    """What a run is built from; checked before it starts."""

    config: RunConfig
    bert_config: BertConfig
    strategy: tf.distribute.Strategy
    files: list[str]
    """To train on."""
    eval_files: list[str]
    """Empty: no evaluation during training."""
    limits: ExampleLimits
    manifests: dict[paths.Location, Manifest | None]

    def evaluation_batches(self) -> tf.data.Dataset:
        """The batches of an evaluation."""
        return pipeline.evaluation_batches(
            self.eval_files,
            self.limits,
            batch_size=self.config.eval_batch_size,
            max_batches=self.config.max_eval_steps,
        )
