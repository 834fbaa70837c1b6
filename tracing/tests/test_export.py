"""The exports of a trace: the command, its messages, what other tools make of them."""

import io
import json
import os
import re
import shutil
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import yaml

from tests.fixtures import lacking
from tests.helpers import programs
from tests.helpers.programs import refusal
from tracing import export, tables
from tracing.exports import chakra, dftracer, dlio, fio
from tracing.loaded import Trace
from tracing.tests import chakra_reader, whole

PROGRAMS = Path(sys.executable).parent


@pytest.fixture(scope="module")
def file_ops(whole_trace) -> pd.DataFrame:
    return tables.read_table(whole_trace, "file_ops")


@pytest.mark.parametrize("target", ["dftracer", "fio", "perfetto"])
def test_a_target_without_output_writes_into_the_traces_folder(copied, target, capsys):
    output = copied / export.OUTPUTS[target]
    if target == "perfetto":
        output.unlink()
    export.main([str(copied), f"--to={target}"])
    printed = capsys.readouterr()
    assert printed.out == f"{output}\n" and output.exists()
    assert re.match(r"export: [\d,]+ (calls|events)", printed.err)
    line = refusal(export.main, copied, f"--to={target}")
    assert line == f"export: {output} exists: remove it, or name another --output"
    assert not list(copied.glob("*.unfinished"))


def test_what_is_no_finished_trace_is_named_with_the_way_out(copied):
    trace = copied / "none"
    line = refusal(export.main, trace, "--to=fio")
    assert line.startswith(f"export: {trace / 'summary.json'} is not of a finished trace (")
    assert line.endswith(f"or finish it by python -m tracing --convert {trace}")
    path = copied / "summary.json"
    found = json.loads(path.read_text())
    lacks = {name: found[name] for name in found if name != "access"}
    for damaged in (
        found | {"format_version": 0},
        found | {"begin_monotonic_ns": None},
        [1],
        lacks,
    ):
        path.write_text(json.dumps(damaged))
        assert f"{path} is not of a finished trace (" in refusal(export.main, copied, "--to=fio")


@pytest.mark.parametrize("target", export.OUTPUTS)
def test_a_damaged_table_is_named_by_every_target(copied, tmp_path, target):
    words = [copied, f"--to={target}", f"--output={tmp_path / 'export'}"]
    table = copied / "file_ops.parquet"
    whole = table.read_bytes()
    holes = whole[:4] + b"\xff" * (len(whole) - 12) + whole[-8:]
    for damaged in (whole[: len(whole) // 2], b"", b"no table\n" * 20, holes):
        table.write_bytes(damaged)
        line = refusal(export.main, *words)
        assert line.startswith(f"export: {table} is not of a finished trace (")
    pd.DataFrame({"monotonic_ns": [1], "path": ["x"]}).to_parquet(table)
    assert "(no column " in refusal(export.main, *words).replace("('", "(")
    if target in ("chakra", "dftracer", "fio"):  # the others ask for more, or for less
        table.unlink()
        assert f"{table} is missing: copy it here again" in refusal(export.main, *words)
    assert [path.name for path in tmp_path.iterdir()] == ["trace"]


def test_other_wrong_inputs_are_one_line(whole_trace, tmp_path):
    output = tmp_path / "none" / "there"
    line = refusal(export.main, whole_trace, "--to=perfetto", f"--output={output}")
    assert line.endswith(f"there is no folder {output.parent}; make it first")
    line = refusal(export.main, whole_trace, "--to=dlio", "--per=trace")
    assert line == "export: --per is not for --to=dlio; leave it out"


@pytest.mark.parametrize("target", ["dftracer", "perfetto", "fio"])
def test_a_full_disk_leaves_nothing(whole_trace, small_disk, target):
    disk = small_disk(4)
    (disk / "full").write_bytes(bytes(4096))
    line = refusal(export.main, whole_trace, f"--to={target}", f"--output={disk / 'export'}")
    assert "No space left on device" in line
    assert list(disk.iterdir()) == [disk / "full"]


# DFTracer


@pytest.fixture(scope="module")
def pfw(whole_trace, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("dftracer") / "trace.pfw.gz"
    dftracer.write(Trace(whole_trace), output)
    return output


def told_by(program: str, *words) -> str:
    """What one of DFTracer's own programs prints."""
    if not (PROGRAMS / program).exists():
        lacking(f"{program} is not installed: pip install dftracer-utils")
    return programs.run(PROGRAMS / program, *words, check=True).stdout


def test_dftracer_finds_every_line_valid_and_counts_all_events(pfw, whole_trace, file_ops):
    assert "1 passed, 0 failed" in told_by("dftracer_validate", "-d", pfw.parent)
    num_spans = len(tables.read_table(whole_trace, "spans"))
    counted = told_by("dftracer_event_count", "-d", pfw.parent, f"--index-dir={pfw.parent}")
    assert int(counted) == len(file_ops) + num_spans
    [stats] = json.loads(told_by("dftracer_stats", "-d", pfw.parent, "--json"))
    by_category = {entry["name"]: entry["count"] for entry in stats["results"]}
    assert by_category == {"posix": len(file_ops), "mlperf": num_spans}
    first, last = stats["time_range"]["min_timestamp_us"], stats["time_range"]["max_timestamp_us"]
    begin_us = whole.BEGIN_S * 10**6
    assert begin_us < first < begin_us + 10**5 and last < begin_us + 11 * 10**6
    told = told_by("dftracer_replay", "--dry-run", "--filter-category=POSIX", pfw)
    assert [int(re.search(rf"{word}: (\d+)", told)[1]) for word in ("Executed", "Failed")] == [
        len(file_ops), 0
    ]  # fmt: skip


def test_dftracers_counts_and_bytes_of_every_file_are_the_tables(pfw, file_ops):
    keys = ["file_path", "name"]
    told = told_by("dftracer_view", f"--files={pfw}", '--query=cat == "POSIX"',
                   f"--group-by={','.join(keys)}", "--agg=count,sum:size")  # fmt: skip
    counted = {
        (row["file_path"], row["name"]): (row["count"], row["sum_size"])
        for row in map(json.loads, told.splitlines())
    }
    # Of mapped pages DFTracer counts no bytes.
    moved = file_ops["size_bytes"].where(file_ops["kind"].isin(["read", "write"]), 0)
    names = file_ops["operation"].replace(dftracer._NAMES)
    groups = moved.groupby([file_ops["path"], names])
    expected = {key: (len(sizes), int(sizes.sum())) for key, sizes in groups}
    assert counted == expected
    assert {name for _, name in counted} > {"open", "pread64", "sendfile", "rename", "mkdir"}
    assert "/data/part 0 of é\n" in {path for path, _ in counted}


# fio


@pytest.mark.parametrize(
    ("backend", "per"),
    [
        *(("bpftrace", per) for per in fio.GROUPS),
        pytest.param("strace", "thread", marks=pytest.mark.gate),  # it takes as long as the trace
    ],
)
def test_a_replay_moves_the_bytes_of_the_trace_in_its_time(tmp_path, backend, per):
    """By Debian's fio, and what it reports of its jobs."""
    if not shutil.which("fio"):
        lacking("fio is not installed: apt-get install fio")
    trace = Trace(whole.write(tmp_path, backend))
    fio.write(trace, tmp_path / "replay", per=per)
    files_to_read = (tmp_path / "replay" / "files").iterdir()
    assert sum(path.stat().st_blocks for path in files_to_read) == 0, "they are sparse"
    began = time.monotonic()
    words = ["fio", "replay.fio", "--output-format=json"]
    done = programs.run(*words, cwd=tmp_path / "replay", check=True)
    seconds = time.monotonic() - began
    jobs = json.loads(done.stdout)["jobs"]
    assert all(job["error"] == 0 for job in jobs)
    calls = trace.table("file_ops")
    is_file = ~calls["file_class"].isin(["pipes", "pseudo"])
    moved = calls[is_file & calls["error"].isna() & (calls["size_bytes"] > 0)]
    moved = moved[moved["kind"].isin(["read", "write"])]
    for kind, sizes in moved.groupby("kind")["size_bytes"]:
        for name, expected in (("total_ios", len(sizes)), ("io_bytes", sizes.sum())):
            assert sum(job[kind][name] for job in jobs) == expected
    lasts = moved["seconds"].max()
    assert 0.95 * lasts - 0.01 < max(job["job_runtime"] for job in jobs) / 1000 < seconds


def test_too_many_threads_for_fio_and_none_are_refused(tmp_path, monkeypatch, copied):
    monkeypatch.setattr(fio, "_MOST_LOGS", 2)
    message = "make 4 logs, one for each thread, and fio replays 1 to 2; --per=process or --per"
    with pytest.raises(ValueError, match=message):
        fio.write(Trace(copied), tmp_path / "replay", per="thread")
    rows = tables.read_table(copied, "file_ops")
    rows[rows["kind"] == "open"].to_parquet(copied / "file_ops.parquet")
    with pytest.raises(ValueError, match="make 0 logs"):
        fio.write(Trace(copied), tmp_path / "replay")


def exported(trace: Path, output: Path, *flags: str) -> list:
    export.main([str(trace), "--to=chakra", f"--output={output}", *flags])
    metadata, nodes = chakra_reader.read(output)
    assert metadata.version == chakra.VERSION
    assert chakra_reader.attributes_of(metadata)["schema_commit"] == chakra.SCHEMA_COMMIT
    assert not list(chakra_reader.violations(nodes))
    return nodes


def test_a_part_of_the_time_and_what_a_trace_lacks_is_said(copied, tmp_path, capsys):
    part = exported(copied, tmp_path / "part.et", "--seconds=0.6:2.3")
    begins = [node.start_time_micros for node in part]
    # The first begins with the part, a call at its end is not in it.
    assert (min(begins), max(begins)) == (600_000, 2_200_000)
    assert re.search(r"2 batches, 12 calls; no block I/O", capsys.readouterr().err)
    for seconds in ("5", "2:1", "1:1", "nan:2"):
        with pytest.raises(SystemExit, match="2"):
            export.main([str(copied), "--to=chakra", f"--seconds={seconds}"])
        assert "argument --seconds: invalid" in capsys.readouterr().err
    (copied / "mllog.parquet").unlink()
    exported(copied, tmp_path / "bare.et")
    assert capsys.readouterr().err.endswith(
        "; no block I/O, which only bpftrace records; no batches: the trace has no MLPerf log of a "
        "training\n"
    )


NODE = (
    "4c080112047265616418082201012a01023008380952050a0161480152060a0162d80101520c0a01631900000000"
    "0000e03f52070a0164ea0101655a100801520c080512022f64180320052807"
)
"""By the numbers of schema/protobuf/et_def.proto at SCHEMA_COMMIT, after its length."""


def test_a_node_has_the_bytes_of_mlcommons_schema():
    file = io.BytesIO()
    writer = chakra.Writer(file)
    num_bytes = file.tell()
    detail = {"op": "FS_OP_PREAD", "pathname": "/d", "fd": 3, "offset": 5, "size_bytes": 7}
    writer.node(
        "STORAGE", "read", ctrl_deps=[1], data_deps=[2], start_time_micros=8, duration_micros=9,
        attr={"a": 1, "b": True, "c": 0.5, "d": "e"},
        storage={"level": "STORAGE_LEVEL_FS", "fs": detail},
    )  # fmt: skip
    assert file.getvalue()[num_bytes:].hex() == NODE
    kinds = chakra.CLASSES["Node"].DESCRIPTOR.fields_by_name["type"].enum_type.values_by_name
    assert (kinds["BATCH_NODE"].number, kinds["CHECKPOINT_NODE"].number) == (9, 10)
    below = [chakra.CLASSES[kind].DESCRIPTOR for kind in ("PageOp", "BlockOp")]
    numbers = [[field.number for field in kind.fields] for kind in below]
    assert numbers == [[1, 3, 4], [1, 2, 3, 4, 5]]


@pytest.fixture(scope="module")
def workload_file(whole_trace, tmp_path_factory):
    path = tmp_path_factory.mktemp("dlio") / "bert.yaml"
    export.main([str(whole_trace), "--to=dlio", f"--output={path}"])
    return path


@pytest.mark.parametrize(
    ("num_steps", "samples", "of_epoch", "epochs"),
    [
        (5, 1000, 5, 1),
        (5, 49, 3, 2),  # half of the steps, rounded up: the data would give 4
        (9, 39, 3, 3),
        (5, 25, 2, 2),  # the data of an epoch give no more
        (2, 5, 1, 4),
    ],
)
def test_steps_of_an_epoch_are_rounded_up_as_far_as_the_data_go(
    num_steps, samples, of_epoch, epochs
):
    found = dlio.epochs(num_steps, 10, samples)
    assert found == {"total_training_steps": of_epoch, "epochs": epochs}


def test_a_single_checkpoint_is_saved_as_often_as_it_comes_and_several_by_their_middle():
    saved = [{"step": step, "written_bytes": size} for step, size in ((3, 70), (5, 20), (11, 30))]
    for num, steps, size in ((1, 3, 70), (2, 2, 45), (3, 4, 40)):
        found = dlio._checkpoint(saved[:num])
        assert (found["steps_between_checkpoints"], found["model_size"]) == (steps, size)


# hydra composes the workload with DLIO's own configuration, and DLIO loads it, as its main does.
# The rank is given as to a reader's process, so that no MPI is started. 2.0.0 looks for the tracer
# where the pydftracer of its day had it.
LOADER = """
import json, shutil, sys
import dftracer.python
sys.modules["dftracer.logger"] = dftracer.python
from hydra import compose, initialize_config_dir
from dlio_benchmark.utils.utility import DLIOMPI
DLIOMPI.get_instance().set_parent_values(0, 1)
from dlio_benchmark.utils.config import ConfigArguments, LoadConfig
source, workload, configs = sys.argv[1:]
shutil.copytree(f"{source}/dlio_benchmark/configs", configs)
shutil.copy(workload, f"{configs}/workload/traced.yaml")
with initialize_config_dir(config_dir=configs, version_base=None):
    whole = compose("config", overrides=["workload=traced"], return_hydra_config=True)
arguments = ConfigArguments.get_instance()
LoadConfig(arguments, whole["workload"])
names = "batch_size computation_time epochs model_size num_files_train num_samples_per_file"
names += " read_threads record_length record_length_stdev steps_between_checkpoints transfer_size"
found = {name: getattr(arguments, name) for name in names.split()}
found |= {"run_dir": whole.hydra.run.dir, "model": str(arguments.model)}
print(json.dumps(found))
"""
PACKAGES = ["antlr4-python3-runtime==4.9.3", "dlio_benchmark==2.0.0", "hydra-core==1.3.2",
            "mpi4py>=4.1", "omegaconf==2.3.0", "pydftracer==2.0.6"]  # fmt: skip


@pytest.fixture(scope="module")
def packages(tmp_path_factory) -> Path:
    """DLIO 2.0.0 and what it imports to load a workload, without TensorFlow's and torch's world."""
    folder = tmp_path_factory.mktemp("packages")
    words = ["install", "--quiet", "--no-deps", "--no-compile", f"--target={folder}", *PACKAGES]
    done = programs.run(sys.executable, "-m", "pip", *words)
    if done.returncode:
        lacking(f"dlio_benchmark cannot be had from PyPI: {done.stderr.strip()[-300:]}")
    return folder


@pytest.mark.all
def test_dlio_from_pypi_loads_it(packages, workload_file, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    words = [sys.executable, "-c", LOADER, packages, workload_file, tmp_path / "configs"]
    done = programs.run(*words, cwd=tmp_path, env=environment, check=True)
    loaded = json.loads(done.stdout.splitlines()[-1])
    given = yaml.safe_load(workload_file.read_text())
    for part in ("dataset", "reader", "train", "checkpoint"):
        known = {name: given[part][name] for name in loaded.keys() & given[part].keys()}
        assert known and known.items() <= loaded.items()
    assert loaded["run_dir"].startswith("./hydra_log/{'name': 'bert',")  # as docs/export.md says


def test_a_log_without_what_dlio_needs_is_refused(copied):
    calls = pd.read_parquet(copied / "file_ops.parquet")
    calls[calls["kind"] != "read"].to_parquet(copied / "file_ops.parquet")
    line = programs.refusal(export.main, copied, "--to=dlio")
    assert "holds no reads of TFRecords during training" in line
    (copied / "spans.parquet").unlink()
    line = programs.refusal(export.main, copied, "--to=dlio")
    assert line.endswith("holds no training: no block_start of an MLPerf log")
