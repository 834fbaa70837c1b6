"""The observer of a run: at every evaluation it says where the run stands among others.

Every training loads this module. The others are loaded only for a run that can be compared with
them.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from mlperf_bert.files import json_text
from mlperf_bert.mlperf.rules import (
    FIXED_HYPERPARAMETERS,
    MAX_SEQ_LENGTH,
    TARGET_MASKED_LM_ACCURACY,
    is_bert_large,
)
from mlperf_bert.training.loop import LOSSES, OVER, Event, Trained

if TYPE_CHECKING:
    from mlperf_bert.model.metrics import Evaluation
    from mlperf_bert.submission.reference_runs import Outlook, Reference
    from mlperf_bert.training.config import RunConfig

_NUM_CAUSES = 3


_RATES = {
    "opt_base_learning_rate": "--learning_rate",
    "opt_epsilon": "--log_epsilon: epsilon",
    "num_warmup_steps": "--num_warmup_steps",
}
"""Keys of the MLLOG, and how a sentence on them begins."""


def causes(
    seen: "Outlook",
    reference: "Reference",
    *,
    hyperparameters: Mapping[str, object],
    first_loss: float | None = None,
    train_loss: float | None = None,
    train_loss_falls: bool = False,
    eval_loss: float | None = None,
    vocab_size: int | None = None,
) -> str:
    """The likeliest causes of a run's being outside of the band, as the end of a warning.

    Args:
      seen: at one evaluation.
      reference: the other runs.
      hyperparameters: of the run, by their keys in the MLLOG.
      first_loss: masked LM, of the first step; None, as for all that follow, if it is not known.
      train_loss: masked LM, mean since the evaluation before.
      train_loss_falls: whether it has fallen by a third or more since then.
      eval_loss: masked LM, of the evaluation.
      vocab_size: of the model.
    """
    weighed = [*_of_rates(hyperparameters, reference)]
    # The initial checkpoint is not loaded, or is another.
    initial = reference.initial_accuracy
    if first_loss is not None and vocab_size:
        guessed = math.log(vocab_size)
        # Much more than a guess are labels that a model with weights finds unlikely.
        if 0.95 * guessed < first_loss < 1.1 * guessed:
            words = (
                f"the weights are not loaded: the loss of the first step was {first_loss:.2f}, a "
                f"guess among {vocab_size:,} words has {guessed:.2f}; check --init_checkpoint"
            )
            weighed.append((5, words))
    elif initial is not None and seen.accuracy < initial - 0.05:
        words = f"the initial checkpoint alone has {initial}; check --init_checkpoint"
        weighed.append((3, f"the weights are not loaded: {words}"))
    weighed += _of_data(seen.is_low, train_loss, eval_loss, train_loss_falls)
    weighed.sort(key=lambda each: -each[0])
    if not weighed:
        return "nothing that the run knows of itself says why"
    numbered = enumerate(weighed[:_NUM_CAUSES], start=1)
    return "; ".join(f"({number}) {cause}" for number, (_, cause) in numbered)


def _of_rates(
    hyperparameters: Mapping[str, object], reference: "Reference"
) -> Iterator[tuple[float, str]]:
    """Weights and causes: learning rate, warm-up and epsilon that are not the other runs'."""
    for key, usual in reference.hyperparameters.items():
        value = hyperparameters.get(key)
        if not isinstance(value, int | float) or key not in _RATES or value == usual:
            continue
        factor = value / usual if usual and value > 0 else math.inf
        # Within a factor of two they are tuned, as the rules allow.
        doublings = abs(math.log2(factor)) if 0 < factor < math.inf else 1
        if doublings >= 1:
            yield doublings, f"{_RATES[key]} is {value:g}, theirs {usual:g}"


def _of_data(
    is_low: bool, train: float | None, evaluated: float | None, train_falls: bool
) -> Iterator[tuple[float, str]]:
    """Weights and causes: training and evaluation data that do not belong together."""
    if train is None or evaluated is None:
        if is_low:
            yield 1, "the data: examples that repeat, wrong masks, another evaluation shard"
        else:
            yield 1, "the evaluation file: it is not the 10,000 examples, or shows what is masked"
        return
    ratio = train / max(evaluated, 1e-9)
    losses = f"the training's loss is {train:.2f}, the evaluation's {evaluated:.2f}"
    if ratio < 0.8:
        # By heart means lower and lower; otherwise it is the evaluation that is harder.
        by_heart = 3 if train_falls else 1
        yield by_heart, f"examples repeat and are learned by heart (--input_file): {losses}"
        yield 2, f"the evaluation file is masked in another way: {losses}"
    elif ratio > 1.25 and not is_low:
        yield 3, f"the evaluation file shows what is masked, or is too easy: {losses}"
    elif ratio > 1.25:
        yield 3, f"labels or masks of the training data are wrong (--input_file): {losses}"
    elif is_low:
        yield 1, f"labels or masks are wrong in both files, or the model learns slowly: {losses}"


def in_words(
    seen: "Outlook",
    reference: "Reference",
    *,
    others: str | None = None,
    samples_per_second: float | None,
) -> str:
    """Where a run stands, and when it will be at its target.

    Args:
      seen: at one evaluation.
      reference: the other runs.
      others: how these are called; None: as they are.
      samples_per_second: of the run; None: no time is forecast.
    """
    low, high = seen.usual
    words = f"{others or reference.words}: {low:.4f} to {high:.4f}"
    if seen.is_outside:
        side = "below" if seen.is_low else "above"
        bound = seen.band[0] if seen.is_low else seen.band[1]
        return f"{words}; {seen.accuracy:.4f} is {side} all of them (limit {bound:.4f})"
    if seen.expected is None:
        return words
    words += f"; {reference.target:.3f} expected after {_samples(seen.expected)}"
    if samples_per_second:
        words += f", in {_duration((seen.expected[1] - seen.samples) / samples_per_second)}"
    return words


def _samples(expected: tuple[float, float, float]) -> str:
    least, median, most = expected
    if median < 1e6:
        return f"{median:,.0f} samples ({least:,.0f} to {most:,.0f})"
    return f"{median / 1e6:.2f} million samples ({least / 1e6:.2f} to {most / 1e6:.2f})"


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{max(seconds, 0):.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours"


@dataclass(eq=False)
class Watch(Event):
    """Says at every evaluation where a run stands; warns, or ends it, if it is outside."""

    reference: "Reference"
    """The runs to compare with."""
    _: KW_ONLY
    batch_size: int
    """Samples of a step."""
    hyperparameters: Mapping[str, object]
    """Of the run, by their keys in the MLLOG."""
    vocab_size: int
    """How many words a model without weights guesses among."""
    ends_hopeless: bool = False
    """Ends a run that is below the band."""

    def __post_init__(self) -> None:
        """Has seen nothing yet."""
        self._best = 0.0
        self._is_hopeless = False
        self._first_loss: float | None = None
        self._losses: list[float] = []
        self._began = (0, math.nan)

    def begin(self, step: int) -> None:
        """Starts to count the time; the first loss says nothing of a run that goes on."""
        self._began = (step, time.monotonic())
        self._first_loss = math.nan if step else None

    def at(self, trained: Trained) -> str | None:
        """Takes the losses; ends the run if its last evaluation was hopeless."""
        losses = trained.figures[:, LOSSES.index("masked_lm_loss")].tolist()
        self._first_loss = losses[0] if self._first_loss is None else self._first_loss
        self._losses += losses
        return OVER if self._is_hopeless and self.ends_hopeless else None

    def evaluated(self, step: int, evaluation: "Evaluation") -> str:
        """What there is to say of an evaluation."""
        samples, accuracy = step * self.batch_size, evaluation.masked_lm_accuracy
        self._best = max(self._best, accuracy)
        seen = self.reference.outlook(samples, accuracy, best=self._best)
        losses, self._losses = self._losses, []
        self._is_hopeless = seen.is_low
        began_step, began = self._began
        seconds = time.monotonic() - began
        rate = (step - began_step) * self.batch_size / seconds if seconds > 0 else None
        words = in_words(seen, self.reference, samples_per_second=rate)
        if not seen.is_outside:
            return words
        why = causes(
            seen,
            self.reference,
            hyperparameters=self.hyperparameters,
            first_loss=self._first_loss,
            train_loss=sum(losses) / len(losses) if losses else None,
            train_loss_falls=_falls(losses),
            eval_loss=evaluation.masked_lm_loss,
            vocab_size=self.vocab_size,
        )
        words = f"WARNING: {words}: {why}"
        if self._is_hopeless and self.ends_hopeless:
            words += "; --stop_if_hopeless ends the run"
        return words


def _falls(losses: Sequence[float]) -> bool:
    """Whether the last tenth is less than two thirds of the first."""
    few = max(len(losses) // 10, 1)
    return bool(losses) and sum(losses[-few:]) < sum(losses[:few]) * 2 / 3


def of_run(config: "RunConfig", reference: str | None, *, ends_hopeless: bool) -> list[Event]:
    """The watch of a run; nothing for a run that has no others to be compared with.

    Args:
      config: of the run.
      reference: runs of one's own, as `reference_runs.own_reference` takes them; None: the
        published ones, for BERT-large with 512 tokens.
      ends_hopeless: ends a run that is below the band.

    Raises:
      ValueError: no runs are there to compare with, though the user asked for them.
    """
    try:
        model = json_text.read_object(config.bert_config_file)
        vocab_size = int(model["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError):
        return []  # the checks of the run say what is wrong with it
    batch_size = config.global_batch_size
    if reference is not None:
        from mlperf_bert.submission import reference_runs

        others = reference_runs.own_reference(reference, target=config.target_accuracy)
        task = {"tokens": config.shape.max_seq_length, "batch": batch_size}
        others.require_same_work(task, "this run")
    else:
        try:
            others = _published_like(config, model)
        except ValueError as error:
            if ends_hopeless:
                raise ValueError(f"--stop_if_hopeless: {error}") from error
            return []
    hyperparameters = {
        "opt_base_learning_rate": config.learning_rate,
        "opt_epsilon": config.optimizer.epsilon,
        "num_warmup_steps": config.num_warmup_steps,
    }
    return [
        Watch(
            others,
            batch_size=config.train_batch_size,
            hyperparameters=hyperparameters,
            vocab_size=vocab_size,
            ends_hopeless=ends_hopeless,
        )
    ]


def _published_like(config: "RunConfig", model: Mapping[str, object]) -> "Reference":
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
    from mlperf_bert.submission import published, reference_runs

    return reference_runs.published_reference(config.global_batch_size, published.load())
