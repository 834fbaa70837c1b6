"""Where fine-tuning starts: a checkpoint, TF1 or TF2, or the newest one of a run's folder."""

import dataclasses
import functools

import tensorflow as tf
from official.nlp.modeling import models

from mlperf_bert.checkpoints import names, one_vocabulary, reading, state
from mlperf_bert.checkpoints.one_vocabulary import Known
from mlperf_bert.checkpoints.reading import StoredCheckpoint
from mlperf_bert.data import tokenizer_files, vocabulary
from mlperf_bert.data.tokenization import Tokenizer
from mlperf_bert.files import paths, whole
from mlperf_bert.finetuning.config import FinetuningConfig
from mlperf_bert.model.config import BertConfig
from mlperf_bert.model.pretrainer import trained_variables

_ENCODER, _POOLER = "bert/", "bert/pooler/"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A pre-trained model."""

    name: str
    """The prefix of its checkpoint."""
    config: BertConfig
    tokenizer: Tokenizer

    @functools.cached_property
    def sha256(self) -> str:
        """The digest of the checkpoint's index, which has the checksums of the weights."""
        return whole.digest(f"{self.name}.index", "sha256")


def find(config: FinetuningConfig) -> Source:
    """Finds the model that a user names, of a run's folder the newest checkpoint; reads its words.

    Raises:
      ValueError: they are not there, do not belong together, or --max_seq_length does not fit.
    """
    name = config.checkpoint.rstrip("/")
    with paths.failures_named(name):
        is_folder = tf.io.gfile.isdir(name)
    newest = state.newest_checkpoint(name)[1] if is_folder else name
    if not newest:
        raise ValueError(
            f"{name}: no run with checkpoints (no {state.CHECKPOINT_NAME}-*.index); give a "
            f"checkpoint such as {name}/{state.CHECKPOINT_NAME}-28252. A model in Hugging Face's "
            "layout becomes one by python -m mlperf_bert.convert.from_hugging_face"
        )
    model = BertConfig.from_json_file(config.bert_config_file)
    if config.max_seq_length > model.max_position_embeddings:
        raise ValueError(
            f"--max_seq_length={config.max_seq_length}: the model has "
            f"{model.max_position_embeddings} positions; give 4 to {model.max_position_embeddings}"
        )
    file = config.vocab_file
    vocabulary.read_fitting(file, model.vocab_size, of="the configuration")
    tokenizer_files.require_casing(file, do_lower_case=config.do_lower_case)
    known = one_vocabulary.known_of(
        folders=[paths.location(each).parent for each in (config.bert_config_file, newest)]
    )
    given = Known.in_file(file, do_lower_case=config.do_lower_case)
    one_vocabulary.require_one([given, *known])
    tokenizer = Tokenizer(file, do_lower_case=config.do_lower_case)
    return Source(name=newest, config=model, tokenizer=tokenizer)


def check(source: Source, *, needs_pooler: bool) -> None:
    """Opens the weights without reading them, to find what is missing before any data are read.

    Raises:
      ValueError: there are none, they are damaged, or there is no pooler and it is needed.
    """
    stored = StoredCheckpoint(source.name)
    pooler = [weight for weight in names.weights(0) if weight.tf1_name.startswith(_POOLER)]
    if needs_pooler and not any(stored.name_of(weight) for weight in pooler):
        # A random one would be trained too, but the result would not show what was pre-trained.
        raise ValueError(
            f"{source.name}: has no pooler (bert/pooler), which tasks with one answer for each "
            "example need; give a checkpoint that was pre-trained with next-sentence prediction, "
            "or choose squad1, which needs none"
        )


def load(model: models.BertPretrainerV2, source: Source, *, needs_pooler: bool) -> None:
    """Sets the encoder's weights, and those of the pooler if it is needed.

    Raises:
      ValueError: a weight is missing or of another shape.
    """
    wanted = [
        variable
        for weight, variable in reading.weights_of(trained_variables(model)).items()
        if weight.tf1_name.startswith(_ENCODER)
        and (needs_pooler or not weight.tf1_name.startswith(_POOLER))
    ]
    reading.load_weights(wanted, StoredCheckpoint(source.name))
