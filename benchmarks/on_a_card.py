"""The first minutes on one accelerator, and whole trainings, in stages.

    python -m benchmarks.on_a_card --output=build/on_a_card --seconds=440

The stages run in this order. The first four need only jax and numpy, the others TensorFlow too:

  product    products of matrices, whose rate is the peak
  kernels    each kernel of this project, compared with its formula
  step       BERT-large in bfloat16, 512 tokens, with run_step.py: with these kernels and without,
             packed and not, and the first step once more, from the cache
  PyTorch    the same step, in the environment of --torch_python
  training   with an evaluation, stopped by SIGTERM and resumed
  demo       to its target
  training, packed, which compiles for minutes

`--only kernels step` runs only the stages whose names begin so.

OUTPUT/figures.jsonl gets a line after each stage; checkpoints and caches are in --work. With --tiny
the model is tiny; only then a CPU is enough. What --data lacks is made first, within the limit, and
needs TensorFlow and minutes: `pack_run.py` makes it beforehand.
"""

import argparse
import contextlib
import dataclasses
import functools
import json
import os
import shlex
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from benchmarks import accelerator, reports
from benchmarks.processes import finished, in_a_process
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.mlperf import ledger
from mlperf_bert.options import expanded_arguments, whole_number

STEPS_OF_A_CALL = 10


@dataclasses.dataclass(frozen=True)
class Size:
    """What the stages compute."""

    model: str
    batches: dict[bool, int]
    """Examples of a step: False: one a row, True: packed."""
    num_steps: int
    """Steps before the first evaluation."""
    eval_batch: int
    num_eval_batches: int
    demo_flags: tuple[str, ...] = ()
    export_flags: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ("triton", "xla")

    def task(self, data: Path) -> Path:
        """Where records and configuration are."""
        return data / self.model

    def programs(self, data: Path) -> Iterator[tuple[Path, bool, str]]:
        """The folders of exported steps, whether they are packed, and their kernels."""
        for kernels in self.kernels:
            for packs, batch in self.batches.items():
                name = accelerator.name_of_step(self.model, batch, packs, kernels)
                yield data / name, packs, kernels

    def lacks(self, data: Path) -> list[str]:
        """What `prepare` would make."""
        needed = [data / "demo", self.task(data), *(each[0] for each in self.programs(data))]
        return [folder.name for folder in needed if not folder.exists()]


LARGE = Size("large", {False: 56, True: 112}, 40, 50, 20)
# A run on a CPU has no barriers for XLA, and no kernels of ours.
_TINY_EXPORT = ("--nobarriers",)
TINY = Size(
    "tiny", {False: 2, True: 4}, 20, 10, 2, ("--num_train_steps=60",), _TINY_EXPORT, ("xla",)
)


def device() -> dict:
    """What jax computes on; in a process of its own, which then leaves the device alone."""
    import jax

    first = jax.devices()[0]
    memory = (first.memory_stats() or {}).get("bytes_limit")
    about = {"platform": first.platform, "device": first.device_kind, "bytes_limit": memory}
    return about | {"jax": jax.__version__, "python": sys.version.split()[0]}


def prepare(data: Path, size: Size = LARGE) -> None:
    """Makes what is not in the folder yet: the demo's data, the task, and all programs."""
    from demo.__main__ import make_data  # needs this project's packages

    if not (data / "demo").exists():
        with tempfile.TemporaryDirectory() as work:
            make_data(Path(work, "demo"), 1, time.monotonic())
            (data / "demo.partial").mkdir(parents=True, exist_ok=True)
            for name in ("checkpoint", "train", "eval.tfrecord"):
                shutil.move(Path(work, "demo", name), data / "demo.partial" / name)
        (data / "demo.partial").rename(data / "demo")
    if not size.task(data).exists():
        accelerator.write_task(size.task(data), size.model)
    for folder, packs, kernels in size.programs(data):
        if not folder.exists():
            # With all of its flags, which make it the very program of the run.
            flags = training(data, folder, packs, size, kernels)[2:]
            accelerator.export_step([*flags, *size.export_flags])


def training(data: Path, output: Path, packs: bool, size: Size, kernels: str) -> list[str]:
    """The command of a training with one evaluation, of packed examples, or two."""
    task, batch = size.task(data), size.batches[packs]
    step = accelerator.flags_of_step(task, batch, packs=packs, kernels=kernels)
    return [
        sys.executable, "run_pretraining.py", "--do_train", *step,
        f"--eval_input_file={task}/train.tfrecord", f"--output_dir={output}",
        "--target_accuracy=1", f"--eval_batch_size={size.eval_batch}",
        f"--max_eval_steps={size.num_eval_batches}", "--num_warmup_steps=10",
        f"--eval_interval_samples={size.num_steps * batch}",
        f"--num_train_steps={size.num_steps * (1 if packs else 2)}",
        f"--iterations_per_loop={STEPS_OF_A_CALL}", f"--log_every_steps={STEPS_OF_A_CALL}",
    ]  # fmt: skip


def train(command: list[str], output: Path, limit: float, **how) -> dict:
    """The figures of a training: of each device call, the evaluations, and the ledger."""
    figures = finished(command, limit, **how)
    with contextlib.suppress(OSError, ValueError, LookupError):  # it was killed early
        rows = reports.stored(output / "metrics.jsonl")
        rates = [row["samples_per_second"] for row in rows if row["kind"] == "train"]
        log = (output / "bert.log").read_text().splitlines()
        stats = [line for line in log if ledger.LOG_KEY in line]
        figures["evaluations"] = [row for row in rows if row["kind"] == "eval"]
        figures["ledger"] = json.loads(stats[-1].partition(" ")[2])["value"]
        # The first has the start of the input in it.
        figures |= {"of_each_call": rates, "samples_per_second": statistics.median(rates[1:])}
    return figures


Stage = tuple[str, float, Callable[[float], dict]]
"""Its name, its limit in seconds, and what runs it, within a limit, and returns figures."""


def stages(
    data: Path, work: Path, size: Size, flags: list[str], kernels: str, torch_python: str | None
) -> Iterator[Stage]:
    """All stages, in the order of their worth."""
    programs = list(size.programs(data))
    figures, steps = work / "figures.json", [folder for folder, *_ in programs]
    if "triton" in size.kernels:
        command = [sys.executable, "-m", "benchmarks.kernels_alone", f"--output={figures}"]
        masks = [str(folder) for folder, _, of in programs if of == "triton"]
        yield "kernels", 90, functools.partial(accelerator.measured, [*command, *masks], figures)
    yield "product", 60, _product
    for number, folder in enumerate([*steps, steps[0]]):
        step = functools.partial(_step, folder, figures, size.num_steps)
        yield f"step {folder.name}{', again' * (number == len(steps))}", 100, step
    if torch_python:
        run = functools.partial(_pytorch, torch_python, steps[0], figures, size.num_steps)
        name = accelerator.name_of_step(size.model, size.batches[False], packs=False, kernels="xla")
        yield f"PyTorch {name}, torch.compile", 200, run
    for packs, batch in size.batches.items():
        name = accelerator.name_of_step(size.model, batch, packs, kernels)
        command = [*training(data, work / name, packs, size, kernels), *flags]
        whole = functools.partial(train, command, work / name)
        line = f"after {size.num_steps * batch:,} sam"
        stopped = functools.partial(whole, stop_at=line, expected=75)
        # Packed, it compiles seven programs.
        yield f"training {name}", 400 if packs else 150, whole if packs else stopped
        if not packs:
            yield f"training {name}, resumed", 100, whole
            yield (
                "demo",
                120,
                functools.partial(_demo, data, work / "demo", [*flags, *size.demo_flags]),
            )


def _product(limit: float) -> dict:
    code = "from benchmarks import accelerator; accelerator.print_product()"
    printed = finished([sys.executable, "-c", code], limit)
    return printed if "failed" in printed else json.loads(printed["said"][-1])


def _pytorch(python: str, folder: Path, figures: Path, num_steps: int, limit: float) -> dict:
    task = accelerator.task_of_pytorch(folder, figures, num_steps)
    command = [python, "benchmarks/contestants/pytorch.py", task]
    return accelerator.measured(command, figures, limit)


def _step(folder: Path, figures: Path, num_steps: int, limit: float) -> dict:
    return accelerator.run_step(folder, figures, num_steps, limit=limit)


def _demo(data: Path, output: Path, flags: list[str], limit: float) -> dict:
    from demo.__main__ import training_step  # needs this project's packages

    words = shlex.split(training_step(data / "demo", 1)[1])
    return train([sys.executable, *words[1:], *flags, f"--output_dir={output}"], output, limit)


def run_stages(
    these: Iterable[Stage], *, figures: Path, ends: float, only: list[str], about: dict
) -> dict[str, dict]:
    """Runs them one after the other, until `ends`, monotonic; returns figures by name.

    Each adds a line to the file `figures`, with what is known about all. One for which less than
    half of its limit is left is passed over; a line names all of these.
    """
    rows: dict[str, dict] = {}
    passed = []
    for name, most, stage in these:
        if only and name not in only and name.split()[0] not in only:
            continue
        began = time.monotonic()
        if (left := ends - began) < most / 2:
            passed.append(f"{name} ({most / 2:.0f} s or more)")
            continue
        print(f"{name}: at most {min(most, left):.0f} s ...", flush=True)
        figures_of_stage = stage(min(most, left))
        rows[name] = {"stage": name, "seconds": time.monotonic() - began, **figures_of_stage}
        reports.store(figures, about | rows[name])
        print(json.dumps(rows[name], indent=1), flush=True)
    if passed:
        print(f"no time is left for: {'; '.join(passed)}", flush=True)
    return rows


def compared(rows: dict[str, dict]) -> Iterator[str]:
    """Lines that say how far the losses of steps are from one another."""
    steps = {name: row["losses"] for name, row in rows.items() if row.get("losses")}
    for name, losses in steps.items():
        for other in (f"{name}, again", name.replace(accelerator.WITH_KERNELS["triton"], "")):
            if other != name and other in steps:
                worst = max(abs(a - b) for a, b in zip(losses, steps[other]))
                yield f"losses of {name} and of {other}: at most {worst:.2g} apart"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    folder = {"type": lambda path: Path(path).absolute()}
    parser.add_argument("--output", **folder, default="build/on_a_card", help="for figures.jsonl")
    parser.add_argument("--work", **folder, default="build/card/work", help="a new folder")
    parser.add_argument("--data", **folder, default="build/card/data", help="made if missing")
    parser.add_argument("--seconds", type=whole_number, default=480, help="for all, together")
    parser.add_argument("--only", nargs="+", default=[], help="stages by name, such as demo")
    parser.add_argument("--kernels", default="xla", help="of the large model's trainings")
    parser.add_argument("--torch_python", help="an interpreter with torch and transformers")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, also on a CPU")
    parser.add_argument("--prepare", action="store_true", help="only make what --data lacks")
    return parser.parse_args(expanded_arguments())


@ends_in_one_line("on_a_card")
def main() -> None:
    """Runs the stages, or prepares them."""
    began, options = time.monotonic(), arguments()
    size = TINY if options.tiny else LARGE
    if options.prepare:
        prepare(options.data, size)
        return
    about = in_a_process(device)
    if about["platform"] == "cpu" and not options.tiny:
        raise ValueError("jax sees no accelerator here; install jax with CUDA, or give --tiny")
    options.work.mkdir(parents=True, exist_ok=bool(options.only))  # before what takes minutes
    print(about, size, f"at most {options.seconds} s", sep="\n", flush=True)
    # Of all processes: a resumed run finds there what it has compiled, and run_step.py its own.
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(options.work / "compiled")
    flags = ["--runtime=jax"] + ["--num_gpus=1"] * (about["platform"] == "gpu")
    figures, rows = options.output / "figures.jsonl", {}
    how = {"figures": figures, "ends": began + options.seconds, "about": about}
    if lacking := size.lacks(options.data):
        print(f"before: what {options.data} lacks, {', '.join(lacking)}", flush=True)
        command = [sys.executable, "-m", "benchmarks.on_a_card", "--prepare"]
        command += [f"--data={options.data}", *["--tiny"] * options.tiny]
        made = functools.partial(finished, command)
        rows = run_stages([("preparation", options.seconds, made)], only=[], **how)
    if not any("failed" in row for row in rows.values()):
        these = stages(
            options.data, options.work, size, flags, options.kernels, options.torch_python
        )
        rows |= run_stages(these, only=options.only, **how)
    for line in compared(rows):
        print(line, flush=True)
    if failed := [name for name, row in rows.items() if "failed" in row]:
        raise ValueError(f"failed: {'; '.join(failed)}; {figures} says why")


if __name__ == "__main__":
    sys.exit(main())
