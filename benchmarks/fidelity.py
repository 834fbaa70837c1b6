"""How true are emulations of a training? The table and the picture of docs/tracing.md.

    python -m benchmarks.fidelity --output_dir=build/fidelity [--dlio=VENV/bin/dlio_benchmark]

As root. The same training runs for real, with sleeps in place of its steps (constant ones, and ones
drawn from its own step times), as DLIO's workload and as fio's replay, each traced, on the same
disk. First a run without limits says how fast the training reads, how long its steps take, and how
much memory it needs. There are three cases: "cached", without limits, where the second pass comes
from the page cache; "slow disk", which gives four fifths of what the training could read; and
"little memory" with that disk, where each program has what it needs itself, and half of the data's
size for the page cache. Utilization is that of the second pass: MLPerf Storage leaves the first
block out, and a block of a training without evaluations is a pass.
Finished traces are kept. DLIO is a program of others and is left out without --dlio.
"""

from mlperf_bert.tensorflow_import import tensorflow

if __name__ == "__main__":
    tensorflow()  # before other modules import it

import argparse
import json
import os
import random
import re
import runpy
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import random_task
from mlperf_bert.data.validity import ExampleShape
from mlperf_bert.files import paths
from mlperf_bert.options import whole_number
from mlperf_bert.training import build
from tracing import fidelity, limits
from tracing.exports.finished import Finished

ROOT = Path(__file__).resolve().parent.parent
# Short examples and a small vocabulary: many bytes for little computing. The data are so large that
# a run does not look at all of them before it trains, and that half of them are more than a program
# needs at its start beyond what it needs later.
SHAPE = ExampleShape(max_seq_length=32, max_predictions_per_seq=5)
BERT = {
    "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 4,
    "vocab_size": 100, "max_position_embeddings": 32, "type_vocab_size": 2,
    "attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0, "initializer_range": 0.02,
    "hidden_act": "gelu",
}  # fmt: skip
BATCH, EXAMPLES_OF_FILE, NUM_PASSES = 1024, 16384, 2
DISK_SHARE, CACHED_SHARE = 0.8, 0.5
COMPUTE_AND_WAIT = ("compute_seconds", "input_wait_seconds")
CACHED, SLOW_DISK, LITTLE_MEMORY = CASES = ("cached", "slow disk", "little memory")


class Drawn(build.Asleep):
    """Sleeps as long as a step drawn from a list took, in place of always the same."""

    def __init__(self, trainer: Any, step_seconds: float):
        super().__init__(trainer, step_seconds)
        self._times = json.loads(os.environ["STEP_SECONDS"])
        self._random = random.Random(1)

    @property
    def _step_seconds(self) -> float:
        return self._random.choice(self._times)

    @_step_seconds.setter
    def _step_seconds(self, value: float) -> None:
        """The flag's constant is not used."""


def make_data(folder: Path, num_files: int) -> list[Path]:
    """The same examples in every file: what a disk gives does not depend on what it is."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"part-{number:05}.tfrecord" for number in range(num_files)]
    if not files[-1].exists():
        lengths = [SHAPE.max_seq_length] * EXAMPLES_OF_FILE
        random_task.write(folder, BERT, SHAPE, lengths)
        (folder / "train.tfrecord").rename(files[0])
        for file in files[1:]:
            shutil.copyfile(files[0], file)
    return files


def training(data: Path, output: Path, *flags: str) -> list[str]:
    """The command."""
    num_samples = len(list(data.glob("part-*"))) * EXAMPLES_OF_FILE * NUM_PASSES
    num_steps = num_samples // BATCH
    return [
        "--do_train", f"--bert_config_file={data}/bert_config.json", "--num_parallel_files=4",
        f"--input_file={data}/part-*.tfrecord", f"--output_dir={output}", "--seed=1",
        f"--train_batch_size={BATCH}", f"--num_train_steps={num_steps}", "--optimizer=lamb",
        f"--save_checkpoints_steps={num_steps}",
        "--iterations_per_loop=1", "--log_every_steps=1",
        f"--max_seq_length={SHAPE.max_seq_length}",
        f"--max_predictions_per_seq={SHAPE.max_predictions_per_seq}", *flags,
    ]  # fmt: skip


def script(*words: str) -> list[str]:
    """A command of the repository's Python."""
    return [sys.executable, *words]


def call(words: Sequence[str], log: Path, **environment: str) -> None:
    """Runs a command; its output is kept.

    Raises:
      SystemExit: it failed.
    """
    began = time.monotonic()
    print(f"{log.stem}: ", end="", flush=True)
    with log.open("wb") as output:
        done = subprocess.run(
            list(words), stdout=output, stderr=subprocess.STDOUT, cwd=ROOT,
            env={**os.environ, **environment}, check=False,
        )  # fmt: skip
    print(f"{time.monotonic() - began:.0f} s", flush=True)
    if done.returncode:
        sys.exit(f"fidelity: exit code {done.returncode}; see {log}")


def second_pass(run: Path) -> list[dict]:
    """Its lines of metrics.jsonl: one a step."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    steps = [line for line in lines if line["kind"] == "train"]
    return steps[len(steps) // NUM_PASSES :]


def utilization(run: Path) -> float:
    """Computing / (computing + waiting) in the second pass."""
    seconds = [sum(line[kind] for line in second_pass(run)) for kind in COMPUTE_AND_WAIT]
    return seconds[0] / sum(seconds)


class Measurement:
    """All traces of one folder."""

    def __init__(self, folder: Path, num_files: int, dlio: Path | None, backend: str):
        self.folder, self.dlio, self.backend = folder, dlio, backend
        self.data = folder / "data"
        # Traces are kept: those of another model, or of more data, are no part of this table.
        task = {"model": BERT, "shape": vars(SHAPE), "batch": BATCH, "files": num_files}
        known = folder / "task.json"
        if not folder.exists() or not any(folder.iterdir()):
            folder.mkdir(parents=True, exist_ok=True)
            known.write_text(json.dumps(task))
        elif not known.exists() or json.loads(known.read_text()) != task:
            sys.exit(f"fidelity: {folder} has traces of another task; name another folder")
        self.files = make_data(self.data, num_files)
        self.data_bytes = sum(file.stat().st_size for file in self.files)
        # Now: it fills the page cache, which is emptied before each trace.
        self.bytes_per_second = self._probed()

    def _probed(self) -> float:
        """Bytes a second that a run without limits reads."""
        known = self.folder / "probe.json"
        if known.exists():
            return json.loads(known.read_text())
        run = self.folder / "probe"
        shutil.rmtree(run, ignore_errors=True)
        call(script("run_pretraining.py", *training(self.data, run)), self.folder / "probe.txt")
        speeds = [line["samples_per_second"] for line in second_pass(run)]
        of_a_sample = self.data_bytes / (len(self.files) * EXAMPLES_OF_FILE)
        bytes_per_second = statistics.harmonic_mean(speeds) * of_a_sample
        known.write_text(json.dumps(bytes_per_second))
        return bytes_per_second

    def limits(self, case: str, name: str) -> list[str]:
        """Words before a command."""
        words = ["-m", "tracing.limits", f"--disk={self.data}"]
        if case != CACHED:
            words.append(f"--read_speed={round(DISK_SHARE * self.bytes_per_second)}")
        if case == LITTLE_MEMORY:
            # What it held in the case without limits, and some of the page cache.
            text = (self.folder / CACHED / f"{name}.txt").read_text(errors="replace")
            held = re.findall(r"([\d,]+) bytes half of the time", text)[-1].replace(",", "")
            words.append(f"--memory={int(held) + round(CACHED_SHARE * self.data_bytes)}")
        return script(*words, "--")

    def traced(
        self, case: str, name: str, words: list[str], files: Sequence[Path], *,
        prepare: Callable[[], object] = lambda: None, **environment: str,
    ) -> Path:  # fmt: skip
        """The trace of a command under the case's limits."""
        folder = self.folder / case.replace(" ", "_")
        folder.mkdir(exist_ok=True)
        trace = folder / f"{name}_trace"
        if (trace / "summary.json").exists():
            return trace
        shutil.rmtree(trace, ignore_errors=True)
        prepare()
        limits.drop_from_cache(files)
        tracer = ["tracing/trace.sh", f"--output={trace}", f"--backend={self.backend}", "--"]
        limited = [*tracer, *self.limits(case, name), *words]
        environment = {"PYTHON": sys.executable, **environment}
        try:
            call(limited, folder / f"{name}.txt", **environment)
        except SystemExit:
            shutil.rmtree(trace, ignore_errors=True)
            raise
        return trace

    def trained(self, case: str, name: str, *flags: str, **environment: str):
        """The trace of a training, and its run."""
        run = self.folder / case.replace(" ", "_") / f"{name}_run"
        entry = ["-m", "benchmarks.fidelity"] if environment else ["run_pretraining.py"]
        trace = self.traced(
            case, name, script(*entry, *training(self.data, run, *flags)), self.files,
            prepare=lambda: shutil.rmtree(run, ignore_errors=True),
            **environment,
        )  # fmt: skip
        return trace, run

    def replay(self, real: Path) -> tuple[list[str], list[Path]]:
        """The command of fio for a trace, and its files, filled."""
        folder = real.with_name("fio")
        if not folder.exists():
            words = script("-m", "tracing.export", str(real), "--to=fio", f"--output={folder}")
            call(words, real.with_name("export_fio.txt"))
            for file in (folder / "files").iterdir():
                if size := file.stat().st_size:
                    with file.open("r+b") as opened:
                        for begin in range(0, size, 1 << 20):
                            opened.write(os.urandom(min(1 << 20, size - begin)))
        files = sorted((folder / "files").iterdir())
        return ["/bin/sh", "-c", 'cd "$0" && exec fio replay.fio', str(folder)], files

    def workload(self, real: Path) -> tuple[list[str], list[Path], Path]:
        """DLIO's command for a trace, its files, generated, and the folder of its results."""
        folder = real.with_name("dlio")
        results, data = folder / "results", folder / "data"
        config = folder / "configs" / "workload" / "bert.yaml"
        config.parent.mkdir(parents=True, exist_ok=True)
        if not config.exists():
            words = script("-m", "tracing.export", str(real), "--to=dlio", f"--output={config}")
            call(words, real.with_name("export_dlio.txt"))
        common = [
            str(self.dlio), f"--config-dir={folder / 'configs'}", "workload=bert",
            f"++workload.dataset.data_folder={data}", f"++hydra.run.dir={results}",
            f"++workload.output.folder={results}", "++workload.workflow.checkpoint=False",
        ]  # fmt: skip
        if not data.exists():
            making = ["++workload.workflow.generate_data=True", "++workload.workflow.train=False"]
            call([*common, *making], real.with_name("dlio_data.txt"))
        running = ["++workload.workflow.generate_data=False", "++workload.workflow.train=True"]
        return [*common, *running], sorted(data.rglob("*.tfrecord*")), results

    def measure(self, case: str) -> Iterator[tuple[str, Path, float | None]]:
        """(name, trace, utilization if the trace does not say) of the real run, then the others."""
        real, run = self.trained(case, "real")
        yield "real", real, utilization(run)
        times = [line["compute_seconds"] for line in second_pass(run)]
        constant = f"--emulate_step_seconds={statistics.mean(times):.6f}"
        trace, run = self.trained(case, "constant", constant)
        yield "constant sleeps", trace, utilization(run)
        trace, run = self.trained(case, "drawn", constant, STEP_SECONDS=json.dumps(times))
        yield "drawn sleeps", trace, utilization(run)
        if self.dlio:
            words, files, results = self.workload(real)
            try:
                trace = self.traced(case, "dlio_run", words, files)
                said = json.loads((results / "summary.json").read_text())  # of its second epoch
                yield "DLIO", trace, said["metric"]["train_au_percentage"][1] / 100
            except SystemExit as failed:
                if case != LITTLE_MEMORY:
                    raise
                # It holds more at its start than half of the time.
                print(f"DLIO is left out: {failed}", flush=True)
        words, files = self.replay(real)
        yield "fio", self.traced(case, "fio_run", words, files), None


def main() -> None:
    """Measures what is not measured yet; writes a table and a picture for each case."""
    if "STEP_SECONDS" in os.environ:
        build.Asleep = Drawn
        sys.argv[0] = "run_pretraining.py"
        runpy.run_path(str(ROOT / "run_pretraining.py"), run_name="__main__")
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--dlio", type=Path, help="the program dlio_benchmark")
    parser.add_argument("--backend", default="bpftrace", choices=("bpftrace", "strace"))
    parser.add_argument("--files", type=whole_number, default=64, help="of 5 MB, read twice")
    parser.add_argument("--case", action="append", choices=CASES, help="may be repeated")
    given = parser.parse_args(paths.words_with_home(sys.argv[1:]))
    dlio = given.dlio.absolute() if given.dlio else None
    measurement = Measurement(given.output_dir.absolute(), given.files, dlio, given.backend)
    cases = []
    # Without limits first, and always: it says what each program needs.
    for case in sorted({CACHED, *(given.case or CASES)}, key=CASES.index):
        (_, trace, used), *others = measurement.measure(case)
        real = fidelity.figures(Finished(trace), used)
        found = {name: fidelity.figures(Finished(of), used) for name, of, used in others}
        text = fidelity.table(real, found)
        (given.output_dir / f"{case.replace(' ', '_')}.md").write_text(text + "\n")
        print(f"\n{case}\n\n{text}\n", flush=True)
        cases.append((case, fidelity.errors_of(real, found)))
    (given.output_dir / "fidelity.svg").write_text(fidelity.picture(cases))


if __name__ == "__main__":
    main()
