"""What makes the input of a training bad, and the line that says so."""

import json

from tests.helpers.tiny_examples import TINY, spoil


def config_with(work, **changed):
    content = {**TINY, **changed}
    kept = {name: value for name, value in content.items() if value is not None}
    (work / "bert_config.json").write_text(json.dumps(kept))


def words_of_a_vocabulary(size: int) -> str:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{n}" for n in range(5, size))]
    return "".join(f"{word}\n" for word in words)


BAD_INPUTS = {
    "no file matches the glob": (
        lambda work: {"input_file": work / "nothing*"},
        r"--input_file: no file matches .*nothing\*",
    ),
    "empty file": (
        lambda work: spoil(work, "train", lambda data: b""),
        r"--input_file: .*train is empty",
    ),
    "feature lengths differ from the flags": (
        lambda work: {"max_seq_length": 12},
        r"train.*16.*max_seq_length",
    ),
    "truncated TFRecord": (
        lambda work: spoil(work, "train", lambda data: data[:60]),
        r"train.*byte 0",
    ),
    "corrupt TFRecord": (
        lambda work: spoil(work, "eval", lambda data: data[:40] + b"\xff\xff" + data[42:]),
        r"eval.*byte 0",
    ),
    "unknown key": (lambda work: config_with(work, hiden_size=8), r"unknown keys \['hiden_size'\]"),
    "missing key": (
        lambda work: config_with(work, hidden_size=None),
        r"missing keys .*hidden_size",
    ),
    "vocabulary of another size": (
        lambda work: (work / "vocab.txt").write_text(words_of_a_vocabulary(65)),
        r"vocab.txt has 65 words, but .* vocab_size=64",
    ),
    "a vocabulary with a word twice": (
        lambda work: (work / "vocab.txt").write_text(words_of_a_vocabulary(60) + "word7\n"),
        r"vocab.txt: line 61 has 'word7' again; a word's line is its id",
    ),
    "no initial checkpoint": (
        lambda work: {"init_checkpoint": work / "model.ckpt-1"},
        r"model.ckpt-1: no such checkpoint",
    ),
    "steps that make no whole update": (
        lambda work: {"steps_per_update": 3},
        r"--num_train_steps=4 must be a multiple of --steps_per_update=3",
    ),
    "an evaluation of what is not trained": (
        lambda work: {"emulate_step_seconds": 0.1},
        r"--emulate_step_seconds=0.1 trains nothing .* leave out --eval_input_file",
    ),
    "a time budget without a unit": (
        lambda work: {"time_budget": "90"},
        r"--time_budget=90 must be a time above 0 with its unit, such as 90s, 45m, 24h or 1h30m",
    ),
    "a time budget that an evaluation does not use": (
        lambda work: {"do_train": False, "do_eval": True, "time_budget": "nonsense"},
        r"--time_budget=nonsense must be a time above 0 with its unit",
    ),
    "profile of no steps": (
        lambda work: {"profile_steps": "3"},
        r"--profile_steps=3 must be two steps, the first and the last, as in 20-29",
    ),
    "profile after the end": (
        lambda work: {"profile_steps": "3-5"},
        r"--profile_steps ends at 5, after --num_train_steps=4",
    ),
    "a batch that no memory holds": (
        lambda work: {"train_batch_size": 10**9, "num_train_steps": 1},
        r"out of memory .*; lower --train_batch_size .*, give --recompute=blocks, or lower --eval",
    ),
    "no TPU": (
        lambda work: {"use_tpu": True},
        r"--use_tpu: jax finds none \(.*\); check the driver",
    ),
    "more GPUs than there are": (lambda work: {"num_gpus": 64}, r"--num_gpus=64, but TensorFlow"),
}
"""Case -> what spoils a folder of inputs, or the flags that do, and the message as a pattern."""
