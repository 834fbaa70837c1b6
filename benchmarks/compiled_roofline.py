"""An address for every millisecond of a step on a GPU: its kernels by part, before it has run.

    .venv-compilers/bin/python -m benchmarks.compiled_roofline build/steps/before build/steps/after

Folders of mlperf_bert.portable.export; jax's compiler for GPUs, no GPU. Each training step is
compiled, and every kernel of the compiled program gets a part of the step: by the sizes of the
arrays that it reads and writes, by its products, and by the names that TensorFlow gave to what is
in it. A second program is shown beside the first.

All times are bounds by a model, nothing is measured. A kernel takes what its products take at the
measured speed of a plain product, or its bytes at the bandwidth of the memory, or a launch,
whichever is longest. Bytes are those of all its operands and results, each once, as if no cache
kept any. Kernels that a launch bounds are one row; what no rule knows is shown by its name.
Of a Triton kernel the program has the name, the operands and the code, but not how often the loops
run: its products are counted as if each ran once for every query and key of every row. A kernel
that skips tiles, as those of padding and of other examples, does less.
The compiler cannot try out kernels without a GPU: a card may choose others for the products.
"""

import argparse
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.parts import Operation, Speeds, table
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.options import words_with_home
from mlperf_bert.portable import compile_step, run_step

TFLOP, TERABYTES = 778.0, 2.9
"""A second, of an H100 SXM: a plain product of bfloat16, measured (benchmarks/NOTES.md); 87% of
the memory's 3.35 by its data sheet, which is taken, not measured."""
LAUNCH_SECONDS = 2e-6  # taken, not measured

SCORES, LOGITS, INNER, HEAD, HIDDEN = "scores", "logits", "inner", "head", "hidden"
WEIGHT = "weight"
# Kernels with a product and those without, by the first of these arrays that they have.
ADDRESSES = {
    SCORES: ("products: scores and context", "attention: softmax, dropout and their gradients"),
    LOGITS: ("products: heads", "heads and losses"),
    INNER: ("products: feed-forward", "gelu and its bias"),
    HEAD: ("products: heads", "heads and losses"),
    HIDDEN: ("products: queries, keys, values, output", "attention: copies and sums"),
}
NORM, BIASES, EMBEDDINGS = "LayerNorm, dropout, residual sum", "biases", "embeddings, lookups"
UPDATE, SMALL = "LAMB, norms of gradients, casts of weights", "bounded by their launch"
COLLECTIVES = "collectives"


def sizes_of(entry: dict, config: dict) -> dict[int, str]:
    """What the arrays of a step are, by their number of elements.

    `entry` describes the program in the signature, `config` is the model's.

    Raises:
      ValueError: two kinds of arrays have the same number.
    """
    rows, tokens, hidden = entry["num_rows"], entry["num_tokens"], config["hidden_size"]
    [labels] = [each for each in entry["inputs"] if each["name"] == "next_sentence_labels"]
    predicted = rows * entry["num_predictions"]
    kinds = [
        (rows * tokens * hidden * 3, HIDDEN),  # queries, keys and values as one array
        (predicted * hidden, HEAD),
        (predicted * config["vocab_size"], LOGITS),
    ]
    # The last block computes queries only where the heads look.
    for queries in (tokens, entry["num_predictions"] + labels["shape"][1]):
        kinds += [
            (rows * queries * hidden, HIDDEN),
            (rows * queries * config["intermediate_size"], INNER),
            (rows * queries * config["num_attention_heads"] * tokens, SCORES),
        ]
    kinds += [
        (math.prod(each["shape"]), WEIGHT) for each in entry["inputs"] if each["role"] == WEIGHT
    ]
    sizes: dict[int, str] = {}
    for size, kind in kinds:
        if (other := sizes.setdefault(size, kind)) != kind:
            raise ValueError(
                f"arrays of {size} elements are {kind} and {other}, which are told apart by their "
                "sizes: export another number of rows"
            )
    return sizes


def kernels_of(text: str, entry: dict, config: dict, speeds: Speeds) -> list[Operation]:
    """The kernels of a compiled program, XLA's `text`."""
    sizes, (_, computations) = sizes_of(entry, config), compile_step.computations_of(text)
    every = {each["name"]: each for inner in computations.values() for each in inner}
    found = []
    for name, num_bytes in compile_step.kernels(text).items():
        inside, rest = list(_inside(every[name], computations)), every[name]["rest"]
        if triton := re.search(r'backend_config=\{name = "([^"]+)"', rest):
            each_row = entry["num_rows"] * entry["num_tokens"] ** 2 * config["hidden_size"]
            flop, part = 2 * each_row * rest.count("tt.dot"), f"kernel {triton[1]}"
        else:
            flop = sum(_product_flop(each, every) for each in inside)
            arrays = [every[each] for each in compile_step.operands(every[name])] + [every[name]]
            kinds = {sizes.get(size) for each in arrays for size in _elements(each["shape"])}
            part = _part(inside, kinds, bool(flop))
        kernel = Operation(part=part, flop=flop, num_bytes=num_bytes)
        if not triton and kernel.bound(speeds) <= speeds.launch_seconds:
            kernel.part = SMALL
        found.append(kernel)
    return found


def _part(inside: list[re.Match], kinds: set[str | None], has_product: bool) -> str:
    """The address of a kernel; the label of its last operation is its own."""
    known = next((each for each in ADDRESSES if each in kinds), None)
    opcodes, labels = {each["opcode"] for each in inside}, [_label(each) for each in inside]
    names = " ".join(labels)
    if any(re.match("all-|reduce-scatter|collective-", each) for each in opcodes):
        return COLLECTIVES
    if "LAMB" in labels[-1] or "clip_by_global_norm" in labels[-1]:
        return UPDATE
    looks_up = opcodes & {"gather", "scatter", "sort"} and not has_product
    if looks_up or "Einsum" in names:  # of token types
        return EMBEDDINGS
    if has_product:
        return ADDRESSES[known][0] if known else "products: others"
    if known == HIDDEN and re.search(r"batchnorm|moments|AddN", names):
        return NORM
    if known == HIDDEN and "BiasAdd" in names:
        return BIASES
    if known:
        return ADDRESSES[known][1]
    if re.search(r"Cast|Sum|mul|norm|LAMB", names):
        return UPDATE
    return f"other: {labels[-1] or 'no name'}"


def _inside(instruction: re.Match, computations: dict[str, list[re.Match]]) -> Iterator[re.Match]:
    """The operations of a kernel, those of the computations that it calls first, then itself."""
    # Not what a sum calls: all sums share it, with the names of one of them.
    if instruction["opcode"] in ("fusion", "call", "async-start"):
        for name in compile_step.called(instruction["rest"]):
            for each in computations[name]:
                yield from _inside(each, computations)
    yield instruction


def _label(instruction: re.Match) -> str:
    """The name that TensorFlow gave it, without the program's and without numbers."""
    name = re.search(r'op_name="([^"]*)"', instruction["rest"])
    return re.sub(r"_\d+\b|^jit\(step\)/call_exported/", "", name[1]) if name else ""


def _elements(shape: str) -> list[int]:
    """Of one array or of each of a tuple's."""
    arrays = compile_step.ARRAY.findall(shape)
    return [math.prod(int(size) for size in dims.split(",") if size) for _, dims, _ in arrays]


def _product_flop(instruction: re.Match, every: dict[str, re.Match]) -> int:
    """Two for each multiplication of a product, XLA's own or a library's; else none."""
    over = re.search(r'lhs_contracting_dim\w+"?[=:][\[{]([^\]}]*)', instruction["rest"])
    if not over or instruction["opcode"] not in ("dot", "custom-call"):
        return 0
    left = every[compile_step.operands(instruction)[0]]["shape"]
    sizes = [int(size) for size in compile_step.ARRAY.findall(left)[0][1].split(",")]
    contracted = math.prod(sizes[int(axis)] for axis in re.findall(r"\d+", over[1]))
    return 2 * _elements(instruction["shape"])[0] * contracted


@ends_in_one_line("compiled_roofline")
def main() -> int:
    """Compiles the steps and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("steps", type=run_step.path, nargs="+", metavar="STEP", help="a folder")
    parser.add_argument("--device", choices=compile_step.GPUS, default="h100")
    parser.add_argument("--tflop", type=float, help="a plain product's, a second")
    parser.add_argument("--terabytes", type=float, help="of the memory, a second")
    given = parser.parse_args(words_with_home())
    if given.device != "h100" and not (given.tflop and given.terabytes):
        raise ValueError(f"--device={given.device}: give its --tflop and --terabytes a second")
    speeds = Speeds(
        flop=1e12 * (given.tflop or TFLOP),
        num_bytes=1e12 * (given.terabytes or TERABYTES),
        launch_seconds=LAUNCH_SECONDS,
    )
    compile_step.without_hardware()
    programs = []
    for folder in given.steps:
        exported, entry = compile_step.step_of(Path(folder), run_step.TRAINING, 1)
        devices = compile_step.devices_of(given.device, 1)
        text = exported.lowered(entry, devices).compile().as_text() or ""
        programs.append(kernels_of(text, entry, exported.signature["bert_config"], speeds))
    print("\n".join(table(programs, speeds, measured=False)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
