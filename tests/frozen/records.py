"""The recorded values: made, written, compared."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from mlperf_bert.messages import lasting
from tests.frozen import runs
from tests.frozen.comparison import differences

VALUES = Path(__file__).with_name("values.json")
_MAKE: dict[str, Callable[[runs.Room, str], dict]] = {
    **dict.fromkeys(runs.TRAININGS, runs.training_values),
    "offline": runs.offline_values,
    "check": runs.check_values,
}
NAMES = tuple(_MAKE)
_LINE = 250


def record(folder: Path, names: Sequence[str]) -> None:
    """Makes the named runs in a folder, and records them in place of what was recorded of them."""
    recorded = read() if VALUES.exists() else {}
    for name, values in _made(folder, names):
        # In the order of their keys: git shows what is another value.
        recorded[name] = json.loads(json.dumps(values, sort_keys=True))
    kept = {name: recorded[name] for name in NAMES if name in recorded}
    VALUES.write_text(_text(kept) + "\n")


def compare(folder: Path, names: Sequence[str]) -> Iterator[str]:
    """Makes the named runs in a folder; yields a line for every value that is not as recorded."""
    recorded = read()
    for name, values in _made(folder, names):
        yield from (f"{name}, {line}" for line in differences(recorded[name], values))


def read() -> dict[str, dict]:
    """What was recorded, by the names of the runs."""
    return json.loads(VALUES.read_text())


def _made(folder: Path, names: Sequence[str]) -> Iterator[tuple[str, dict]]:
    room = runs.Room(folder)
    for name in names:
        with lasting(f"frozen run {name}"):
            made = _MAKE[name](room, name)
        yield name, made


def _text(value, depth: int = 0) -> str:
    """JSON with a line for each event and each line of metrics, so that git shows what changed."""
    short = json.dumps(value)
    if not isinstance(value, dict | list) or (len(short) < _LINE - depth and depth > 2):
        return short
    inner, outer = " " * (depth + 1), " " * depth
    if isinstance(value, list):
        entries = [f"{inner}{_text(entry, depth + 1)}" for entry in value]
        return "[\n" + ",\n".join(entries) + f"\n{outer}]"
    entries = [f"{inner}{json.dumps(k)}: {_text(v, depth + 1)}" for k, v in value.items()]
    return "{\n" + ",\n".join(entries) + f"\n{outer}}}"
