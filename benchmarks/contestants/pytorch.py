"""BERT in PyTorch with its heads at the predicted places only, alone or with an extension for CPUs.

Runs in a separate interpreter with torch, transformers and the extension; see
training_throughput.py, and on_a_card.py for the batches of an exported step, on a GPU if there is
one. The extensions, each named as the interpreter that has it:

  ipex      Intel's, intel_extension_for_pytorch: ipex.optimize, its fused LAMB.
  tpp       libxsmm's kernels, tpp_pytorch_extension, as its own examples/bert/pretrain_mlperf uses
            them with --use_tpp --tpp_bf16 --unpad --dist_lamb: no padding, fused LAMB.
  zentorch  AMD's, as the backend of torch.compile; PyTorch's fused AdamW.

Without one: torch.compile, and PyTorch's fused AdamW.
"""

import collections
import contextlib
import json
import statistics
import sys
import time
from pathlib import Path

import numpy
import torch
from transformers import BertConfig, BertModel
from transformers.models.bert.modeling_bert import BertPreTrainingHeads

TASK = json.loads(sys.argv[1])
# Beside contestants that compute on processors it does so too.
DEVICE = "cuda" if TASK.get("takes_gpu") and torch.cuda.is_available() else "cpu"
NUM_WARM_UP = 3
"""Steps of an exported program before the timed ones: compiling may take some."""


class Pretrainer(torch.nn.Module):
    """The encoder and both heads; the masked-LM head sees [B * P, H], not [B * S, H]."""

    def __init__(self, config: BertConfig, *, in_bfloat16: bool):
        super().__init__()
        self.in_bfloat16 = in_bfloat16
        self.bert = BertModel(config)
        self.heads = BertPreTrainingHeads(config)
        self.heads.predictions.decoder.weight = self.bert.embeddings.word_embeddings.weight

    def forward(self, inputs: dict, places, labels, next_sentence_labels):
        """The sum of both losses; `places` [B * P] count through the batch."""
        encoded = self.bert(**inputs)
        chosen = encoded.last_hidden_state.flatten(0, 1)[places]
        # TPP casts its encoder itself; its example leaves the heads in float32, which takes longer.
        with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=self.in_bfloat16):
            logits, sentence = self.heads(chosen, encoded.pooler_output)
        loss = torch.nn.functional.cross_entropy
        return loss(logits.float(), labels) + loss(sentence.float(), next_sentence_labels)


def examples_of(path: str) -> dict[str, numpy.ndarray]:
    """All examples of a file; an exported step has them by batch, as training/NUMBER/NAME."""
    parts = collections.defaultdict(list)
    for key, values in numpy.load(path).items():
        if not key.startswith("evaluation/"):
            parts[key.rpartition("/")[2]].append(values.astype(numpy.int64))
    return {name: numpy.concatenate(values) for name, values in parts.items()}


def batches(path: str, size: int, first: int):
    """Yields the examples again and again, from `first` on."""
    arrays = examples_of(path)
    num_examples, length = arrays["input_ids"].shape
    at = first
    while True:
        chosen = numpy.arange(at, at + size) % num_examples
        at += size
        batch = {name: torch.from_numpy(arrays[name][chosen]).to(DEVICE) for name in arrays}
        places = batch["masked_lm_positions"] + length * torch.arange(size, device=DEVICE)[:, None]
        labels = torch.where(batch["masked_lm_weights"] > 0, batch["masked_lm_ids"], -100)
        inputs = {
            "input_ids": batch["input_ids"],
            "attention_mask": batch["input_mask"],
            "token_type_ids": batch["segment_ids"],
        }
        yield inputs, places.flatten(), labels.flatten(), batch["next_sentence_labels"][:, 0]


def groups(model: torch.nn.Module) -> list[dict]:
    """Weights that decay, and vectors, which do not."""
    weights = list(model.parameters())
    return [
        {"params": [each for each in weights if each.ndim > 1], "weight_decay": 0.01},
        {"params": [each for each in weights if each.ndim <= 1], "weight_decay": 0.0},
    ]


def build(task: dict):
    """Model, optimizer, how the gradients are clipped, and the context of the forward pass."""
    extension, in_bfloat16 = task["interpreter"], task["precision"] == "bfloat16"
    config = BertConfig.from_json_file(task["bert_config_file"])
    cast = torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=in_bfloat16)
    if extension == "tpp":
        from tpp_pytorch_extension import bert as tpp

        config._attn_implementation = "eager"  # its encoder takes a mask of [B, 1, 1, S]
        with tpp.tpp_impl(use_low_prec=in_bfloat16, use_unpad=True):
            model = Pretrainer(config, in_bfloat16=in_bfloat16).train()
        tpp.block(model)
        optimizer = tpp.DistLamb(groups(model), lr=1e-4)
        return model, optimizer, optimizer.clip_grad_norm_, contextlib.nullcontext()
    model = Pretrainer(config, in_bfloat16=in_bfloat16).to(DEVICE).train()

    def clip(norm: float) -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), norm)

    if extension == "ipex":
        import intel_extension_for_pytorch as ipex
        from intel_extension_for_pytorch.optim._lamb import Lamb

        optimizer = Lamb(groups(model), lr=1e-4)
        dtype = torch.bfloat16 if in_bfloat16 else torch.float32
        model, optimizer = ipex.optimize(model, dtype=dtype, optimizer=optimizer)
        return model, optimizer, clip, cast
    optimizer = torch.optim.AdamW(groups(model), lr=1e-4, fused=True)
    if extension == "zentorch":
        import zentorch  # noqa: F401 - registers the backend
    model = torch.compile(model, backend="zentorch" if extension == "zentorch" else "inductor")
    return model, optimizer, clip, cast


def write_figures(task: dict, seconds: list[float]) -> None:
    """Writes the figures that run_step.py writes, without the steps that compile."""
    mean = statistics.mean(seconds[NUM_WARM_UP:])
    memory = torch.cuda.max_memory_allocated() if DEVICE == "cuda" else "unknown"
    figures = {
        "step_seconds": statistics.median(seconds[NUM_WARM_UP:]),
        "samples_per_second": task["batch_size"] / mean,
        "model_tflop_per_second": task["flop"] / mean / 1e12,
        "peak_memory_bytes": memory,
    }
    Path(task["output"]).write_text(json.dumps(figures))


def main() -> None:
    """Trains, and prints STEP after every step; `num_steps` of them, or without end."""
    torch.manual_seed(1)
    model, optimizer, clip, cast = build(TASK)
    seconds: list[float] = []
    for batch in batches(TASK["array_file"], TASK["batch_size"], 100 * TASK["turn"]):
        began = time.perf_counter()
        optimizer.zero_grad()
        with cast:
            loss = model(*batch)
        loss.backward()
        clip(1.0)
        optimizer.step()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
        print("STEP", int(batch[0]["attention_mask"].sum()), flush=True)
        if len(seconds) == NUM_WARM_UP + TASK.get("num_steps", float("inf")):
            write_figures(TASK, seconds)
            return


if __name__ == "__main__":
    main()
