"""The recorded values: made, written, compared."""

import functools
import json
import operator
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.frozen import guests, runs
from tests.frozen.comparison import differences

VALUES = Path(__file__).with_name("values.json")
_MAKE: dict[str, Callable[[runs.Room, str], dict]] = {
    **dict.fromkeys(runs.TRAININGS, runs.training_values),
    **dict.fromkeys(runs.CLUSTERS, runs.cluster_values),
    "in_a_bucket": runs.bucket_values,
    "offline": runs.offline_values,
    "check": runs.check_values,
    "data": guests.data_values,
    "campaign": guests.campaign_values,
    "finetuning": guests.finetuning_values,
    "trace": guests.trace_values,
}
NAMES = tuple(_MAKE)
_LINE = 250
_WORTH_FOLDING = 150  # characters


def record(folder: Path, names: Sequence[str] = NAMES) -> None:
    """Makes the named runs in a folder, and records them in place of what was recorded of them."""
    recorded = read() if VALUES.exists() else {}
    for name, values in _made(folder, names):
        recorded[name] = in_order_of(recorded.get(name), values)
    kept = {name: recorded[name] for name in NAMES if name in recorded}
    VALUES.write_text(_text(folded(kept)) + "\n")


def compare(folder: Path, names: Sequence[str] = NAMES) -> Iterator[str]:
    """Makes the named runs in a folder; yields a line for every value that is not as recorded."""
    recorded = read()
    for name, values in _made(folder, names):
        yield from (f"{name}, {line}" for line in differences(recorded[name], values))


def read() -> dict[str, dict]:
    """What was recorded, by the names of the runs."""
    return unfolded(json.loads(VALUES.read_text()))


def _made(folder: Path, names: Sequence[str]) -> Iterator[tuple[str, dict]]:
    room = runs.Room(folder)
    for name in names:
        yield name, _MAKE[name](room, name)


def in_order_of(before, now):
    """What is recorded now, its keys in the order of before: git shows what is another value."""
    if isinstance(before, dict) and isinstance(now, dict):
        names = [*(name for name in before if name in now), *now]
        return {name: in_order_of(before.get(name), now[name]) for name in names}
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        return [in_order_of(*pair) for pair in zip(before, now)]
    return now


def folded(values: dict) -> dict:
    """The values; what has been said before, such as a header, is `{"as": its place}`."""
    places: dict[str, list] = {}

    def fold(value, place: list):
        text = json.dumps(value)
        if not isinstance(value, dict | list) or len(text) < _WORTH_FOLDING:
            return value
        if text in places:
            return {"as": places[text]}
        places[text] = place
        if isinstance(value, list):
            return [fold(entry, [*place, number]) for number, entry in enumerate(value)]
        return {key: fold(entry, [*place, key]) for key, entry in value.items()}

    return {key: fold(value, [key]) for key, value in values.items()}


def unfolded(values: dict) -> dict:
    """What `folded` has folded."""

    def unfold(value):
        if isinstance(value, list):
            return [unfold(entry) for entry in value]
        if not isinstance(value, dict):
            return value
        if value.keys() == {"as"}:
            return unfold(functools.reduce(operator.getitem, value["as"], values))
        return {key: unfold(entry) for key, entry in value.items()}

    return unfold(values)


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
