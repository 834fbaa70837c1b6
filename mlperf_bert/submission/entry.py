"""One system's runs as one row: what a published result and one's own have in common."""

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mlperf_bert.mlperf.results import Evaluation, RunResult
from mlperf_bert.mlperf.rules import MAX_SEQ_LENGTH
from mlperf_bert.submission.power import Power, measured_power
from mlperf_bert.submission.verdict import System, olympic_mean

NUM_WEIGHTS_OF_BERT_LARGE = 398
_FAMILIES = tuple(
    (re.compile(pattern, re.IGNORECASE), name)
    for pattern, name in (
        (r"GB200", "GB200"),
        (r"B200", "B200"),
        (r"\bMIG\b|GH200|H[12]00.*NVL", ""),  # parts and kin of a family
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
        (r"TPU(?!.*v[235-9])", "TPU v4"),  # all that were published are
        (r"Ascend", "Ascend 910"),
    )
)
CPU, UNKNOWN = "CPU", "unknown"
_FRAMEWORKS = tuple(
    "PyTorch TensorFlow MXNet JAX PopART MindSpore PaddlePaddle Lingvo tinygrad CUDA".split()
)
_STATUSES = {"preview": "preview", "research": "research", "rdi": "research"}
_POWER_UNKNOWN = "power unknown: "  # in front of a reason in the notes
_MOST_SAMPLES_TO_CONVERGE = 50_000_000  # ten times what any BERT-large needs


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One system and its runs; None for what logs and description do not say.

    The fields are the columns of the table of published results.
    """

    round: str
    """The round of MLPerf Training, "1.0" to "5.0"; empty for one's own."""
    org: str
    system: str
    division: str | None
    """closed or open."""
    status: str | None
    """available, preview or research."""
    nodes: int | None = None
    accelerators: int | None = None
    """In the whole system; 0 if processors train."""
    accelerator_model_name: str | None = None
    """As the submitter typed it, as `host_processor_model_name` and `framework`."""
    host_processor_model_name: str | None = None
    framework: str | None = None
    precision: str | None = None
    """No published log names it; our logs and run.json do."""
    global_batch_size: int | None = None
    max_sequence_length: int | None = None
    num_weights: int | None = None
    """Named by the log; fewer than BERT-large's is another model."""
    runs: int
    """Logs that were read."""
    runs_missing: int = 0
    """Logs that the source lists and does not hold."""
    runs_converged: int
    minutes_olympic_mean: float | None
    rcp_scaling_factor: float | None = None
    minutes_scored: float | None
    """The olympic mean times the factor."""
    samples_mean: float | None
    """To converge, over all converged runs."""
    samples_source: str | None
    """epoch_num or train_samples."""
    samples_per_second_median: float | None
    """Samples to converge over the whole timed run, evaluation and all."""
    samples_per_second_per_accelerator: float | None
    watts: float | None = None
    """Measured, the whole system's mean during the runs."""
    rated_watts: float | None = None
    """The maker's rating of one accelerator, where its name says so."""
    rcp: str | None = None
    """The official RCP checker's verdict, counted by `samples_source`."""
    rcp_unaided: str | None = None
    """Its verdict without being told to count by train_samples."""
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
        is_whole = not self.runs_missing and self.runs == self.runs_converged
        return statistics.fmean(self.run_minutes) if self.run_minutes and is_whole else None

    @property
    def results(self) -> list[RunResult]:
        """The converged runs, as far as the table has them."""
        columns = (self.run_samples, self.evaluation_samples, self.evaluation_accuracy)
        return [
            RunResult(
                path=Path(f"{self.name}, run {number}"),
                status="success",
                minutes=minutes,
                init_minutes=None,
                samples_to_converge=needed,
                counts_by_train_samples=False,
                global_batch_size=self.global_batch_size,
                num_eval_samples=None,
                seeds=(),
                evaluations=tuple(
                    Evaluation(minutes=minutes * at / samples[-1], samples=at, accuracy=accuracy)
                    for at, accuracy in zip(samples, accuracies)
                ),
                benchmark="bert",
                division=self.division,
                max_sequence_length=self.max_sequence_length,
                num_weights=self.num_weights,
            )
            for number, (minutes, needed, samples, accuracies) in enumerate(
                zip(self.run_minutes, *columns, strict=True)
            )
        ]

    @property
    def curve(self) -> list[tuple[float, float]]:
        """(samples, accuracy) of the run with the median of samples; empty if not logged."""
        known = [
            (samples, number)
            for number, samples in enumerate(self.run_samples)
            if samples is not None
        ]
        if not known:
            return []
        _, number = sorted(known)[len(known) // 2]
        return list(zip(self.evaluation_samples[number], self.evaluation_accuracy[number]))

    @property
    def power_unknown_because(self) -> str | None:
        """Why there is no power, where some was measured."""
        found = (self.notes or "").partition(_POWER_UNKNOWN)[2]
        return found.partition("; ")[0] or None

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
    def samples_per_joule(self) -> float | None:
        """Samples/s per watt, measured."""
        if not self.watts or not self.samples_per_second_median:
            return None
        return self.samples_per_second_median / self.watts

    @property
    def samples_per_rated_joule(self) -> float | None:
        """Samples/s per watt of the accelerators' rated power."""
        if not self.rated_watts or not self.samples_per_second_per_accelerator:
            return None
        return self.samples_per_second_per_accelerator / self.rated_watts

    @property
    def departures(self) -> tuple[str, ...]:
        """Why it is shown and never ranked; empty if it is like closed results."""
        found = [] if self.division == "closed" else [self.division or "no division"]
        if self.num_weights and self.num_weights < NUM_WEIGHTS_OF_BERT_LARGE:
            found.append("miniature")
        elif self.max_sequence_length not in (None, MAX_SEQ_LENGTH):
            found.append(f"sequences of {self.max_sequence_length} tokens")
        if self.minutes is None:
            found.append("logs missing" if self.runs_missing else "did not converge")
        return tuple(found)

    @property
    def caveat(self) -> str:
        """The same in words."""
        return f"not comparable: {', '.join(self.departures)}" if self.departures else ""


def family_of(accelerator: str, number: int | None) -> str:
    """Return the family of an accelerator by its name; the name itself if it is not known."""
    for pattern, family in _FAMILIES:
        if pattern.search(accelerator):
            return family or accelerator
    return CPU if number == 0 else accelerator or UNKNOWN


def entry_of(
    system: System,
    *,
    round: str = "",
    org: str = "",
    num_failed_logs: int = 0,
    num_missing_logs: int = 0,
    scaling: float | None = None,
    notes: Sequence[str] = (),
) -> Entry:
    """Return the row on a system.

    Args:
      system: with the runs whose logs can be read; beside them those of power may be too.
      round, org: name the row, with the system's name.
      num_failed_logs: of runs without an end.
      num_missing_logs: of logs that are not there.
      scaling: multiplies the score; None: as the RCP checker says, if it was asked.
      notes: on the row.
    """
    runs, description, rcp = system.runs, system.description, system.rcp
    if rcp and scaling is None and rcp.scaling != 1.0:
        scaling = rcp.scaling
    converged = [run for run in runs if run.succeeded]
    num_nodes = _whole(description.get("number_of_nodes"))
    folder = runs[0].path.parent if runs else None
    power = measured_power(folder, runs, num_nodes=num_nodes) if folder else Power()
    if power.unknown_because:
        notes = [*notes, f"{_POWER_UNKNOWN}{power.unknown_because}"]
    minutes = [run.minutes for run in converged]
    num_failed = len(runs) + num_failed_logs - len(converged)
    mean = None if num_missing_logs else olympic_mean(minutes, num_failed=num_failed)
    accelerators = _accelerators(description, runs)
    name = _text(description, "accelerator_model_name")
    rating = re.search(r"\((\d+) ?W\)", name or "")
    return Entry(
        round=round,
        org=org,
        system=system.name,
        division=_division(description, runs),
        status=_status(description),
        nodes=num_nodes,
        accelerators=accelerators,
        accelerator_model_name=name,
        host_processor_model_name=_text(description, "host_processor_model_name"),
        framework=_text(description, "framework"),
        precision=_precision(runs),
        global_batch_size=_common([run.global_batch_size for run in runs]),
        max_sequence_length=_common([run.max_sequence_length for run in runs]),
        num_weights=_common([run.num_weights for run in runs]),
        runs=len(runs) + num_failed_logs,
        runs_missing=num_missing_logs,
        runs_converged=len(converged),
        minutes_olympic_mean=_rounded(mean, 4),
        rcp_scaling_factor=scaling,
        minutes_scored=_rounded(mean and mean * (scaling or 1), 4),
        watts=power.watts,
        rated_watts=float(rating[1]) if rating else None,
        rcp=str(rcp) if rcp else None,
        rcp_unaided=str(system.rcp_unaided) if system.rcp_unaided else None,
        notes="; ".join(notes) or None,
        run_minutes=tuple(float(f"{value:.4f}") for value in minutes),
        **_convergence(converged, accelerators),
    )


def with_twins(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries, those with the timed runs of an earlier one marked."""
    first: dict[tuple, str] = {}
    found = []
    for entry in entries:
        earlier = first.setdefault(tuple(sorted(entry.run_minutes)) or (entry.name,), entry.name)
        found.append(replace(entry, same_logs_as=earlier if earlier != entry.name else None))
    return found


def _convergence(runs: Sequence[RunResult], accelerators: int | None) -> dict[str, Any]:
    """Return the fields on samples of converged runs."""
    # Two entries of Google in the open division of round 1.1 resumed larger models: they count the
    # samples before the timed run too.
    counted = [r for r in runs if 0 < (r.samples_to_converge or 0) <= _MOST_SAMPLES_TO_CONVERGE]
    samples = [run.samples_to_converge for run in counted if run.samples_to_converge]
    rates = [run.samples_per_second for run in counted if run.samples_per_second]
    rate = statistics.median(rates) if rates else None
    sources = {"train_samples" if run.counts_by_train_samples else "epoch_num" for run in counted}
    evaluations = [_logged_evaluations(run) if run in counted else [] for run in runs]
    return {
        "samples_mean": _rounded(statistics.fmean(samples), 0) if samples else None,
        "samples_source": " and ".join(sorted(sources)) or None,
        "samples_per_second_median": _rounded(rate, 2),
        "samples_per_second_per_accelerator": _rounded(
            rate / accelerators if rate and accelerators else None, 2
        ),
        "run_samples": tuple(run.samples_to_converge if run in counted else None for run in runs),
        "evaluation_samples": tuple(tuple(n for n, _ in each) for each in evaluations),
        "evaluation_accuracy": tuple(tuple(a for _, a in each) for each in evaluations),
    }


def _logged_evaluations(run: RunResult) -> list[tuple[float, float]]:
    """Return (samples, accuracy) of those with both."""
    return [
        (e.samples, round(e.accuracy, 4))
        for e in run.evaluations
        if e.samples is not None and math.isfinite(e.accuracy)
    ]


def _division(description: Mapping[str, object], runs: Sequence[RunResult]) -> str | None:
    """Return closed or open; PCL and others spelt it otherwise."""
    named = _text(description, "division") or next((run.division for run in runs), None) or ""
    return {"c": "closed", "o": "open"}.get(named[:1].lower(), named or None)


def _status(description: Mapping[str, object]) -> str | None:
    filed = (_text(description, "status") or "").lower()
    return next(
        (name for word, name in _STATUSES.items() if word in filed), "available" if filed else None
    )


def _accelerators(description: Mapping[str, object], runs: Sequence[RunResult]) -> int | None:
    nodes = _whole(description.get("number_of_nodes"))
    each = _whole(description.get("accelerators_per_node"))
    if nodes is not None and each is not None:
        return nodes * each
    return _common([run.num_replicas for run in runs])


def _precision(runs: Sequence[RunResult]) -> str | None:
    """Return that of linear layers, on which all logs agree; a foreign log may hold anything."""
    named = [run.hyperparameters.get("lowest_numerical_precision_in_linear") for run in runs]
    found = {name if isinstance(name, str) else None for name in named}
    return found.pop() if len(found) == 1 else None


def _text(description: Mapping[str, object], name: str) -> str | None:
    return str(description.get(name) or "").strip() or None


def _whole(value: object) -> int | None:
    digits = re.fullmatch(r"\s*(\d{1,9})(\.0)?\s*", str(value), re.ASCII)
    return int(digits[1]) if digits else None


def _common(values: Sequence[float | None]) -> int | None:
    """Return what all logs that say it agree on."""
    found = {value for value in values if value is not None}
    return int(found.pop()) if len(found) == 1 else None


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
