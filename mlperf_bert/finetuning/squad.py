"""Fine-tuning on SQuAD 1.1 and 2.0: the answer to a question is a span of its context.

The test set is hidden: what is handed in are predictions of the dev set, scored here as there.
"""

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence

import numpy as np

from mlperf_bert.data.tokenization import Tokenizer
from mlperf_bert.files import paths
from mlperf_bert.files.whole import write_whole
from mlperf_bert.finetuning import squad_answers, squad_features
from mlperf_bert.finetuning.splits import Features, Split
from mlperf_bert.finetuning.squad_answers import Prediction, Rules
from mlperf_bert.finetuning.squad_features import Sizes
from mlperf_bert.finetuning.squad_reading import SquadExample, read_examples
from mlperf_bert.finetuning.squad_tokens import words_of_answer

_VERSIONS = {"squad1": "1.1", "squad2": "2.0"}
NAMES = tuple(_VERSIONS)
_WITH_IMPOSSIBLE = "squad2"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadTask:
    """SQuAD in the form that fine-tuning takes; the defaults are the field's."""

    name: str
    """squad1 or squad2."""
    data_dir: str
    """The folder of train-v1.1.json and dev-v1.1.json, or of those of v2.0."""
    sizes: Sizes = dataclasses.field(default_factory=Sizes)
    rules: Rules = dataclasses.field(default_factory=Rules)
    """The threshold is squad2's."""
    main_metric = "f1"
    eval_splits = ("dev",)
    test_splits = ()

    def read(self, split: str) -> list[SquadExample]:
        """The questions of "train" or "dev"; for training only those whose answer is found.

        Raises:
          ValueError: as `squad_reading.read_examples`, or no answer is found.
        """
        path = paths.location(self.data_dir) / f"{split}-v{_VERSIONS[self.name]}.json"
        is_training = split == "train"
        examples = read_examples(path, has_impossible=self.name == _WITH_IMPOSSIBLE)
        if not is_training:
            return examples
        # As in the field: an answer that is not at its offset cannot be trained on.
        kept = [
            example
            for example in examples
            if not example.answers or words_of_answer(example.context, example.answers[0])
        ]
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
        """Rows of windows; see `squad_features.encode`, also for what it raises."""
        return squad_features.encode(examples, tokenizer, sizes=self.sizes, is_training=is_training)

    def metrics(self, split: Split, outputs: np.ndarray) -> dict[str, float]:
        """Exact match and F1 in percent, of logits as in `squad_answers.predict`."""
        predicted = self._predict(split, outputs)
        return squad_answers.scores(
            {e.question_id: [answer.text for answer in e.answers] for e in split.examples},
            {name: prediction.text for name, prediction in predicted.items()},
            null_odds=_null_odds(predicted),
        )

    def write_predictions(
        self, split: Split, outputs: np.ndarray, *, name: str, folder: paths.Location
    ) -> list[paths.Location]:
        """Writes predictions.json and, for 2.0, null_odds.json, which SQuAD's script takes.

        It has one split to score, so that its `name` is in none of theirs. Returns their paths.
        """
        predicted = self._predict(split, outputs)
        contents: dict[str, Mapping] = {
            "predictions": {key: one.text for key, one in predicted.items()}
        }
        if odds := _null_odds(predicted):
            contents["null_odds"] = odds
        target = paths.location(folder)
        paths.make_folder(target)
        for kind, content in contents.items():
            write_whole(target / f"{kind}.json", json.dumps(content, indent=4) + "\n")
        return [target / f"{kind}.json" for kind in contents]

    def _predict(self, split: Split, outputs: np.ndarray) -> dict[str, Prediction]:
        rules = self.rules
        if self.name != _WITH_IMPOSSIBLE:
            rules = dataclasses.replace(rules, null_score_diff_threshold=None)
        return squad_answers.predict(split, outputs, rules=rules)


def _null_odds(predicted: Mapping[str, Prediction]) -> dict[str, float]:
    return {name: one.null_odds for name, one in predicted.items() if one.null_odds is not None}
