"""BERT's pre-training in plain JAX: one jitted step with LAMB, heads at the predicted places only.

Runs in a separate interpreter with jax and numpy; see training_throughput.py. Weights, softmax,
LayerNorm, losses and LAMB are float32 in both precisions. Dropout draws from the generator that
jax calls rbg, because its default, threefry, takes longer on a CPU.
Shapes: B=batch, S=sequence, H=hidden, N=heads, D=head size, P=predictions, V=vocabulary.
"""

import functools
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy

RATE, EPSILON = 0.1, 1e-12


def initial_weights(config: dict) -> dict:
    """Random weights of every layer."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    random = numpy.random.default_rng(1)

    def normal(*shape):
        return 0.02 * random.standard_normal(shape, numpy.float32)

    def zeros(size):
        return numpy.zeros(size, numpy.float32)

    def dense(size, to):
        return {"kernel": normal(size, to), "bias": zeros(to)}

    def norm():
        return {"scale": 1 + zeros(hidden), "bias": zeros(hidden)}

    names = ("query", "key", "value", "attention_output")
    return {
        "words": normal(config["vocab_size"], hidden),
        "positions": normal(config["max_position_embeddings"], hidden),
        "types": normal(config["type_vocab_size"], hidden),
        "embedding_norm": norm(),
        "blocks": [
            {
                **{name: dense(hidden, hidden) for name in names},
                "attention_norm": norm(),
                "intermediate": dense(hidden, inner),
                "output": dense(inner, hidden),
                "output_norm": norm(),
            }
            for _ in range(config["num_hidden_layers"])
        ],
        "transform": {**dense(hidden, hidden), "norm": norm()},
        "logits_bias": zeros(config["vocab_size"]),
        "pooler": dense(hidden, hidden),
        "next_sentence": dense(hidden, 2),
    }


def project(x, layer):
    """A dense layer in the type of `x`."""
    return x @ layer["kernel"].astype(x.dtype) + layer["bias"].astype(x.dtype)


def normalise(x, layer):
    """LayerNorm in float32, the result in the type of `x`."""
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(-1, keepdims=True)
    deviation = jnp.sqrt((centred * centred).mean(-1, keepdims=True) + EPSILON)
    return (centred / deviation * layer["scale"] + layer["bias"]).astype(x.dtype)


def drop(x, key):
    """Drops elements by 16 random bits each, and scales up the others."""
    kept = jax.random.bits(key, x.shape, jnp.uint16) >= round(RATE * 2**16)
    return jnp.where(kept, x / (1 - RATE), 0).astype(x.dtype)


def block(weights: dict, hidden, allowed, keys, num_heads: int):
    """One block: hidden [B, S, H], allowed [B, S] -> [B, S, H]."""
    batch, length, size = hidden.shape
    query, key, value = (
        project(hidden, weights[name]).reshape(batch, length, num_heads, -1).swapaxes(1, 2)
        for name in ("query", "key", "value")
    )
    scores = (query * query.shape[-1] ** -0.5) @ key.swapaxes(2, 3)  # [B, N, S, S]
    biased = scores.astype(jnp.float32) + jnp.where(allowed[:, None, None], 0, -1e9)
    probabilities = drop(jax.nn.softmax(biased).astype(hidden.dtype), keys[0])
    context = (probabilities @ value).swapaxes(1, 2).reshape(batch, length, size)
    attended = drop(project(context, weights["attention_output"]), keys[1])
    hidden = normalise(hidden + attended, weights["attention_norm"])
    inner = jax.nn.gelu(project(hidden, weights["intermediate"]), approximate=True)
    output = drop(project(inner, weights["output"]), keys[2])
    return normalise(hidden + output, weights["output_norm"])


def loss_of(weights: dict, batch: dict, key, *, num_heads: int, dtype):
    """The sum of both losses, float32 scalar."""
    ids = batch["input_ids"]
    embedded = weights["words"][ids] + weights["positions"][: ids.shape[1]]
    embedded = normalise(
        embedded + weights["types"][batch["segment_ids"]], weights["embedding_norm"]
    )
    keys = jax.random.split(key, 3 * len(weights["blocks"]) + 1)
    hidden = drop(embedded.astype(dtype), keys[-1])
    allowed = batch["input_mask"] > 0
    for number, layer in enumerate(weights["blocks"]):
        hidden = block(layer, hidden, allowed, keys[3 * number :], num_heads)
    places = batch["masked_lm_positions"][..., None]
    chosen = jnp.take_along_axis(hidden, places, axis=1)  # [B, P, H]
    chosen = jax.nn.gelu(project(chosen, weights["transform"]), approximate=True)
    chosen = normalise(chosen, weights["transform"]["norm"])
    logits = (chosen @ weights["words"].astype(dtype).T).astype(jnp.float32)
    logits = jax.nn.log_softmax(logits + weights["logits_bias"])  # [B, P, V]
    right = jnp.take_along_axis(logits, batch["masked_lm_ids"][..., None], axis=-1)[..., 0]
    shares = batch["masked_lm_weights"].astype(jnp.float32)
    pooled = jnp.tanh(project(hidden[:, 0], weights["pooler"]))
    sentence = jax.nn.log_softmax(project(pooled, weights["next_sentence"]).astype(jnp.float32))
    sentence = jnp.take_along_axis(sentence, batch["next_sentence_labels"], axis=-1)
    return -(right * shares).sum() / shares.sum() - sentence.mean()


def lamb(weights, gradients, first, second, count):
    """One update; vectors do not decay. Source: You et al., arXiv 1904.00962."""
    leaves = jax.tree.leaves(gradients)
    norm = jnp.sqrt(sum((leaf * leaf).sum() for leaf in leaves))
    clip = 1 / jnp.maximum(norm, 1.0)

    def change(weight, gradient, mean, square):
        gradient *= clip
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient * gradient
        update = mean / (1 - 0.9**count) / (jnp.sqrt(square / (1 - 0.999**count)) + 1e-6)
        if weight.ndim > 1:
            update += 0.01 * weight
            ratio = jnp.linalg.norm(weight.ravel()) / jnp.linalg.norm(update.ravel())
            update *= ratio
        return weight - 1e-4 * update, mean, square

    changed = jax.tree.map(change, weights, gradients, first, second)
    return jax.tree.transpose(jax.tree.structure(weights), jax.tree.structure((0, 0, 0)), changed)


def main() -> None:
    """Trains, and prints STEP after every step."""
    jax.config.update("jax_default_prng_impl", "rbg")
    task = json.loads(sys.argv[1])
    config = json.loads(Path(task["bert_config_file"]).read_text())
    loss = functools.partial(
        loss_of, num_heads=config["num_attention_heads"], dtype=jnp.dtype(task["precision"])
    )

    @functools.partial(jax.jit, donate_argnums=(0, 1, 2))
    def step(weights, first, second, batch, count):
        value, gradients = jax.value_and_grad(loss)(weights, batch, jax.random.key(count))
        return *lamb(weights, gradients, first, second, count + 1.0), value

    weights = jax.tree.map(jnp.asarray, initial_weights(config))
    first, second = (jax.tree.map(jnp.zeros_like, weights) for _ in range(2))
    examples = dict(numpy.load(task["array_file"]))
    num_examples, size = len(examples["input_ids"]), task["batch_size"]
    for count in range(10**9):
        chosen = numpy.arange(count * size, (count + 1) * size) % num_examples
        batch = {name: values[chosen].astype(numpy.int32) for name, values in examples.items()}
        weights, first, second, value = step(weights, first, second, batch, count)
        value.block_until_ready()
        print("STEP", batch["input_mask"].sum(), flush=True)


if __name__ == "__main__":
    main()
