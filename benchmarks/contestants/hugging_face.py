"""Hugging Face's BertForPreTraining in PyTorch, with AdamW; see training_throughput.py.

Runs in a separate interpreter, which has torch and transformers; the examples come as arrays.
"""

import json
import sys

import numpy
import torch
from transformers import BertConfig, BertForPreTraining


def batches(path: str, batch_size: int):
    """Yields the examples again and again, with one label per token, as the model requires."""
    arrays = dict(numpy.load(path))  # else every use reads the file again
    num_examples = len(arrays["input_ids"])
    labels = numpy.full_like(arrays["input_ids"], -100)
    example, place = numpy.nonzero(arrays["masked_lm_weights"])
    token = arrays["masked_lm_positions"][example, place]
    labels[example, token] = arrays["masked_lm_ids"][example, place]
    at = 0
    while True:
        chosen = numpy.arange(at, at + batch_size) % num_examples
        at += batch_size
        yield {
            "input_ids": torch.from_numpy(arrays["input_ids"][chosen]),
            "attention_mask": torch.from_numpy(arrays["input_mask"][chosen]),
            "token_type_ids": torch.from_numpy(arrays["segment_ids"][chosen]),
            "labels": torch.from_numpy(labels[chosen]),
            "next_sentence_label": torch.from_numpy(arrays["next_sentence_labels"][chosen, 0]),
        }


def main() -> None:
    """Trains, and prints STEP after every step."""
    task = json.loads(sys.argv[1])
    model = BertForPreTraining(BertConfig.from_json_file(task["bert_config_file"])).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
    compute = torch.compile(model) if task["compile"] else model
    for batch in batches(task["array_file"], task["batch_size"]):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=task["precision"] == "bfloat16"):
            loss = compute(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print("STEP", int(batch["attention_mask"].sum()), flush=True)


if __name__ == "__main__":
    main()
