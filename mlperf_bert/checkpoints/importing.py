"""Import of Hugging Face's BERT: the initial checkpoint of a run and its bert_config.json.

The files are read here, without torch or transformers; export.py goes the other way.
"""

import dataclasses
import json
from pathlib import Path

import numpy as np
import tensorflow as tf

from mlperf_bert.checkpoints import hub, initial, names, saving
from mlperf_bert.checkpoints.names import Weight
from mlperf_bert.checkpoints.stored_model import StoredModel
from mlperf_bert.data import provenance, vocabulary
from mlperf_bert.files import paths, reading
from mlperf_bert.files.writing import directory_written_beside
from mlperf_bert.model.config import BertConfig
from mlperf_bert.model.pretrainer import build_pretrainer, trained_variables

CHECKPOINT = "model.ckpt-0"

# Their activation -> ours. Our "gelu", as the reference's, is the tanh approximation.
_ACTIVATIONS = {
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu": "gelu_exact",
    "relu": "relu",
    "tanh": "tanh",
    "linear": "linear",
}
# Keys of config.json that change what a BERT computes: the value that this project has, which is
# also theirs when the key is missing.
_REQUIRED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "layer_norm_eps": 1e-12,
}
# Parts that a model may lack, and how the TF1 names of their weights begin.
_HEADS = {
    "pooler": "bert/pooler/",
    "masked-LM head": "cls/predictions/",
    "next-sentence head": "cls/seq_relationship/",
}
_MOST_PROBLEMS = 3


def import_model(model: str, output_dir: str, *, seed: int) -> list[str]:
    """Writes bert_config.json, model.ckpt-0 in TF1's layout and, if the model has one, vocab.txt.

    Also tokenizer_config.json, if the model says whether text is lower-cased.

    Args:
      model: folder or name of a BertForPreTraining, BertForMaskedLM or BertModel; see `hub`.
      output_dir: the directory to make, whole or not at all; in a bucket file by file.
      seed: heads that the model lacks are those of a new model with this seed.

    Returns: lines that say what was done.

    Raises:
      ValueError: no such model, damaged, a pickle, of another architecture or vocabulary, or
        `output_dir` exists.
      OSError: a bucket refuses it, or the disk is full.
    """
    model = model.rstrip("/")
    target = paths.location(output_dir)
    with paths.failures_named(target):
        if target.exists():
            raise ValueError(f"{output_dir} exists; choose another --output_dir, or remove it")
    with hub.model_folder(model) as folder:
        values = hub.read_json(folder, hub.CONFIG, model)
        config = bert_config(values, f"{model}/{hub.CONFIG}")
        tokenizer = _read_tokenizer(folder, model, config.vocab_size)
        read = _described(folder, model, target)
        stored = StoredModel(folder, model)
        variables = trained_variables(build_pretrainer(config, seed=seed))
        drawn = load(variables, stored, num_hidden_layers=config.num_hidden_layers)
    weights = initial.weights_by_tf1_name(variables, num_hidden_layers=config.num_hidden_layers)
    with directory_written_beside(target) as beside:
        text = json.dumps(dataclasses.asdict(config), indent=2, sort_keys=True) + "\n"
        (beside / "bert_config.json").write_text(text, encoding="utf-8")
        for name, content in tokenizer.files.items():
            (beside / name).write_bytes(content)
        _write_checkpoint(beside / CHECKPOINT, weights)
        provenance.note(
            beside,
            step="import from Hugging Face",
            inputs=read,
            outputs=sorted(beside.iterdir()),
            parameters={"model": model, "seed": seed, "drawn": drawn},
        )
    lines = [f"{stored.num_read} weights imported from {model}: {output_dir}/{CHECKPOINT}"]
    if drawn:
        lines.append(f"Not in the model, so drawn from seed {seed}: {', '.join(drawn)}")
    lines += [f"Converted to float32: {n} weights of {kind}" for kind, n in stored.converted()]
    return lines + tokenizer.lines


def _described(folder: Path, model: str, target: paths.Location) -> list[provenance.File]:
    """The model's files, by the names that the user can find them under."""
    is_local = Path(model).is_dir()
    return [
        provenance.describe(path, target)
        if is_local
        else dataclasses.replace(
            provenance.describe(path, folder),
            path=f"{model if paths.is_remote(model) else f'hf://{model}'}/{path.name}",
        )
        for path in sorted(folder.iterdir())
        if path.is_file() and any(path.match(pattern) for pattern in hub.WANTED)
    ]


def bert_config(values: dict, path: str) -> BertConfig:
    """Our configuration from theirs, whose other keys do not change what is computed.

    Raises:
      ValueError: another architecture, or a key is missing or wrong; the message names `path`.
    """
    if values.get("model_type") != "bert":
        raise ValueError(
            f"{path}: model_type is {values.get('model_type')!r:.80}, expected 'bert'; give a BERT"
        )
    for name, expected in _REQUIRED.items():
        if (found := values.get(name, expected)) != expected:
            raise ValueError(
                f"{path}: {name} is {found!r:.80}, and the model here has {expected!r}; "
                "give a BERT with that"
            )
    known = [field.name for field in dataclasses.fields(BertConfig)]
    if missing := [name for name in known if name not in values]:
        raise ValueError(f"{path}: missing keys {missing}; add them")
    activation = values["hidden_act"]
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise ValueError(
            f"{path}: hidden_act is {activation!r:.80}, which this project does not compute; give "
            f"a model with one of {', '.join(_ACTIVATIONS)}"
        )
    ours = {name: values[name] for name in known} | {"hidden_act": _ACTIVATIONS[activation]}
    try:
        return BertConfig(**ours)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def load(variables: list[tf.Variable], stored: StoredModel, *, num_hidden_layers: int) -> list[str]:
    """Sets every variable that the model has; returns the names of the heads that it lacks.

    Raises:
      ValueError: a weight is missing, too many, or has another shape or type, and none is set; or
        one is damaged.
    """
    table = names.weights(num_hidden_layers)
    lacking = {
        head: beginning
        for head, beginning in _HEADS.items()
        if not any(
            names.hugging_face_name(weight.tf1_name) in stored.names
            for weight in table
            if weight.tf1_name.startswith(beginning)
        )
    }
    wanted = {
        names.hugging_face_name(weight.tf1_name): weight
        for weight in table
        if not weight.tf1_name.startswith(tuple(lacking.values()))
    }
    by_name = {names.our_name(variable.name): variable for variable in variables}
    problems = [f"{name} is not a weight of it" for name in sorted(stored.names - wanted.keys())]
    for name, weight in wanted.items():
        try:
            stored.check(name, _their_shape(weight, by_name[weight.our_name]))
        except ValueError as error:
            problems.append(str(error))
    if problems:
        more = len(problems) - _MOST_PROBLEMS
        listed = "; ".join(problems[:_MOST_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")
        raise ValueError(
            f"{stored.model}: not a BertForPreTraining, BertForMaskedLM or BertModel of its "
            f"{hub.CONFIG}: {listed}; give the files that belong together"
        )
    for name, weight in wanted.items():
        variable, value = by_name[weight.our_name], stored.read(name)
        value = value.T if _is_transposed(weight) else value
        variable.assign(weight.from_tf1(value, tuple(variable.shape)))
    return list(lacking)


def _is_transposed(weight: Weight) -> bool:
    """A kernel is [out, in] there, [in, out] in TF1."""
    return weight.tf1_name.endswith("/kernel")


def _their_shape(weight: Weight, variable: tf.Variable) -> tuple[int, ...]:
    shape = weight.tf1_shape(tuple(variable.shape))
    return shape[::-1] if _is_transposed(weight) else shape


@dataclasses.dataclass(frozen=True)
class _Tokenizer:
    files: dict[str, bytes]
    """Name -> content."""
    lines: list[str]
    """What was done, and what the user should know."""


def _read_tokenizer(folder: Path, model: str, vocab_size: int) -> _Tokenizer:
    """vocab.txt, made of tokenizer.json if there is no other, and whether text is lower-cased."""
    found = [name for name in hub.VOCABULARIES if (folder / name).exists()]
    if not found:
        line = f"No {hub.VOCABULARY} there: take the one that the model was trained with"
        return _Tokenizer({}, [line])
    path = str(folder / found[0])
    try:
        words = vocabulary.read_fitting(path, vocab_size, of=hub.CONFIG)
        stated = vocabulary.stated_lower_casing(path)
        do_lower_case = vocabulary.lower_casing(path, None)
        doubts = vocabulary.doubts(path, words, do_lower_case=do_lower_case, model=model)
    except ValueError as error:  # the folder may be a copy
        raise ValueError(str(error).replace(str(folder), model)) from error
    files, lines = {hub.VOCABULARY: reading.read_regular_file(path)}, []
    if found[0] != hub.VOCABULARY:
        files = {hub.VOCABULARY: vocabulary.as_text(words)}
        lines.append(f"{hub.VOCABULARY}: {len(words):,} words of {found[0]}")
    if num_padded := vocab_size - len(words):
        lines.append(f"{len(words):,} words, and {num_padded:,} rows of the model without a word")
    if stated is not None:
        content = json.dumps({"do_lower_case": stated}, indent=2) + "\n"
        files[vocabulary.TOKENIZER_CONFIG] = content.encode()
        if not stated:
            lines.append(f"A cased model: {vocabulary.TOKENIZER_CONFIG} says so to other scripts")
    warnings = [f"warning: {doubt.replace(str(folder), model)}" for doubt in doubts]
    return _Tokenizer(files, lines + warnings)


def _write_checkpoint(prefix: Path, weights: dict[str, np.ndarray]) -> None:
    try:
        saving.write_name_based(str(prefix), weights)
    except tf.errors.OpError as error:
        raise OSError(
            f"{prefix.parent}: the checkpoint cannot be written ({paths.reason(error)}); make room"
        ) from error
