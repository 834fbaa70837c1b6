"""Whole traces by hand: of all that can happen, everything that a trace leaves, as text.

    python -m tracing.tests.whole         # writes expected/ again: read the difference

No two times, sizes or latencies are equal, so that one in place of another shows.
"""

import importlib
import itertools
import json
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from google.protobuf import text_format
from matplotlib.figure import Figure

from mlperf_bert.data import tfrecord
from tracing import look, outputs, recording, tables
from tracing.clocks import Alignment, ClockPair
from tracing.containers import Container
from tracing.export import OUTPUTS
from tracing.loaded import Trace
from tracing.recording import RAW, RawFile
from tracing.tests import by_hand, chakra_reader, perfetto_reader
from tracing.tests.by_hand import BEGIN_S, SECOND, line, log, process

EXPECTED = Path(__file__).parent / "expected"
BACKENDS = ("strace", "bpftrace", "proc")
RECORDED = Path(__file__).parent / "recorded_bpftrace.txt"
SERVER, LOOPBACK = "TCP:[10.0.0.1:5->10.0.0.2:443]", "TCPv6:[[::1]:5->[::1]:80]"
# From seconds before the trace to a run that is cut; the ledger of a block follows its end.
LOG = [
    ("run_start", -5, None, {}), ("init_start", 0.1, None, {}), ("global_batch_size", 0.2, 4, {}),
    ("gradient_accumulation_steps", 0.21, 2, {}), ("eval_samples", 0.22, 3, {}),
    ("init_stop", 0.4, None, {}), ("run_start", 0.41, None, {}),
    ("block_start", 0.5, None, {"first_epoch_num": 0}),
    ("block_stop", 4, None, {"first_epoch_num": 0, "samples_count": 8}),
    ("tracked_stats", 4, {"input_wait_seconds": 1.0, "compute_seconds": 2.0, "saving_seconds": 0.5},
     {"of": "block", "first_epoch_num": 0, "samples_count": 8}),
    ("eval_start", 4.01, None, {}), ("eval_stop", 4.8, None, {}),
    ("eval_accuracy", 4.81, 0.3, {}),
    ("checkpoint_start", 4.85, None, {}), ("checkpoint_stop", 5.2, None, {}),
    ("block_start", 5.3, None, {"first_epoch_num": 8}),
    ("checkpoint_start", 7.1, None, {}), ("checkpoint_stop", 7.7, None, {}),
    ("block_stop", 8, None, {"first_epoch_num": 8, "samples_count": 20}),
    ("tracked_stats", 8.1, {"throughput": 3.5}, {"step": 10}),
    ("block_start", 8.5, None, {"first_epoch_num": 20}),
]  # fmt: skip
# Of another run, which ends at the same time and in between.
OTHER_LOG = [
    ("block_start", 6, None, {"first_epoch_num": 0}),
    ("block_stop", 8, None, {"first_epoch_num": 0, "samples_count": 6}),
]


def _data(folder: Path) -> None:
    sizes = {"part-0": [3984] * 10, "part-1": [984] * 5 + [3984] * 3, "eval": [700, 1000, 1300]}
    for name, lengths in sizes.items():
        framed = b"".join(tfrecord.frame(bytes(length)) for length in lengths)
        (folder / name).write_bytes(framed)
    (folder / "bert.log").write_text(log(LOG))
    (folder / "copied.log").write_text(log(LOG))
    (folder / "other.log").write_text(log(OTHER_LOG))
    (folder / "mounted" / "deep").mkdir(parents=True)
    (folder / "mounted" / "part-9").write_bytes(tfrecord.frame(bytes(84)) * 5)
    (folder / "mounted" / "deep" / "inner.log").write_text(log([("seed", 3, 7, {})]))


def _calls(folder: Path) -> Iterator[tuple[float, int, str]]:  # noqa: PLR0915 - a list of calls
    """(seconds, thread, call) of processes 7 and 8; 17 is a thread of 7."""
    part_0, part_1, evaluated = (folder / name for name in ("part-0", "part-1", "eval"))

    def opened(name: object, fd: int, flags: str = "O_RDONLY") -> str:
        return f'openat(AT_FDCWD<{folder}>, "{name}", {flags}) = {fd}<{name}>'

    def pread(name: object, fd: int, size: int, offset: int) -> str:
        return f'pread64({fd}<{name}>, "", {size}, {offset}) = {size}'

    yield 0.03, 7, 'execve("/usr/bin/python3", ["python3"], 0x7ff /* 9 vars */) = 0'
    yield 0.05, 7, "clone3({flags=CLONE_VM|CLONE_FILES|CLONE_THREAD}, 88) = 17"
    yield 0.06, 7, "clone(child_stack=NULL, flags=CLONE_CHILD_SETTID|SIGCHLD) = 8"
    yield 0.07, 7, opened("/usr/lib/libx.so", 3)
    yield 0.08, 7, "mmap(NULL, 9000, PROT_READ, MAP_PRIVATE, 3</usr/lib/libx.so>, 4096) = 0x7f00"
    yield 0.09, 7, f'mkdir("{folder}/made", 0777) = 0'
    yield 0.095, 7, f'openat(AT_FDCWD<{folder}>, "none", O_RDONLY) = -1 ENOENT (No such file)'
    yield 0.45, 7, opened(folder / "bert.log", 9, "O_WRONLY|O_CREAT|O_APPEND")
    yield 0.46, 7, f'write(9<{folder}/bert.log>, "", 100) = 100'
    # Where the file ended when it was appended to, nobody knows.
    yield 0.465, 7, f'read(9<{folder}/bert.log>, "", 7) = 7'
    yield 0.47, 7, opened(folder / "copied.log", 10, "O_WRONLY|O_CREAT")
    yield 0.48, 8, opened(folder / "other.log", 11, "O_WRONLY|O_CREAT")
    yield 0.55, 7, opened(part_0, 4)
    yield 0.6, 7, f'read(4<{part_0}>, "", 4096) = 4096'
    yield 0.7, 7, f'read(4<{part_0}>, "", 10000) = 9904'
    yield 0.75, 17, opened(part_1, 5)
    for n, (size, offset) in enumerate([(3000, 5000), (3000, 0), (2500, 4000), (2500, 7500)]):
        yield 0.8 + 0.21 * n, 17, pread(part_1, 5, size, offset)
    yield 1.3, 7, pread(part_0, 4, 26000, 14000)
    yield 1.9, 7, f"pread64(4<{part_0}>, 0x7f, 10, 40000) = 0"
    yield 2.0, 7, f"pread64(4<{part_0}>, 0x7f, 11, 0) = -1 EIO (Input/output error)"
    yield 2.1, 7, f"close(4<{part_0}>) = 0"
    yield 2.15, 7, pread(part_0, 40, 5, 1)  # nobody saw it opened
    yield 2.2, 7, opened(part_0, 4)
    for n in range(5):
        yield 2.3 + 0.23 * n, 7, pread(part_0, 4, 7000, 8000 * n)
    yield 2.75, 17, f"lseek(5<{part_1}>, 2000, SEEK_SET) = 2000"
    yield 2.85, 17, f"readv(5<{part_1}>, [], 2) = 1900"
    yield 2.95, 8, f'read(21<{part_1}>, "", 600) = 600'
    yield 4.1, 7, opened(evaluated, 6)
    yield 4.15, 7, pread(evaluated, 6, 1700, 0)
    yield 4.3, 7, pread(evaluated, 6, 1348, 1700)
    yield 4.5, 7, pread(part_1, 5, 77, 33)
    for begin, step, (index, data) in ((4.9, 4, (310, 41_000)), (7.2, 10, (330, 43_000))):
        final = f"{folder}/out/model.ckpt-{step}"
        for n, (size, suffix) in enumerate(((index, "index"), (data, "data-00000-of-00001"))):
            at = begin + 0.1 * n
            temporary = f"{folder}/out/saved" if n else f"{final}.index.tempstate7"
            yield at, 7, opened(temporary, 12, "O_WRONLY|O_CREAT|O_TRUNC")
            yield at + 0.01, 7, f'write(12<{temporary}>, "", {size - 10}) = {size - 10}'
            yield at + 0.03, 7, f'pwrite64(12<{temporary}>, "", 10, {size - 10}) = 10'
            yield at + 0.04, 7, f"{'fsync' if n else 'fdatasync'}(12<{temporary}>) = 0"
            yield at + 0.05, 7, f"close(12<{temporary}>) = 0"
            yield at + 0.06, 7, f'rename("{temporary}", "{final}.{suffix}") = 0'
    yield 5.4, 7, opened(folder / "out/copy", 13, "O_WRONLY|O_CREAT")
    yield 5.45, 7, f"sendfile(13<{folder}/out/copy>, 4<{part_0}>, [500], 900) = 900"
    copied = f"4<{part_0}>, [100], 13<{folder}/out/copy>, NULL"
    yield 5.5, 7, f"copy_file_range({copied}, 300, 0) = 300"
    yield 5.6, 7, f'unlink("{folder}/out/copy") = 0'
    yield 6.1, 17, pread(part_1, 5, 1000, 0)
    yield 6.3, 7, f'recvfrom(14<{SERVER}>, "", 900, 0, NULL, NULL) = 700'
    yield 6.31, 7, f'sendto(14<{SERVER}>, "", 30, 0, NULL, 0) = 30'
    yield 6.32, 7, f'read(14<{SERVER}>, "", 99) = 50'
    yield 6.33, 7, f'recvfrom(15<{LOOPBACK}>, "", 900, 0, NULL, NULL) = 9'
    yield 6.34, 7, 'write(16<pipe:[7]>, "", 90) = 90'
    yield 6.35, 7, 'read(18</proc/cpuinfo>, "", 512) = 501'
    # Names as strace writes them: white space, a line's end, letters of two bytes; a long one.
    for n, name in enumerate(("part 0 of \\303\\251\\n", "n" * 200), 30):
        yield 6.4 + n / 100, 7, opened(f"/data/{name}", n)
        yield 6.41 + n / 100, 7, pread(f"/data/{name}", n, n, 3)
    yield 6.8, 7, opened("/data/O_APPEND", 33, "O_RDWR")
    yield 6.81, 7, 'write(33</data/O_APPEND>, "", 21) = 21'
    yield 8.6, 17, pread(part_1, 5, 444, 5556)
    yield 8.7, 8, f'renameat(AT_FDCWD<{folder}>, "out", AT_FDCWD<{folder}>, "kept") = 0'


def _container(folder: Path) -> tuple[Container, str]:
    """A container that sees a folder under another name, and strace's lines of it."""
    mounts = [(f"{folder}/mounted/deep", "/in/deep"), (f"{folder}/mounted", "/in")]
    log = "/in/deep/inner.log"
    calls = [
        (3.0, 'mkdir("relative", 0777) = 0'),
        (3.1, 'openat(AT_FDCWD</>, "in/part-9", O_RDONLY) = 3</in/part-9>'),
        (3.2, 'read(3</in/part-9>, "", 900) = 500'),
        (3.3, f'openat(AT_FDCWD</>, "{log}", O_WRONLY|O_CREAT) = 4<{log}>'),
    ]  # fmt: skip
    lines = [
        line(at, call, latency_s=0.0031 + n / 1000, tid=500) for n, (at, call) in enumerate(calls)
    ]
    return Container("docker", "c", 999_999_999, mounts), "".join(lines)


def _strace(folder: Path) -> str:
    calls = sorted(_calls(folder))
    lines = [
        line(at, call, latency_s=(1 + n % 7) * 0.013 + n * 1e-5, tid=tid)
        for n, (at, tid, call) in enumerate(calls)
    ]
    stamp = f"{BEGIN_S + 9}.250000000"
    lines += [f"8 {stamp} +++ exited with 0 +++\n", f'17 {stamp} read(5<{folder}/part-1>, "" <unf']
    return "".join([*lines, "\n", f'7 {stamp} read(3</x>, "", 1 <unfinished ...>\n'])


# Sampled table -> whose numbers its rows hold.
_OWNERS: dict[str, list[dict]] = {
    "cpus": [{"cpu": 0}, {"cpu": 1}],
    "memory": [{}],
    "disks": [{"device": "vda"}, {"device": "vdb"}],
    "networks": [{"device": "lo"}, {"device": "eth0"}],
    "gpus": [{"gpu": 0, "name": "A100"}, {"gpu": 1, "name": "A100"}],
    "threads": [{"pid": 7, "tid": tid, "name": f"t{tid}"} for tid in (7, 17)],
    "open_files": [{"pid": 7, "fd": 4, "path": "/data/x", "file_class": "other"}],
}  # fmt: skip


def _samples(table: str) -> Iterator[dict]:
    """Rows of ten seconds; each number grows, and no two columns or owners alike."""
    owners = _OWNERS[table]
    numbers = [name for name in tables.COLUMNS[table] if name not in owners[0]]
    for n in range(10):
        for k, owner in enumerate(owners, 1):
            grown = {
                name: 50 * m + k + n * (7 * m + k) + n * n for m, name in enumerate(numbers, 1)
            }
            # A thread gets its name after its beginning.
            named = {"name": "python3"} if table == "threads" and not n else {}
            yield {"monotonic_ns": (1000 + n) * SECOND, **owner, **grown, **named}


def _processes() -> Iterator[dict]:
    """The child ends in second 6, and is added to its parent in second 7."""
    for n in range(10):
        taken = 9000 if n >= 7 else 0
        calls = 60_900 + 5000 * n + taken
        grown = process(n + 0.3, 7, 1, calls, 350 + 2000 * min(n, 5) + taken // 3)
        grown |= {"user_ms": 200 * n, "system_ms": 30 * n, "resident_bytes": 10**8 + n * 1000}
        grown |= {
            "children_ms": 4270 * (n >= 7),
            "children_minor_faults": 3 * (n >= 7),
            "children_major_faults": 2 * (n >= 7),
        }
        yield grown | {"num_threads": 2, "minor_faults": 10 * n, "major_faults": n}
        if n <= 6:
            child = process(n + 0.3, 8, 7, 1500 * n, 500 * n)
            yield child | {"command": "a $5 child", "user_ms": 700 * n, "resident_bytes": 3000 * n}


def _pairs() -> list[ClockPair]:
    """Of a wall clock that loses 400 ns and then gains 900."""
    return [
        ClockPair(1000 * SECOND + at, BEGIN_S * SECOND + at + ahead, 1003 * SECOND + at, width)
        for at, ahead, width in ((0, 0, 90), (4 * SECOND, -400, 120), (10 * SECOND, 500, 100))
    ]


# A request from before the trace; a page within a call that reads, one of nobody's.
_EARLY = "block\t29008501299999\t1\t266338304\t8\t4096\t9\tR\tjbd2\n"
_PAGES = "".join(
    f"{kind}\t{at}\t23056\t{tid}\t266338304\t{inode}\t{page}\n"
    for kind, at, tid, inode, page in (
        ("cached", 29008501820000, 23154, 5, 3), ("fault", 29008503000000, 23056, 6, 1667),
    )
) + "".join(  # one begins where the one before it ends
    f"block\t{at}\t7\t266338305\t8\t4096\t1000\tR\tpython3\n"
    for at in (29008509300000, 29008509301000)
)  # fmt: skip


def write(folder: Path, backend: str) -> Path:
    """The whole trace of one backend; returns its folder."""
    trace = folder / "trace"
    (trace / RAW).mkdir(parents=True)
    _data(folder)
    pairs, raw = _pairs(), ""
    if backend == "strace":
        raw = _strace(folder)
    elif backend == "bpftrace":
        begin = 29_008_501_300_000  # of the recorded lines
        pairs = [
            ClockPair(begin - 77 + at, BEGIN_S * SECOND + at, begin + at, 50)
            for at in (0, 20_000_000)
        ]
        raw = _EARLY + RECORDED.read_text() + _PAGES
    (trace / RAW / "0.txt").write_text(raw)
    containers, raw_files = [], [RawFile("0.txt", None), RawFile("absent", None)]
    if backend == "strace":
        container, lines = _container(folder)
        (trace / RAW / "1.txt").write_text(lines)
        containers, raw_files = [container], [*raw_files, RawFile("1.txt", container)]
    taken = by_hand.recording(
        command=["python", "train.py", "a b"], folder=str(folder), exit_code=75,
        ended_by="SIGTERM", backend=backend, notes=["a note"], containers=containers,
        raw_files=raw_files, num_lost_lines=2, pairs=pairs,
        machine={"num_cpus": 2, "hostname": "here"},
    )  # fmt: skip
    recording.save(taken, trace)
    if backend != "bpftrace":
        alignment = Alignment(pairs)
        tables.write_table(trace, "processes", _processes(), alignment)
        for table in _OWNERS:
            tables.write_table(trace, table, _samples(table), alignment)
    with mock.patch.object(look, "svg", drawn):
        lines = "\n".join(outputs.write_all(trace, recording.load(trace)))
    (trace / "told.txt").write_text(lines + "\n")
    return trace


def drawn(draw, height_inches: float, alt: str, *, rows: int = 1, columns: int = 1) -> str:
    """In place of a picture: what its lines, areas and bars show."""
    figure = Figure()
    axes = figure.subplots(rows, columns, squeeze=False)
    draw(axes)
    found = [f"[{alt}]"]
    for place in axes.flat:
        titles = place.get_title() + place.get_title("left")
        found.append(f"{titles}|{place.get_ylabel()}| {place.get_ylim()[1]:g}")
        found.append(f"  {place.get_xscale()} to {place.get_xlim()[1]:g} {place.get_xlabel()}")
        for legend in (place.get_legend(), *(figure.legends if place is axes.flat[-1] else ())):
            told = [text.get_text() for text in legend.get_texts()] if legend else []
            found.append(f"  legend: {', '.join(told)}")
        drawings = (*place.lines, *place.patches, *place.collections, *place.texts)
        for kind, alike in itertools.groupby(
            drawings, lambda drawing: f"{type(drawing).__name__} {drawing.get_label()}"
        ):
            found.append(f"  {kind} {' | '.join(map(_numbers, alike))}")
    return "\n".join(found)


def _numbers(drawing) -> str:
    if hasattr(drawing, "get_text"):
        return drawing.get_text()
    if hasattr(drawing, "get_paths"):
        vertices = np.concatenate([np.zeros((0, 2)), *(p.vertices for p in drawing.get_paths())])
    elif hasattr(drawing, "get_xydata"):
        vertices = drawing.get_xydata()
    else:
        vertices = drawing.get_patch_transform().transform(drawing.get_path().vertices)
    shown = [f"{x:.5g}:{y:.5g}" for x, y in vertices if y and np.isfinite(y)]
    return " ".join(dict.fromkeys(shown))


def parts(trace: Path) -> Iterator[tuple[str, str]]:
    """(name, text) of everything that a trace leaves, and of its exports."""
    told = (trace / "told.txt").read_text()
    summary = json.loads((trace / "summary.json").read_text())
    yield "summary.txt", told + "".join(f"{line}\n" for line in _flat("", summary))
    page = (trace / "summary.html").read_text()
    yield "page.txt", re.sub("<style>.*</style>", "", page, flags=re.DOTALL)
    shown = []
    for path in sorted(trace.glob("*.parquet")):
        table = tables.read_table(trace, path.stem)
        if "opening" in table:  # numbers go on from trace to trace
            table["opening"] = table["opening"].rank(method="dense")
        if path.stem in (*_OWNERS, "processes"):  # as they were given: the last has its stamps
            table = table.tail(1)
        shown.append(f"# {path.stem}\n{table.to_csv(index=False)}")
    yield "tables.txt", "".join(shown)
    exports = trace.parent / "exports"
    exports.mkdir()
    told = []
    for target, output in OUTPUTS.items():
        export = importlib.import_module(f"tracing.exports.{target}")
        try:
            told.append(export.write(Trace(trace), exports / output))
        except ValueError as error:  # a trace without calls
            told.append(str(error))
        else:
            yield f"{output}.txt", _exported(exports / output)
    yield "exports.txt", "\n".join(told) + "\n"


def _flat(path: str, value: Any) -> Iterator[str]:
    """Of JSON: a line for each object or list, with what it holds itself."""
    entries = dict(value.items() if isinstance(value, dict) else enumerate(value))
    deeper = {k: v for k, v in entries.items() if isinstance(v, dict | list) and v}
    yield f"{path}: {json.dumps({k: v for k, v in entries.items() if k not in deeper})}"
    for name, each in deeper.items():
        yield from _flat(f"{path}.{name}", each)


def _exported(path: Path) -> str:
    if path.suffix == ".pftrace":
        return "\n".join(perfetto_reader.lines(path)) + "\n"
    metadata, nodes = chakra_reader.read(path)
    assert not list(chakra_reader.violations(nodes))
    shown = [text_format.MessageToString(node, as_one_line=True) for node in nodes]
    return "\n".join([str(metadata), *shown]) + "\n"


def not_of_strace(backend: str, name: str, text: str) -> str:
    """Of the other backends what strace's part does not hold too, and how much does."""
    path = EXPECTED / "strace" / name
    if backend == "strace" or not path.exists():
        return text
    shared = set(path.read_text().splitlines())
    own = [line for line in text.splitlines() if line not in shared]
    num_shared = len(text.splitlines()) - len(own)
    return "\n".join([*own, f"{num_shared} lines as in strace's", ""])


def stable(text: str, folder: Path) -> str:
    """With one name for the temporary folder, also where the page has cut it."""
    for begin in range(len(str(folder))):
        text = text.replace(f"…{str(folder)[begin:]}/", "/FOLDER/")
    return text.replace(str(folder), "/FOLDER")


def main() -> None:
    """Writes what is expected."""
    shutil.rmtree(EXPECTED, ignore_errors=True)
    with tempfile.TemporaryDirectory() as name:
        for backend in BACKENDS:
            folder = Path(name) / "whole"
            _expect(backend, parts(write(folder, backend)), folder)
            shutil.rmtree(folder)


def _expect(name: str, found: Iterable[tuple[str, str]], folder: Path) -> None:
    (EXPECTED / name).mkdir(parents=True, exist_ok=True)
    for part, text in found:
        (EXPECTED / name / part).write_text(not_of_strace(name, part, stable(text, folder)))


if __name__ == "__main__":
    main()
