"""Figures of access: of arrays and traces made by hand, of a million calls, of a real program."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tracing import access, loaded, sampling
from tracing.tests import by_hand

NAN = float("nan")


def test_patterns_of_reads_worked_out_by_hand():
    #         one file open twice, each with its own position       not seen to be opened
    opened = [0, 0, 1, 0, 1, 1, 1, 0, 0, -1, 0]
    offsets = [0, 10, 50, 20, 110, 170, 230, 5, 30, 0, NAN]
    sizes = [10, 10, 10, 10, 10, 10, 10, 5, 10, 10, 10]
    found = access.patterns(np.array(opened), np.array(offsets, float), np.array(sizes, float))
    assert list(found) == [
        "sequential",  # begins at 0
        "sequential",
        "random",  # begins at 50, 50 behind the start
        "sequential",
        "strided",  # 110 - 60 = 50 again
        "strided",
        "strided",
        "random",  # back by 25
        "random",  # on by 20
        "unknown",
        "unknown",
    ]


def test_distinct_bytes_are_those_of_the_union():
    files = np.array([0, 0, 1, 0, 1])
    offsets = np.array([0, 50, 0, 120, 0])
    sizes = np.array([100, 50, 10, 30, 10])
    # file 0: 0 to 100 and 120 to 150; file 1: 0 to 10
    assert access.distinct_bytes(files, offsets, sizes) == 140
    assert access.distinct_bytes(*np.zeros((3, 0), np.int64)) == 0


def test_stack_distances_worked_out_by_hand():
    #        a  b  c  b  a  a  d  c
    found = access.stack_distances(np.array([1, 2, 3, 2, 1, 1, 4, 3]))
    # b: only c between. a: b and c. a again: nothing. c: b, a and d.
    np.testing.assert_array_equal(found, [NAN, NAN, NAN, 1, 2, 0, NAN, 3])


def by_sets(blocks) -> np.ndarray:
    last, found = {}, []
    for at, block in enumerate(blocks):
        found.append(len(set(blocks[last[block] + 1 : at])) if block in last else NAN)
        last[block] = at
    return np.array(found, float)


@pytest.mark.parametrize(
    ("num", "blocks"), [(0, 1), (1, 1), (2, 1), (64, 9), (513, 600), (777, 50)]
)
def test_stack_distances_equal_those_counted_by_sets(num, blocks):
    accesses = np.random.default_rng(num).integers(0, blocks, num)
    np.testing.assert_array_equal(access.stack_distances(accesses), by_sets(accesses.tolist()))


def test_a_block_that_a_sequential_reader_comes_back_to_is_no_reuse():
    files, sizes = np.zeros(4, np.int64), np.full(4, 1024)
    offsets = np.arange(0, 4096, 1024)
    found = access.reuse(files, offsets, sizes, np.ones(4, bool))
    assert (found.rate, len(found.distances)) == (1.0, 1)
    jumps = access.reuse(files, offsets, sizes, np.zeros(4, bool))
    np.testing.assert_array_equal(jumps.distances, [NAN, 0, 0, 0])


def epochs(num_files: int, calls_per_file: int, num: int) -> tuple[np.ndarray, ...]:
    """Files read whole, one after the other, `num` times."""
    files = np.tile(np.repeat(np.arange(num_files), calls_per_file), num)
    offsets = np.tile(np.arange(calls_per_file) * 65536, num_files * num)
    return files, offsets, np.full(len(files), 65536), np.ones(len(files), bool)


def test_the_reuse_distance_of_epochs_is_the_data():
    found = access.reuse(*epochs(num_files=3, calls_per_file=10, num=2))
    again = found.distances[~np.isnan(found.distances)]
    assert len(again) == len(found.distances) / 2
    # All other blocks lie between two reads of one.
    assert set(again) == {3 * 10 * 65536 - access.BLOCK_BYTES}


def test_sampled_distances_are_close_to_exact_ones():
    given = epochs(num_files=20, calls_per_file=100, num=3)
    exact, sampled = access.reuse(*given), access.reuse(*given, most=5000)
    assert exact.rate == 1 and 0.04 < sampled.rate < 0.06
    assert len(sampled.distances) == pytest.approx(len(exact.distances) * sampled.rate, rel=0.1)
    assert np.nanmedian(sampled.distances) == pytest.approx(np.nanmedian(exact.distances), rel=0.05)


def test_calls_in_flight_worked_out_by_hand():
    # 0 to 10, 5 to 15, 10 to 20, 40 to 50: one for 5 s, two for 10 s and one for 5 s and 10 s
    begins, latencies = np.array([0, 5, 10, 40]) * 10**9, np.array([10, 10, 10, 10]) * 10**9
    found = access.InFlight.of(begins, latencies)
    assert found.figures() == {
        "mean": round(40 / 30, 4), "p50": 1, "p95": 2, "max": 2, "busy_seconds": 30.0
    }  # fmt: skip
    edges = np.array([0, 10, 20, 40, 60]) * 10**9
    np.testing.assert_allclose(found.mean_over(edges), [1.5, 1.5, 0.0, 0.5])
    assert access.InFlight.of(begins[:0], latencies[:0]).figures() is None


# --- counters of processes ----------------------------------------------------------------------


CHILD = [(0, 1, 0, 10, 0), (0, 2, 1, 500, 80)]


@pytest.mark.parametrize(
    ("rows", "ran_before", "calls", "storage"),
    [
        # The kernel adds the child's 900 and 100 to the parent that has waited for it.
        ([*CHILD, (1, 1, 0, 10, 0), (1, 2, 1, 900, 100), (2, 1, 0, 920, 100), (3, 1, 0, 930, 130)],
         False, [510, 910, 920, 930], [80, 100, 100, 130]),
        # Nobody waited for it: it keeps what it had.
        ([*CHILD, (1, 1, 0, 20, 0)], False, [510, 520], [80, 80]),
        ([*CHILD, (1, 1, 0, 20, 0)], True, [0, 10], [0, 0]),
        # What storage gave does not shrink, whatever the kernel has added.
        ([*CHILD, (1, 1, 0, 520, 70)], False, [510, 520], [80, 80]),
        ([(0, 1, 0, 1, None)], False, [], []),  # without the right to read counters
    ],
)  # fmt: skip
def test_counters_of_processes_that_end_are_added_up_once(rows, ran_before, calls, storage):
    samples = pd.DataFrame([by_hand.process(*row) for row in rows])
    samples = samples.assign(seconds=[row[0] for row in rows])
    found = loaded.totals(samples, ran_before=ran_before)
    assert list(found["read_call_bytes"]) == calls
    assert list(found["storage_read_bytes"]) == storage


# --- a whole trace by hand ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def summary(tmp_path_factory):
    """Two passes over a file of 40 kB in four reads each, a jump, and a socket."""
    folder = tmp_path_factory.mktemp("by_hand")
    data, writing_of_log = by_hand.training(folder)
    lines = [by_hand.opened(1, data)]
    lines += [by_hand.pread(2 + n, data, n * 10_000, 10_000, latency_s=0.5) for n in range(4)]
    lines += [by_hand.opened(6, data, fd=4)]
    lines += [
        by_hand.pread(6.1 + n / 10, data, n * 10_000, 10_000, fd=4, latency_s=0.25)
        for n in range(4)
    ]
    server, loopback = "TCP:[10.0.0.1:5->10.0.0.2:443]", "TCPv6:[[::1]:5->[::1]:80]"
    lines += [
        by_hand.line(7.0, f'recvfrom(5<{server}>, "", 900, 0, NULL, NULL) = 700'),
        by_hand.line(7.1, f'read(5<{server}>, "", 900) = 50'),
        by_hand.line(7.2, f'sendto(5<{server}>, "", 30, 0, NULL, 0) = 30'),
        by_hand.line(7.3, f'recvfrom(6<{loopback}>, "", 900, 0, NULL, NULL) = 9'),
        by_hand.line(7.4, 'read(8<UNIX-STREAM:[1->2, "/run/x"]>, "", 900) = 9'),
        *writing_of_log,
    ]
    # Storage gives the first pass, and none of the second.
    processes = [by_hand.process(s, 7, 1, 0, min(s, 5) * 10_000) for s in range(10)]
    return by_hand.make(folder / "trace", lines, processes=processes)


def test_figures_of_access_of_a_trace_by_hand(summary):
    found = summary
    [block], access_found = found["phases"], found["access"]
    assert block["storage_read_bytes"] == 45_000  # 10,000 a second from 0.5 s until 5 s
    of_class = access_found["file_classes"]["tfrecords"]
    assert of_class["patterns"]["sequential"] == {
        "num_calls": 8, "bytes": 80_000, "share_of_calls": 1.0, "share_of_bytes": 1.0
    }  # fmt: skip
    assert of_class["patterns"]["random"]["num_calls"] == 0
    assert (of_class["distinct_bytes"], of_class["read_amplification"]) == (40_000, 2.0)
    cached = {"call_bytes": 80_000, "storage_bytes": 50_000, "hit_ratio": round(1 - 50 / 80, 4)}
    assert cached.items() <= access_found["page_cache"].items()
    assert access_found["samples"] == {
        "num_trained": 20, "call_bytes_per_sample": 4000.0, "storage_bytes_per_sample": 2500.0
    }  # fmt: skip
    first, second = access_found["passes"]
    assert (first["begin_seconds"], first["seconds"], first["call_bytes"]) == (2.0, 3.0, 40_000)
    assert first["storage_bytes"] == 30_000  # from second 2 to second 5
    assert (second["call_bytes"], second["storage_bytes"]) == (40_000, 0)
    # Loopback and local sockets are left out.
    network = access_found["network"]
    assert network["of_processes"] == {"received_bytes": 750, "sent_bytes": 30}
    assert network["of_name_spaces"] is None


def test_reuse_and_queue_depth(summary):
    found = summary["access"]
    blocks = found["reuse"]["file_classes"]["tfrecords"]
    assert found["reuse"]["method"] == "exact"
    # 40,000 bytes are 10 blocks; the second pass reads each after the 9 others.
    assert (blocks["num_block_reads"], blocks["first_reads_share"]) == (20, 0.5)
    assert blocks["distance_bytes"]["p50"] == blocks["distance_bytes"]["max"] == 9 * 4096
    assert blocks["share_within_bytes"]["65536"] == 0.5
    depth = found["queue_depth"]["read_calls"]
    # Four of 0.5 s alone; then 0.1 s apart, 0.25 s each: 1, 2, 3, 2 ... over 0.55 s.
    assert depth["max"] == 3
    assert depth["busy_seconds"] == pytest.approx(2 + 0.55)
    assert depth["mean"] == pytest.approx(3 / 2.55, abs=1e-4)


def test_the_counters_of_another_name_space_are_sampled():
    command = ["unshare", "--net", "sh", "-c", "echo ready; read -r _"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **pipes) as other:
        if other.stdout.readline() != b"ready\n":
            pytest.skip("this user cannot make a network name space")
        found = sampling.pid_of_name_space([os.getpid(), other.pid])
        assert list(found.values()) == [other.pid]
        rows = list(sampling.network_rows(other.pid))
        other.stdin.close()
    assert [(row["device"], row["name_space"]) for row in rows] == [("lo", *found)]
    own = str(Path("/proc/self/ns/net").readlink())
    assert {row["name_space"] for row in sampling.network_rows()} == {own}
