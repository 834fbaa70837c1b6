"""How training scales: measured on this machine for two processes, simulated for more.

    python -m benchmarks.scaling --gb_per_second=25
    python -m benchmarks.scaling --gb_per_second=25 --step_seconds=0.2

First it trains a small BERT with one process and with two, each on its own core, and prints
samples/s. Then it prints the efficiency that a ring would allow up to 1,024 replicas: a simulation,
not a promise. It uses the model and step time just measured, or BERT-large and the step time of
your device (the second command), the bytes of the gradients, the bandwidth that you give and 10
microseconds a message, and assumes no straggler, no waiting for input and no congestion.
"""

from mlperf_bert.tensorflow_import import tensorflow

if __name__ == "__main__":
    tensorflow()  # before other modules import it

import argparse
import dataclasses
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import random_task, reports
from benchmarks.processes import ROOT, environment_of, free_addresses
from mlperf_bert.checkpoints.names import num_weights
from mlperf_bert.data.validity import ExampleShape
from mlperf_bert.mlperf.rules import BERT_LARGE
from mlperf_bert.model.config import BertConfig
from mlperf_bert.options import words_with_home

GRADIENT_BYTES = 4  # float32
BACKWARD_SHARE = 2 / 3  # of a step: twice the work of the forward pass
LATENCY_SECONDS = 1e-5  # of one message between neighbours in the ring
SHAPE = ExampleShape(max_seq_length=128, max_predictions_per_seq=20)
BATCH_SIZE, NUM_STEPS = 8, 24
MEASURED = BERT_LARGE | {
    "hidden_size": 256,
    "intermediate_size": 1024,
    "max_position_embeddings": SHAPE.max_seq_length,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "vocab_size": 8192,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """The assumptions of the simulation."""

    step_seconds: float
    """Time of a step of one replica, without communication."""
    gradient_bytes: int
    bytes_per_second: float
    """Bandwidth of a replica in each direction."""

    def all_reduce_seconds(self, num_replicas: int) -> float:
        """The ring's time: every replica sends 2(n-1)/n of the bytes in 2(n-1) messages."""
        hops = 2 * (num_replicas - 1)
        sent = self.gradient_bytes * hops / num_replicas
        return sent / self.bytes_per_second + hops * LATENCY_SECONDS

    def efficiency(self, num_replicas: int, *, hidden_share: float) -> float:
        """Samples/s per replica, divided by those of a single replica.

        Gradients can be sent during `hidden_share` of the step.
        """
        exposed = self.all_reduce_seconds(num_replicas) - hidden_share * self.step_seconds
        return self.step_seconds / (self.step_seconds + max(0.0, exposed))


def measure(folder: Path, num_workers: int) -> float:
    """Samples/s of `num_workers` processes, each on one core; the median of the later steps."""
    lengths = [SHAPE.max_seq_length] * (8 * BATCH_SIZE)
    output = folder / "output"
    flags = random_task.write(folder, MEASURED, SHAPE, lengths)
    flags += ["--do_train", "--optimizer=lamb", "--num_warmup_steps=0", "--log_every_steps=2"]
    flags += [f"--train_batch_size={BATCH_SIZE * num_workers}", f"--num_train_steps={NUM_STEPS}"]
    addresses = free_addresses(num_workers)
    workers = [
        subprocess.Popen(
            ["taskset", "--cpu-list", str(core), sys.executable, "run_pretraining.py", *flags,
             f"--output_dir={output}"],
            cwd=ROOT, env=environment_of(addresses, index), stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True,
        )
        for index, core in enumerate(sorted(os.sched_getaffinity(0))[:num_workers])
    ]  # fmt: skip
    for worker in workers:
        _, errors = worker.communicate()
        if worker.returncode:
            sys.exit(f"{num_workers} workers: {errors[-2000:]}")
    rates = [line["samples_per_second"] for line in reports.training_lines(output)]
    return statistics.median(rates[len(rates) // 2 :])


def table(machine: Machine) -> str:
    """Samples/s per replica, a share of those of one alone; the batch grows with the replicas."""
    rows = []
    for replicas in (2**n for n in range(11)):
        shares = [machine.efficiency(replicas, hidden_share=h) for h in (BACKWARD_SHARE, 0.0)]
        rows.append([f"{replicas:,}", *(f"{share:.0%}" for share in shares)])
    titles = ["replicas", "gradients sent during the backward pass", "after it"]
    return reports.table(titles, rows)


def main() -> None:
    """Measures, prints, draws."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gb_per_second", type=float, required=True, help="Each way per replica.")
    parser.add_argument("--step_seconds", type=float, help="Of BERT-large on a replica of yours.")
    args = parser.parse_args(words_with_home())
    for name in ("gb_per_second", "step_seconds"):
        value = getattr(args, name)
        if value is not None and value <= 0:
            parser.error(f"--{name}={value}: it must be more than 0")
    if len(os.sched_getaffinity(0)) < 2:
        parser.error("two processes are measured, each on its own core: run it where two are free")
    measured = []
    for num_workers in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            measured.append(measure(Path(folder), num_workers))
        print(f"{num_workers} processes, one core each: {measured[-1]:.2f} samples/s")
    print(f"2 processes have {measured[1] / measured[0]:.2f} times the samples/s of 1")
    model = BERT_LARGE if args.step_seconds else MEASURED
    machine = Machine(
        step_seconds=args.step_seconds or BATCH_SIZE / measured[0],
        gradient_bytes=GRADIENT_BYTES * num_weights(BertConfig(**model)),
        bytes_per_second=args.gb_per_second * 1e9,
    )
    print(
        f"simulated, with a step of {1000 * machine.step_seconds:,.0f} ms and "
        f"{machine.gradient_bytes / 1e6:,.0f} MB of float32 gradients:"
    )
    print(table(machine), end="")


if __name__ == "__main__":
    main()
