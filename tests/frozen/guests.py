"""What the rooms beside the training leave: data, campaign and report, fine-tuning, traces."""

import dataclasses
import json
import os
import re
import sys

from mlperf_bert.data import provenance
from mlperf_bert.finetuning import sweep
from tests.data import generated_wiki
from tests.finetuning import generated_glue
from tests.fixtures import REPOSITORY
from tests.frozen import readers
from tests.frozen.runs import Room
from tests.helpers import programs, starts
from tracing import tables
from tracing.tests import example_training


def data_values(room: Room, name: str) -> dict:
    """Two texts become TFRecords with a record, and examples of one are picked."""
    folder = room.folder / name
    folder.mkdir()
    for number in (1, 2):
        (folder / f"text-{number}").write_text(generated_wiki.sentences(number, 12))
    (folder / "vocab.txt").write_text(generated_wiki.vocabulary(1))
    lengths = ["--max_seq_length=32", "--max_predictions_per_seq=5"]
    made = ["--dupe_factor=2", "--nworker=1", f"--output_dir={folder}/records"]
    texts = [f"--input_file={folder}/text-*", f"--vocab_file={folder}/vocab.txt"]
    _start("create_pretraining_data.py", *lengths, *made, *texts)
    picked = ["--num_examples_to_pick=7", f"--output_tfrecord={folder}/picked"]
    first = f"--input_tfrecord={folder}/records/text-1"
    _start("pick_eval_samples.py", *lengths, *picked, first)
    [record] = provenance.read(folder / "records")
    values = {
        "files": sorted(path.name for path in (folder / "records").iterdir()),
        "parameters": record.parameters,
        "inputs": list(map(dataclasses.asdict, record.inputs)),
        "outputs": list(map(dataclasses.asdict, record.outputs)),
        "picked": readers.digest((folder / "picked").read_bytes()),
    }
    return readers.without_root(values, room.folder)


def _start(script: str, *flags: str) -> str:
    return starts.run([sys.executable, script, *flags], check=True).stdout


def campaign_values(room: Room, name: str) -> dict:
    """Ten runs of a stand-in become a submission, and the submission a report."""
    folder = room.folder / name
    command = f"env PYTHONPATH={REPOSITORY} {sys.executable} -m tests.frozen.stand_in"
    flags = ["--org=o", "--system=s", "--ruleset=5.0.0", f"--output_dir={folder}"]
    flags += [f"--run_command={command}", "--", "--x=1"]
    printed = _module("mlperf_bert.submission.campaign", *flags)
    org = folder / "submission" / "o"
    report = folder / "report.html"
    words = _module("mlperf_bert.submission.report", org, "--ruleset=5.0.0", f"--output={report}")
    [system] = json.loads(report.with_suffix(".json").read_text())
    system["description"] = sorted(system["description"])
    for run in system["runs"]:  # of every sort one
        run["evaluations"], run["phases"] = run["evaluations"][-1:], run["phases"][:3]
    files = sorted(str(path.relative_to(org)) for path in org.rglob("*") if path.is_file())
    values = {
        "verdict": _after("submission: ", printed),
        "files": [name for name in files if "/implementations/" not in name],
        "results_are_the_logs": [
            (org / f"results/s/bert/result_{number}.txt").read_bytes()
            == (folder / f"runs/{number}/bert.log").read_bytes()
            for number in range(10)
        ],
        "report_as_text": words.splitlines(),
        "report": system,
    }
    return readers.without_root(values, room.folder)


def _module(name: str, *words: object) -> str:
    return programs.run(sys.executable, "-m", name, *words, check=True).stdout


def _after(beginning: str, printed: str) -> list[str]:
    """The lines from the first that begins so."""
    lines = printed.splitlines()
    return lines[next(n for n, line in enumerate(lines) if line.startswith(beginning)) :]


def finetuning_values(room: Room, name: str) -> dict:
    """A sweep of two seeds over a task of GLUE, with answers to its test set."""
    folder = room.folder / name
    generated_glue.write_glue(folder / "glue")
    generated_glue.write_model(folder / "model", dropout=0.1)
    flags = {
        "task": "rte",
        "data_dir": folder / "glue",
        "checkpoint": folder / "model" / "model.ckpt-0",
        "bert_config_file": folder / "model" / "bert_config.json",
        "vocab_file": folder / "model" / "vocab.txt",
        "output_dir": folder / "out",
        "max_seq_length": generated_glue.MAX_SEQ_LENGTH,
        "train_batch_size": 8,
        "num_train_epochs": 4,
        "learning_rates": "1e-3",
        "seeds": "1,2",
    }
    given = [f"--{flag}={value}" for flag, value in flags.items()]
    printed = _start("run_finetuning.py", "--sweep", "--do_predict", *given)
    out = folder / "out"
    values = {
        "result": printed.splitlines()[-1],
        "files": sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()),
        "results": json.loads((out / sweep.RESULTS_NAME).read_text()),
        "runs": {
            str(path.parent.relative_to(out)): {
                "metrics": readers.metrics_values(path.parent),
                "record": readers.record_values(path.parent),
            }
            for path in sorted(out.rglob("metrics.jsonl"))
        },
        "answers": (out / "predictions" / "RTE.tsv").read_text().splitlines(),
    }
    values["files"] = [re.sub(r"events\.out\..*", "events.out", file) for file in values["files"]]
    return readers.without_root(values, room.folder)


def trace_values(room: Room, name: str) -> dict:
    """A small program under strace: tables, and what of a trace is the same every time."""
    folder = room.folder / name
    folder.mkdir()
    example_training.make_data(folder)
    words = [sys.executable, "-m", "tracing.tests.example_training", folder, "--wait_s=1.2"]
    command = ["tracing/trace.sh", "--output", folder / "trace", "--backend=strace", "--", *words]
    environment = {**os.environ, "PYTHON": sys.executable}
    programs.run(*command, env=environment, check=True)
    summary = json.loads((folder / "trace" / "summary.json").read_text())
    of_data = ("num_reads", "read_bytes", "num_writes", "written_bytes")
    values = {
        "columns": {table: " ".join(tables.schema(table).names) for table in tables.COLUMNS},
        "files": sorted(path.name for path in (folder / "trace").iterdir()),
        "summary": sorted(summary),
        "tfrecords": {key: summary["file_classes"]["tfrecords"].get(key) for key in of_data},
        "checkpoints": [
            {key: each[key] for key in ("step", "num_files", "written_bytes")}
            for each in summary["checkpoints"]
        ],
        "spans": tables.read_table(folder / "trace", "spans")["name"].tolist(),
    }
    return readers.without_root(values, room.folder)
