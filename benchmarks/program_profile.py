"""Where an exported training step spends its time: XLA's kernels, their seconds and bytes.

    python -m benchmarks.program_profile STEP --output=build/profile

STEP is a folder of mlperf_bert.portable.export. The program runs under jax's profiler on jax's
first device. Every kernel of the compiled program is counted by what it does (a fused one by the
heaviest operation in it) and by the part of the step it belongs to. Bytes are those of its inputs
and its output, as if no cache kept them. OUTPUT.json has each kernel, OUTPUT.md the table,
OUTPUT.png the picture. Kernels may run side by side, so that their seconds can add up to more than
the step's.
"""

import argparse
import collections
import dataclasses
import json
import os
import re
import statistics
import sys
import tempfile
from pathlib import Path

import jax

from mlperf_bert.files import paths
from mlperf_bert.options import whole_number
from mlperf_bert.portable import compile_step
from mlperf_bert.portable.run_step import Exported, Program, steps
from pages import charts

# What the table calls the kinds of kernels.
TITLES = {
    compile_step.PRODUCTS: "matrix products",
    compile_step.SUMS: "sums, means, norms",
    compile_step.PASSES: "element by element",
    compile_step.CASTS: "casts alone",
    compile_step.COPIES: "copies, transposes",
}
PARTS = ("forward", "backward", "update")


@dataclasses.dataclass(kw_only=True)
class Kernel:
    """One instruction of the compiled program that runs by itself."""

    kind: str
    part: str
    num_bytes: int
    seconds: float = 0.0
    """In one step."""


def kernels(text: str) -> dict[str, Kernel]:
    """What the compiled program runs, by name; `text` is XLA's, of the optimized program."""
    return {
        name: Kernel(
            kind=TITLES.get(kernel.kind, kernel.kind),
            part=_part(kernel.text),
            num_bytes=kernel.num_bytes,
        )
        for name, kernel in compile_step.kernels(text).items()
    }


def _part(text: str) -> str:
    """The part of the step, from the name that TensorFlow gave the operation."""
    found = re.search(r'op_name="([^"]*)"', text)
    name = found[1] if found else ""
    if re.search(r"LAMB|AdamW|clip|global_norm|/norm", name):
        return "update"
    return "backward" if "gradient" in name else "forward"


def profile(exported: Exported, *, num_steps: int) -> tuple[Program, list[float], dict[str, float]]:
    """Runs one program; returns it, the seconds of each step, and each kernel's seconds a step."""
    # Kernels that a GPU starts as one recorded graph do not tell which instruction they are of.
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_enable_command_buffer="
    rows = max(exported.entries)
    batches = [each for each in exported.real_batches() if len(each["input_ids"]) == rows]
    ran = steps(exported, batches or [exported.synthetic_batch()], [], num_steps=2 + num_steps)
    *_, (_, _, program) = (next(ran) for _ in range(2))  # compiled, and its memory is there
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as work:
        jax.profiler.start_trace(work, profiler_options=options)
        seconds = [each for _, each, _ in ran]
        jax.profiler.stop_trace()
        (trace,) = Path(work).glob("**/*.xplane.pb")
        planes = list(jax.profiler.ProfileData.from_file(str(trace)).planes)
    spent: dict[str, float] = collections.defaultdict(float)
    on_device = [plane for plane in planes if plane.name.startswith("/device:")]
    for plane in on_device or planes:
        for line in plane.lines:
            for event in line.events:
                stats = dict(event.stats)
                if "hlo_op" in stats and not event.name.startswith("end: "):
                    spent[str(stats["hlo_op"])] += event.duration_ns / 1e9 / num_steps
    return program, seconds, spent


def report(device: str, step_seconds: float, found: dict[str, Kernel], output: Path) -> None:
    """Writes table and picture of all kernels."""
    groups: dict[str, list[Kernel]] = collections.defaultdict(list)
    for kernel in found.values():
        groups[kernel.kind].append(kernel)
    ordered = sorted(groups.items(), key=lambda group: -sum(each.seconds for each in group[1]))
    total = sum(kernel.seconds for kernel in found.values())
    title = f"{device}: {step_seconds:.3g} s a step, {len(found)} kernels"
    lines = [
        f"{title}; seconds of a step, of all kernels {total:.3g}.",
        "",
        f"| | kernels | GB | seconds | share | {' | '.join(PARTS)} |",
        "|---" * (5 + len(PARTS)) + "|",
    ]
    for kind, members in ordered:
        seconds = sum(each.seconds for each in members)
        by_part = [sum(each.seconds for each in members if each.part == part) for part in PARTS]
        lines.append(
            f"| {kind} | {len(members)} | {sum(each.num_bytes for each in members) / 1e9:.2f} "
            f"| {seconds:.3f} | {seconds / total:.0%} "
            f"| {' | '.join(f'{each:.3f}' for each in by_part)} |"
        )
    output.with_suffix(".md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    size = 8, 0.4 * len(ordered) + 1.2
    with charts.png(output.with_suffix(".png"), size) as [[axes]]:
        lefts = [0.0] * len(ordered)
        for part, colour in zip(PARTS, ("#7fa8d6", "#1f5fa8", "#d08a2e")):
            widths = [sum(k.seconds for k in members if k.part == part) for _, members in ordered]
            axes.barh([kind for kind, _ in ordered], widths, left=lefts, color=colour, label=part)
            lefts = [left + width for left, width in zip(lefts, widths)]
        axes.invert_yaxis()
        axes.set_xlabel("seconds of a step")
        axes.set_title(title, loc="left")
        axes.legend()


def main() -> None:
    """Profiles a program and writes the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("step", type=Path, help="a folder of mlperf_bert.portable.export")
    parser.add_argument("--output", type=Path, required=True, help="without suffix")
    parser.add_argument("--num_steps", type=whole_number, default=5, help="profiled steps")
    given = parser.parse_args(paths.words_with_home())
    try:
        exported = Exported(given.step, "training")
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"{given.step}: no folder of mlperf_bert.portable.export ({error})")
    program, seconds, spent = profile(exported, num_steps=given.num_steps)
    found = kernels(program.compiled.as_text())
    for name, kernel in found.items():
        kernel.seconds = spent.pop(name, 0.0)
    if not any(kernel.seconds for kernel in found.values()):
        sys.exit(f"{given.step}: jax's profiler named no kernel of this device: nothing to report")
    if spent:
        print(f"kernels that are not in the program's text: {', '.join(sorted(spent)[:5])}")
    given.output.parent.mkdir(parents=True, exist_ok=True)
    raw = {name: dataclasses.asdict(kernel) for name, kernel in found.items()}
    given.output.with_suffix(".json").write_text(json.dumps(raw, indent=1) + "\n")
    device = f"{jax.devices()[0].device_kind}, {exported.signature['precision']}"
    report(device, statistics.median(seconds), found, given.output)


if __name__ == "__main__":
    main()
