"""Every published BERT result of MLPerf Training, rounds 1.0 to 5.0, as a table of facts.

    pandas.read_parquet("mlperf_results/published.parquet")

is the table; its `attrs` say where the numbers come from, and under which licence. A row is an
`Entry`: one system's runs, published or one's own.
"""

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow.parquet

from mlperf_bert.mlperf.rules import MAX_SEQ_LENGTH

TABLE = Path(__file__).with_name("published.parquet")
NUM_WEIGHTS_OF_BERT_LARGE = 398
_FAMILIES = tuple(
    (re.compile(pattern, re.IGNORECASE), name)
    for pattern, name in (
        (r"GB200", "GB200"),
        (r"B200", "B200"),
        (r"\bMIG\b|GH200|H[12]00.*NVL", ""),  # parts and variants of a family
        (r"H200", "H200"),
        (r"H100.*PCIe", "H100 PCIe"),
        (r"H100", "H100 SXM"),
        (r"A100.*PCIe", "A100 PCIe"),
        (r"A100", "A100 SXM"),
        (r"V100", "V100"),
        (r"\bL40S", "L40S"),
        (r"\bL40", "L40"),
        (r"\bL4\b", "L4"),
        (r"\bA30\b", "A30"),
        (r"A5000", "RTX A5000"),
        (r"4090", "RTX 4090"),
        (r"7900 ?XTX", "RX 7900 XTX"),
        (r"MI300X", "MI300X"),
        (r"Gaudi ?2", "Gaudi2"),
        (r"Gaudi(?! ?[3-9])", "Gaudi"),
        (r"Bow", "Bow IPU"),
        (r"IPU", "GC200 IPU"),
        (r"TPU(?!.*v[235-9])", "TPU v4"),  # all published TPUs without a version are v4
        (r"Ascend", "Ascend 910"),
    )
)
CPU, UNKNOWN = "CPU", "unknown"
_FRAMEWORKS = tuple(
    "PyTorch TensorFlow MXNet JAX PopART MindSpore PaddlePaddle Lingvo tinygrad CUDA".split()
)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One system and its runs; None for what logs and description do not say.

    The fields are columns of the table of published results, which has more.
    """

    round: str
    """The round of MLPerf Training, "1.0" to "5.0"; empty for one's own."""
    org: str
    system: str
    division: str | None
    """closed or open."""
    nodes: int | None = None
    accelerators: int | None = None
    """Their number in the whole system; 0 if processors train."""
    accelerator_model_name: str | None = None
    """The submitter's own words, as in `host_processor_model_name` and `framework`."""
    host_processor_model_name: str | None = None
    framework: str | None = None
    global_batch_size: int | None = None
    max_sequence_length: int | None = None
    num_weights: int | None = None
    """The number of weights that the log names; another model has fewer than BERT-large."""
    runs: int
    """The number of logs that were read."""
    runs_missing: int = 0
    """Logs that the source lists and does not hold."""
    runs_converged: int
    rcp_scaling_factor: float | None = None
    minutes_scored: float | None
    """The olympic mean times the factor."""
    samples_mean: float | None
    """Mean samples to converge, over all converged runs."""
    samples_per_second_median: float | None
    """Samples to converge over the whole timed run, evaluation and all."""
    samples_per_second_per_accelerator: float | None
    rcp: str | None = None
    """The official RCP checker's verdict."""
    same_logs_as: str | None = None
    """ROUND/ORG/SYSTEM of an earlier entry with the same timed runs."""
    notes: str | None = None
    run_minutes: tuple[float, ...] = ()
    """Minutes of each converged run, as `run_samples` has its samples."""
    run_samples: tuple[float | None, ...] = ()
    evaluation_samples: tuple[tuple[float, ...], ...] = ()
    """Samples before each evaluation of each converged run; empty where the log does not say."""
    evaluation_accuracy: tuple[tuple[float, ...], ...] = ()
    """The accuracy that each of these evaluations found."""

    @property
    def name(self) -> str:
        """ROUND/ORG/SYSTEM, or ORG/SYSTEM."""
        return "/".join(filter(None, (self.round, self.org, self.system)))

    @property
    def minutes(self) -> float | None:
        """The score; of runs that are too few for one, their mean."""
        if self.minutes_scored is not None:
            return self.minutes_scored
        # The mean of the converged runs would hide a run that did not converge.
        is_whole = not self.runs_missing and self.runs == self.runs_converged
        return statistics.fmean(self.run_minutes) if self.run_minutes and is_whole else None

    @property
    def family(self) -> str:
        """The accelerator without memory size, power and spelling."""
        return family_of(self.accelerator_model_name or "", self.accelerators)

    @property
    def frameworks(self) -> tuple[str, ...]:
        """Known names in `framework`, which may list those of other benchmarks too."""
        typed = (self.framework or "").lower()
        return tuple(name for name in _FRAMEWORKS if name.lower() in typed)

    @property
    def departures(self) -> tuple[str, ...]:
        """Why it is shown but never ranked; empty if it is comparable to closed results."""
        reasons = [] if self.division == "closed" else [self.division or "no division"]
        if self.num_weights and self.num_weights < NUM_WEIGHTS_OF_BERT_LARGE:
            reasons.append("miniature")
        elif self.max_sequence_length not in (None, MAX_SEQ_LENGTH):
            reasons.append(f"sequences of {self.max_sequence_length} tokens")
        if self.minutes is None:
            reasons.append("logs missing" if self.runs_missing else "did not converge")
        return tuple(reasons)


def comparable(entries: Sequence[Entry]) -> list[Entry]:
    """Returns the entries that are ranked: closed, with a time, and each run once."""
    return [entry for entry in entries if not entry.departures and not entry.same_logs_as]


def family_of(accelerator: str, number: int | None) -> str:
    """Returns the family of an accelerator by its name; the name itself if it is unknown."""
    # The first match counts: GB200 comes before B200, variants before their family.
    for pattern, family in _FAMILIES:
        if pattern.search(accelerator):
            return family or accelerator
    return CPU if number == 0 else accelerator or UNKNOWN


def load(path: Path = TABLE) -> list[Entry]:
    """Returns the rows of the table."""
    columns = [field.name for field in fields(Entry)]
    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path, columns=columns).to_pylist()
    return [Entry(**{name: _tuples(value) for name, value in row.items()}) for row in rows]


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
