"""Writes an exported step as execution traces for simulators: its kernels and its all-reduce.

    python -m mlperf_bert.portable.trace step --to=chakra --ranks=8 --output=step-chakra

A compiler compiles the two halves of the step for one device: jax's for this CPU, or with --device
NVIDIA's for a GPU that is not there. Each kernel becomes a COMP node; between the halves stands the
all-reduce of the gradients. docs/chakra.md says what the nodes hold. Needs jax and protobuf.
"""

import argparse
import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from exchange import chakra
from mlperf_bert.files import folders, paths
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.portable import compile_step, run_step

CPU, OUTPUT = "cpu", "chakra"
# Of every instruction of a kernel one operation for each element of its result, but of these none.
_FREE = {"convert", "bitcast-convert", "custom-call", "compare", "select", "rng-bit-generator"}


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """What the compiled program runs at once; sources are kernels or parameters."""

    name: str
    kind: str
    num_ops: int
    """Two for each multiplication of a product; else one for each element that is computed."""
    num_bytes: int
    """Of its operands and results, each counted once."""
    sources: frozenset[str | int]
    operands: list[str]
    shape: str
    """Of its result; and of its operands:"""
    operand_shapes: list[str]


def kernels(text: str) -> tuple[list[Kernel], list[frozenset[str | int]]]:
    """The kernels of a compiled program in its order, and what each of its outputs comes from."""
    entry, computations = compile_step.computations_of(text)
    shapes = {each["name"]: each["shape"] for each in computations[entry]}
    sizes = {name: compile_step.num_bytes(shape) for name, shape in shapes.items()}
    sources: dict[str, frozenset[str | int]] = {}
    found, outputs = [], []
    for each in computations[entry]:
        name, operands = each["name"], [o for o in compile_step.operands(each) if o in shapes]
        read = frozenset[str | int]().union(*(sources.get(o, ()) for o in operands))
        if each["opcode"] == "parameter":
            read = frozenset([int(each["rest"].split(")")[0])])
        elif each["opcode"] not in compile_step.NOTHING and not compile_step.is_bookkeeping(each):
            found.append(
                Kernel(
                    name=name,
                    kind=compile_step.kind_of(compile_step.operations_of(each, computations)),
                    num_ops=_num_ops(each, entry, computations),
                    num_bytes=sizes[name] + compile_step.bytes_read(each, sizes, computations),
                    sources=read,
                    operands=operands,
                    shape=each["shape"],
                    operand_shapes=[shapes[o] for o in operands],
                )
            )
            read = frozenset([name])
        sources[name] = read
        if each.group().lstrip().startswith("ROOT"):
            is_tuple = each["opcode"] == "tuple"
            outputs = [sources[o] for o in operands] if is_tuple else [read]
    return found, outputs


def _arrays(shape: str) -> list[tuple[str, list[int]]]:
    """(type, sizes) of an array, or of those of a tuple, as XLA writes them."""
    found = compile_step.ARRAY.findall(shape)
    return [(kind, [int(n) for n in sizes.split(",") if n]) for kind, sizes, _ in found]


def _elements(shape: str) -> int:
    return max((math.prod(sizes) for _, sizes in _arrays(shape)), default=0)


def _num_ops(each: re.Match, computation: str, computations: dict) -> int:
    """Both branches of a condition count; a loop counts as often as the compiler says it runs."""
    opcode, rest = each["opcode"], each["rest"]
    first = next(iter(compile_step.operands(each)), "")
    left = next((o["shape"] for o in computations[computation] if o["name"] == first), "")
    may_be_product = opcode in ("dot", "custom-call")
    if may_be_product and "dot" in compile_step.operations_of(each, computations):
        over = re.search(r'lhs_contracting_dim\w*"?[=:][{\[]([\d,"]*)', rest)
        sizes = _arrays(left)[0][1]
        contracted = [sizes[int(n)] for n in re.findall(r"\d+", over[1])] if over else []
        return 2 * _elements(each["shape"]) * math.prod(contracted)
    if opcode in ("fusion", "call", "while", "conditional", "async-start"):
        trips = re.search(r'known_trip_count":\{"n":"(\d+)"', rest)
        return (int(trips[1]) if trips else 1) * sum(
            _num_ops(inner, name, computations)
            for name in compile_step.called(rest)
            for inner in computations[name]
        )
    if opcode in compile_step.NOTHING | compile_step.MOVES | _FREE:
        return 0
    return _elements(left if opcode.startswith("reduce") else each["shape"])


def compiled(folder: Path, entry: dict, device: str) -> str:
    """A program of the folder as the compiler of a device leaves it."""
    devices = jax.devices()[:1] if device == CPU else compile_step.devices_of(device, 1)
    platform = None if device == CPU else "cuda"
    call = run_step.function(folder, entry, platform)
    names = [value["name"] for value in entry["inputs"]]

    def program(*values: Any) -> list:
        results, changed = call(dict(zip(names, values)))
        return [*results, *changed.values()]

    where = SingleDeviceSharding(devices[0])
    shapes = [jax.ShapeDtypeStruct(v["shape"], v["dtype"], sharding=where) for v in entry["inputs"]]
    # Inputs that nobody reads stay, so that parameters have the numbers of the signature.
    text = jax.jit(program, keep_unused=True).lower(*shapes).compile().as_text()
    assert text  # both compilers give it
    return text


class Step:
    """The kernels of both halves of a step, and what lies between them."""

    def __init__(self, folder: Path, device: str):
        """Compiles the folder's halves; a packed step's largest.

        Raises:
          ValueError: the folder is not a step, or has no halves.
        """
        exported = run_step.Exported(folder, run_step.TRAINING, num_devices=2)
        self.signature, self.device = exported.signature, device
        programs = self.signature["programs"]
        halves = [e for e in programs if e["kind"] == run_step.GRADIENTS]
        self.gradients = max(halves, key=lambda entry: entry["num_rows"])
        self.update = next(e for e in programs if e["kind"] == run_step.UPDATE)
        self.backward, outputs = kernels(compiled(folder, self.gradients, device))
        self.change, _ = kernels(compiled(folder, self.update, device))
        named = zip(self.gradients["outputs"], outputs)
        self.reduced = [(value, made) for value, made in named if value["role"] == "gradient"]
        """The gradients, and what each comes from."""

    def about(self, ranks: int) -> dict[str, int | str]:
        """What a simulator must know of the step, and another program to recognize its model."""
        entry, parameters = self.gradients, self.signature["parameters"]
        return {
            "made_by": "mlperf_bert.portable.trace",
            "step": "gradients, all-reduce, update",
            "device": self.device,
            "precision": self.signature["precision"],
            "ranks": ranks,
            "examples_per_rank": entry["num_examples"],
            "max_sequence_length": parameters["shape"]["max_seq_length"],
            "max_predictions_per_seq": parameters["shape"]["max_predictions_per_seq"],
            "weights_sha256": chakra.names_sha256(
                v["name"].removesuffix("/gradient") for v, _ in self.reduced
            ),
            "formula_flop": entry["flop"],
            "gradient_bytes": sum(compile_step.bytes_of(v) for v, _ in self.reduced),
        }

    def write(self, writer: chakra.Writer, *, ranks: int, bucket_bytes: int | None) -> None:
        """Writes the nodes of one step, which begins at 0."""
        clock = _Clock(self.device)
        ready: dict[str, list[int]] = {}
        counts = {}
        if ranks > 1 and self.signature["parameters"]["normalization"] == "global":
            number = _all_reduce(writer, "counts", 8, clock, ranks, [])
            names = ("num_predictions", "num_examples")
            counts = {
                n: number for n, v in enumerate(self.gradients["inputs"]) if v["name"] in names
            }
        made = _write_kernels(writer, "gradients", self.backward, counts, clock)
        bucket: list[tuple[dict, frozenset]] = []
        # Where there are several, a bucket is full of those that are there first.
        in_order = sorted(
            self.reduced, key=lambda each: max((made[s] for s in each[1] if s in made), default=0)
        )
        for number, (value, sources) in enumerate(in_order, 1):
            bucket.append((value, sources))
            size = sum(compile_step.bytes_of(v) for v, _ in bucket)
            is_full = bucket_bytes is not None and size >= bucket_bytes
            if number == len(in_order) or is_full:
                deps = {made[s] for _, sources in bucket for s in sources if s in made}
                last = sorted(deps)
                if ranks > 1:
                    last = [_all_reduce(writer, "gradients", size, clock, ranks, last)]
                ready |= {v["name"]: last for v, _ in bucket}
                bucket = []
        inputs = {
            n: number
            for n, v in enumerate(self.update["inputs"])
            for number in ready.get(v["name"], [])[-1:]
        }
        _write_kernels(writer, "update", self.change, inputs, clock)


class _Clock:
    """One kernel after the other, each as long as the device needs at least; 0 if unknown."""

    def __init__(self, device: str):
        self._now, self._device = 0.0, compile_step.DEVICES.get(device)  # None: the CPU

    def times(self, num_ops: int = 0, num_bytes: int = 0) -> dict[str, int]:
        begin = self._now
        if self._device:
            computing = num_ops / self._device.tflop / 1e6
            self._now += max(computing, num_bytes / self._device.gb_per_second / 1e3)
        return {
            "start_time_micros": round(begin),
            "duration_micros": round(self._now) - round(begin),
        }


def _write_kernels(
    writer: chakra.Writer, half: str, found: Sequence[Kernel], inputs: dict[int, int], clock: _Clock
) -> dict[str | int, int]:
    """Writes a COMP node for each; returns the numbers of kernels, and of parameters given."""
    made: dict[str | int, int] = dict(inputs.items())
    for each in found:
        made[each.name] = writer.node(
            "COMP",
            f"{half}/{each.name}",
            data_deps=sorted({made[s] for s in each.sources if s in made}),
            inputs=_io(each.operands, each.operand_shapes),
            outputs=_io([each.name], [each.shape]),
            # ASTRA-sim divides by both.
            attr={
                "is_cpu_op": False,
                "num_ops": max(each.num_ops, 1),
                "tensor_size": max(each.num_bytes, 1),
                "kind": each.kind,
            },
            **clock.times(each.num_ops, each.num_bytes),
        )
    return made


def _io(names: list[str], shapes: list[str]) -> Any:
    arrays = [_arrays(shape) for shape in shapes]
    # As in PyTorch's traces an array stands for itself, a tuple is a list.
    sizes = [[a[1] for a in found] if len(found) > 1 else found[0][1] for found in arrays]
    types = [[a[0] for a in found] if len(found) > 1 else found[0][0] for found in arrays]
    values = (json.dumps(each, separators=(",", ":")) for each in (names, sizes, types))
    return chakra.IOInfo(**dict(zip(("values", "shapes", "types"), values)))


def _all_reduce(
    writer: chakra.Writer, name: str, num_bytes: int, clock: _Clock, ranks: int, deps: list[int]
) -> int:
    return writer.node(
        "COMM_COLL",
        f"all_reduce/{name}",
        data_deps=deps,
        attr={
            "is_cpu_op": False,
            "comm_type": chakra.value_of("CollectiveCommType", "ALL_REDUCE"),
            "comm_size": num_bytes,
            "comm_priority": 0,
            "ranks": ranks,
        },
        **clock.times(),
    )


def write(folder: Path, output: Path, *, ranks: int, device: str, bucket_mb: float | None) -> str:
    """Writes step.0.et, step.1.et, ... into a new folder; returns what it holds, in words.

    Raises:
      ValueError: the folder is not a step with its halves, or the output is there already.
    """
    if output.exists():
        raise ValueError(f"{output} exists: remove it, or name another --output")
    step = Step(folder, device)
    bucket_bytes = None if bucket_mb is None else round(bucket_mb * 1e6)
    with folders.written_beside(output) as unfinished:
        for rank in range(ranks):
            with (unfinished / f"step.{rank}.et").open("wb") as file:
                writer = chakra.Writer(file, **step.about(ranks), rank=rank)
                step.write(writer, ranks=ranks, bucket_bytes=bucket_bytes)
    return f"{output}: {writer.num_nodes:,} nodes for each of {ranks} ranks"


@ends_in_one_line("trace")
def main(arguments: Sequence[str] | None = None) -> None:
    """Writes the traces of one step."""
    parser = argparse.ArgumentParser(
        prog="python -m mlperf_bert.portable.trace",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("step", type=Path, help="folder of mlperf_bert.portable.export")
    parser.add_argument("--to", choices=["chakra"], required=True, help="the format")
    parser.add_argument("--ranks", type=int, default=1, help="devices; a file for each")
    parser.add_argument("--device", default=CPU, help="cpu (default), or a GPU: h100")
    parser.add_argument("--bucket_mb", type=float, help="all-reduces of this size; default: one")
    parser.add_argument("--output", type=Path, help="new folder; default: chakra in the step's")
    given = parser.parse_args(paths.words_with_home(arguments))
    try:
        if given.ranks < 1 or (given.bucket_mb is not None and not 0 < given.bucket_mb < math.inf):
            raise ValueError("--ranks and --bucket_mb must be above 0, and finite")
        if given.device not in (CPU, *compile_step.GPUS):
            known = ", ".join([CPU, *compile_step.GPUS])
            raise ValueError(f"--device={given.device}: not known; choose of {known}")
        compile_step.without_hardware()
        print(
            write(
                given.step,
                given.output or given.step / OUTPUT,
                ranks=given.ranks,
                device=given.device,
                bucket_mb=given.bucket_mb,
            )
        )
    except (LookupError, TypeError) as error:
        raise ValueError(f"{given.step}: not whole; export the step again ({error})") from error
    except (ValueError, OSError, compile_step.NoCompiler, jax.errors.JaxRuntimeError) as error:
        raise ValueError(f"{given.step}: {' '.join(str(error).split())}") from error


if __name__ == "__main__":
    sys.exit(main())
