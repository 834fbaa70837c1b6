"""Where fine-tuning starts: a checkpoint, TF1 or TF2, a run's folder, or a Hugging Face model."""

import dataclasses
import functools
import hashlib
from pathlib import Path

import tensorflow as tf
from official.nlp.modeling import models

from mlperf_bert.checkpoints import names, reading, state
from mlperf_bert.checkpoints.reading import StoredCheckpoint
from mlperf_bert.convert import hub, stored_model
from mlperf_bert.files import paths, whole
from mlperf_bert.model.config import BertConfig
from mlperf_bert.model.pretrainer import trained_variables

_ENCODER, _POOLER = "bert/", "bert/pooler/"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A pre-trained model."""

    name: str
    """The prefix of a checkpoint, or a folder in Hugging Face's layout."""
    is_hugging_face: bool
    config: BertConfig
    vocab_file: str

    @functools.cached_property
    def sha256(self) -> str:
        """The digest of the weights; of a checkpoint, of its index, which has their checksums."""
        if not self.is_hugging_face:
            return whole.digest(f"{self.name}.index", "sha256")
        files = sorted(Path(self.name).glob("model*.safetensors"))
        digests = "".join(whole.digest(path, "sha256") for path in files)
        return hashlib.sha256(digests.encode()).hexdigest()


def find(checkpoint: str, *, bert_config_file: str | None, vocab_file: str | None) -> Source:
    """Finds the model that a user names; of a run's folder the newest checkpoint.

    A model in Hugging Face's layout brings its own configuration and vocabulary.

    Raises:
      ValueError: there is none, or its configuration or vocabulary is not given, or given twice.
    """
    name = checkpoint.rstrip("/")
    with paths.failures_named(name):
        is_folder = tf.io.gfile.isdir(name)
    if is_folder and (Path(name) / hub.CONFIG).exists():
        given = {"bert_config_file": bert_config_file, "vocab_file": vocab_file}
        for flag, value in given.items():
            if value is not None:
                raise ValueError(
                    f"--{flag}={value}: {name} is in Hugging Face's layout and has its own; leave "
                    "the flag out"
                )
        values = hub.read_json(Path(name), hub.CONFIG, name)
        files = [file for file in hub.VOCABULARIES if (Path(name) / file).exists()]
        if not files:
            raise ValueError(
                f"{name}: no {hub.VOCABULARY}, its vocabulary; copy it from where it is published"
            )
        return Source(
            name=name,
            is_hugging_face=True,
            config=hub.bert_config(values, f"{name}/{hub.CONFIG}"),
            vocab_file=f"{name}/{files[0]}",
        )
    if vocab_file is None:
        raise ValueError("--vocab_file is needed: the vocab.txt of the checkpoint")
    if bert_config_file is None:
        raise ValueError("--bert_config_file is needed: the bert_config.json of the checkpoint")
    newest = state.newest_checkpoint(name)[1] if is_folder else name
    if not newest:
        raise ValueError(
            f"{name}: neither a run with checkpoints (no {state.CHECKPOINT_NAME}-*.index) nor a "
            f"model in Hugging Face's layout (no {hub.CONFIG}); give a checkpoint such as "
            f"{name}/{state.CHECKPOINT_NAME}-28252"
        )
    return Source(
        name=newest,
        is_hugging_face=False,
        config=BertConfig.from_json_file(bert_config_file),
        vocab_file=vocab_file,
    )


def check(source: Source, *, needs_pooler: bool) -> None:
    """Opens the weights without reading them, to find what is missing before any data are read.

    Raises:
      ValueError: there are none, they are damaged, or there is no pooler and it is needed.
    """
    pooler = [w for w in names.weights(0) if w.tf1_name.startswith(_POOLER)]
    if source.is_hugging_face:
        there = stored_model.StoredModel(Path(source.name), source.name).names
        found = any(hub.name_of_weight(weight.tf1_name) in there for weight in pooler)
    else:
        stored = StoredCheckpoint(source.name)
        found = any(stored.name_of(weight) for weight in pooler)
    if needs_pooler and not found:
        # A random one would be trained too, but the result would not show what was pre-trained.
        raise ValueError(
            f"{source.name}: has no pooler (bert/pooler), which tasks with one answer for each "
            "example need; give a checkpoint that was pre-trained with next-sentence prediction, "
            "or choose squad1 or squad2, which need none"
        )


def load(model: models.BertPretrainerV2, source: Source, *, needs_pooler: bool) -> None:
    """Sets the encoder's weights, and those of the pooler if it is needed.

    Raises:
      ValueError: as `check`, or a weight is missing or of another shape.
    """
    check(source, needs_pooler=needs_pooler)
    variables = trained_variables(model)
    if source.is_hugging_face:
        stored = stored_model.StoredModel(Path(source.name), source.name)
        stored_model.load(variables, stored)
        return
    wanted = [
        variable
        for weight, variable in reading.weights_of(variables).items()
        if weight.tf1_name.startswith(_ENCODER)
        and (needs_pooler or not weight.tf1_name.startswith(_POOLER))
    ]
    reading.load_weights(wanted, StoredCheckpoint(source.name))
