"""A whole training on one accelerator, in stages: `python -m benchmarks.accelerator run`.

The demo to its target; BERT-large in bfloat16, 512 tokens, with an evaluation, stopped by SIGTERM
and resumed; the same packed; and run_step.py with the programs of both. OUTPUT/figures.jsonl gets a
line after each stage: what its commands printed, samples per second, the ledger, memory. Where jax
sees only a CPU, or with --tiny, the model is tiny. What --data lacks is made first, which needs
minutes; `pack_run.py` makes it beforehand.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import accelerator
from benchmarks.processes import in_a_process
from demo.__main__ import make_data, training_step
from mlperf_bert.mlperf import ledger

ROOT = accelerator.ROOT
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
        name = f"{self.model}_{self.batches[packs]}{'_packed' if packs else ''}"
        return data / (name + accelerator.WITH_KERNELS[self.kernels])


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
            command = training(data, folder, packs, size)
            command[1:2] = ["-m", "mlperf_bert.portable.export", *size.export_flags]
            command += ["--num_recorded_steps=0", "--num_batches=8", "--nodata_parallel"]
            subprocess.run(command, check=True, cwd=ROOT)


def training(data: Path, output: Path, packs: bool, size: Size) -> list[str]:
    """The command of a training with one evaluation, of packed examples, or two."""
    task, batch = size.task(data), size.batches[packs]
    return [
        sys.executable, "run_pretraining.py", "--do_train", "--optimizer=lamb", "--seed=1",
        f"--bert_config_file={task}/bert_config.json", f"--input_file={task}/train.tfrecord",
        f"--eval_input_file={task}/train.tfrecord", f"--output_dir={output}",
        "--max_seq_length=512", "--max_predictions_per_seq=76", "--precision=bfloat16",
        f"--train_batch_size={batch}", f"--pack_sequences={packs}", "--target_accuracy=1",
        f"--eval_batch_size={size.eval_batch}", f"--max_eval_steps={size.num_eval_batches}",
        f"--eval_interval_samples={size.num_steps * batch}", "--num_warmup_steps=10",
        f"--num_train_steps={size.num_steps * (1 if packs else 2)}",
        f"--iterations_per_loop={STEPS_OF_A_CALL}", f"--log_every_steps={STEPS_OF_A_CALL}",
        f"--kernels={size.kernels}",
    ]  # fmt: skip


def finished(
    command: list[str], limit: float, *, expected: int = 0, stop_at: str | None = None
) -> dict:
    """What a command prints, which is killed after `limit` seconds.

    After a line that begins with `stop_at` it gets SIGTERM; it fails with another exit code than
    the expected one.
    """
    process = subprocess.Popen(
        command, cwd=ROOT, text=True, errors="replace", start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
    )  # fmt: skip
    killer = threading.Timer(limit, os.killpg, (process.pid, signal.SIGKILL))
    killer.start()
    said = []
    for line in process.stdout or ():
        said.append(line.rstrip())
        if stop_at and line.startswith(stop_at):
            process.send_signal(signal.SIGTERM)
    code = process.wait()
    killer.cancel()
    failed = {} if code == expected else {"failed": f"exit code {code}, not {expected}"}
    return {"said": said[-50:]} | failed


def train(command: list[str], output: Path, limit: float, **how) -> dict:
    """The figures of a training: of each device call, the evaluations, and the ledger."""
    found = finished(command, limit, **how)
    with contextlib.suppress(OSError, ValueError, LookupError):  # it was killed early
        rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
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
    command = [sys.executable, "mlperf_bert/portable/run_step.py", str(program)]
    command += [f"--num_steps={num_steps}", f"--output={figures}"]
    found = finished(command, limit)
    if figures.exists():
        found |= json.loads(figures.read_text())
        del found["results"]
    found["not_of_the_run"] = len(set(cache.glob("jit_*")) - cached)
    return found


class Stages:
    """Runs stages one after the other; each has a limit, and so have all together."""

    def __init__(self, output: Path, seconds: float, only: list[str], about: dict):
        """Will write a line for each to `output`, with what is known about all."""
        self._output, self._only, self._about = output, only, about
        self._ends = time.monotonic() + seconds
        self.failed: list[str] = []

    def run(self, name: str, seconds: float, stage: Callable[..., dict], *given, **how) -> dict:
        """The figures of a stage, which takes its limit as the last argument."""
        if self._only and name not in self._only:
            return {}
        began = time.monotonic()
        limit = min(seconds, self._ends - began)
        if limit < 1:
            found = {"failed": "no time is left"}
        else:
            print(f"{name}: at most {limit:.0f} s ...", flush=True)
            found = stage(*given, limit, **how)
        self.failed += [name] if "failed" in found else []
        row = {"stage": name, "seconds": time.monotonic() - began, **found}
        with self._output.open("a") as file:
            file.write(json.dumps(self._about | row) + "\n")
        print(json.dumps(row, indent=1), flush=True)
        return row


def run(given: argparse.Namespace) -> None:
    """Runs all stages; those of the large model first, each beside its step alone."""
    about = in_a_process(device)
    size = TINY if given.tiny or about["platform"] == "cpu" else LARGE
    size = dataclasses.replace(size, kernels=given.kernels)
    print(about, size, f"at most {given.minutes} minutes", sep="\n")
    print(f"before: what {given.data} lacks, which takes minutes", flush=True)
    prepare(given.data, size)
    given.output.mkdir(parents=True, exist_ok=bool(given.only))
    cache = given.output / "compiled"
    # Of all processes: run_step.py finds there what the run has compiled, the very same program.
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(cache)
    flags = [f"--runtime={given.runtime}"] + ["--num_gpus=1"] * (about["platform"] == "gpu")
    stages = Stages(given.output / "figures.jsonl", 60 * given.minutes, given.only, about)
    rates = []
    for packs, batch in size.batches.items():
        program = size.program(given.data, packs)
        name, output = program.name, given.output / program.name
        command = [*training(given.data, output, packs, size), *flags]
        how = {} if packs else {"stop_at": f"after {size.num_steps * batch:,} sam", "expected": 75}
        ours = stages.run(name, 260 if packs else 150, train, command, output, **how)
        figures = given.output / f"{name}.json"
        given_alone = program, figures, cache, size.num_steps
        alone = stages.run(f"{name}, alone", 100, step_alone, *given_alone)
        rates += [(name, ours, alone)]
        if not packs:
            stages.run(f"{name}, resumed", 100, train, command, output)
            words = shlex.split(training_step(given.data / "demo", 1, reference=None)[1])
            demo = [sys.executable, *words[1:], *flags, *size.demo_flags]
            output = given.output / "demo"
            stages.run("demo", 120, train, [*demo, f"--output_dir={output}"], output)
    for name, *both in rates:
        if all(found := [each.get("samples_per_second", 0.0) for each in both]):
            print("{}: {:.1f} samples/s in a training, {:.1f} alone".format(name, *found))
    if stages.failed:
        raise ValueError(
            f"failed: {'; '.join(stages.failed)}; {given.output}/figures.jsonl says why"
        )
