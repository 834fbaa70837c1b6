"""A whole training on one accelerator, in stages.

    python -m benchmarks.on_a_card --output=build/on_a_card

The demo to its target; BERT-large in bfloat16, 512 tokens, with an evaluation, stopped by SIGTERM
and resumed; the same packed; and run_step.py with the programs of both. OUTPUT/figures.jsonl gets a
line after each stage: what its commands printed, samples per second, the ledger, memory. With
--tiny the model is tiny; only then a CPU is enough. What --data lacks is made first, which needs
minutes; `pack_run.py` makes it beforehand. It takes at most eight minutes without that.
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
from demo.__main__ import make_data, training_step
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.mlperf import ledger
from mlperf_bert.options import whole_number, words_with_home

STEPS_OF_A_CALL = 10


@dataclasses.dataclass(frozen=True)
class Size:
    """What the stages compute."""

    model: str
    batches: dict[bool, int]
    """Examples of a step: False: one a row, True: packed."""
    num_steps: int
    """Before the first evaluation."""
    eval_batch: int
    num_eval_batches: int
    demo_flags: tuple[str, ...] = ()
    export_flags: tuple[str, ...] = ()
    kernels: str = "xla"

    def task(self, data: Path) -> Path:
        """Where records and configuration are."""
        return data / self.model

    def program(self, data: Path, packs: bool) -> Path:
        """Where the exported step is."""
        return data / accelerator.name_of_step(self.model, self.batches[packs], packs, self.kernels)


LARGE = Size("large", {False: 56, True: 112}, 40, 50, 20)
# A run on a CPU has no barriers for XLA.
TINY = Size("tiny", {False: 2, True: 4}, 20, 10, 2, ("--num_train_steps=60",), ("--nobarriers",))


def device() -> dict:
    """What jax computes on; in a process of its own, which then leaves the device alone."""
    import jax

    first = jax.devices()[0]
    memory = (first.memory_stats() or {}).get("bytes_limit")
    about = {"platform": first.platform, "device": first.device_kind, "bytes_limit": memory}
    return about | {"jax": jax.__version__, "python": sys.version.split()[0]}


def prepare(data: Path, size: Size = LARGE) -> None:
    """Makes what is not in the folder yet: the demo's data, the task, and both programs."""
    if not (data / "demo").exists():
        with tempfile.TemporaryDirectory() as work:
            make_data(Path(work, "demo"), 1, time.monotonic())
            for name in ("checkpoint", "train", "eval.tfrecord"):
                (data / "demo").mkdir(parents=True, exist_ok=True)
                shutil.move(Path(work, "demo", name), data / "demo" / name)
    if not size.task(data).exists():
        accelerator.write_task(size.task(data), size.model)
    for packs in size.batches:
        if not (folder := size.program(data, packs)).exists():
            # With all of its flags, which make it the very program of the run.
            flags = training(data, folder, packs, size)[2:]
            accelerator.export_step([*flags, *size.export_flags])


def training(data: Path, output: Path, packs: bool, size: Size) -> list[str]:
    """The command of a training with one evaluation, of packed examples, or two."""
    task, batch = size.task(data), size.batches[packs]
    step = accelerator.flags_of_step(task, batch, packs=packs, kernels=size.kernels)
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
    found = finished(command, limit, **how)
    with contextlib.suppress(OSError, ValueError, LookupError):  # it was killed early
        rows = reports.stored(output / "metrics.jsonl")
        rates = [row["samples_per_second"] for row in rows if row["kind"] == "train"]
        log = (output / "bert.log").read_text().splitlines()
        stats = [line for line in log if ledger.LOG_KEY in line]
        found["evaluations"] = [row for row in rows if row["kind"] == "eval"]
        found["ledger"] = json.loads(stats[-1].partition(" ")[2])["value"]
        # The first has the start of the input in it.
        found |= {"of_each_call": rates, "samples_per_second": statistics.median(rates[1:])}
    return found


def step_alone(program: Path, figures: Path, cache: Path, num_steps: int, limit: float) -> dict:
    """The figures of run_step.py, and how many of its programs the cache did not have."""
    cached = set(cache.glob("jit_*"))
    found = accelerator.run_step(program, figures, num_steps, limit=limit)
    return found | {"not_of_the_run": len(set(cache.glob("jit_*")) - cached)}


Stage = tuple[str, float, Callable[[float], dict]]
"""Its name, its limit in seconds, and what runs it, within a limit, and returns figures."""


def stages(data: Path, folder: Path, size: Size, flags: list[str]) -> Iterator[Stage]:
    """In the order of their worth: the large model's first, each beside its step alone."""
    cache = folder / "compiled"
    for packs, batch in size.batches.items():
        program = size.program(data, packs)
        name, output = program.name, folder / program.name
        command = [*training(data, output, packs, size), *flags]
        whole = functools.partial(train, command, output)
        line = f"after {size.num_steps * batch:,} sam"
        stopped = functools.partial(whole, stop_at=line, expected=75)
        yield name, 260 if packs else 150, whole if packs else stopped
        figures = folder / f"{name}.json"
        alone = functools.partial(step_alone, program, figures, cache, size.num_steps)
        yield f"{name}, alone", 100, alone
        if not packs:
            yield f"{name}, resumed", 100, whole
            words = shlex.split(training_step(data / "demo", 1)[1])
            output = folder / "demo"
            demo = [sys.executable, *words[1:], *flags, *size.demo_flags, f"--output_dir={output}"]
            yield "demo", 120, functools.partial(train, demo, output)


def run_stages(
    these: Iterable[Stage], figures: Path, *, seconds: float, only: list[str], about: dict
) -> dict[str, dict]:
    """Runs them one after the other, all together within `seconds`; returns figures by name.

    Each adds a line to the file `figures`, with what is known about all.
    """
    ends, rows = time.monotonic() + seconds, {}
    for name, most, stage in these:
        if only and name not in only:
            continue
        began = time.monotonic()
        limit = min(most, ends - began)
        if limit < 1:
            found = {"failed": "no time is left"}
        else:
            print(f"{name}: at most {limit:.0f} s ...", flush=True)
            found = stage(limit)
        rows[name] = {"stage": name, "seconds": time.monotonic() - began, **found}
        reports.store(figures, about | rows[name])
        print(json.dumps(rows[name], indent=1), flush=True)
    return rows


@ends_in_one_line("on_a_card")
def main() -> None:
    """Runs all stages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    folder = {"type": lambda path: Path(path).absolute()}
    parser.add_argument("--output", **folder, default="build/on_a_card", help="a new folder")
    parser.add_argument("--data", **folder, default="build/card/data", help="made if missing")
    parser.add_argument("--minutes", type=whole_number, default=8, help="for all stages together")
    parser.add_argument("--only", nargs="+", default=[], help="stages by name, such as demo")
    parser.add_argument("--kernels", default="xla", help="of the large model's training")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, also on a CPU")
    given = parser.parse_args(words_with_home())
    about = in_a_process(device)
    if about["platform"] == "cpu" and not given.tiny:
        raise ValueError("jax sees no accelerator here; install jax with CUDA, or give --tiny")
    given.output.mkdir(parents=True, exist_ok=bool(given.only))  # before what takes minutes
    size = TINY if given.tiny else LARGE
    size = dataclasses.replace(size, kernels=given.kernels)
    print(about, size, f"at most {given.minutes} minutes", sep="\n")
    print(f"before: what {given.data} lacks, which takes minutes", flush=True)
    prepare(given.data, size)
    # Of all processes: a resumed run finds there what it has compiled. run_step.py finds only what
    # run_step.py has, for a run keeps its programs in a folder of its own within, with digests.
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(given.output / "compiled")
    flags = ["--runtime=jax"] + ["--num_gpus=1"] * (about["platform"] == "gpu")
    figures = given.output / "figures.jsonl"
    limits = {"seconds": 60 * given.minutes, "only": given.only}
    these = stages(given.data, given.output, size, flags)
    rows = run_stages(these, figures, **limits, about=about)
    for name, row in rows.items():
        both = row, rows.get(f"{name}, alone", {})
        if all(rates := [each.get("samples_per_second", 0.0) for each in both]):
            print("{}: {:.1f} samples/s in a training, {:.1f} alone".format(name, *rates))
    if failed := [name for name, row in rows.items() if "failed" in row]:
        raise ValueError(f"failed: {'; '.join(failed)}; {figures} says why")


if __name__ == "__main__":
    sys.exit(main())
