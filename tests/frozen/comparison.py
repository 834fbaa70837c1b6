"""Compares values with those recorded: a line for each difference.

Tolerances are those of the twins (tests/training/test_trajectories.py), because another processor
rounds otherwise: on one core, without oneDNN or with its oldest instructions, the losses of these
runs differ by up to 1e-6. On one machine all values are the same bitwise.
"""

import difflib
import json
import math
from collections.abc import Iterator

_ABSENT = "(absent)"


def differences(then, now, name: str = "") -> Iterator[str]:
    """Yields `name: then -> now` for every leaf that differs; lists are aligned first."""
    if isinstance(then, dict) and isinstance(now, dict):
        for key in [*then, *(key for key in now if key not in then)]:
            where = f"{name}.{key}" if name else key
            yield from differences(then.get(key, _ABSENT), now.get(key, _ABSENT), where)
    elif isinstance(then, list) and isinstance(now, list):
        yield from _of_lists(then, now, name)
    elif not _are_equal(then, now, name.rpartition(".")[2], name):
        yield f"{name}: {json.dumps(then)} -> {json.dumps(now)}"


def _of_lists(then: list, now: list, name: str) -> Iterator[str]:
    """Entries are matched by all that is exact in them, so that one more does not move the rest."""
    keys = [
        [json.dumps(_without_floats(entry), sort_keys=True) for entry in entries]
        for entries in (then, now)
    ]
    for _, a, b, c, d in difflib.SequenceMatcher(None, *keys, autojunk=False).get_opcodes():
        before, after = then[a:b], now[c:d]
        if len(before) != len(after):
            yield from (
                f"{name}[{a + n}]: {json.dumps(x)} -> {_ABSENT}" for n, x in enumerate(before)
            )
            yield from (
                f"{name}[{c + n}]: {_ABSENT} -> {json.dumps(x)}" for n, x in enumerate(after)
            )
        else:
            for number, pair in enumerate(zip(before, after), start=a):
                yield from differences(*pair, f"{name}[{number}]")


def _without_floats(value):
    if isinstance(value, float):
        return "float"
    if isinstance(value, dict):
        return {key: _without_floats(entry) for key, entry in value.items()}
    return [_without_floats(entry) for entry in value] if isinstance(value, list) else value


def _are_equal(then, now, leaf: str, name: str) -> bool:
    if not type(then) is type(now) is float:
        return type(then) is type(now) and then == now
    if math.isnan(then) or math.isnan(now):
        return math.isnan(then) and math.isnan(now)
    if ".norms." in name or leaf == "learning_rate":  # that is a float32 of a formula
        return math.isclose(then, now, rel_tol=1e-6)
    return abs(then - now) <= (1e-6 if leaf.endswith("accuracy") else 1e-5)
