"""Peak memory and seconds of a step, without recomputation and with it.

    python -m benchmarks.memory --output=benchmarks/memory --precisions=bfloat16

BERT-large with LAMB, 512 tokens, dropout 0.1, on synthetic batches. Each measurement is a process
of its own, one after the other: it builds the model, and trains one step that is traced and
compiled, then `--steps` timed ones, on a CPU. The peak is the process's high-water mark, libraries
included. A measurement that the model of memory (mlperf_bert/training/memory.py) expects to exceed
what is available is left out, with a line. Of accelerators their compilers say what a step takes.
Measurements are added to OUTPUT.json; those that are in it are not repeated. OUTPUT.png shows all.
"""

from mlperf_bert.options import whole_number, words_with_home
from mlperf_bert.tensorflow_import import tensorflow

if __name__ == "__main__":
    tensorflow()  # before other modules import it

import argparse
import dataclasses
import itertools
import json
import resource
import statistics
import time
from pathlib import Path

import psutil

from benchmarks.contestants import ours
from benchmarks.processes import in_a_process
from mlperf_bert.files.whole import write_whole
from mlperf_bert.mlperf.rules import BERT_LARGE
from mlperf_bert.model.config import RECOMPUTE_CHOICES, BertConfig
from mlperf_bert.training.memory import step_bytes
from pages import charts

ROOT = Path(__file__).resolve().parent.parent
COLOURS = {"none": "#b0b7c0", "attention": "#7fa8d6", "blocks": "#1f5fa8"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """What is measured."""

    precision: str
    jit_compile: str
    batch_size: int
    recompute: str
    steps_per_update: int = 1


def measure(case: Case, num_steps: int) -> dict:
    """Trains in this process; returns peak bytes and median seconds of a step."""
    tf = tensorflow()  # in the child alone
    from mlperf_bert.input import pipeline

    trainer = ours.trainer_of(BertConfig(**BERT_LARGE), **flags_of(case))
    batch = pipeline.synthetic_batch(ours.SHAPE, batch_size=case.batch_size)
    batches = trainer.batches(lambda _: tf.data.Dataset.from_tensors(batch).repeat())
    stamps = [time.perf_counter()]
    for _ in range(1 + num_steps):
        trainer.train(batches, tf.constant(1)).numpy()
        stamps.append(time.perf_counter())
    seconds = [after - before for before, after in itertools.pairwise(stamps[1:])]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"peak_bytes": peak, "seconds": statistics.median(seconds) if seconds else None}


def estimated_bytes(case: Case) -> int:
    """By the model of memory."""
    config = ours.config_of(**flags_of(case), **vars(ours.SHAPE), async_checkpoint=False)
    return step_bytes(config, BertConfig(**BERT_LARGE), num_rows=case.batch_size)


def flags_of(case: Case) -> dict:
    """Of a run."""
    flags = dataclasses.asdict(case)
    flags["train_batch_size"] = flags.pop("batch_size")
    return flags


def report(results: list[dict], output: Path | None) -> None:
    """Prints a row for each measurement, and draws."""
    print("| | batch | recompute | peak, GiB | estimate | s a step |")
    print("|---|---|---|---|---|---|")
    cases, peaks, estimates = [], [], []
    for found in sorted(
        results,
        key=lambda found: (
            -len(found["precision"]),
            found["jit_compile"],
            found["batch_size"],
            RECOMPUTE_CHOICES.index(found["recompute"]),
        ),
    ):
        case = Case(**{field.name: found[field.name] for field in dataclasses.fields(Case)})
        name = f"{case.precision}, --jit_compile={case.jit_compile}"
        cases.append(case)
        peaks.append(found["peak_bytes"] / 2**30)
        estimates.append(estimated_bytes(case) / 2**30)
        seconds = "" if found["seconds"] is None else f"{found['seconds']:.1f}"
        print(
            f"| {name} | {case.batch_size} | {case.recompute} "
            f"| {peaks[-1]:.1f} | {estimates[-1]:.1f} | {seconds} |"
        )
    if not output:
        return
    # Bars of the peaks, and a mark for each estimate, 1,200 pixels wide.
    names = [f"{case.precision}, batch {case.batch_size}, {case.recompute}" for case in cases]
    with charts.png(output.with_suffix(".png"), (8, 0.3 * len(cases) + 0.9)) as [[axes]]:
        axes.barh(names, peaks, color=[COLOURS[case.recompute] for case in cases])
        axes.plot(estimates, names, "|", color="black", markersize=10, label="the model of memory")
        axes.invert_yaxis()
        axes.set_xlabel("peak memory of a step of BERT-large, 512 tokens, GiB")
        axes.figure.legend(loc="outside upper center")


def main() -> None:
    """Measures what is not in OUTPUT.json yet, prints the table, draws."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="without suffix; OUTPUT.json is added to")
    several = {"nargs": "+", "help": "several"}
    parser.add_argument("--batch_sizes", type=whole_number, default=[2, 4, 8], **several)
    precisions = ("float32", "bfloat16")
    parser.add_argument("--precisions", choices=precisions, default=precisions, **several)
    recompute = RECOMPUTE_CHOICES
    parser.add_argument("--recompute", choices=recompute, default=recompute, **several)
    parser.add_argument("--jit_compile", default="auto", choices=["auto", "true", "false"])
    parser.add_argument("--steps", type=int, default=1, help="timed steps; 0: the peak alone")
    given = parser.parse_args(words_with_home())
    stored = given.output.with_suffix(".json") if given.output else None
    if stored:
        stored.parent.mkdir(parents=True, exist_ok=True)
    results = json.loads(stored.read_text()) if stored and stored.exists() else []
    for precision, size, recompute in itertools.product(
        given.precisions, given.batch_sizes, given.recompute
    ):
        case = Case(
            precision=precision,
            jit_compile=given.jit_compile,
            batch_size=size,
            recompute=recompute,
        )
        stored_of_case = [
            found for found in results if dataclasses.asdict(case).items() <= found.items()
        ]
        if any(found["seconds"] is not None or not given.steps for found in stored_of_case):
            continue
        available = psutil.virtual_memory().available
        if estimated_bytes(case) > available:
            print(f"left out: {case}: {available / 2**30:.1f} GiB are available", flush=True)
            continue
        results = [found for found in results if found not in stored_of_case]
        measured = in_a_process(measure, case, given.steps)
        results.append(dataclasses.asdict(case) | measured)
        print(json.dumps(results[-1]), flush=True)
        if stored:
            lines = ",\n".join(json.dumps(found) for found in results)
            write_whole(stored, f"[\n{lines}\n]\n")
    report(results, given.output)


if __name__ == "__main__":
    main()
