"""Import of Hugging Face's BERT: the initial checkpoint of a run and its bert_config.json.

The files are read here, without torch or transformers; exporting.py goes the other way.
"""

import dataclasses
import json
from pathlib import Path

from mlperf_bert.convert import layout, saving, stored_model
from mlperf_bert.data import tokenizer_files, vocabulary
from mlperf_bert.files import json_text, paths, whole
from mlperf_bert.messages import lasting
from mlperf_bert.model.pretrainer import build_pretrainer, trained_variables

CHECKPOINT = "model.ckpt-0"


@lasting("importing the model")
def import_model(model: str, output_dir: str, *, seed: int) -> list[str]:
    """Writes bert_config.json, model.ckpt-0 in TF1's layout and, if the model has one, vocab.txt.

    It also writes tokenizer_config.json, if the model says whether text is lower-cased.

    Args:
      model: folder of a BertForPreTraining or BertForMaskedLM.
      output_dir: the directory to make, whole or not at all.
      seed: heads that the model lacks are those of a new model with this seed.

    Returns: lines that say what was done.
    """
    target = saving.new_folder(output_dir)
    folder = paths.require_local(model, flag="model")
    if not (folder / layout.CONFIG).exists():
        raise ValueError(
            f"{model}: no {layout.CONFIG}; give a folder with it and {layout.WEIGHTS}, in Hugging "
            "Face's layout"
        )
    values = json_text.read_object(folder / layout.CONFIG)
    config = layout.bert_config(values, f"{folder}/{layout.CONFIG}")
    tokenizer, told = _read_tokenizer(folder, config.vocab_size)
    variables = trained_variables(build_pretrainer(config, seed=seed))
    tensors = stored_model.read(folder / layout.WEIGHTS)
    drawn = stored_model.load(variables, tensors, folder)
    weights = saving.weights_by_tf1_name(variables)
    with whole.folder_written_beside(target) as beside:
        saving.write_json(beside / "bert_config.json", dataclasses.asdict(config))
        for name, content in tokenizer.items():
            (beside / name).write_bytes(content)
        saving.write_name_based(str(beside / CHECKPOINT), weights)
    lines = [f"{len(tensors)} weights imported from {folder}: {output_dir}/{CHECKPOINT}"]
    if drawn:
        lines.append(f"Not in the model, so drawn from seed {seed}: {', '.join(drawn)}")
    return lines + told


def _read_tokenizer(folder: Path, vocab_size: int) -> tuple[dict[str, bytes], list[str]]:
    """vocab.txt, and whether text is lower-cased.

    Returns: file name -> content; and lines that say what the user should know.
    """
    path = str(folder / vocabulary.NAME)
    if not Path(path).exists():
        tokenizer_files.require_kind(path)
        return {}, [f"No {vocabulary.NAME} there: take the one that the model was trained with"]
    words = vocabulary.read_fitting(path, vocab_size, of=layout.CONFIG)
    files, lines = {vocabulary.NAME: whole.read_regular_file(path)}, []
    if num_padded := vocab_size - len(words):
        lines.append(
            f"{len(words):,} words, and {num_padded:,} rows of the model without a word: padding, "
            f"unless words were added, which {tokenizer_files.TOKENIZER} would name"
        )
    if (stated := tokenizer_files.stated_lower_casing(path)) is not None:
        content = json.dumps({"do_lower_case": stated}, indent=2) + "\n"
        files[tokenizer_files.TOKENIZER_CONFIG] = content.encode()
        if not stated:
            lines.append("A cased model: data and fine-tuning need --do_lower_case=False")
    return files, lines
