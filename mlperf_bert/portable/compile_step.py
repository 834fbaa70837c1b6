"""Compiles steps of mlperf_bert.portable.export for accelerators that are not there.

    python step/compile_step.py step --devices=tpu-v3,tpu-v3:128,h100,h100:8 --output=table.json

The makers' own compilers say whether a program compiles, how much memory it takes, and what it
runs. They do not say that it runs, how fast, or that its numbers are right. Every time here is a
bound: what the products need at the device's peak, or what the kernels read and write at the full
speed of its memory, whichever is longer. A real step takes longer.

The exporter puts a copy of this file into the folder, with run_step.py and jax_step.py, which it
needs. It also needs jax and numpy; for TPUs libtpu, for NVIDIA's GPUs jax[cuda12].
Exit code: 0 all fit; 3 a program does not fit; 1 one does not compile, or an error; 2 wrong usage.
"""

import argparse
import collections
import dataclasses
import importlib.metadata
import math
import os
import re
import sys
import time
from pathlib import Path

try:
    import jax
    from jax.experimental import topologies
    from jax.interpreters import mlir
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo
    from jaxlib.mlir.passmanager import PassManager

    if __package__:  # of the project; a copy stands alone beside run_step.py
        from mlperf_bert.portable import run_step
    else:
        sys.path.append(str(Path(__file__).resolve().parent))  # as in run_step.py
        import run_step  # type: ignore[no-redef]
except ImportError as error:
    sys.exit(
        f"compile_step.py: {error}: pip install jax numpy; run_step.py and jax_step.py must be "
        "beside it"
    )

jax_step = run_step.jax_step
GIB = 2**30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Device:
    """What one device of jax has: a GPU, a core of TPU v2 and v3, a chip of later TPUs."""

    kind: str
    """As jax calls it."""
    memory_bytes: float
    """What a program may use: of a TPU what its compiler says, of a GPU see `gpu`."""
    gb_per_second: float
    """Of the device's memory."""
    cache_bytes: float = 0
    """Arrays up to this size may stay on a GPU's chip. A TPU's program says what stays there."""
    shapes: dict[int, str] = dataclasses.field(default_factory=dict)
    """Of a TPU: the topology of so many devices."""
    options: dict[str, str] = dataclasses.field(default_factory=dict)
    """Of the topology."""
    target: str = ""
    """Of a GPU: XLA's GpuTargetConfigProto as text."""


def tpu(kind: str, memory_gib: float, gb_per_second: float, *shapes: str, **options) -> Device:
    """A TPU; shapes are `4 v4:2x2x1`, the first for one device too."""
    given = {int(each.split()[0]): each.split()[1] for each in shapes}
    return Device(
        kind=kind,
        memory_bytes=memory_gib * GIB,
        gb_per_second=gb_per_second,
        shapes={1: next(iter(given.values()))} | given,
        options=options,
    )


# What GPUs of a generation have in common, by compute capability: threads and FP32 units of a core,
# bytes of shared memory of a core and of a block.
_CORES = {
    (7, 0): (2048, 64, 98304, 98304),
    (8, 0): (2048, 64, 167936, 166912),
    (8, 9): (1536, 128, 102400, 101376),
    (9, 0): (2048, 128, 233472, 232448),
    (10, 0): (2048, 128, 233472, 232448),
}


# What XLA asks of a GPU that is not there. The numbers in the text are those of all of them.
_TARGET = """
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: {threads}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  shared_memory_per_block: 49152 shared_memory_per_core: {of_core}
  shared_memory_per_block_optin: {of_block}
  core_count: {cores} fpus_per_core: {units} clock_rate_ghz: {ghz}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: {bytes_per_second} l2_cache_size: {cache_bytes}
  device_memory_size: {memory_bytes}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
}}
platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 8 }} device_description_str: "{name}"
"""


def gpu(
    name: str, capability: tuple[int, int], memory_bytes: int, cores: int, ghz: float,
    cache_bytes: int, gb_per_second: float,
) -> Device:  # fmt: skip
    """A GPU of NVIDIA; `memory_bytes` is what it reports.

    TensorFlow leaves 1.0 to 1.5 GiB of it to CUDA, whose context takes some more: 2.25 GiB are not
    counted. Public logs of TensorFlow ("Created device ... with N MB memory") have N = 38,068 to
    38,482 for A100-SXM4-40GB (here 38,066), and 78,763 for H100 80GB HBM3 (here 78,704).
    """
    threads, units, of_core, of_block = _CORES[capability]
    major, minor = capability
    bytes_per_second = round(gb_per_second * 1e9)
    return Device(
        kind=name,
        memory_bytes=memory_bytes - 2.25 * GIB,
        gb_per_second=gb_per_second,
        cache_bytes=cache_bytes,
        target=_TARGET.format_map(locals()),
    )


# Bandwidths: of TPUs Google Cloud's documentation of each version (v2 and v3 halved, for a chip has
# two cores there); of GPUs NVIDIA's data sheets. Memory of TPUs: what libtpu 0.0.52 names when it
# refuses a program. Memory and cores of GPUs: what they report. Peaks: run_step.PEAK_TFLOP.
DEVICES = {
    # Name, GiB of memory, GB/s, and topologies by their number of devices.
    "tpu-v2": tpu("TPU v2", 7.48, 350, "8 v2:2x2", "32 v2:4x4", "512 v2:16x16"),
    "tpu-v3": tpu("TPU v3", 15.48, 450, "8 v3:2x2", "32 v3:4x4", "128 v3:8x8", "512 v3:16x16"),
    "tpu-v4": tpu(
        "TPU v4", 30.75, 1228, "4 v4:2x2x1", "16 v4:2x2x4", "64 v4:4x4x4",
        chip_config_name="megacore",
    ),
    "tpu-v5e": tpu(
        "TPU v5 lite", 15.75, 819,
        "4 v5e:2x2", "16 v5e:4x4", "32 v5e:4x8", "64 v5e:8x8", "256 v5e:16x16",
    ),
    "tpu-v5p": tpu("TPU v5", 95.73, 2765, "4 v5p:2x2x1", "16 v5p:2x2x4", "64 v5p:4x4x4"),
    "tpu-v6e": tpu(
        "TPU v6 lite", 31.24, 1640,
        "4 v6e:2x2", "16 v6e:4x4", "32 v6e:4x8", "64 v6e:8x8", "256 v6e:16x16",
    ),
    # Name, compute capability, bytes of memory, cores, GHz, bytes of the cache, GB/s.
    "v100": gpu("Tesla V100-SXM2-16GB", (7, 0), 16935682048, 80, 1.53, 6291456, 898),
    "a100-40": gpu("NVIDIA A100-SXM4-40GB", (8, 0), 42331013120, 108, 1.41, 41943040, 1555),
    "a100-80": gpu("NVIDIA A100-SXM4-80GB", (8, 0), 85100068864, 108, 1.41, 41943040, 2039),
    "l4": gpu("NVIDIA L4", (8, 9), 23670816768, 58, 2.04, 50331648, 300),
    "h100": gpu("NVIDIA H100 80GB HBM3", (9, 0), 84942979072, 132, 1.98, 52428800, 3352),
    "h200": gpu("NVIDIA H200", (9, 0), 151397597184, 132, 1.98, 52428800, 4800),
    "b200": gpu("NVIDIA B200", (10, 0), 191514411008, 148, 1.965, 132644864, 7672),
}  # fmt: skip


class NoCompiler(Exception):
    """The compiler of a device is not installed, or too old."""


def without_hardware() -> None:
    """Sets what the compilers read when they are loaded; without a GPU nothing can be tuned on."""
    jax.config.update("jax_platforms", "cpu")
    os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_autotune_level=0"


def devices_of(name: str, count: int) -> list:
    """The devices of a topology that is not there."""
    device = DEVICES[name]
    try:
        if name in GPUS:
            topology = topologies.get_topology_desc(
                platform="cuda", topology_name="", target_config=device.target,
                topology=f"1x1x{count}",
            )  # fmt: skip
        else:
            topology = topologies.get_topology_desc(
                platform="tpu", topology_name=device.shapes[count], **device.options
            )
    except Exception as error:  # each compiler has exceptions of its own
        needed = "jax[cuda12]" if name in GPUS else "libtpu"
        raise NoCompiler(
            f"its compiler is not installed, or too old: pip install --upgrade jax '{needed}' "
            f"({first_line(error)})"
        ) from error
    return list(topology.devices[:count])


GPUS = [name for name, device in DEVICES.items() if device.target]


def first_line(error: BaseException) -> str:
    """The reason alone."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


# --- what a compiled program reads and writes ----------------------------------------------------

# Neither do these compute, nor do they move what they name.
NOTHING = {"parameter", "bitcast", "constant", "tuple", "get-tuple-element", "reshape"}
NOTHING |= {"after-all", "partition-id", "replica-id"}
NOTHING |= {"all-reduce-done", "copy-done", "async-done"}
# Of a TPU: what reserves or frees its own memory.
_BOOKKEEPING = r'target="(AllocateBuffer|AssumeGatherIndicesInBound|Sharding|SliceBarrier)"'
_SIZES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s64": 8, "u64": 8, "f64": 8}
_INSTRUCTION = re.compile(
    r"^\s*(?:ROOT )?%(?P<name>[\w.-]+) = (?P<shape>\(.*?\)|\S+) (?P<opcode>[\w-]+)\((?P<rest>.*)$"
)
ARRAY = re.compile(r"(\w+)\[([\d,]*)\](\{[^}]*\})?")


def computations_of(text: str) -> tuple[str, dict[str, list[re.Match]]]:
    """The entry's name, and the instructions of every computation, by its name.

    `text` is XLA's, of the optimized program.
    """
    computations: dict[str, list[re.Match]] = collections.defaultdict(list)
    entry = name = ""
    for line in text.splitlines():
        if line.endswith("{") and (head := re.match(r"(ENTRY )?%?([\w.-]+) ", line)):
            name = head[2]
            entry = name if head[1] else entry
        elif instruction := _INSTRUCTION.match(line):
            computations[name].append(instruction)
    return entry, computations


def kernels(text: str, cache_bytes: float = -1) -> dict[str, int]:
    """The instructions that run by themselves, and the bytes of their operands and results.

    Each array counts once. Arrays of up to `cache_bytes` are not counted, neither are those that a
    TPU's program puts into the memory on its chip. Both branches of a condition are.
    """
    entry, computations = computations_of(text)
    found, waiting = {}, [entry]
    while waiting:
        instructions = computations[waiting.pop()]
        sizes = {each["name"]: num_bytes(each["shape"], cache_bytes) for each in instructions}
        for each in instructions:
            if each["opcode"] in ("while", "conditional", "call"):
                waiting += called(each["rest"])
            elif each["opcode"] not in NOTHING and not re.search(_BOOKKEEPING, each["rest"]):
                found[each["name"]] = sizes[each["name"]] + _bytes_read(each, sizes, computations)
    return found


def called(rest: str) -> list[str]:
    """The computations that an instruction calls, without the condition of a loop."""
    names = r"(?:calls|to_apply|body|\w+_computations?)=\{?(%[\w.-]+(?:, %[\w.-]+)*)"
    return re.findall(r"%([\w.-]+)", " ".join(re.findall(names, rest)))


def operands(instruction: re.Match) -> list[str]:
    """The names of what an instruction reads."""
    return re.findall(r"%([\w.-]+)", instruction["rest"].split(")", 1)[0])


def _bytes_read(instruction: re.Match, sizes: dict[str, int], computations: dict) -> int:
    # Not the arrays of which a fusion takes only some elements, such as a table of embeddings.
    picked = set()
    if instruction["opcode"] == "fusion":
        inner = computations[called(instruction["rest"])[0]]
        picks = [each for each in inner if each["opcode"] in ("gather", "dynamic-slice", "slice")]
        names = {operands(each)[0] for each in picks}
        numbers = [each["rest"] for each in inner if each["name"] in names]
        picked = {int(n[1]) for rest in numbers if (n := re.match(r"(\d+)\)", rest))}
    return sum(sizes.get(o, 0) for n, o in enumerate(operands(instruction)) if n not in picked)


def num_bytes(shape: str, cache_bytes: float = -1) -> int:
    """Of one array or a tuple of them, as XLA writes it: f32[4,512]{1,0:T(8,128)S(1)}."""
    sizes = (
        _SIZES.get(dtype, 4) * math.prod(int(size) for size in sizes.split(",") if size)
        for dtype, sizes, layout in ARRAY.findall(shape)
        if "S(1)" not in layout  # a TPU keeps it on its chip
    )
    return sum(size for size in sizes if size > cache_bytes)


def all_reduce_bytes(text: str) -> int:
    """Of the results of all all-reduces, those in fusions too."""
    kinds = ("all-reduce", "all-reduce-start", "reduce-scatter")
    every = [each for inner in computations_of(text)[1].values() for each in inner]
    shapes = [each["shape"].replace("S(1)", "") for each in every if each["opcode"] in kinds]
    return sum(map(num_bytes, shapes))


def product_flop(program: bytes) -> int:
    """FLOP of the matrix products of a program in StableHLO, two for each multiplication."""
    with mlir.make_ir_context() as context:
        module = stablehlo.deserialize_portable_artifact(context, program)
        # Without products that nobody uses, such as one computed again only for its gradient.
        PassManager.parse("builtin.module(canonicalize)").run(module.operation)
        flop = 0
        for each in jax_step.operations(module):
            if each.name in ("stablehlo.dot_general", "stablehlo.dot"):
                left = ir.RankedTensorType(each.operands[0].type).shape
                over = [len(left) - 1]
                if each.name == "stablehlo.dot_general":
                    numbers = each.attributes["dot_dimension_numbers"]
                    over = stablehlo.DotDimensionNumbers(numbers).lhs_contracting_dimensions
                size = math.prod(ir.RankedTensorType(each.results[0].type).shape)
                flop += 2 * size * math.prod(left[n] for n in over)
        return flop


# --- one program for one device -------------------------------------------------------------------


def compiled(exported: run_step.Exported, entry: dict, name: str, count: int) -> dict:
    """The figures of one program, or why there are none."""
    device, folder = DEVICES[name], exported.folder
    row = {
        "step": folder.name,
        "file": entry["file"],
        "device": name,
        "num_devices": count,
        "num_examples": entry["num_examples"] * count,
        "usable_bytes": device.memory_bytes,
    }
    began = time.perf_counter()
    try:
        devices = devices_of(name, count)
        row["device_kind"] = devices[0].device_kind
        program = exported.lowered(entry, devices).compile()
    except NoCompiler as error:
        return row | {"result": "no compiler", "reason": str(error)}
    except Exception as error:  # each compiler has exceptions of its own
        return row | refused(first_line(error), entry)
    memory = program.memory_analysis()
    assert memory  # both compilers give it
    peak = jax_step.needed_bytes(program)
    row |= {
        "result": "fits" if peak <= device.memory_bytes else "does not fit",
        "compile_seconds": time.perf_counter() - began,
        "arguments_bytes": memory.argument_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "peak_bytes": peak,
    }
    try:
        text = program.as_text()
        assert text  # both compilers give it
        return row | jax_step.xla_cost(program) | bounds(text, folder, entry, device, count)
    except jax.errors.JaxRuntimeError as error:
        # A compiler may be newer than the jaxlib that reads its program.
        return row | {"reason": f"this jax cannot read the compiled program: {first_line(error)}"}


def refused(reason: str, entry: dict) -> dict:
    """The figures of a program that a compiler refuses."""
    temporary = jax_step.refused_bytes(reason)
    # Shared memory is a core's: a kernel that XLA chose without trying it needs too much.
    is_full = "RESOURCE_EXHAUSTED" in reason and "Shared memory" not in reason
    if not temporary and not is_full:
        return {"result": "does not compile", "reason": reason}
    return {
        "result": "does not fit",
        "reason": reason,
        "arguments_bytes": entry["state_bytes"],  # without the batch, which is small
        "temporary_bytes": temporary,
        "peak_bytes": temporary and temporary + entry["state_bytes"],
    }


def bounds(text: str, folder: Path, entry: dict, device: Device, count: int) -> dict:
    """What the compiled program of each device moves and multiplies, and needs at least."""
    found = kernels(text, device.cache_bytes)
    flop = product_flop((folder / entry["file"]).read_bytes())
    peak = run_step.peak_tflop(device.kind)
    assert peak, f"{device.kind} is not in run_step.PEAK_TFLOP"
    products = flop / peak / 1e12
    memory = sum(found.values()) / device.gb_per_second / 1e9
    return {
        "num_kernels": len(found),
        "collective_bytes": all_reduce_bytes(text),
        "product_flop": flop,
        "kernel_bytes": sum(found.values()),
        "products_seconds_bound": products,
        "memory_seconds_bound": memory,
        "step_seconds_bound": max(products, memory),
        "samples_per_second_bound": count * entry["num_examples"] / max(products, memory),
    }


# --- the command line -----------------------------------------------------------------------------

COLUMNS = {
    "step": "step",
    "device": "device",
    "num_examples": "examples",
    "result": "result",
    "arguments_bytes": "arguments, GiB",
    "temporary_bytes": "temporaries, GiB",
    "peak_bytes": "peak, GiB",
    "usable_bytes": "usable, GiB",
    "num_kernels": "kernels",
    "collective_bytes": "all-reduce, GiB",
    "products_seconds_bound": "products, ms",
    "memory_seconds_bound": "memory, ms",
    "samples_per_second_bound": "samples/s at most",
}


def cells(row: dict) -> list[str]:
    """A row of the table."""
    count = row["num_devices"]
    row = row | {"device": row["device"] + (f" x {count}" if count > 1 else "")}

    def cell(key: str) -> str:
        value = row.get(key)
        if value is None:
            return ""
        if key.endswith("_bytes"):
            return f"{value / GIB:.2f}"
        if key.endswith("_seconds_bound"):
            return f"{value * 1e3:.1f}"
        return f"{value:.0f}" if isinstance(value, float) else str(value)

    return [cell(key) for key in COLUMNS]


def parse_devices(text: str) -> list[tuple[str, int]]:
    """`tpu-v3,h100:8` -> [("tpu-v3", 1), ("h100", 8)]; wrong ones are wrong usage."""
    parsed = []
    for word in run_step.not_empty(text).split(","):
        name, _, number = word.partition(":")
        if name not in DEVICES:
            raise argparse.ArgumentTypeError(f"{word}: not known; choose of {', '.join(DEVICES)}")
        sizes = DEVICES[name].shapes
        count = int(number or 1) if re.fullmatch(r"\d{0,4}", number) else 0
        if not count or (sizes and count not in sizes):
            known = ", ".join(map(str, sizes)) or "1 to 9999"
            raise argparse.ArgumentTypeError(f"{word}: give a number that {name} has: {known}")
        parsed.append((name, count))
    return parsed


def main() -> None:
    """Compiles every step for every device, and prints a row for each."""
    parser = run_step.Parser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    folders = "folders of mlperf_bert.portable.export"
    parser.add_argument("steps", type=run_step.path, nargs="+", metavar="STEP", help=folders)
    devices = f"of {','.join(DEVICES)}; h100:8 for eight"
    parser.add_argument("--devices", type=parse_devices, required=True, help=devices)
    kinds = (run_step.TRAINING, "evaluation")
    parser.add_argument("--kind", choices=kinds, default=run_step.TRAINING, help="of step")
    parser.add_argument("--num_rows", type=int, help="of packed batches; if not given, the most")
    parser.add_argument("--output", type=run_step.json_file, help="also write all figures, as JSON")
    given = parser.parse_args()
    most = max(count for _, count in given.devices)
    if given.kind != run_step.TRAINING and most > 1:
        parser.error("an evaluation is compiled for one device: leave out the number of devices")
    without_hardware()
    steps = [step_of(folder, given.kind, most, given.num_rows) for folder in given.steps]
    rows: list[dict] = []
    print(f"| {' | '.join(COLUMNS.values())} |\n{'| --- ' * len(COLUMNS)}|")
    for exported, entry in steps:
        for name, count in given.devices:
            rows.append(compiled(exported, entry, name, count))
            print(f"| {' | '.join(cells(rows[-1]))} |", flush=True)
    for row in (row for row in rows if "reason" in row):
        print(f"- {row['step']}, {row['device']}: {row['reason']}")
    if given.output:
        compilers = ("jax", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin")
        installed = {each.name: each.version for each in importlib.metadata.distributions()}
        versions = {name: installed[name] for name in compilers if name in installed}
        run_step.write_json(given.output, {"versions": versions, "rows": rows})
    results = {row["result"] for row in rows}
    if results & {"does not compile", "no compiler"}:
        sys.exit(1)
    sys.exit(3 if "does not fit" in results else 0)


def step_of(
    folder: Path, kind: str, num_devices: int, num_rows: int | None = None
) -> tuple[run_step.Exported, dict]:
    """A step and its entry, of the most rows if not given; a bad one ends this program."""
    try:
        exported = run_step.Exported(folder, kind, num_devices)
        rows = max(exported.entries) if num_rows is None else num_rows
        if rows not in exported.entries:
            raise ValueError(f"it has no program of {rows} rows, but of {[*exported.entries]}")
        return exported, exported.entries[rows]
    except Exception as error:  # nothing of a folder is checked before it is used
        sys.exit(f"compile_step.py: {folder}: {type(error).__name__}: {first_line(error)}")


if __name__ == "__main__":
    main()
