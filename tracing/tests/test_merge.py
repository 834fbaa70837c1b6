"""Traces of several hosts on one clock, shifted by a known time; what cannot be compared."""

import html
import json
import os
import shutil
import subprocess
import sys

from tests.fixtures import REPOSITORY
from tests.helpers.programs import refusal
from tracing import backends, compare, merge, tables
from tracing.loaded import Trace
from tracing.tests import by_hand

MS = 10**6
SAMPLE = REPOSITORY / "tracing" / "sample"


def host(folder, name, *, monotonic_s=1000, ahead_s=0, sync_ms: int | None = 1, events=(1,)):
    """One trace with a read of 1,000 bytes at each of `events`, in true seconds."""
    data = folder / "data.tfrecord"
    lines = [by_hand.opened(0.5 + ahead_s, data)]
    lines += [by_hand.pread(at + ahead_s, data, 0, 1000) for at in events]
    why = None if sync_ms is not None else "no daemon sets the clock"
    bound_ns = None if sync_ms is None else sync_ms * MS
    clock = {"is_synchronised": sync_ms is not None, "error_bound_ns": bound_ns, "why": why}
    pairs = by_hand.pairs(10, monotonic_s=monotonic_s, ahead_s=ahead_s)
    by_hand.make(folder / name, lines, clocks=pairs, machine={"hostname": name, "clock": clock})
    return folder / name


def test_events_of_hosts_that_booted_at_other_times_stand_where_they_happened(
    tmp_path, capsys, without_page
):
    first = host(tmp_path, "a", events=[1, 3, 5])
    second = host(tmp_path, "b", monotonic_s=77_000, sync_ms=2, events=[2, 4])
    merge.main([str(first), str(second), f"--output={tmp_path / 'merged'}"])
    # 1 ms and 2 ms, and of each trace twice the width of a reading: no drift.
    assert "stamps of two hosts agree to ± 3.000 ms" in capsys.readouterr().out
    found = tables.read_table(tmp_path / "merged", "file_ops", ["host", "kind", "realtime_ns"])
    reads = found[found["kind"] == "read"]
    assert list(reads["host"]) == ["a", "b", "a", "b", "a"]
    seconds = (reads["realtime_ns"] - by_hand.BEGIN_S * by_hand.SECOND) / by_hand.SECOND
    assert list(seconds) == [1, 2, 3, 4, 5]
    summary = json.loads((tmp_path / "merged" / "summary.json").read_text())
    assert summary["error_bound_between_hosts_ns"] == 3 * MS + 2 * 200
    assert [entry["read_bytes"]["tfrecords"] for entry in summary["hosts"]] == [3000, 2000]
    page = (tmp_path / "merged" / "summary.html").read_text()
    assert "± 3.000 ms" in page and 'aria-label="Bytes read and written by host"' in page


def test_any_two_hosts_are_within_the_bound_which_a_clock_that_nothing_sets_makes_unknown(
    tmp_path, without_page
):
    folders = [
        host(tmp_path, name, sync_ms=sync_ms)
        for name, sync_ms in (("a", 4), ("b", 1), ("c", 2), ("d", None))
    ]
    found = merge.write(folders[:3], tmp_path / "merged")
    assert found["error_bound_between_hosts_ns"] == (4 + 2) * MS + 2 * 200
    found = merge.write(folders, tmp_path / "unknown")
    assert found["error_bound_between_hosts_ns"] is None
    told, *_ = merge.notes_on_clocks(found)
    assert "clocks are apart is unknown: d (no daemon sets the clock)" in told
    assert told in html.unescape((tmp_path / "unknown" / "summary.html").read_text())


def test_a_wall_clock_that_is_wrong_stays_within_its_recorded_bound(tmp_path, without_page):
    """Host b's clock is 3 ms ahead, and its daemon knows it only to 5 ms."""
    first = host(tmp_path / "x", "a", events=[2])
    second = host(tmp_path / "y", "a", monotonic_s=9000, ahead_s=0.003, sync_ms=5, events=[2])
    found = merge.write([first, second], tmp_path / "merged")
    operations = tables.read_table(tmp_path / "merged", "file_ops", ["kind", "realtime_ns"])
    one, other = operations.loc[operations["kind"] == "read", "realtime_ns"]
    assert other - one == 3 * MS
    assert other - one <= found["error_bound_between_hosts_ns"] == 6 * MS + 2 * 200
    assert found["hosts"][1]["begins_after_seconds"] == 0.003
    assert found["seconds"] == 10.003
    # Hosts of one name are told apart by their folders.
    assert [entry["host"] for entry in found["hosts"]] == [str(first), str(second)]


def test_the_published_sample_merges_and_a_reader_that_ends_is_no_error(tmp_path):
    shutil.copytree(SAMPLE, tmp_path / "host-1")
    reader, writer = os.pipe()
    os.close(reader)
    words = ["tracing.merge", SAMPLE, tmp_path / "host-1", f"--output={tmp_path / 'merged'}"]
    done = subprocess.run([sys.executable, "-m", *words], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")
    shutil.rmtree(tmp_path / "merged")
    closed = ["sh", "-c", '"$@" >&-', "sh", sys.executable, "-m", *words]
    assert subprocess.run(closed, stderr=subprocess.PIPE).stderr == b""
    summary = json.loads((tmp_path / "merged" / "summary.json").read_text())
    assert [entry["read_bytes"]["tfrecords"] for entry in summary["hosts"]] == [12_328_864] * 2


def test_bad_input_is_one_line_and_leaves_nothing(tmp_path, without_page):
    good, other, output = host(tmp_path, "a"), host(tmp_path, "b"), tmp_path / "merged"
    message = "name two or more folders of traces, each once"
    assert message in refusal(merge.main, good, good, f"--output={output}")
    line = refusal(merge.main, good, other, f"--output={good}")
    assert "is there already: name another folder" in line
    (other / "file_ops.parquet").write_bytes(b"PAR1")
    line = refusal(merge.main, good, other, f"--output={output}")
    assert f"{other / 'file_ops.parquet'} is not of a finished trace (" in line
    assert not list(tmp_path.glob("merged*"))


def test_another_backend_is_told_first_and_its_calls_compared_if_it_has_any(whole_trace):
    a, b = Trace(whole_trace), Trace(SAMPLE)
    b.summary["backend"] = backends.BPFTRACE
    first, *_ = compare.lines(compare.compare(a, b))
    assert first.startswith("ANOTHER BACKEND (strace and bpftrace): each adds its own time to")
    b.summary["backend"] = backends.PROC
    found = compare.compare(a, b)
    assert found.calls.empty and not found.usage.empty
    assert "single calls are not compared: proc records none" in found.remarks


def test_bad_input_is_told_in_one_line(tmp_path):
    line = refusal(compare.main, tmp_path, SAMPLE)
    assert "summary.json is not of a finished trace (" in line
    line = refusal(compare.main, SAMPLE, SAMPLE / "../sample")
    assert line == f"compare: A and B are both {SAMPLE}; give two traces"
