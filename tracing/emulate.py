r"""One host feeds N accelerators that are not there: N readers, each with its own files.

    python -m tracing.emulate --emulate_devices=8 -- python run_pretraining.py --do_train \
      --input_file='tfrecords/part-*' --emulate_step_seconds=0.2 --output_dir=build/eight ...

starts the command N times at once, with every N-th file each and a folder of its own, so the host
reads what N such accelerators need. They do not wait for each other's steps. tracing/trace.sh
before it records all of them. Prints samples per second, and utilization as MLPerf Storage has it:
computing / (computing + waiting), 90% is enough. Where a log has several blocks, the first one is
left out; that of a training that sleeps has one.

Exit codes: 0; 1 bad input; else that of the first command that failed, and the others are ended.
"""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tracing import ends_in_one_line, matching, mllog, option_of, parser_of

BAR = 0.9
_TURN_S = 0.1


class Fed(NamedTuple):
    """How a device was fed, by its log; the first block is left out where there are others."""

    samples: int
    seconds: float
    """Of the blocks that count."""
    utilization: float | None
    """None without the log's ledger."""


def fed(log: Path) -> Fed:
    """Reads a device's MLPerf log.

    Raises:
      ValueError: it has no finished block.
    """
    blocks: list[Fed] = []
    begin_ns = 0
    rows = mllog.event_rows(log, begin_ns=0, end_ns=2**63) if mllog.is_log(log) else ()
    for event in rows:
        value, metadata = json.loads(event["value"]), json.loads(event["metadata"])
        if event["key"] == "block_start":
            begin_ns = event["realtime_ns"]
        elif event["key"] == "block_stop":
            lasting = (event["realtime_ns"] - begin_ns) / 1e9
            blocks.append(Fed(mllog.trained_samples(metadata), lasting, None))
        elif event["key"] == mllog.LEDGER and (metadata or {}).get("of") == "block" and blocks:
            computing, waiting = (value[f"{n}_seconds"] for n in ("compute", "input_wait"))
            share = computing / (computing + waiting) if computing + waiting else None
            blocks[-1] = blocks[-1]._replace(utilization=share)
    counted = blocks[1:] or blocks
    if not counted:
        raise ValueError(f"{log}: no finished block of training; give the command more steps")
    known = [(b.seconds, b.utilization) for b in counted if b.utilization is not None]
    weight = sum(seconds for seconds, _ in known)
    share = sum(seconds * used for seconds, used in known) / weight if weight else None
    return Fed(sum(b.samples for b in counted), sum(b.seconds for b in counted), share)


def _with(command: Sequence[str], name: str, value: str) -> list[str]:
    first, num, _ = option_of(command, name)
    return [*command[:first], f"--{name}={value}", *command[first + num :]]


def commands(command: Sequence[str], num_devices: int) -> list[tuple[Path, list[str]]]:
    """(folder, command) of each device.

    Raises:
      ValueError: there is no such command; it computes its steps, names no files or output, or has
        too few files.
    """
    if shutil.which(command[0]) is None:
        raise ValueError(f"{command[0]}: no such command")
    for name in ("emulate_step_seconds", "input_file", "output_dir"):
        if not option_of(command, name)[2]:
            raise ValueError(f"give the command --{name}: devices that are not there need it")
    files = matching(option_of(command, "input_file")[2])
    if len(files) < num_devices:
        raise ValueError(
            f"--emulate_devices={num_devices}: {len(files)} files match --input_file, and each "
            "device reads its own; give fewer devices or more files"
        )
    output = Path(option_of(command, "output_dir")[2])
    if output.exists():
        raise ValueError(f"--output_dir={output}: exists; give a folder that is not there yet")
    found = []
    for device in range(num_devices):
        folder = output / f"device-{device}"
        shard = ",".join(files[device::num_devices])
        words = _with(_with(command, "input_file", shard), "output_dir", str(folder))
        found.append((folder, words))
    return found


def run(devices: Sequence[tuple[Path, list[str]]]) -> int:
    """Runs all at once; returns the first exit code but 0, after which the others are ended."""
    processes: list[subprocess.Popen] = []
    try:
        for folder, words in devices:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with folder.with_suffix(".txt").open("wb") as output:
                processes.append(subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT))
        while True:
            codes = [process.poll() for process in processes]
            if failed := next((code for code in codes if code), None):
                return failed if failed > 0 else 128 - failed
            if None not in codes:
                return 0
            time.sleep(_TURN_S)
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
        for process in processes:
            process.wait()


def _table(devices: Sequence[tuple[Path, list[str]]]) -> list[str]:
    found = [fed(next(iter(sorted(folder.glob("*.log"))), folder)) for folder, _ in devices]
    lines = ["device      samples/s  utilization"]
    for n, each in enumerate(found):
        lines.append(f"{n:<10}  {_speed(each):>9,.1f}  {_share(each.utilization):>11}")
    known = [each.utilization for each in found if each.utilization is not None]
    mean = sum(known) / len(known) if known else None
    total = sum(map(_speed, found))
    lines.append(f"{'all':<10}  {total:>9,.1f}  {_share(mean):>11}")
    if mean is not None:
        enough = "enough" if mean >= BAR else "too little"
        lines.append(f"MLPerf Storage asks for {BAR:.0%}: this host's storage is {enough}")
    return lines


def _speed(each: Fed) -> float:
    return each.samples / each.seconds if each.seconds else 0.0


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"


@ends_in_one_line("emulate")
def main(arguments: Sequence[str] | None = None) -> None:
    """Feeds N devices once."""
    parser = parser_of("emulate", __doc__)
    parser.add_argument("--emulate_devices", type=int, required=True, metavar="N")
    parser.add_argument("command", nargs="+", help="a training with --emulate_step_seconds")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if given.emulate_devices < 1:
        raise ValueError(f"--emulate_devices={given.emulate_devices}: give at least 1")
    devices = commands(given.command, given.emulate_devices)
    if code := run(devices):
        texts = devices[0][0].parent / "device-*.txt"
        print(f"emulate: a device ended with exit code {code}; see {texts}", file=sys.stderr)
        sys.exit(code)
    print("\n".join(_table(devices)))


if __name__ == "__main__":
    main()
