"""Import of Hugging Face's BERT: the initial checkpoint of a run and its bert_config.json.

The files are read here, without torch or transformers; exporting.py goes the other way.
"""

import dataclasses
import json
from pathlib import Path

import tensorflow as tf

from mlperf_bert.convert import layout, saving, stored_model
from mlperf_bert.convert.stored_model import StoredModel
from mlperf_bert.data import tokenizer_files, vocabulary
from mlperf_bert.files import folders, paths, whole
from mlperf_bert.messages import lasting
from mlperf_bert.model.pretrainer import build_pretrainer, trained_variables

CHECKPOINT = "model.ckpt-0"


@lasting("importing the model")
def import_model(model: str, output_dir: str, *, seed: int) -> list[str]:
    """Writes bert_config.json, model.ckpt-0 in TF1's layout and, if the model has one, vocab.txt.

    Also tokenizer_config.json, if the model says whether text is lower-cased.

    Args:
      model: folder of a BertForPreTraining or BertForMaskedLM, local or gs://....
      output_dir: the directory to make, whole or not at all; in a bucket file by file.
      seed: heads that the model lacks are those of a new model with this seed.

    Returns: lines that say what was done.

    Raises:
      ValueError: no such model, damaged, not in safetensors, of another architecture or vocabulary,
        or `output_dir` exists.
      OSError: a bucket refuses it, or the disk is full.
    """
    model = model.rstrip("/")
    target = saving.new_folder(output_dir)
    with layout.model_folder(model) as folder:
        values = layout.read_json(folder, layout.CONFIG, model)
        config = layout.bert_config(values, f"{model}/{layout.CONFIG}")
        tokenizer, told = _read_tokenizer(folder, model, config.vocab_size)
        stored = StoredModel(folder, model)
        variables = trained_variables(build_pretrainer(config, seed=seed))
        drawn = stored_model.load(variables, stored)
    weights = saving.weights_by_tf1_name(variables)
    with folders.written_beside(target) as beside:
        saving.write_json(beside / "bert_config.json", dataclasses.asdict(config))
        for name, content in tokenizer.items():
            (beside / name).write_bytes(content)
        try:
            saving.write_name_based(str(beside / CHECKPOINT), weights)
        except tf.errors.OpError as error:
            reason = paths.reason(error)
            raise OSError(
                f"{output_dir}: the checkpoint cannot be written ({reason}); make room"
            ) from error
    lines = [f"{stored.num_read} weights imported from {model}: {output_dir}/{CHECKPOINT}"]
    if drawn:
        lines.append(f"Not in the model, so drawn from seed {seed}: {', '.join(drawn)}")
    lines += [f"Converted to float32: {n} weights of {kind}" for kind, n in stored.converted()]
    return lines + told


def _read_tokenizer(
    folder: Path, model: str, vocab_size: int
) -> tuple[dict[str, bytes], list[str]]:
    """vocab.txt, made of tokenizer.json if there is no other, and whether text is lower-cased.

    Returns: file name -> content; and lines that say what was done and what the user should know.
    """
    names = [name for name in layout.VOCABULARIES if (folder / name).exists()]
    path = str(folder / (names or layout.VOCABULARIES)[0])
    try:
        if not names:
            tokenizer_files.require_kind(path)
            lacking = f"No {layout.VOCABULARY} there: take the one that the model was trained with"
            return {}, [lacking]
        words = vocabulary.read_fitting(path, vocab_size, of=layout.CONFIG)
        stated = tokenizer_files.stated_lower_casing(path)
    except ValueError as error:  # the folder may be a copy
        raise ValueError(str(error).replace(str(folder), model)) from error
    files, lines = {layout.VOCABULARY: whole.read_regular_file(path)}, []
    if names[0] != layout.VOCABULARY:
        files = {layout.VOCABULARY: vocabulary.as_text(words)}
        lines.append(f"{layout.VOCABULARY}: {len(words):,} words of {names[0]}")
    if num_padded := vocab_size - len(words):
        lines.append(
            f"{len(words):,} words, and {num_padded:,} rows of the model without a word: padding, "
            f"unless words were added, which {tokenizer_files.TOKENIZER} would name"
        )
    if stated is not None:
        content = json.dumps({"do_lower_case": stated}, indent=2) + "\n"
        files[tokenizer_files.TOKENIZER_CONFIG] = content.encode()
        if not stated:
            lines.append("A cased model: data and fine-tuning need --do_lower_case=False")
    return files, lines
