"""Lines of both tracers, recorded from the same small program, as rows."""

from pathlib import Path

import pytest

from tracing import backends, bpftrace, strace
from tracing.tests.conftest import rows

FOLDER = "/data/example/"


@pytest.fixture(scope="module", params=[backends.STRACE, backends.BPFTRACE])
def parsed(request):
    text = Path(__file__).with_name(f"recorded_{request.param}.txt").read_text()
    lines = text.splitlines(keepends=True)
    if request.param == backends.STRACE:
        parser = strace.Parser(births=strace.births_in(lines), folder="/data/example")
    else:
        parser = bpftrace.Parser(folder="/data/example")
    return parser, list(parser.parse(lines))


def test_every_line_is_understood(parsed):
    assert str(parsed[0].losses) == "nothing was lost"


def test_a_thread_belongs_to_its_process_and_reads_in_every_way(parsed):
    [thread] = rows(parsed, "process_events", event="thread")
    [process] = rows(parsed, "process_events", event="process")
    assert process["pid"] == process["tid"] != thread["pid"] == process["parent_pid"]
    assert len(rows(parsed, "process_events", event="exit", pid=process["pid"])) == 1
    reads = rows(parsed, "file_ops", kind="read", path=f"{FOLDER}part-00000", tid=thread["tid"])
    columns = ("operation", "offset_bytes", "requested_bytes", "size_bytes")
    assert [tuple(row[column] for column in columns) for row in reads] == [
        ("read", 0, 4, 4),
        ("pread64", 2, 8, 8),
        ("preadv2", 4, None, 6),
    ]
    # As the recorded lines have them.
    stamps = (reads[0].get("realtime_ns") or reads[0]["boottime_ns"], reads[0]["latency_ns"])
    assert stamps in [(1_795_249_478_389_004_477, 27_802), (29_008_501_819_647, 11_737)]


def test_writes_and_copies_with_offsets_that_appending_does_not_tell(parsed):
    columns = ("operation", "offset_bytes", "size_bytes")
    assert [
        (row["path"].removeprefix(FOLDER), *(row.get(column) for column in columns))
        for row in rows(parsed, "file_ops", kind="write")
    ] == [
        ("part-00000", "write", 0, 30),
        ("out/ckpt.tmp", "write", 0, 7),
        ("out/ckpt.tmp", "pwrite64", 7, 2),
        ("out/copy", "sendfile", 0, 30),
        ("out/copy", "sendfile", 30, 0),
        ("out/model.ckpt-1.index", "write", None, 1),
    ]
    [copied] = rows(parsed, "file_ops", operation="sendfile", kind="read", size_bytes=30)
    assert copied["path"] == f"{FOLDER}part-00000"


def test_creation_renaming_removal_and_failure_in_the_folder_of_the_process(parsed):
    created = [row["path"] for row in rows(parsed, "file_ops", kind="create")]
    assert created[:3] == [f"{FOLDER}out", f"{FOLDER}part-00000", f"{FOLDER}out/ckpt.tmp"]
    # The last one by a process that has changed its folder.
    assert created[3:] == [f"{FOLDER}out/copy", f"{FOLDER}out/model.ckpt-1.index"]
    [renamed] = rows(parsed, "file_ops", kind="rename")
    assert renamed["path"] == f"{FOLDER}out/ckpt.tmp"
    assert renamed["new_path"] == f"{FOLDER}out/model.ckpt-1.index"
    [removed] = rows(parsed, "file_ops", kind="remove")
    assert removed["path"] == f"{FOLDER}out/copy"
    [missing] = rows(parsed, "file_ops", error="ENOENT")
    assert (missing["path"], missing["size_bytes"]) == (f"{FOLDER}nowhere", 0)
    opened = rows(parsed, "file_ops", kind="open", path=f"{FOLDER}out/model.ckpt-1.index")
    # By its name in a folder that was opened; the program under strace did not.
    assert len(opened) == isinstance(parsed[0], bpftrace.Parser)
