"""Options: a configuration's field describes its flag, its range and what a resumed run may change.

A field is defined once, with `option` or, where several flags make one value, with `options`.
command_line.py makes flags of the fields, and a configuration of the flags; flags_page.py makes the
page. The end of this file reads durations, counts and paths, and the words of commands that use
argparse.
"""

import argparse
import dataclasses
import itertools
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from operator import ge, gt, le, lt
from pathlib import Path
from typing import Any

from mlperf_bert.files.paths import BUCKETS, require_supported

_NUMBER = r"(\d{1,9}(?:\.\d{0,9})?|\.\d{1,9})"
_DURATION = re.compile(rf"(?:{_NUMBER}h)?(?:{_NUMBER}m)?(?:{_NUMBER}s)?", re.ASCII)
_UNITS = {"h": 3600, "m": 60, "s": 1}
_BOUNDS = {"at_least": (">=", ge), "above": (">", gt), "at_most": ("<=", le), "below": ("<", lt)}
_LARGEST = {int: 2**63 - 1, float: 3.4028234e38}  # the largest int64 and float32
_HOME = re.compile(r"((?:^|,)\s*)(~[^/,]*)")
_IN_BUCKET = re.compile(rf"(?:^|(?<=,))\s*{BUCKETS}[^/,][^,]*")
_SLASHES = re.compile(r"(?<!:)/(?:(?:\.?/)+(?:\.$)?|\.?$)")
IS_EMPTY = "is empty, perhaps a variable that is not set; give a value, or leave it out"
MAX_SEED = 2**32 - 1
"""The random generators take 32 bits; a larger seed would be truncated silently."""


@dataclasses.dataclass(frozen=True)
class Option:
    """One flag; only a number has a range."""

    default: Any
    help: str
    _: dataclasses.KW_ONLY
    kind: type | None = None
    """bool, int, float or str; None: the type of the default, str if there is no default."""
    choices: tuple[str, ...] = ()
    required: bool = False
    path: bool = False
    """A local path or one of a bucket, or several with commas; "~" is expanded."""
    may_be_empty: bool = False
    """Whether an empty path counts as none."""
    may_have_wildcards: bool = True
    """Whether a path may have wildcards: TensorFlow takes those of a checkpoint for patterns."""
    page: str | None = None
    """The page of docs/ that explains it, if it is not the script's page."""
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    @property
    def takes(self) -> type:
        """The type of its value."""
        return self.kind or (str if self.default is None else type(self.default))

    @property
    def bounds(self) -> dict[str, float]:
        """The range of a number, by name."""
        bounds = {name: getattr(self, name) for name in _BOUNDS}
        return {name: bound for name, bound in bounds.items() if bound is not None}

    @property
    def range(self) -> str:
        """The range as the page of flags has it, such as ">= 0, < 1"; empty without one."""
        return ", ".join(f"{_BOUNDS[name][0]} {bound}" for name, bound in self.bounds.items())

    def problem(self, value: Any) -> str | None:
        """Why a value is refused, as words behind the value; None if it is not."""
        if isinstance(value, str):
            return self._problem_of_text(value)
        if value is None or not self.bounds:
            return None
        if value > (largest := _LARGEST[self.takes]):
            return f"must be a number at most {largest:.6g}"
        # NaN is on no side of a bound.
        if abs(value) <= largest and all(_BOUNDS[n][1](value, b) for n, b in self.bounds.items()):
            return None
        in_words = " and ".join(f"{n.replace('_', ' ')} {b}" for n, b in self.bounds.items())
        return f"must be a number {in_words}"

    def _problem_of_text(self, text: str) -> str | None:
        if not text.strip():
            return None if self.may_be_empty else IS_EMPTY
        if not self.path:
            return None
        try:
            for path in text.split(","):
                require_supported(path.strip())
        except ValueError as error:
            return str(error)
        if not self.may_have_wildcards and set(text) & set("*?[\\"):
            return (
                "has one of * ? [ \\, which TensorFlow takes for wildcards: it would not find its "
                "checkpoints there; choose another name"
            )
        return None


def option(
    default: Any,
    help: str,
    *,
    parse: Callable[[str], Any] | None = None,
    identifies: bool = True,
    **of_flag: Any,
) -> Any:
    """A field whose flag has the field's name.

    Args:
      default: of the flag; the field itself has none.
      help: one sentence or two.
      parse: makes the field's value of the flag's text.
      identifies: whether a run that is resumed must have the same value.
      **of_flag: as `Option`.
    """
    metadata = {"flag": Option(default, help, **of_flag), "parse": parse, "identifies": identifies}
    return dataclasses.field(metadata=metadata)


def required_path(help: str, **of_flag: Any) -> Any:
    """A field whose flag is a path that must be given; as `option`."""
    return option(None, help, required=True, path=True, **of_flag)


def options(make: Callable[..., Any], **flags: Option) -> Any:
    """A field that `make` makes of several flags, which it takes by name."""
    return dataclasses.field(metadata={"flags": flags, "make": make})


def variable(name: str) -> Any:
    """A field that is the text of an environment variable; empty if that is not set."""
    return dataclasses.field(metadata={"variable": name})


def flags_of(configuration: type) -> dict[str, Option]:
    """Name -> option of every flag of a configuration."""
    flags: dict[str, Option] = {}
    for field in dataclasses.fields(configuration):
        if "flag" in field.metadata:
            flags[field.name] = field.metadata["flag"]
        flags |= field.metadata.get("flags", {})
    return flags


def free_to_change(configuration: type) -> frozenset[str]:
    """The names of the fields that a resumed run may change."""
    fields = dataclasses.fields(configuration)
    return frozenset(field.name for field in fields if not field.metadata.get("identifies", True))


def values_of(
    configuration: type, flag_values: Mapping[str, Any], environment: Mapping[str, str]
) -> dict[str, Any]:
    """Field -> value, for the fields that have flags or a variable.

    Args:
      configuration: a dataclass.
      flag_values: flag -> value.
      environment: variable -> text.
    """
    values = {}
    for field in dataclasses.fields(configuration):
        about = field.metadata
        if "flag" in about:
            value = flag_values[field.name]
            parsed = about["parse"] and value is not None
            values[field.name] = about["parse"](value) if parsed else value
        elif "flags" in about:
            values[field.name] = about["make"](
                **{name: flag_values[name] for name in about["flags"]}
            )
        elif "variable" in about:
            values[field.name] = environment.get(about["variable"], "")
    return values


def parse_duration(text: str) -> float:
    """The seconds of a time budget such as 90s, 45m, 24h or 1h30m."""
    matched = _DURATION.fullmatch(text)
    counts = zip(matched.groups() if matched else (), _UNITS.values())
    seconds = sum(float(number) * unit for number, unit in counts if number)
    if not seconds > 0:
        raise ValueError(
            f"--time_budget={text} must be a time above 0 with its unit, such as 90s, 45m, 24h or "
            "1h30m"
        )
    return seconds


def duration(seconds: float) -> str:
    """Seconds in the form that `parse_duration` reads, rounded to tenths: 5400 -> 1h30m."""
    tenths = round(10 * seconds)
    hours, tenths = divmod(tenths, 36_000)
    minutes, tenths = divmod(tenths, 600)
    counts = {"h": hours, "m": minutes, "s": tenths / 10}
    return "".join(f"{count:.9g}{unit}" for unit, count in counts.items() if count) or "0s"


def whole_number(text: str) -> int:
    """The type of a count in argparse's options: a number of 1 or more."""
    if not re.fullmatch(r"0*[1-9]\d{0,8}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r:.80}: give a whole number from 1 to 999,999,999")
    return int(text)


def expand_home(path: str) -> str:
    """The path, or several with commas, with home folders in place of "~" and "~user".

    In a bucket's path double slashes and one at the end are removed: there //run is another folder
    than /run, but only one of the two clients reads it so.
    """
    path = _HOME.sub(lambda match: match[1] + os.path.expanduser(match[2]), path)  # noqa: PTH111
    return _IN_BUCKET.sub(lambda match: _SLASHES.sub(_slash_within, match[0]), path)


def _slash_within(slashes: re.Match) -> str:
    return "" if slashes.end() == len(slashes.string) else "/"


def expanded_arguments(
    words: Sequence[str] | None = None, *, may_be_empty: Sequence[str] = ()
) -> list[str]:
    """A command line's words, by default this process's, with `expand_home` in those before "--".

    A shell leaves "~" in --name=~/folder as it is. Ends the process with one line if a word or
    value is empty that is not of an option that `may_be_empty`.
    """
    words = sys.argv[1:] if words is None else list(words)
    end = words.index("--") if "--" in words else len(words)
    if empty := first_empty(words[:end], may_be_empty=may_be_empty):
        sys.exit(f"{Path(sys.argv[0]).name}: {empty}: {IS_EMPTY}")
    parts = [_value_of(word) for word in words[:end]]
    return [name + expand_home(value) for name, value in parts] + words[end:]


def first_empty(words: Sequence[str], *, may_be_empty: Sequence[str] = ()) -> str | None:
    """The first value on a command line that is empty, as --name= or --name '', with its option."""
    for before, word in itertools.pairwise(["", *words]):
        name, value = _value_of(word)
        if not value.strip() and (name or before).rstrip("=") not in may_be_empty:
            return name or (f"{before} ''" if before.startswith("-") else "a word")
    return None


def _value_of(word: str) -> tuple[str, str]:
    """(--name=, value) of such a word; any other is a value alone."""
    name, equals, value = word.partition("=")
    return (name + equals, value) if equals and word.startswith("-") else ("", word)
