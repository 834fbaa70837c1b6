"""What a run is built from, and what the checks before it have found."""

import dataclasses
from collections.abc import Callable
from typing import Any

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


class Findings(list[Finding]):
    """What the checks have found, in their order."""

    def add(self, level: str, text: str) -> None:
        """Adds a finding."""
        self.append(Finding(level, text))

    def attempt(self, make: Callable[..., Any], *arguments, **keywords) -> Any:
        """The result of a call; a ValueError or OSError becomes an error finding, and None."""
        try:
            return make(*arguments, **keywords)
        except (ValueError, OSError) as error:
            self.add(ERROR, str(error))

    @property
    def errors(self) -> list[str]:
        """The texts of the findings that stop the run."""
        return [finding.text for finding in self if finding.level == ERROR]

    def require_none(self) -> None:
        """Raises ValueError with all errors, if there are any."""
        if self.errors:
            raise Problems(self.errors)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setup:
    """What a run is built from, made and checked before it starts.

    A part that could not be made is None or empty; then there is an error among the findings, and
    no run is built from it.
    """

    config: RunConfig
    findings: Findings
    bert_config: BertConfig
    strategy: tf.distribute.Strategy
    files: list[str]
    """To train on."""
    eval_files: list[str]
    """Empty: no evaluation during training."""
    manifests: dict[paths.Location, Manifest | None]
    """The manifest of each folder of training data; None where there is none."""

    @property
    def limits(self) -> ExampleLimits:
        """What an example must keep to."""
        return self.config.shape.for_model(self.bert_config)

    def evaluation_batches(self) -> tf.data.Dataset:
        """The batches of an evaluation."""
        return pipeline.evaluation_batches(
            self.eval_files,
            self.limits,
            batch_size=self.config.eval_batch_size,
            max_batches=self.config.max_eval_steps,
        )
