"""The start of fine-tuning: a checkpoint, TF1 or TF2, or the newest one of a run's folder."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

from mlperf_bert.checkpoints import one_vocabulary, state
from mlperf_bert.checkpoints.reading import StoredCheckpoint
from mlperf_bert.data import tokenizer_files, vocabulary
from mlperf_bert.data.tokenization import Tokenizer
from mlperf_bert.files import whole
from mlperf_bert.finetuning.config import FinetuningConfig, Task
from mlperf_bert.finetuning.squad import SquadTask
from mlperf_bert.model.config import BertConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainedModel:
    """A pre-trained model."""

    name: str
    """The prefix of its checkpoint."""
    config: BertConfig
    tokenizer: Tokenizer

    @functools.cached_property
    def sha256(self) -> str:
        """The digest of the checkpoint's index, which has the checksums of the weights."""
        return whole.digest(f"{self.name}.index", "sha256")


def find(config: FinetuningConfig, tasks: Sequence[Task]) -> PretrainedModel:
    """Finds the model that a user names (the newest checkpoint of a run's folder) and its words.

    Opens the weights without reading them, so that what is missing is found before any data are
    read.
    """
    name = config.checkpoint.rstrip("/")
    newest = state.newest_checkpoint(name)[1] if Path(name).is_dir() else name
    if not newest:
        raise ValueError(
            f"{name}: no run with checkpoints (no {state.CHECKPOINT_NAME}-*.index); give a "
            f"checkpoint such as {name}/{state.CHECKPOINT_NAME}-28252. A model in Hugging Face's "
            "layout becomes one by python -m mlperf_bert.convert.from_hugging_face"
        )
    model = BertConfig.from_json_file(config.bert_config_file)
    longest = max(task.max_seq_length for task in tasks)
    if longest > model.max_position_embeddings:
        raise ValueError(
            f"--max_seq_length={longest}: the model has {model.max_position_embeddings} positions; "
            f"give 4 to {model.max_position_embeddings}"
        )
    file = config.vocab_file
    vocabulary.read_fitting(file, model.vocab_size, of="the configuration")
    tokenizer_files.require_casing(file, do_lower_case=config.do_lower_case)
    folders = [Path(each).parent for each in (config.bert_config_file, newest)]
    own = one_vocabulary.in_file(file, do_lower_case=config.do_lower_case)
    one_vocabulary.require_one([own, *one_vocabulary.known_of(folders=folders)])
    lacks_pooler = "pooler" in StoredCheckpoint(newest).lacking_heads
    if lacks_pooler and not all(isinstance(task, SquadTask) for task in tasks):
        # A random pooler would be trained too, but the result would not show the pre-training.
        raise ValueError(
            f"{newest}: has no pooler (bert/pooler), which tasks with one answer for each example "
            "need; give a checkpoint that was pre-trained with next-sentence prediction, or choose "
            "squad1, which needs none"
        )
    tokenizer = Tokenizer(file, do_lower_case=config.do_lower_case)
    return PretrainedModel(name=newest, config=model, tokenizer=tokenizer)
