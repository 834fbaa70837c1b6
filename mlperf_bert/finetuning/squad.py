"""Fine-tuning on SQuAD 1.1: the answer to a question is a span of its context.

The test set is hidden: predictions of the dev set are handed in, and scored here in the same way.

Legend: F=windows, S=sequence length.
Source: Devlin et al., arXiv 1810.04805, sections 4.2 and 4.3, and the code published with it. Where
nothing can be predicted, that code predicts the word "empty"; here the prediction is an empty text.
The scores are those of SQuAD's script for 2.0, which tf-models has: the one for 1.1 differs only
where nothing is left of an answer after normalization, such as of "The".
"""

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from official.nlp.tools import squad_evaluate_v2_0

from mlperf_bert.data.tokenization import Tokenizer
from mlperf_bert.files.whole import write_whole
from mlperf_bert.finetuning.splits import TRAIN, Features, Split
from mlperf_bert.finetuning.squad_features import (
    cut_with_characters,
    tokens_of_answer,
    windows_of,
)
from mlperf_bert.finetuning.squad_reading import (
    TEST_NAME,
    SquadExample,
    piece_of,
    place_of_answer,
    read_examples,
)

NAME = "squad1"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadTask:
    """SQuAD in the form that fine-tuning takes; the defaults are those of the published code."""

    data_dir: str
    """The folder of train-v1.1.json and dev-v1.1.json, and test-v1.1.json without answers."""
    max_seq_length: int = 384
    doc_stride: int = 128
    """Tokens from the start of a window to that of the next."""
    max_query_length: int = 64
    """Tokens of a question; the rest is cut off."""
    max_answer_length: int = 30
    """The most tokens of an answer."""
    n_best_size: int = 20
    """How many starts and ends of each window are combined."""
    name = NAME
    main_metric = "f1"
    eval_splits = ("dev",)

    @property
    def room(self) -> int:
        """Tokens left for the context by the longest question.

        [CLS] question [SEP] context [SEP].
        """
        return self.max_seq_length - self.max_query_length - 3

    @property
    def predicted_splits(self) -> tuple[str, ...]:
        """The dev set, and the user's own questions, if there are any."""
        return ("dev", "test") if Path(self.data_dir, TEST_NAME).exists() else ("dev",)

    def read(self, split: str) -> list[SquadExample]:
        """The questions of "train", "dev" or "test"; only those with an answer are trained on."""
        path = Path(self.data_dir, f"{split}-v1.1.json")
        examples = read_examples(path, needs_answers=path.name != TEST_NAME)
        if split != TRAIN:
            return examples
        # An answer that is not at its offset cannot be trained on; the published code skips it too.
        kept = [one for one in examples if place_of_answer(one)]
        if not kept:
            raise ValueError(f"{path}: no answer is at its answer_start; correct the offsets")
        if num_skipped := len(examples) - len(kept):
            print(
                f"{path}: {num_skipped:,} of {len(examples):,} questions left out: their answer is "
                "not at its answer_start",
                file=sys.stderr,
            )
        return kept

    def encode(
        self, examples: Sequence[SquadExample], tokenizer: Tokenizer, *, is_training: bool
    ) -> Features:
        """Rows for the model, those of an example one after the other.

        A context without tokens has no window.

        Returns:
          int32 [F, S] input_ids, input_mask, segment_ids; int32 [F] example_index. For training
          also int32 [F] start_positions, end_positions, those of [CLS] if the answer is not in the
          window; else what predictions need: int32 [F, S] char_starts, char_ends, the characters of
          the context that a token stands for, -1 outside of the context; bool [F, S]
          is_max_context: this window shows more around the token than others that have it.
        """
        begin, end = (tokenizer.vocabulary[token] for token in ("[CLS]", "[SEP]"))
        questions = [
            [begin, *tokenizer.tokenize(example.question)[: self.max_query_length], end]
            for example in examples
        ]
        least = max(map(len, questions), default=0) + 2
        if self.max_seq_length < least:
            raise ValueError(
                f"--max_seq_length={self.max_seq_length} leaves no room for the context next to "
                f"the longest question; give at least {least}, better some hundreds"
            )
        contexts = list(map(cut_with_characters(tokenizer), (one.context for one in examples)))
        windows = [
            (index, *window)
            for index, (question, tokens) in enumerate(zip(questions, contexts))
            for window in windows_of(
                len(tokens), self.max_seq_length - len(question) - 1, self.doc_stride
            )
        ]
        shape = len(windows), self.max_seq_length
        names = ("input_ids", "input_mask", "segment_ids")
        features: Features = {name: np.zeros(shape, np.int32) for name in names}
        features["example_index"] = np.array([index for index, *_ in windows], np.int32)
        if is_training:
            answers = list(map(tokens_of_answer, examples, contexts))
            for name in ("start_positions", "end_positions"):
                features[name] = np.zeros(len(windows), np.int32)
        else:
            for name in ("char_starts", "char_ends"):
                features[name] = np.full(shape, -1, np.int32)
            features["is_max_context"] = np.zeros(shape, bool)
        for row, (index, shown, is_max_context) in enumerate(windows):
            question, (ids, starts, ends) = questions[index], contexts[index][shown].T
            at = slice(len(question), len(question) + len(ids))
            features["input_ids"][row, : at.stop + 1] = [*question, *ids, end]
            features["input_mask"][row, : at.stop + 1] = 1
            features["segment_ids"][row, at.start : at.stop + 1] = 1
            if not is_training:
                features["char_starts"][row, at] = starts
                features["char_ends"][row, at] = ends
                features["is_max_context"][row, at] = is_max_context
            elif answer := answers[index]:
                first, last = (token - shown.start + at.start for token in answer)
                if at.start <= first and last < at.stop:
                    features["start_positions"][row] = first
                    features["end_positions"][row] = last
        return features

    def metrics(self, split: Split, outputs: np.ndarray) -> dict[str, float]:
        """Percentages "exact" and "f1", of logits as in `predict`; "total" counts the questions."""
        asked = [
            {"id": one.question_id, "answers": [{"text": each.text} for each in one.answers]}
            for one in split.examples
        ]
        articles = [{"paragraphs": [{"qas": asked}]}]
        scores = squad_evaluate_v2_0.evaluate(articles, self.predict(split, outputs))
        return {name: scores[name] for name in ("exact", "f1", "total")}

    def write_predictions(
        self, split: Split, outputs: np.ndarray, *, name: str, folder: Path
    ) -> Path:
        """Writes predictions.json, which SQuAD's script takes, or predictions_test.json."""
        path = folder / ("predictions.json" if name == "dev" else f"predictions_{name}.json")
        write_whole(path, json.dumps(self.predict(split, outputs), indent=4) + "\n")
        return path

    def predict(self, split: Split, outputs: np.ndarray) -> dict[str, str]:
        """Question id -> answer.

        Args:
          split: its features as `encode` returns them, not for training.
          outputs: [F, S, 2] float32, the logits of a start and of an end at each position; finite.
        """
        texts = {}
        examples, features = split.examples, split.features
        bounds = np.searchsorted(features["example_index"], np.arange(len(examples) + 1))
        for example, begin, end in zip(examples, bounds, bounds[1:]):
            windows = {name: array[begin:end] for name, array in features.items()}
            logits = outputs[begin:end].astype(np.float64)
            texts[example.question_id] = self._best_answer(example.context, windows, logits)
        return texts

    def _best_answer(
        self, context: str, features: Mapping[str, np.ndarray], outputs: np.ndarray
    ) -> str:
        """The best of all spans to consider; an empty text if there is none.

        Of each window the n best starts and ends are combined. Both lie in the context, the start
        in the window with the most context around it, and the end not before it or too far away.
        """
        # A stable sort: of equal logits the published code takes the earlier position first.
        best = np.argsort(-outputs, axis=1, kind="stable")[:, : self.n_best_size]
        windows, starts, ends = np.broadcast_arrays(
            np.arange(len(outputs))[:, None, None], best[:, :, None, 0], best[:, None, :, 1]
        )
        is_valid = features["char_starts"][windows, ends] >= 0
        is_valid &= features["is_max_context"][windows, starts]
        is_valid &= (starts <= ends) & (ends - starts < self.max_answer_length)
        if not is_valid.any():
            return ""
        logits = outputs[windows, starts, 0] + outputs[windows, ends, 1]
        first = np.argmax(np.where(is_valid, logits, -np.inf))  # the first of equal ones
        window, start, end = (each.flat[first] for each in (windows, starts, ends))
        begin, stop = features["char_starts"][window, start], features["char_ends"][window, end]
        return piece_of(context, int(begin), int(stop))
