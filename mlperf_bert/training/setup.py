"""What the options of a run name: files, model, devices; each is read when first asked for."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator

from mlperf_bert.checkpoints import one_vocabulary
from mlperf_bert.checkpoints.reading import StoredCheckpoint
from mlperf_bert.data import parts
from mlperf_bert.data.validity import ExampleLimits
from mlperf_bert.files import paths
from mlperf_bert.input import pipeline
from mlperf_bert.messages import ERROR, NOTE, WARNING, Finding, Problems, problems_of
from mlperf_bert.model.config import BertConfig
from mlperf_bert.training import devices
from mlperf_bert.training.config import RunConfig
from mlperf_bert.training.devices import Devices


class Findings(list[Finding]):
    """What the checks have found, in their order; nothing is told twice."""

    def add_error(self, text: str) -> None:
        """Adds an error: no such run begins."""
        self._add(ERROR, text)

    def add_warning(self, text: str) -> None:
        """Adds a warning: the run begins."""
        self._add(WARNING, text)

    def add_note(self, text: str) -> None:
        """Adds a note."""
        self._add(NOTE, text)

    def _add(self, level: str, text: str) -> None:
        # Several checks may need the same part, which cannot be made.
        if (finding := Finding(level, text)) not in self:
            self.append(finding)

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Errors within become findings; what follows continues."""
        try:
            yield
        except (ValueError, OSError) as error:
            for problem in problems_of(error):
                self.add_error(problem)

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
    """What the options of a run name: files, model, devices.

    Whoever asks for a part that cannot be made gets a ValueError or OSError. After
    `findings.require_none` all of `checks.inspect` are made, and none of them raises.
    """

    config: RunConfig
    has_checkpoint: bool = False
    """Whether the run has a checkpoint of its own, so that it loads no initial one."""
    connected: Devices | None = None
    """The devices of several processes; None: only this process."""
    findings: Findings = dataclasses.field(default_factory=Findings)
    read_parts: Callable[[paths.Location], dict[str, parts.DataSet]] = dataclasses.field(
        default_factory=lambda: functools.cache(parts.read)
    )
    """Reads the record of each folder once."""

    @functools.cached_property
    def files(self) -> list[str]:
        """The files to train on."""
        return self._expand(self.config.input_file, "input_file")

    @functools.cached_property
    def eval_files(self) -> list[str]:
        """The files to evaluate on; empty: no evaluation during training."""
        patterns = self.config.eval_input_file
        return self._expand(patterns, "eval_input_file") if patterns else []

    def _expand(self, patterns: str, flag: str) -> list[str]:
        return pipeline.expand_input(patterns, flag=flag, on_doubt=self.findings.add_warning)

    @functools.cached_property
    def data_sets(self) -> dict[paths.Location, list[parts.DataSet]]:
        """Folder -> its data sets with some of the training files; none if not recorded."""
        return parts.of_files(self.files, read=self.read_parts)

    @functools.cached_property
    def bert_config(self) -> BertConfig:
        """The sizes of the model."""
        return BertConfig.from_json_file(self.config.bert_config_file)

    @functools.cached_property
    def initial_checkpoint(self) -> StoredCheckpoint | None:
        """The opened initial checkpoint; None: weights are random or the run's own."""
        prefix = self.config.init_checkpoint
        return StoredCheckpoint(prefix) if prefix and not self.has_checkpoint else None

    @functools.cached_property
    def vocabulary(self) -> dict[str, str]:
        """What is known of the vocabulary of data, model and run; as `require_one` returns it."""
        files: list[str] = []
        # Present files are compared: a missing file hides no difference between the others.
        for flag in ("files", "eval_files"):
            with self.findings.collecting():
                files += getattr(self, flag)
        return vocabulary_of(self.config, parts.of_files(files, read=self.read_parts))

    @functools.cached_property
    def devices(self) -> Devices:
        """The devices of all processes that the run computes on."""
        return self.connected or devices.create(self.config)

    @property
    def num_replicas(self) -> int:
        """Devices of all processes that share a batch."""
        cluster = self.config.cluster
        # --check waits for no other process: each is given as many devices as this one.
        processes = cluster.size if cluster and not self.connected else 1
        return self.devices.num_replicas * processes

    @property
    def replica_batch_size(self) -> int:
        """Examples of a step on one replica."""
        return self.config.train_batch_size // self.num_replicas

    @property
    def step_identity(self) -> str:
        """All that decides a step except for its batch, in words that never change."""
        config = self.config
        others = config.may_change | {"seed", "device", "num_workers"}
        decides = {name: each for name, each in config.parameters().items() if name not in others}
        return f"{decides} {config.compilation} {config.compilation.barriers} {self.bert_config}"

    @property
    def limits(self) -> ExampleLimits:
        """The limits of every example."""
        return self.config.shape.for_model(self.bert_config)


def vocabulary_of(
    config: RunConfig, data: dict[paths.Location, list[parts.DataSet]]
) -> dict[str, str]:
    """The one vocabulary of a run's data, its model and what the run has recorded of itself."""
    named = filter(None, (config.bert_config_file, config.init_checkpoint))
    folders = [*(paths.location(each).parent for each in named), paths.location(config.output_dir)]
    return one_vocabulary.require_one(one_vocabulary.known_of(data=data, folders=folders))
