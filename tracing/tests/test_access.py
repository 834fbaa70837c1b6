"""Figures of access, of arrays made by hand; test_whole has those of whole traces."""

import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tracing import access, access_figures, calls, figures, loaded
from tracing.tests import by_hand

NAN = float("nan")


def test_patterns_of_reads_worked_out_by_hand():
    #         one file open twice, each with its own position       not seen to be opened
    opened = [0, 0, 1, 0, 1, 1, 1, 0, 0, NAN, 0]
    offsets = [0, 10, 50, 20, 110, 170, 230, 5, 30, 0, NAN]
    sizes = [10, 10, 10, 10, 10, 10, 10, 5, 10, 10, 10]
    columns = {"opening": opened, "offset_bytes": offsets, "size_bytes": sizes}
    found = access.patterns(pd.DataFrame(columns))
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


def test_calls_in_flight_worked_out_by_hand():
    # 0 to 10, 5 to 15, 10 to 20, 40 to 50: one for 5 s, two for 10 s and one for 5 s and 10 s
    begins, latencies = np.array([0, 5, 10, 40]) * 10**9, np.array([10, 10, 10, 10]) * 10**9
    figures = {"mean": round(40 / 30, 4), "max": 2, "busy_seconds": 30.0}
    assert access.queue_depth(begins, latencies) == figures
    assert access.queue_depth(begins, latencies * 0) is None


# --- names after renames ------------------------------------------------------------------------


def operations(*rows: tuple) -> pd.DataFrame:
    """Of file_ops: (kind, path, new path), a nanosecond apart."""
    found = pd.DataFrame(rows, columns=["kind", "path", "new_path"], dtype=object)
    return found.assign(error=None, opening=NAN, latency_ns=0, monotonic_ns=range(len(found)))


def test_a_name_that_was_not_read_or_a_rename_that_failed_renames_nothing():
    rows = [("read", "unknown:", None), ("read", "/d/x", None), ("rename", "unknown:", "/d/y"),
            ("rename", "/d/x", "unknown:"), ("rename", "/d/", "/e/"),
            ("rename", "/e/x", "/e/z")]  # fmt: skip
    found = operations(*rows).assign(error=[*[None] * 5, "EACCES"])
    assert list(loaded._final_paths(found))[:2] == ["unknown:", "/e/x"]


def test_a_renamed_name_is_not_the_beginning_of_another_one():
    rows = [("read", "/d/p1", None), ("read", "/d/p/x", None), ("rename", "/d/p", "/d/q")]
    assert list(loaded._final_paths(operations(*rows)))[:2] == ["/d/p1", "/d/q/x"]


@pytest.mark.parametrize(
    ("given", "renamed"),
    [
        (("rename", "/a/", "/b"), {"/a": "/b", "/b": "/b\0"}),
        (("exchange", "/a", "/b"), {"/a": "/b", "/b": "/a"}),
        (("remove", "/a/", None), {"/a": "/a\0"}),
        (("rename", "/a", "/a/"), {}),  # to its own name does nothing
        (("rename", "/a", None), {}),
        (("remove", None, None), {}),
    ],
)
def test_whom_a_rename_concerns(given, renamed):
    assert calls.new_names(*given) == renamed


def test_an_opening_knows_its_file_when_another_has_its_name():
    rows = [("create", "/d/x", None), ("remove", "/d/x", None), ("read", "/d/x", None),
            ("create", "/d/x", None), ("rename", "/d/x", "/d/y")]  # fmt: skip
    found = operations(*rows).assign(opening=[1, NAN, 1, 2, NAN])
    assert list(loaded._final_paths(found)) == ["/d/x", "/d/x", "/d/x", "/d/y", "/d/y"]


def test_time_grows_as_the_number_of_renames():
    num = 10_000  # one by one they took minutes
    rows = [row for n in range(num) for row in (("write", f"/d/{n}.tmp", None),
                                                ("rename", f"/d/{n}.tmp", f"/d/{n}"),
                                                ("read", f"/{'ab'[n % 2]}/x", None),
                                                ("rename", f"/{'ab'[n % 2]}", f"/{'ba'[n % 2]}"))
            ]  # fmt: skip
    began = time.process_time()
    found = loaded._final_paths(operations(*rows))
    assert time.process_time() - began < 20
    assert list(found[-4:]) == [f"/d/{num - 1}", f"/d/{num - 1}", "/a/x", "/a"]


def test_a_call_during_an_exchange_has_the_name_before_or_after_it():
    rows = [("exchange", "/d/a", "/d/b"), ("read", "/d/b", None), ("rename", "/d/a", "/d/c")]
    found = operations(*rows).assign(latency_ns=[1.5, 0, 0])
    assert list(loaded._final_paths(found)) == ["/d/b", "/d/c", "/d/c"]
    rows = [("read", "/d/b", None), ("rename", "/d/a", "/d/b"), ("rename", "/d/b", "/d/c")]
    assert list(loaded._final_paths(operations(*rows))) == ["/d/b", "/d/c", "/d/c"]


def test_renames_are_done_in_the_order_of_their_returns():
    rows = [("rename", "/d/a", "/d/b"), ("rename", "/d/b", "/d/c")]
    found = operations(*rows).assign(latency_ns=[10, 0])
    assert list(loaded._final_paths(found)) == ["/d/b", "/d/c"]
    found = operations(*rows).assign(latency_ns=[NAN, 0])  # it was not seen to return
    assert list(loaded._final_paths(found)) == ["/d/c", "/d/c"]
    # Those that return at once are in the order in which they were recorded.
    rows = [("rename", f"/d/{n}", f"/d/{n + 2}") for n in range(40)]
    found = operations(*rows).assign(monotonic_ns=[n % 2 for n in range(40)])
    assert loaded._final_paths(found)[0] == "/d/40"


def test_a_pass_ends_with_the_read_that_completes_it():
    """Evaluations are none; a file that is renamed in between is the same file."""
    rows = [("read", f"/d/{name}", None) for name in "xxezzeez"]
    reads = operations(*rows).assign(file_class="tfrecords", size_bytes=100, seconds=range(8))
    reads = reads.assign(offset_bytes=[0, 100, 0, 0, 100, 0, 0, 50], final_path=reads["path"])
    reads["final_path"] = reads["final_path"].replace("/d/x", "/d/z")
    phases = [("eval", 2, 2), ("block", 0, 7), ("eval", 5, 6)]
    trace = loaded.Trace(Path("/none"), {"begin_monotonic_ns": 0})
    columns = ["name", "monotonic_ns", "end_monotonic_ns"]
    trace.__dict__ |= {"transfers": reads, "spans": pd.DataFrame(phases, columns=columns)}
    trace.summary["losses"] = {"asynchronous_processes": 0}
    trace.storage_counters = pd.DataFrame()
    passes = [tuple(found.values()) for found in access_figures._passes(trace)]
    assert passes == [(0, 1, 200, None), (1, 3, 200, None), (4, 3, 100, None)]


def test_files_of_terabytes_do_not_overlap():
    columns = ([*[0] * 44, 1], [*(2**n for n in range(44)), 0], [1] * 45)
    assert access.distinct_bytes(*map(np.array, columns)) == 45


# --- counters of processes ----------------------------------------------------------------------


CHILD = [(0, 1, 0, 10, 0), (0, 2, 1, 500, 80)]


@pytest.mark.parametrize(
    ("rows", "ran_before", "calls", "storage"),
    [
        # The kernel adds the child's 900 and 100 to the parent that has waited for it.
        ([*CHILD, (1, 1, 0, 10, 0), (1, 2, 1, 900, 100), (2, 1, 0, 920, 100), (3, 1, 0, 930, 130)],
         False, [510, 910, 920, 930], [80, 100, 100, 130]),
        # And it may have added them before the parent used anything more itself.
        ([*CHILD, (1, 1, 0, 510, 80), (2, 1, 0, 515, 80)], False, [510, 510, 515], [80, 80, 80]),
        # So it does for a grandchild, whose parent was seen last when it was.
        ([*CHILD, (0, 3, 2, 200, 0), (1, 1, 0, 720, 80)], False, [710, 720], [80, 80]),
        # Of the tracer that has started the command, only what the kernel has added is known.
        ([(0, 2, 1, 500, 80), (1, 1, 0, 900, 100)], False, [500, 900], [80, 100]),
        # Nobody waited for it: it keeps what it had.
        ([*CHILD, (1, 1, 0, 20, 0)], False, [510, 520], [80, 80]),
        ([*CHILD, (1, 1, 0, 20, 0)], True, [0, 10], [0, 0]),
        # What storage gave does not shrink, whatever the kernel has added.
        ([*CHILD, (1, 1, 0, 520, 70)], False, [510, 520], [80, 80]),
        # While a sample was read, numbers of processes were taken again: each is above the other.
        ([(0, 2, 3, 0, 5), (0, 3, 2, 0, 0), (0, 4, 2, 0, 7), (1, 1, 0, 10, 3)],
         False, [0, 10], [12, 15]),
        # A child that has read only what it mapped.
        ([(0, 1, 0, 10, 0), (0, 2, 1, 0, 5), (1, 1, 0, 10, 5)], False, [10, 10], [5, 5]),
        ([(0, 1, 0, None, None)], True, [], []),  # without the right to read counters
    ],
)  # fmt: skip
def test_counters_of_processes_that_end_are_added_up_once(rows, ran_before, calls, storage):
    samples = pd.DataFrame([by_hand.process(*row) for row in rows])
    samples = samples.assign(seconds=[row[0] for row in rows])
    found = loaded.totals(samples, ran_before=ran_before)
    assert list(found["read_call_bytes"]) == calls
    assert list(found["storage_read_bytes"]) == storage


@pytest.mark.parametrize(("command", "expected"), [(["sh"], [740, 900]), ([], [0, 160])])
def test_processor_time_from_before_the_trace_is_not_the_traces(command, expected):
    """Without a command what is traced ran already; a child's 40 ms have become its parent's."""
    rows = [by_hand.process(second, pid, 1, 0, 0) for second, pid in ((0, 1), (1, 1), (0, 2))]
    rows[2]["num_threads"] = 0  # it has ended
    spent = {"user_ms": [500, 600, 30], "system_ms": [150, 200, 10], "children_ms": [50, 100, 0]}
    columns = spent | {"seconds": [0, 1, 0], "children_minor_faults": 0, "children_major_faults": 0}
    trace = loaded.Trace(
        Path("/none"), {"begin_monotonic_ns": 0, "command": command, "backend": "proc"}
    )
    trace.__dict__["table"] = lambda name: pd.DataFrame(rows).assign(**columns)
    assert list(trace.usage["cpu_ms"]) == expected
    assert figures._usage(trace)["num_processes_sampled"] == 1


@pytest.mark.parametrize(
    ("storage", "counted", "asynchronous", "expected"),
    [(900, 950, 0, 0.1), (1200, 1000, 0, 0.0), (1300, 1000, 0, None), (200, 949, 0, None),
     (200, 1000, 1, None)],
)  # fmt: skip
def test_a_hit_ratio_is_null_where_it_is_not_known(storage, counted, asynchronous, expected):
    reads = operations(("read", "/d/x", None)).assign(
        operation="read", size_bytes=1000, file_class="other", seconds=0.0
    )
    counters = pd.DataFrame({"read_call_bytes": [counted], "storage_read_bytes": [storage]})
    trace = loaded.Trace(
        Path("/none"),
        {
            "begin_monotonic_ns": 0,
            "backend": "strace",
            "losses": {"asynchronous_processes": asynchronous},
        },
    )
    made = pd.concat([reads, reads.assign(operation="splice")])  # counters omit the second
    trace.__dict__ |= {"operations": made, "transfers": reads, "reads": reads, "counters": counters}
    found = access_figures._page_cache(trace, *access_figures._storage(trace))
    assert found["hit_ratio"] == expected
    assert (found["storage_bytes"] is None) == (counted < 950)
    assert ("storage gave more" in found["calls_from"]) == (storage == 1300)
    trace.training_reads = reads.assign(offset_bytes=0, file_number=0)
    passes = list(access_figures._passes(trace))
    assert bool(passes) == (not asynchronous)
    phase = {"name": "eval", "seconds": 0, "end_seconds": 1, "is_closed": True}
    trace.spans = pd.DataFrame([phase])
    for each in ("storage_bytes", passes), ("storage_read_bytes", list(figures._phases(trace))):
        assert all((found[each[0]] is None) == (counted < 950) for found in each[1])


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([(800, 200)], (800, "counters of the processes, pipes and sockets included", 200,
                        "counters of the processes, /proc/PID/io", 0.75)),
        ([], (None, "unknown: no counters were readable", None,
              "unknown: no counters were readable", None)),
    ],
)  # fmt: skip
def test_without_calls_the_counters_have_the_bytes(samples, expected):
    summary = {"begin_monotonic_ns": 0, "backend": "proc", "losses": {"asynchronous_processes": 0}}
    trace = loaded.Trace(Path("/none"), summary)
    trace.counters = pd.DataFrame(samples, columns=["read_call_bytes", "storage_read_bytes"])
    assert tuple(access_figures.access_figures(trace)["page_cache"].values()) == expected


def test_processors_have_shares_of_the_time_that_has_passed():
    times = [(0, 10, 0, 0, 10, 0), (1, 11, 2, 3, 14, 10), (2, 11, 2, 3, 14, 10)]
    columns = ["seconds", "user_ms", "system_ms", "iowait_ms", "idle_ms", "steal_ms"]
    trace = loaded.Trace(Path("/none"), {"begin_monotonic_ns": 0})
    trace.__dict__["table"] = lambda name: pd.DataFrame(times, columns=columns)
    assert trace.cpu_percentages().round(6).to_dict("split")["data"] == [[5, 10, 15]]


def test_a_process_has_its_last_command_line_or_else_its_last_program():
    executed = [(1, "exec", "/bin/sh"), (2, "exec", "/bin/sh"), (2, "exec", "/bin/ls"),
                (3, "exit", "0"), (4, "exec", "/bin/cat")]  # fmt: skip
    # One that has ended has no command line any more.
    sampled = [(1, "sh x"), (1, "cat x"), (1, ""), (4, "")]
    names = {"process_events": ["pid", "event", "detail"], "processes": ["pid", "command"]}
    rows = {"process_events": executed, "processes": sampled}
    trace = loaded.Trace(Path("/none"), {"begin_monotonic_ns": 0})
    trace.__dict__["table"] = lambda name: pd.DataFrame(rows[name], columns=names[name])
    assert trace.process_names() == {1: "cat x", 2: "/bin/ls", 4: "/bin/cat"}


def test_a_counter_grows_evenly_between_samples_and_not_before_them():
    counters = pd.DataFrame({"x": [10, 30]}, index=[1.0, 3.0])
    assert loaded.grown(counters, "x", [0, 1, 2, 4]) == [10, 10, 10]
    assert loaded.grown(counters[:0], "x", [0, 1, 2]) == [None, None]
