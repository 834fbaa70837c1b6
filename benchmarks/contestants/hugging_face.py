"""Hugging Face's BertForPreTraining in PyTorch, with AdamW; see training_throughput.py.

Runs in a separate interpreter, which has torch and transformers; the examples come as arrays.
"""

import itertools
import json
import sys
from collections.abc import Mapping

import numpy
import torch
from transformers import BertConfig, BertForPreTraining


def model_inputs(arrays: Mapping[str, numpy.ndarray]) -> dict[str, numpy.ndarray]:
    """Examples as the model takes them, with one label per token."""
    labels = numpy.full_like(arrays["input_ids"], -100)
    example, place = numpy.nonzero(arrays["masked_lm_weights"])
    token = arrays["masked_lm_positions"][example, place]
    labels[example, token] = arrays["masked_lm_ids"][example, place]
    return {
        "input_ids": arrays["input_ids"],
        "attention_mask": arrays["input_mask"],
        "token_type_ids": arrays["segment_ids"],
        "labels": labels,
        "next_sentence_label": arrays["next_sentence_labels"][:, 0],
    }


def main() -> None:
    """Trains, and prints STEP after every step."""
    task = json.loads(sys.argv[1])
    model = BertForPreTraining(BertConfig.from_json_file(task["bert_config_file"])).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
    compute = torch.compile(model) if task.get("compile") else model
    examples, size = model_inputs(numpy.load(task["array_file"])), task["batch_size"]
    for first in itertools.count(0, size):
        chosen = numpy.arange(first, first + size) % len(examples["input_ids"])
        batch = {name: torch.from_numpy(values[chosen]) for name, values in examples.items()}
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=task["precision"] == "bfloat16"):
            loss = compute(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print("STEP", int(batch["attention_mask"].sum()), flush=True)


if __name__ == "__main__":
    main()
