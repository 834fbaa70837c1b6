"""Export to Hugging Face's BertForPreTraining: where fine-tuning on GLUE and SQuAD begins.

The files are written here, without torch or transformers.
"""

from pathlib import Path

import numpy as np
import safetensors.numpy

from mlperf_bert.checkpoints import one_vocabulary, reading
from mlperf_bert.checkpoints.reading import StoredCheckpoint
from mlperf_bert.convert import layout, saving
from mlperf_bert.data import vocabulary
from mlperf_bert.files import paths, whole
from mlperf_bert.messages import lasting
from mlperf_bert.model.config import BertConfig
from mlperf_bert.model.pretrainer import build_pretrainer, trained_variables


@lasting("exporting the checkpoint")
def export(
    prefix: str, output_dir: str, *, config: BertConfig, vocab_file: str, beside: str = ""
) -> int:
    """Writes a checkpoint as transformers reads it, with a model card.

    Args:
      prefix: checkpoint of either layout, initial or output of a run.
      output_dir: the directory to make, whole or not at all.
      config: the architecture of the checkpoint.
      vocab_file: the vocabulary it was trained with, of lower-case text unless the
        tokenizer_config.json beside it or run.json beside the checkpoint says otherwise.
      beside: a file of the model; the vocab.txt in its folder must be the same, if there is one.

    Returns: how many weights were written.
    """
    target = saving.new_folder(output_dir)
    stored = StoredCheckpoint(prefix)  # before a model is built
    words = vocabulary.read_fitting(vocab_file, config.vocab_size, of="the configuration")
    places = [paths.location(each).parent for each in (prefix, beside or prefix)]
    others = one_vocabulary.known_of(folders=places)
    known = one_vocabulary.require_one([one_vocabulary.in_file(vocab_file), *others])
    do_lower_case = known.get("do_lower_case") != str(False)
    variables = trained_variables(build_pretrainer(config, seed=0))
    reading.load_weights(variables, stored)
    weights = saving.weights_by_tf1_name(variables)
    # The matrix of the masked-LM decoder is left out: it is tied to the word embeddings.
    tensors = {
        layout.name_of_weight(name): value.T if layout.is_transposed(name) else value
        for name, value in weights.items()
    }
    tokenizer = {"tokenizer_class": "BertTokenizer", "do_lower_case": do_lower_case}
    tokenizer["model_max_length"] = config.max_position_embeddings
    with whole.folder_written_beside(target) as folder:
        saving.write_json(folder / layout.CONFIG, layout.their_config(config))
        saving.write_json(folder / "tokenizer_config.json", tokenizer)
        (folder / "vocab.txt").write_bytes(vocabulary.as_text(words))
        write_safetensors(folder / "model.safetensors", tensors)
        (folder / "README.md").write_text(_card(config, do_lower_case=do_lower_case))
    return len(tensors)


def _card(config: BertConfig, *, do_lower_case: bool) -> str:
    """The model card, a README.md."""
    case = "lower-case" if do_lower_case else "cased"
    return (
        "---\npipeline_tag: fill-mask\n---\n\n# BERT for pre-training\n\n"
        f"{config.num_hidden_layers} layers, {config.hidden_size} wide, {case} text. "
        "Converted with the MLPerf BERT pre-training benchmark.\n"
    )


def write_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """Writes float32 arrays in the order of their names, marked as PyTorch's."""
    # save_file would make a file that only its owner can read, whatever the umask says.
    contiguous = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
    path.write_bytes(safetensors.numpy.save(contiguous, metadata={"format": "pt"}))
