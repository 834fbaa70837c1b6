"""Classes of files by name and by content, and record lengths; MLPerf logs as events and spans."""

import json
import os
import types

import pandas as pd
import pyarrow.parquet as pq
import pytest

from mlperf_bert.data import tfrecord
from tracing import conversion, figures, files, loaded, mllog, page
from tracing import tables as trace_tables
from tracing.containers import Container
from tracing.recording import RawFile
from tracing.tests import by_hand


@pytest.mark.parametrize(
    ("path", "file_class"),
    [
        ("/data/part-00000-of-00500.tfrecord", files.TFRECORDS),
        ("/out/model.ckpt-250.data-00000-of-00001", files.CHECKPOINTS),
        ("/out/model.ckpt-250_temp/part-00000-of-00001.index", files.CHECKPOINTS),
        ("/out/checkpoint", files.CHECKPOINTS),
        ("/out/checkpoint.tmp0123abcd", files.CHECKPOINTS),
        ("/src/checkpoint_add_gradacc.py", files.LIBRARIES),
        ("/out/bert.log", files.LOGS),
        ("/out/metrics.jsonl", files.LOGS),
        ("/out/.bert.log.partial", files.LOGS),
        ("/out/.run.json.partial", files.LOGS),
        ("/out/eval_results.jsonl", files.LOGS),
        ("/out/overrun.json", files.OTHER),
        ("/out/events.out.tfevents.1795.host.1.0.v2", files.LOGS),
        ("/v/lib/python3.11/site-packages/x/data.bin", files.LIBRARIES),
        ("/usr/lib/libc.so.6", files.LIBRARIES),
        ("/usr/share/zoneinfo/UTC", files.LIBRARIES),
        ("/proc/self/status", files.PSEUDO),
        ("/dev/null", files.PSEUDO),
        ("/dev/shm", files.PSEUDO),
        ("/dev/shm/part-00000.tfrecord", files.TFRECORDS),
        ("/dev/shm/x", files.OTHER),
        *((name, files.PIPES) for name in (
            "pipe:[1234]", "socket:[1234]", "anon_inode:[eventfd]", "UDP:[10.0.0.1:5]",
            "UNIX-STREAM:[5->6]", "NETLINK:[ROUTE:7]", "/memfd:x", "")),
        ("/sys/block/sda/stat", files.PSEUDO),
        ("/out/result_0.txt", files.LOGS),
        ("/out/parts.json", files.LOGS),
        ("/v/site-packages/x/data.bin", files.LIBRARIES),
        ("/v/lib/python3.11/os.bin", files.LIBRARIES),
        *((f"/{name}/x.conf", files.LIBRARIES) for name in "lib lib64 etc opt bin sbin".split()),
        ("/d/part.tfrecords.gz", files.TFRECORDS),
        ("/out/variables.index.tempstate7", files.CHECKPOINTS),
        ("unknown:", files.PIPES),
        ("unknown:inode 5", files.OTHER),
        ("/home/me/vocab.txt", files.OTHER),
    ],
)  # fmt: skip
def test_class_by_name(path, file_class):
    assert files.classify(path) == file_class


def test_tfrecords_without_a_telling_name_are_known_by_content(tmp_path):
    path = tmp_path / "part-00000-of-00500"
    path.write_bytes(b"".join(tfrecord.frame(bytes(n)) for n in (5, 0, 300)))
    assert files.classify(str(path)) == files.TFRECORDS
    # A container calls it otherwise, in a folder of the system at that.
    assert files.classify("/opt/data/part-1", seen_as=str(path)) == files.TFRECORDS
    assert files.record_lengths(path, 10) == [5, 0, 300]
    assert files.record_lengths(path, 2) == [5, 0]
    path.write_bytes(path.read_bytes()[:-5] + b"\xff" * 30)  # a damaged one, of 2**64 - 1 bytes
    assert files.record_lengths(path, 10) == [5, 0, 300]
    other = tmp_path / "part-1"
    other.write_bytes(b"twelve bytes or more")
    assert files.classify(str(other)) == files.OTHER


def test_spans_of_a_run_that_was_cut(tmp_path):
    path = tmp_path / "bert.log"
    events = [
        ("run_start", -0.1), ("init_start", 0), ("init_stop", 0.5), ("run_start", 0.5),
        ("block_start", 0.6), ("block_stop", 0.7), ("eval_start", 0.7), ("eval_accuracy", 0.75),
    ]  # fmt: skip
    told = [by_hand.log([(key, at, None, {})]) for key, at in events]
    bare = told[3].removeprefix(":::MLLOG")  # is no line of MLPerf's
    path.write_text("".join([*told[:4], bare, *told[4:], ':::MLLOG {"time_ms": 17']))
    assert mllog.holds_log(path)
    # Stamps are whole milliseconds: one may seem to lie before the begin or behind the end.
    begin_ns = by_hand.BEGIN_S * 10**9
    given = {"begin_ns": begin_ns + 10**6, "end_ns": begin_ns + 749 * 10**6}
    found = list(mllog.event_rows(path, **given))
    assert len(found) == 7
    spans = [
        (span["name"], *((span[n] - begin_ns) / 1e9 for n in ("realtime_ns", "end_realtime_ns")))
        for span in mllog.span_rows(found, end_ns=begin_ns + 10**9)
        if span["is_closed"] == (span["name"] in ("init", "block"))
    ]
    assert spans == [("init", 0, 0.5), ("run", 0.5, 1), ("block", 0.6, 0.7), ("eval", 0.7, 1)]


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        "[" * 100_000,
        '{"time_ms": 1e999, "key": "run_start"}',
        '{"time_ms": 1000, "key": ["run_start"]}',
        '{"time_ms": 1000, "key": "run_start", "event_type": 1}',
        '{"time_ms": 1000, "key": "\\ud800"}',
    ],
    ids=lambda text: text[:40],
)
def test_a_line_that_is_no_event_is_passed_over(tmp_path, text):
    path = tmp_path / "bert.log"
    line = by_hand.log([("run_start", 0, None, {})])
    path.write_text(f':::MLLOG {text}\n{line}:::MLLOG {{"time_ms": 7}}\n')
    found = list(mllog.event_rows(path, begin_ns=0, end_ns=2**62))
    assert [event["key"] for event in found] == ["run_start", None]
    assert len(mllog.span_rows(found, end_ns=2**62)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "+ export X=1\n" * 50_000 + "{}",  # a launcher's lines come first
        "0: {}", "[rank0]:{}", "2026-11-28T10:00:00.123Z stdout F {}", "\x1b[32m{}\x1b[0m",
        "{}{}", "\xff {}\r", "{} (again)",
    ],
    ids=lambda text: repr(text)[-20:],
)  # fmt: skip
def test_whatever_stands_around_an_event_it_is_read(tmp_path, text):
    path = tmp_path / "out"
    event = by_hand.log([("run_start", 0, None, {})]).rstrip("\n")
    path.write_text(text.replace("{}", event) + "\n", encoding="latin-1")
    assert mllog.holds_log(path)
    found = list(mllog.event_rows(path, begin_ns=0, end_ns=2**62))
    assert [row["key"] for row in found] == ["run_start"] * text.count("{}")


def test_the_page_names_the_time_between_phases():
    phases = [
        {"name": name, "label": name, "begin_seconds": begin, "seconds": seconds}
        for name, begin, seconds in [
            ("init", 8.0, 2.0), ("run", 10.0, 20.0), ("block", 12.0, 10.0),
            ("checkpoint", 21.0, 0.5), ("eval", 22.05, 3.0),
        ]
    ]  # fmt: skip
    found = [tuple(row.values()) for row in page._between(phases, 31.0)]
    assert found == [("before init", 0.0, 8.0), ("between init and block", 10.0, 2.0),
                     ("after eval", 25.05, 5.95)]  # fmt: skip
    assert list(page._between([], 31.0)) == []


@pytest.mark.parametrize("name", ["fifo", "x", "absent", "folder/x", "mem", "mem.log", "long" * 99])
def test_other_files_are_no_logs_and_hinder_no_figures(tmp_path, name):
    for pipe in ("fifo", "fifo.log"):
        os.mkfifo(tmp_path / pipe)  # it is not waited for
    (tmp_path / "x").write_text("hello")
    for linked in ("mem", "mem.log"):
        (tmp_path / linked).symlink_to("/proc/self/mem")  # cannot be read
    path = str(tmp_path / name)
    assert not mllog.holds_log(path) and not files.holds_tfrecords(path)
    locator = conversion.Locator([Container("docker", "box", 1, [(str(tmp_path), "/data")])])
    found = path if name in ("fifo", "x", "mem", "mem.log") else f"/data/{name}"
    assert str(locator.find(f"/data/{name}")) == found
    told = locator.within(RawFile("x", locator.containers[0]))("/data/gone")
    assert str(locator.find("/data/gone")) == told == f"{tmp_path}/gone"
    trace = types.SimpleNamespace(locator=conversion.Locator())
    assert figures._size_on_disk(trace, path) == {"x": 5, "mem": 0, "mem.log": 0}.get(name)
    stamps = {"monotonic_ns": 0, "realtime_ns": 0}
    recording = by_hand.recording(pairs=by_hand.pairs(1))
    rows = [{**stamps, "path": f"{path}{end}", "kind": "create"} for end in ("", ".log")]
    trace_tables.write_table(tmp_path, "file_ops", rows, recording.alignment())
    assert list(conversion._mllog_events(tmp_path, recording, conversion.Locator())) == []


@pytest.mark.parametrize(
    ("exit_code", "ended_by", "words"),
    [
        (0, None, "exit code 0"), (7, "SIGTERM", "exit code 7 after SIGTERM"),
        (None, None, "the trace ended, the program continues or had ended"),
        (None, "SIGINT", "the trace ended after SIGINT, the program continues or had ended"),
    ],
)  # fmt: skip
def test_the_page_says_how_a_trace_ended(exit_code, ended_by, words):
    assert page._how_it_ended({"exit_code": exit_code, "ended_by": ended_by}) == words


def test_a_table_is_written_in_groups_of_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_tables, "ROWS_PER_GROUP", 2)
    stamps = [{"monotonic_ns": n, "realtime_ns": n, "total_bytes": n} for n in range(5)]
    with trace_tables.table_writer(tmp_path, "memory") as write:
        write(iter(stamps[:3]))
        write(stamps[3:])
        assert not (tmp_path / "memory.parquet").exists()
    found = pq.ParquetFile(tmp_path / "memory.parquet")
    assert [found.metadata.row_group(n).num_rows for n in range(found.num_row_groups)] == [2, 2, 1]
    assert found.read()["total_bytes"].to_pylist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("in_calls", "sampled"), [(0, 0), (2, 0), (0, 2), (1, 2), (2, 1)])
def test_processes_with_rings_are_those_that_calls_or_samples_saw(tmp_path, in_calls, sampled):
    (tmp_path / conversion.RAW).mkdir()
    rings = [
        by_hand.line(0.1, "io_uring_setup(8, {flags=0}) = 4", latency_s=0, tid=7 + n)
        for n in range(in_calls)
    ]
    (tmp_path / conversion.RAW / "strace-0.txt").write_text("".join(rings))
    trace_tables.write_table(tmp_path, "open_files", [], None)
    taken = by_hand.recording(pairs=by_hand.pairs(1), num_asynchronous=sampled)
    losses, _ = conversion.write_tables(tmp_path, taken)
    assert losses.asynchronous_processes == max(in_calls, sampled)


@pytest.mark.parametrize("name", ["result_0.txt", "slurm-17.out", "train.txt", "bert.log"])
@pytest.mark.parametrize("seen_by", ["write", "rename", "sample"])
def test_a_log_is_found_by_its_lines_whatever_its_name(tmp_path, name, seen_by):
    """By a call that wrote it or gave it its name, or by a sample of a file beside it."""
    path = tmp_path / name
    path.write_text("+ a launcher's line\n0: " + by_hand.log([("run_start", 0, None, {})]))
    (tmp_path / "other").mkdir()
    stamps = {"monotonic_ns": 0, "realtime_ns": 0}
    sampled = [{**stamps, "path": str(tmp_path / "data.bin")}] if seen_by == "sample" else []
    (tmp_path / "x.py").write_text(path.read_text())  # is no log, whatever it holds
    names = {"new_path" if seen_by == "rename" else "path": str(path)}
    written = [{"path": str(tmp_path / "x.py")}, names] if seen_by != "sample" else []
    written = [{**stamps, "path": "/gone", "kind": seen_by, **each} for each in written]
    alignment = by_hand.recording(pairs=by_hand.pairs(1)).alignment()
    trace_tables.write_table(tmp_path, "open_files", sampled, alignment)
    trace_tables.write_table(tmp_path, "file_ops", written, alignment)
    assert conversion._written_logs(tmp_path, conversion.Locator()) == [str(path)]


def test_a_phase_ends_with_the_first_stop_of_its_own_log():
    """The other log's began before the trace."""
    lines = [("b.log", "epoch_start", 9), ("b.log", "epoch_stop", 9),  # MLPerf knows no such phase
             ("a.log", "block_start", 10), ("b.log", "block_stop", 12), ("b.log", "eval_start", 13),
             ("a.log", "eval_stop", 14), ("b.log", "eval_stop", 15),
             ("b.log", "eval_stop", 17), ("a.log", "block_start", 18),
             ("a.log", "block_stop", 19)]  # fmt: skip
    events = [{"file": file, "key": key, "realtime_ns": at, "metadata": "{}"}
              for file, key, at in lines]  # fmt: skip
    names = ("file", "name", "realtime_ns", "end_realtime_ns", "is_closed")
    spans = [tuple(span[n] for n in names) for span in mllog.span_rows(events, end_ns=99)]
    assert spans == [("a.log", "block", 10, 99, False), ("b.log", "eval", 13, 15, True),
                     ("a.log", "block", 18, 19, True)]  # fmt: skip
    events = pd.DataFrame({"key": ["seed", "x", "seed"], "value": ["1", "2", "3"]})
    assert mllog.value_of(events, "seed") == 3


def test_a_checkpoint_is_that_of_a_phase_whose_stamps_are_whole_milliseconds():
    write = {"kind": "write", "final_path": "/out/model.ckpt-3.index", "size_bytes": 7}
    writes = [{**write, "seconds": second, "latency_ns": 5} for second in (1.0006, 2.0004)]
    outside = {**writes[0], "seconds": 2.5, "final_path": "/out/model.ckpt-4.index"}
    of_another_run = {**writes[0], "seconds": 2.7, "final_path": "/two/model.ckpt-3.index"}
    spans = pd.DataFrame([(1.001, 2.0), (2.6, 2.9)], columns=["seconds", "end_seconds"])
    trace = types.SimpleNamespace(
        transfers=pd.DataFrame([*writes, outside, of_another_run]),
        spans=spans.assign(name="checkpoint"),
    )
    names = ("path", "step", "span_seconds", "written_bytes")
    assert [tuple(each[n] for n in names) for each in figures.checkpoints(trace)] == [
        ("/out/model.ckpt-3", 3, 0.999, 14),
        ("/out/model.ckpt-4", 4, None, 7),
        ("/two/model.ckpt-3", 3, 0.3, 7),
    ]


def test_percentiles_are_those_of_the_known_values():
    expected = {"p50": 0.002, "p95": 0.002, "p99": 0.002, "max": 0.002}
    assert figures.percentiles(pd.Series([None, 2.0]), 1e-3) == expected


def test_a_block_has_the_samples_of_its_stop():
    lines = [
        ("block_stop", 5, {"first_epoch_num": 0, "samples_count": 50}),  # began before the trace
        ("block_start", 10, {"first_epoch_num": 50}),
        ("tracked_stats", 20, {"first_epoch_num": 0, "samples_count": 7}),
        ("block_stop", 20, {"first_epoch_num": 50, "samples_count": 100}),
        ("block_start", 20, {"first_epoch_num": 100}),
        ("block_stop", 21, None),  # of another benchmark
        ("block_start", 21, None),
        ("block_stop", 22, {"first_epoch_num": 0, "samples_count": "many"}),
        ("block_start", 22, {"first_epoch_num": 100}),  # is cut
    ]
    events = [
        {"realtime_ns": at, "key": key, "metadata": json.dumps(metadata), "file": "bert.log"}
        for key, at, metadata in lines
    ]
    spans = pd.DataFrame(mllog.span_rows(events, end_ns=100))
    table = pd.DataFrame(events)
    assert [mllog.trained_samples(table, span) for span in spans.itertuples()] == [50, 0, 0, 0]


def test_of_many_files_some_tell_the_lengths_of_records(tmp_path):
    names = [f"{tmp_path}/part-{n:02}" for n in range(17)]
    for n, name in enumerate(names):
        (tmp_path / name).write_bytes(tfrecord.frame(bytes(n)))
    rows = [{"path": name, "file_class": files.TFRECORDS} for name in [*names[9:], *names[:9]]]
    os.unlink(names[0])  # noqa: PTH108 - since the trace
    trace = types.SimpleNamespace(locator=conversion.Locator())
    told = {"num_sampled": 8, "mean_bytes": 9.0, "stdev_bytes": 4.6}  # 2, 4, ... 16
    assert figures._records(trace, rows) == told
    # Under the name that a container has for it, too.
    locator = conversion.Locator(of_path={"/in/x": names[1]})
    assert loaded.Trace(tmp_path, {"begin_monotonic_ns": 0}, locator)._class_of("/in/x") == (
        files.TFRECORDS
    )


def test_names_hold_any_bytes_and_descriptors_mean_what_was_open_before(tmp_path):
    (tmp_path / conversion.RAW).mkdir()
    exits = b"2000000000000\t7\t7\ttracepoint:syscalls:sys_exit_"
    (tmp_path / conversion.RAW / "x").write_bytes(
        b"exit\t1\t7\t8\nname\t7\ta\rb\xff\nopen\t" + exits + b"openat\t5\t4\t-100\t0\n"
        b"call\t" + exits + b"read\t9\t10\t3\t10\t-1\n"
    )
    there = {"process_of_thread": [(7, 7), (8, 7)], "folder_of": [(7, "/e")]}
    raw_file = RawFile("x", None, opened_before=[(7, 3, "/old", False)], **there)
    given = {"backend": "bpftrace", "raw_files": [raw_file], "pairs": by_hand.pairs(1)}
    conversion.write_tables(tmp_path, by_hand.recording(**given))
    assert list(trace_tables.read_table(tmp_path, "file_ops")["path"]) == ["/e/a\rb\\xff", "/old"]


def test_of_many_files_those_with_the_most_bytes_are_told_in_short():
    rows = [
        {"path": n, "file_class": files.OTHER, "read_bytes": n, "written_bytes": 500 * (n % 2),
         "monotonic_ns": 1}
        for n in range(203)
    ]  # fmt: skip
    found = figures._files_in_short([{**rows[9], "file_class": files.LIBRARIES}, *rows])
    assert [row["path"] for row in found] == [*range(201, 0, -2), *range(202, 3, -2)][:200]
    assert set(found[0]) == {"path", "file_class", "read_bytes", "written_bytes"}


@pytest.mark.parametrize(("storage", "expected"), [(None, None), (25, 0.75), (130, 0)])
def test_the_page_caches_part_of_a_pass_is_none_or_at_least_zero(storage, expected):
    assert page._hit_rate({"storage_bytes": storage, "call_bytes": 100}) == expected
