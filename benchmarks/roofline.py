r"""Where the time of a training step goes, and how much of it products and memory explain.

    python -m benchmarks.roofline --output=benchmarks/roofline

On any CPU. BERT-base, 512 tokens, `--precision=bfloat16 --jit_compile=auto`, unpacked and packed,
examples of published lengths (random_task.py has the source) or of --input_file. One process
measures, on all cores that it may use:

- the peak: the best of 60 products of 2048x3072x3072, in the precision of the step;
- the bandwidth: the best of 20 sums of 256 MiB into a variable: two arrays read, one written;
- the step: the median of --steps, one operation at a time, without the profiler, of one batch; if
  packed, the first batch with the most frequent number of rows;
- every operation: TensorFlow's profiler, as many steps again. A program of XLA is one operation.

The graph of the step says what an operation reads and writes: its part of the step, the
multiplications and additions of a product (2mnk), and the bytes of all inputs and outputs, each
counted once, as if no cache kept any. Of LAMB these are seven arrays as large as the gradient:
weight and both means read and written, the gradient read. An operation is bounded by its products
at the peak or by its bytes at the bandwidth, whichever takes longer, and what it takes beyond that
remains (parts.py). OUTPUT.json has every operation, OUTPUT.md the tables.

Source: Williams et al., "Roofline", Communications of the ACM 52(4), 2009. The operations of a
step by formula, beside those that are counted, are of mlperf_bert/portable/flop.py.
"""

from mlperf_bert.tensorflow_import import tensorflow

if __name__ == "__main__":
    tensorflow()  # before other modules import it

import argparse
import collections
import dataclasses
import datetime
import functools
import json
import re
import statistics
import tempfile
import time
from collections.abc import Collection
from pathlib import Path

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from benchmarks.contestants import ours
from benchmarks.parts import Operation, Speeds, table
from benchmarks.training_throughput import BERT_BASE, peak_flop_per_second, processor, write_task
from mlperf_bert.model.config import BertConfig
from mlperf_bert.options import whole_number, words_with_home
from mlperf_bert.portable import flop
from mlperf_bert.programs.steps import Trainer

HEADS = "heads and losses"
PRODUCTS = "products: "
OTHERS = "sums of gradients and other operations"
_PARTS = {  # of kinds of operations
    "Cast": "casts",
    "BiasAddGrad": "gradients of biases",
    "Softmax": "attention: softmax and mask",
    "Transpose": "transposes of heads",
    "ResourceGather": "embeddings",
    "UnsortedSegmentSum": "embeddings",
}


def operations(graph: tf.Graph, config: BertConfig) -> dict[str, Operation]:
    """What the nodes of the step's graph do, by their names in a profile."""
    by_name = {}
    for node in graph.get_operations():
        inputs, product = list(node.inputs), node
        if node.type == "BiasAdd" and inputs[0].op.type == "MatMul":  # TensorFlow joins them
            product, bias = inputs[0].op, inputs[1]
            inputs = [*product.inputs, bias]
        tensors = [*inputs, *node.outputs]
        if node.name.startswith("LAMB") and node.type == "StatefulPartitionedCall":
            tensors = [max(inputs, key=_num_bytes)] * 7
        by_name[node.name] = Operation(
            part=_part(node, product, config),
            flop=_flop(product) if "MatMul" in product.type else 0,
            num_bytes=sum(map(_num_bytes, tensors)),
        )
    return by_name


def _num_bytes(tensor: tf.Tensor) -> int:
    known = tensor.shape.is_fully_defined() and tensor.dtype not in (tf.resource, tf.variant)
    return tensor.shape.num_elements() * tensor.dtype.size if known else 0


def _flop(product: tf.Operation) -> int:
    left, [result] = product.inputs[0], product.outputs
    # Of [..., m, k] or its transpose, and [..., m, n].
    return 2 * left.shape.num_elements() * result.shape[-1]


def _part(node: tf.Operation, product: tf.Operation, config: BertConfig) -> str:
    """The address of a node: by its kind, or by the shapes of what it reads and writes."""
    if re.match(r"LAMB|clip_by_global_norm|global_norm", node.name) or node.type == "L2Loss":
        return "LAMB and clipping"
    if node.type in _PARTS:
        return _PARTS[node.type]
    shapes = [tuple(each.shape) for each in [*product.inputs, *node.outputs] if each.shape.rank]
    sizes = {size for shape in shapes for size in shape}
    if "MatMul" in product.type:
        return PRODUCTS + _product(product, sizes, config)
    # Of scores: [rows, heads, queries, 512].
    longest = config.max_position_embeddings
    in_attention = any(len(shape) == 4 and shape[-1] == longest for shape in shapes)
    if node.type == "PartitionedCall":
        name = re.sub(r"^__inference_|_\d+$", "", node.get_attr("f").name)
        if name == "_keep":
            return "attention: dropout" if in_attention else "dropout"
        if name.startswith("_sum_of_rows"):
            return _PARTS["BiasAddGrad"]
        if in_attention:
            return "attention: gradient of the scores"
        return "gelu" if config.intermediate_size in sizes else "LayerNorm"
    if in_attention:
        return "attention: softmax and mask"
    if (config.vocab_size, config.hidden_size) in shapes:
        return "embeddings"
    return HEADS if config.vocab_size in sizes else OTHERS


def _product(product: tf.Operation, sizes: Collection[int], config: BertConfig) -> str:
    if config.vocab_size in sizes:
        return HEADS
    if product.type == "BatchMatMulV2":
        return "scores and context"
    if config.intermediate_size in sizes:
        return "feed-forward"
    return "dense layers of attention and heads"


def measured(trace: Path, num_steps: int) -> dict[str, float]:
    """Seconds of a step that each operation takes, by name."""
    seconds: dict[str, float] = collections.defaultdict(float)
    for plane in xplane_pb2.XSpace.FromString(trace.read_bytes()).planes:
        texts = {number: entry.name for number, entry in plane.stat_metadata.items()}
        for line in plane.lines:
            if not line.name.startswith("tf_Compute"):
                continue
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                if name == "ExecutorState::ProcessAsync::Start":  # calls a program of XLA
                    stats = {texts[stat.metadata_id]: stat for stat in event.stats}
                    name = stats["name"].str_value or texts[stats["name"].ref_value]
                elif match := re.fullmatch(r"([^:]+):\w+", name):
                    name = match[1]
                else:
                    continue
                seconds[name] += event.duration_ps / 1e12 / num_steps
    return seconds


def bandwidth() -> float:
    """Bytes a second of the best of 20 sums of 256 MiB into a variable."""
    variable, seconds = tf.Variable(tf.zeros([64, 2**20])), []
    addend = tf.ones_like(variable)
    for _ in range(20):
        began = time.perf_counter()
        variable.assign_add(addend, read_value=False)
        seconds.append(time.perf_counter() - began)
    return 3 * 2**28 / min(seconds)


def profile(task: dict, *, num_steps: int) -> tuple[list[float], dict[str, Operation], dict]:
    """Seconds of the steps, what the operations of a step took, and its batch."""
    trainer, batches = ours.build_trainer(task), ours.training_batches(task)
    some = list(batches.take(50 if task["pack_sequences"] else 1))
    num_rows = statistics.mode(len(batch["input_ids"]) for batch in some)
    batch = next(batch for batch in some if len(batch["input_ids"]) == num_rows)
    # A trace of its own: the trainer's may be of any number of rows.
    step = tf.function(functools.partial(Trainer._step.python_function, trainer), autograph=False)
    step = step.get_concrete_function(batch)

    def timed() -> list[float]:
        seconds = []
        for _ in range(num_steps):
            began = time.perf_counter()
            step(batch).numpy()
            seconds.append(time.perf_counter() - began)
        return seconds

    timed()
    seconds = timed()
    with tempfile.TemporaryDirectory() as work:
        # Level 2, where the time is; at 3 a step takes longer.
        options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=2)
        tf.profiler.experimental.start(work, options=options)
        timed()
        tf.profiler.experimental.stop()
        (trace,) = Path(work).glob("**/*.xplane.pb")
        seconds_of = measured(trace, num_steps)
    by_name = operations(step.graph, BertConfig(**BERT_BASE))
    for name, value in seconds_of.items():
        if name not in by_name:  # TensorFlow's optimizer made it
            part = _PARTS["Cast"] if "Cast" in name else OTHERS
            by_name[name] = Operation(part=part, flop=0, num_bytes=0)
        by_name[name].seconds = value
    return seconds, {name: each for name, each in by_name.items() if each.seconds}, batch


def main() -> None:
    """Measures and writes the tables."""
    absolute_path = Path.cwd().joinpath
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input_file", type=absolute_path, help="TFRecords of 512 tokens")
    parser.add_argument("--output", type=absolute_path, required=True, help="without suffix")
    parser.add_argument("--batch_size", type=whole_number, default=4, help="examples of a step")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument(
        "--steps", type=whole_number, default=5, help="steps timed, and steps profiled"
    )
    args = parser.parse_args(words_with_home())
    # So that the seconds of operations add up to a step's.
    tf.config.threading.set_inter_op_parallelism_threads(1)
    speeds = Speeds(flop=peak_flop_per_second(args.precision), num_bytes=bandwidth())
    lines = [
        f"{processor()}, {datetime.date.today()}: {speeds.flop / 1e9:.0f} GFLOP/s in "
        f"{args.precision}, {speeds.num_bytes / 1e9:.1f} GB/s. BERT-base, {args.batch_size} "
        "examples a step.",
    ]
    raw: dict[str, dict] = {"peak": speeds.flop, "bandwidth": speeds.num_bytes}
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as work:
        write_task(Path(work), args.input_file)
        for packs in (False, True):
            sizes = {"batch_size": args.batch_size, "pack_sequences": packs}
            task = ours.task_in(work, **sizes, precision=args.precision)
            seconds, by_name, batch = profile(task, num_steps=args.steps)
            step_seconds, name = statistics.median(seconds), "packed" if packs else "unpacked"
            inside = sum(each.seconds for each in by_name.values())
            outside = Operation(part="between operations", seconds=step_seconds - inside)
            num_rows, num_tokens = batch["input_ids"].shape
            by_formula = flop.of_training_step(
                BertConfig(**BERT_BASE),
                num_rows=num_rows,
                num_tokens=num_tokens,
                num_predictions=batch["masked_lm_positions"].shape[1],
            )
            lines += [
                "",
                f"{name}, {num_rows}x{num_tokens} tokens: {step_seconds:.2f} s a step "
                f"({min(seconds):.2f} to {max(seconds):.2f}); by formula, all blocks whole, "
                f"{by_formula / 1e9:.0f} GFLOP",
                "",
                *table([[*by_name.values(), outside]], speeds, measured=True),
            ]
            raw[name] = {
                "seconds": seconds,
                "operations": {key: dataclasses.asdict(each) for key, each in by_name.items()},
            }
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.with_suffix(".json").write_text(json.dumps(raw, indent=1) + "\n")
    args.output.with_suffix(".md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
