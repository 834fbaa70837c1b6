"""Hugging Face's BertForPreTraining in PyTorch on the batches of an exported step.

See accelerator.py. Runs in an interpreter with torch and transformers, on a GPU if there is one.
"""

import collections
import json
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path

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


def batches(folder: Path, device: str) -> list[dict[str, torch.Tensor]]:
    """The batches of the folder, as the model takes them; stored as training/NUMBER/NAME."""
    arrays: dict[int, dict[str, numpy.ndarray]] = collections.defaultdict(dict)
    for key, values in numpy.load(folder / "batches.npz").items():
        kind, number, name = key.split("/")
        if kind == "training":
            arrays[int(number)][name] = values
    return [
        {k: torch.from_numpy(v).long().to(device) for k, v in model_inputs(batch).items()}
        for _, batch in sorted(arrays.items())
    ]


def main() -> None:
    """Trains, and writes the figures that run_step.py writes."""
    task = json.loads(sys.argv[1])
    folder = Path(task["folder"])
    signature = json.loads((folder / "signature.json").read_text())
    (entry,) = signature["programs"]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = BertConfig(**signature["bert_config"], attn_implementation="sdpa")
    model = BertForPreTraining(config).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    compute = torch.compile(model) if task["compile"] else model
    examples, seconds = batches(folder, device), []
    for number in range(task["num_steps"] + 3):  # compiling may take some steps
        began = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = compute(**examples[number % len(examples)]).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()  # waits for the forward pass
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    mean = statistics.mean(seconds[3:])
    figures = {
        "step_seconds": statistics.median(seconds[3:]),
        "samples_per_second": entry["num_examples"] / mean,
        "model_tflop_per_second": entry["flop"] / mean / 1e12,
        "peak_memory_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else "unknown",
    }
    Path(task["output"]).write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
