"""Will a run converge, and when: where its accuracies stand among those of other runs.

    python -m mlperf_results.watch result_0.txt [result_1.txt ...] [--follow]

reads logs, of any vendor, also while they grow. run_pretraining.py says the same of its own run at
every evaluation. other_runs.py states the method, benchmarks/watch_table.py how often it is right.

Exit codes: 0 all runs are inside of the band, 3 one is outside, 1 bad input.
"""

import argparse
import functools
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mlperf_bert.files import json_text, paths
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.mlperf.logs import RunResult
from mlperf_bert.mlperf.rules import (
    FIXED_HYPERPARAMETERS,
    MAX_SEQ_LENGTH,
    TARGET_MASKED_LM_ACCURACY,
    is_bert_large,
)
from mlperf_bert.options import duration, words_with_home
from mlperf_bert.programs.config import LOSSES
from mlperf_bert.submission.run_logs import require_free, runs_so_far, work_of
from mlperf_bert.training.loop import OVER, Trained
from mlperf_bert.training.observers import Observer
from mlperf_results import other_runs, published
from mlperf_results.other_runs import Reference
from mlperf_results.published import NUM_WEIGHTS_OF_BERT_LARGE

if TYPE_CHECKING:
    from mlperf_bert.model.metrics import Evaluation
    from mlperf_bert.training.config import RunConfig

EXIT_OUTSIDE = 3
SECONDS_BETWEEN_LOOKS = 10
_RATES = {
    "opt_base_learning_rate": "--learning_rate",
    "opt_epsilon": "--log_epsilon: epsilon",
    "num_warmup_steps": "--num_warmup_steps",
}
"""Keys of the MLLOG, and how a sentence on them begins."""


@dataclass(kw_only=True)
class Watched:
    """A run, of which every evaluation is judged by its place among the others."""

    reference: Reference
    """The runs to compare with."""
    hyperparameters: Mapping[str, object]
    """Of the run, by their keys in the MLLOG."""
    others: str | None = None
    """How the others are called; None: by their own words."""
    first_loss: float | None = None
    """Masked LM, of the first step; None if it is not known."""
    vocab_size: int | None = None
    """How many words a model without weights guesses among; None if it is not known."""
    best: float = 0.0
    """The best accuracy so far."""

    def evaluated(
        self, samples: float, accuracy: float, samples_per_second: float | None
    ) -> tuple[str, str]:
        """Where the run stands at an evaluation, and what there is to say of it.

        Without a rate no time is forecast.

        Returns: "below" or "above" the band, or "" inside of it; a line.
        """
        others = self.reference
        self.best = max(self.best, accuracy)
        low, high = others.band(samples)
        # NaN is below.
        side = "below" if not accuracy >= low else "above" if accuracy > high else ""
        words = "{}: {:.4f} to {:.4f}".format(self.others or others.words, *others.usual(samples))
        if side:
            limit = low if side == "below" else high
            words += f"; {accuracy:.4f} is {side} all of them (limit {limit:.4f})"
            return side, f"WARNING: {words}: {self._causes(accuracy)}"
        # Before its first step nothing is known of a run but its checkpoint.
        if samples and self.best < others.target:
            expected = others.forecast(samples, self.best)
            words += f"; {others.target:.3f} expected after {_samples(expected)}"
            if samples_per_second:
                seconds = (expected[1] - samples) / samples_per_second
                words += f", in {duration(max(round(seconds), 1))}"
        return side, words

    def _causes(self, accuracy: float) -> str:
        """What a run knows of itself that can put it outside of the band."""
        known = []
        initial = self.reference.initial_accuracy
        if self.first_loss is not None and self.vocab_size:
            # Without weights a model guesses; with other labels it finds the words even less
            # likely.
            guessed = math.log(self.vocab_size)
            if 0.95 * guessed < self.first_loss < 1.1 * guessed:
                known.append(
                    f"the weights are not loaded: the loss of the first step was "
                    f"{self.first_loss:.2f}, a guess among {self.vocab_size:,} words has "
                    f"{guessed:.2f}; check --init_checkpoint"
                )
        elif initial is not None and accuracy < initial - 0.05:
            known.append(
                f"the weights are not loaded: the initial checkpoint alone has {initial}; "
                "check --init_checkpoint"
            )
        for key, usual in self.reference.hyperparameters.items():
            value = self.hyperparameters.get(key)
            if isinstance(value, int | float) and key in _RATES and value != usual:
                known.append(f"{_RATES[key]} is {value:g}, theirs {usual:g}")
        return "; ".join(known) or "nothing that the run knows of itself says why"


def _samples(expected: tuple[float, float, float]) -> str:
    least, median, most = expected
    if median < 1e6:
        return f"{median:,.0f} samples ({least:,.0f} to {most:,.0f})"
    return f"{median / 1e6:.2f} million samples ({least / 1e6:.2f} to {most / 1e6:.2f})"


@dataclass(eq=False, kw_only=True)
class Watch(Observer):
    """Says at every evaluation where a run stands; warns, or ends it, if it is outside."""

    run: Watched
    batch_size: int
    """Samples of a step."""
    ends_hopeless: bool = False
    """Ends a run that is below the band."""

    def __post_init__(self) -> None:
        """Has seen nothing yet."""
        self._is_hopeless = False
        self._began = (0, math.nan)

    def begin(self, step: int) -> None:
        """Starts to count the time; the first loss says nothing of a run that goes on."""
        self._began = (step, time.monotonic())
        self.run.first_loss = math.nan if step else None

    def at(self, trained: Trained) -> str | None:
        """Takes the first loss; ends the run if its last evaluation was hopeless."""
        if self.run.first_loss is None:
            self.run.first_loss = float(trained.figures[0, LOSSES.index("masked_lm_loss")])
        return OVER if self._is_hopeless and self.ends_hopeless else None

    def evaluated(self, step: int, evaluation: "Evaluation") -> str:
        """What there is to say of an evaluation."""
        began_step, began = self._began
        seconds = time.monotonic() - began
        rate = (step - began_step) * self.batch_size / seconds if seconds > 0 else None
        side, words = self.run.evaluated(
            step * self.batch_size, evaluation.masked_lm_accuracy, rate
        )
        # Above the band is odd, and no reason to end a run.
        self._is_hopeless = side == "below"
        if self._is_hopeless and self.ends_hopeless:
            words += "; --stop_if_hopeless ends the run"
        return words


def observer(config: "RunConfig", words: Sequence[str]) -> Watch:
    """The observer of a run, for `--observer=mlperf_results.watch:observer`.

    Args:
      config: of the run.
      words: `--reference=RUNS`, runs of one's own as `other_runs.own_reference` takes them, in
        place of the published ones; `--stop_if_hopeless` ends a run that is below the band.

    Raises:
      ValueError: a word is neither, or no runs are there to compare with.
    """
    parser = argparse.ArgumentParser(exit_on_error=False, add_help=False)
    parser.add_argument("--reference")
    parser.add_argument("--stop_if_hopeless", action="store_true")
    try:
        given, unknown = parser.parse_known_args(words_with_home(words))
    except argparse.ArgumentError as error:
        raise ValueError(str(error)) from error
    if unknown:
        raise ValueError(f"{unknown[0]}: give --reference=RUNS, --stop_if_hopeless or neither")
    model = json_text.read_object(config.bert_config_file)
    batch_size = config.global_batch_size
    if given.reference is None:
        others = _published_like(config, model)
    else:
        # Up to the target of this run, which may be lower than theirs.
        others = other_runs.own_reference(given.reference, target=config.target_accuracy)
        task = {"tokens": config.shape.max_seq_length, "batch": batch_size}
        others.require_same_work(task, "this run")
    hyperparameters = {
        "opt_base_learning_rate": config.learning_rate,
        "opt_epsilon": config.optimizer.epsilon,
        "num_warmup_steps": config.num_warmup_steps,
    }
    vocab_size = int(str(model["vocab_size"]))
    return Watch(
        run=Watched(reference=others, hyperparameters=hyperparameters, vocab_size=vocab_size),
        batch_size=config.train_batch_size,
        ends_hopeless=given.stop_if_hopeless,
    )


def _published_like(config: "RunConfig", model: Mapping[str, object]) -> Reference:
    is_benchmark = (
        is_bert_large(model)
        and config.shape.max_seq_length == MAX_SEQ_LENGTH
        and config.target_accuracy == TARGET_MASKED_LM_ACCURACY
        and config.optimizer.name == FIXED_HYPERPARAMETERS["optimizer"]
        and config.poly_power == FIXED_HYPERPARAMETERS["poly_power"]
        and config.emulate_step_seconds is None
    )
    if not is_benchmark:
        raise ValueError(
            f"published runs are of BERT-large with {MAX_SEQ_LENGTH} tokens, LAMB, a linear decay "
            f"and target {TARGET_MASKED_LM_ACCURACY}; give runs like this one as --reference"
        )
    return _published(config.global_batch_size)


@functools.cache
def _published(global_batch_size: int) -> Reference:
    return other_runs.published_reference(global_batch_size, published.load())


def reference_of_log(run: RunResult) -> Reference:
    """The published runs like that of a log; the same object for all logs of a batch size.

    Raises:
      ValueError: no published run is like it, or its log does not say what is needed.
    """
    is_other = run.max_sequence_length not in (None, MAX_SEQ_LENGTH)
    is_small = (run.num_weights or NUM_WEIGHTS_OF_BERT_LARGE) < NUM_WEIGHTS_OF_BERT_LARGE
    if is_other or is_small or not run.global_batch_size:
        raise ValueError(
            f"{run.path}: no batch size in the log, or not BERT-large with {MAX_SEQ_LENGTH} tokens "
            "as published runs are; give runs like it as --reference"
        )
    try:
        return _published(int(run.global_batch_size))
    except ValueError as error:
        raise ValueError(f"{run.path}: {error}") from error


def lines(run: RunResult, reference: Reference) -> list[tuple[str, bool]]:
    """What there is to say of each evaluation of a log, and whether it is outside.

    Raises:
      ValueError: the log does not say after how many samples its evaluations were.
    """
    told = []
    watched = Watched(reference=reference, hyperparameters=run.hyperparameters, others="others")
    for evaluation in run.evaluations:
        samples, accuracy = evaluation.samples, evaluation.accuracy
        if samples is None:
            raise ValueError(
                f"{run.path}: its epoch_num does not count samples: nothing says when an "
                "evaluation was"
            )
        seconds = 60 * evaluation.minutes
        rate = samples / seconds if seconds > 0 else None
        side, words = watched.evaluated(samples, accuracy, rate)
        told.append((f"after {samples:,.0f} samples: {accuracy:.4f}; {words}", bool(side)))
    return told


def watch(places: Sequence[str], given: Reference | None, *, follow: bool) -> bool:
    """Prints what there is to say of runs; whether one was outside at any evaluation.

    Raises:
      ValueError, OSError: a log cannot be read, or there is nothing to compare it with.
    """
    told: dict[Path, int] = {}
    awaited: set[Path] = set()
    while True:
        is_outside = False
        # Read again each time: a folder may have further runs by now.
        runs = [run for place in places for run in runs_so_far(place, may_be_empty=follow)]
        for run in runs:
            # Before run_start a log does not name all weights, nor its batch perhaps.
            if follow and run.started_ms is None:
                if run.path not in awaited:
                    print(f"{run.path}: has not begun; waiting for its run_start", flush=True)
                    awaited.add(run.path)
                continue
            reference = given or reference_of_log(run)
            reference.require_same_work(work_of(run), str(run.path))
            # What was printed stays printed, also if a log is written again.
            of_run = lines(run, reference)
            new = of_run[told.get(run.path, 0) :]
            if new or run.path not in told:
                state = run.status if of_run else f"{run.status}, no evaluation yet"
                others = f"the others are {len(reference)} {reference.words}"
                print(f"{run.path}: {state}; {others}", flush=True)
            for line, _ in new:
                print(f"  {line}", flush=True)
            told[run.path] = len(of_run)
            is_outside |= any(outside for _, outside in of_run)
        # A killed run never says that it has ended: the user ends the watch.
        if not follow or all(run.status != "running" for run in runs):
            return is_outside
        time.sleep(SECONDS_BETWEEN_LOOKS)


@ends_in_one_line("watch")
def main(arguments: Sequence[str] | None = None) -> int:
    """Watches logs."""
    parser = argparse.ArgumentParser(
        prog="python -m mlperf_results.watch", description="Will these runs converge?"
    )
    parser.add_argument("runs", nargs="*", metavar="RUN", help="a log, or a folder of runs")
    parser.add_argument("--follow", action="store_true", help="go on until the runs have ended")
    parser.add_argument("--reference", help="runs of one's own, in place of published")
    parser.add_argument("--save", help="write the runs of --reference to this file, NAME.json")
    given = parser.parse_args(words_with_home(arguments))
    if (not given.runs and not given.save) or (given.save and not given.reference):
        parser.error("give the log of a run, or --reference and --save")
    with paths.reads() as inputs:
        reference = given.reference and other_runs.own_reference(given.reference)
    if given.save:
        require_free({"--save": given.save}, [*inputs, *given.runs])
        other_runs.save(given.save, reference)
        print(f"{len(reference)} {reference.words} are in {given.save}")
    return EXIT_OUTSIDE if watch(given.runs, reference, follow=given.follow) else 0


if __name__ == "__main__":
    sys.exit(main())
