"""What can be checked before the clock starts, without touching data."""

from pathlib import Path

from mlperf_bert.data import manifest
from mlperf_bert.mlperf import rules
from mlperf_bert.model.config import BertConfig
from mlperf_bert.training.config import RunConfig


def partial_data(files: list[str]) -> list[rules.Issue]:
    """Data made with --examples_per_part, as the manifests beside them tell."""
    manifests = [manifest.load(folder) for folder in {Path(path).parent for path in files}]
    return [
        rules.Issue(
            "input_file",
            "all examples of every part",
            f"the first {found.parameters['examples_per_part']} of each",
        )
        for found in manifests
        if found is not None and not found.is_whole
    ]


def require_fitting_model(bert_config: BertConfig, config: RunConfig) -> None:
    """Checks the model against the examples' length and the vocabulary beside it.

    Raises:
      ValueError: they do not fit.
    """
    if config.shape.max_seq_length > bert_config.max_position_embeddings:
        raise ValueError(
            f"--max_seq_length={config.shape.max_seq_length} is more than the model's "
            f"max_position_embeddings={bert_config.max_position_embeddings}"
        )
    vocabulary = Path(config.bert_config_file).with_name("vocab.txt")
    if vocabulary.is_file():
        with vocabulary.open("rb") as lines:
            num_tokens = sum(1 for _ in lines)
        if num_tokens != bert_config.vocab_size:
            raise ValueError(
                f"{vocabulary} has {num_tokens} tokens, but {config.bert_config_file} says "
                f"vocab_size={bert_config.vocab_size}; give the two files that belong together"
            )
