"""A tiny GLUE in the layout of the published one, a vocabulary, and a BERT of one layer for it.

Every task has a rule that can be learned. The text has what real text has: quotation marks that
are never closed, accents, Chinese, carriage returns within a sentence, empty second sentences.
"""

import json
from pathlib import Path

import numpy as np

from mlperf_bert.convert import saving
from mlperf_bert.finetuning.config import FinetuningConfig, Setting
from tests.checkpoints.stored_weights import read_weights
from tests.training.configurations import values
from tests.training.generated_task import CONFIG, write_initial_checkpoint

WORDS = "red green blue river town ship sails flows stands the an of north south quick".split()
ODD = [
    'He said "stop', '" ', "Café naïve", "中国 人", "x" * 90, "a\u00a0b", "don't",
    "tab-less \r middle", "#hash 3.14 -- %", "ﬁne ½", "\u202eright", "ÅNGSTRÖM", "e\u0301t\u0301",
]  # fmt: skip
MAX_SEQ_LENGTH = 24
_NUM = {"train": 37, "dev": 11, "test": 6}


def vocabulary() -> list[str]:
    letters = [chr(code) for code in range(33, 127)] + list("éïåö中½")
    pieces = [f"##{letter}" for letter in letters]
    return ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *pieces, *WORDS]


def sentence(random: np.random.RandomState, label: int) -> str:
    """Words, of which "red" says that the label is 1."""
    words = list(random.choice(WORDS[1:], random.randint(1, 18)))
    if random.rand() < 0.4:
        words.insert(random.randint(len(words)), ODD[random.randint(len(ODD))])
    return " ".join(["red", *words] if label else words)


def write_glue(folder: Path) -> None:
    """Writes all tasks, MRPC as GLUE's script makes it."""
    for name in ("CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE"):
        (folder / name).mkdir(parents=True)
    random = np.random.RandomState(7)
    inference = ("entailment", "not_entailment")
    _write(folder, random, "CoLA", None, ["src", "{label}", "", "{a}"], ("0", "1"))
    _write(folder, random, "SST-2", "sentence label", ["{a}", "{label}"], ("0", "1"))
    mrpc = ["{label}", "{n}", "{n}", "{a}", "{b}"]
    _write(folder, random, "MRPC", "Quality|#1 ID|#2 ID|#1 String|#2 String", mrpc, ("0", "1"))
    stsb = "index genre filename year old_index source1 source2 sentence1 sentence2 score"
    values = ["{n}", "g", "f", "y", "o", "s", "s", "{a}", "{b}", "{label}"]
    _write(folder, random, "STS-B", stsb, values, ("0.5", "4.250"))
    qqp = ["{n}", "1", "2", "{a}", "{b}", "{label}"]
    header = "id qid1 qid2 question1 question2 is_duplicate"
    _write(folder, random, "QQP", header, qqp, ("0", "1"))
    mnli = ["{n}", "p", "{a}", "{b}", "entailment", "{label}"]
    names = "index promptID sentence1 sentence2 label1 gold_label"
    for kind in ("matched", "mismatched"):
        labels = ("neutral", "entailment")
        _write(folder, random, "MNLI", names, mnli, labels, suffix=f"_{kind}")
    for name, columns in (("QNLI", "question sentence"), ("RTE", "sentence1 sentence2")):
        values = ["{n}", "{a}", "{b}", "{label}"]
        _write(folder, random, name, f"index {columns} label", values, inference)


def _write(folder, random, name, header, values, labels, *, suffix="") -> None:
    """Headers of test sets lack the label; their columns stand in the order of train."""
    separator = "|" if header and "|" in header else " "
    columns = header.split(separator) if header else None
    for split, count in _NUM.items():
        has_label = split != "test"
        lines = []
        if columns and has_label:
            lines.append("\t".join(columns))
        elif columns:
            kept = [c for c, v in zip(columns, values) if v != "{label}"]
            extra = ["index"] if kept[0] not in ("index", "id") else []
            lines.append("\t".join(extra + kept))
        else:
            lines += [] if has_label else ["index\tsentence"]
        for number in range(count):
            label = int(random.randint(2))
            a, b = sentence(random, label), sentence(random, 0)
            filled = {"a": a, "b": "" if number == 3 else b, "n": number}
            if has_label:
                row = [v.format(label=labels[label], **filled) for v in values]
            elif columns is None:
                row = [str(number), a]
            else:
                row = [v.format(**filled) for v in values if v != "{label}"]
                row = ([str(number)] if values[0] not in ("{n}",) else []) + row
            lines.append("\t".join(row))
        base = split if split == "train" else f"{split}{suffix}"
        (folder / name / f"{base}.tsv").write_bytes("".join(f"{x}\n" for x in lines).encode())


def write_model(folder: Path, *, dropout: float = 0.0, without: str | None = None) -> None:
    """Writes bert_config.json, vocab.txt and model.ckpt-0 in TF1's layout."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens = vocabulary()
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")
    config = CONFIG | {
        "vocab_size": len(tokens),
        "num_hidden_layers": 1,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
    }
    (folder / "bert_config.json").write_text(json.dumps(config))
    prefix = folder / "model.ckpt-0"
    write_initial_checkpoint(prefix, config, np.random.RandomState(3))
    if without:
        kept = {n: value for n, value in read_weights(str(prefix)).items() if without not in n}
        saving.write_name_based(str(prefix), kept)


def config_of(folder: Path, **changes) -> FinetuningConfig:
    """A configuration over `folder`/glue and `folder`/model."""
    given = values(
        FinetuningConfig,
        task="cola",
        data_dir=str(folder / "glue"),
        checkpoint=str(folder / "model" / "model.ckpt-0"),
        bert_config_file=str(folder / "model" / "bert_config.json"),
        vocab_file=str(folder / "model" / "vocab.txt"),
        output_dir=str(folder / "out"),
        max_seq_length=MAX_SEQ_LENGTH,
        train_batch_size=8,
        eval_batch_size=8,
        num_train_epochs=2,
    )
    given |= {"settings": (Setting(learning_rate=1e-3, seed=1),)}
    return FinetuningConfig(**given | changes)
