"""Options: what a field of a configuration says of its flag, of its range and of a resumed run.

A field is defined once, with `option` or, where several flags make one value, with `options`.
command_line.py makes flags of the fields, and a configuration of the flags.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

MAX_SEED = 2**32 - 1
"""The random generators take 32 bits; a larger seed would be truncated silently."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """One flag."""

    default: Any
    help: str
    kind: type
    """bool, int, float or str."""
    choices: tuple[str, ...] = ()
    is_required: bool = False
    bounds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Of a number: at_least, above, at_most, below."""
    is_path: bool = False
    """A local path or one of a bucket, or several with commas; "~" is expanded."""
    may_be_empty: bool = False
    """Of a path: an empty text counts as none."""
    may_have_wildcards: bool = True
    """Of a path: not of checkpoints, in whose names TensorFlow takes them for patterns."""
    page: str | None = None
    """The page of docs/ that explains it, if it is not that of the script."""


def flag(
    default: Any,
    help: str,
    *,
    kind: type | None = None,
    choices: tuple[str, ...] = (),
    required: bool = False,
    path: bool = False,
    may_be_empty: bool = False,
    may_have_wildcards: bool = True,
    page: str | None = None,
    **bounds: float,
) -> Option:
    """An option; its kind is that of the default, or a text if that is None.

    Raises:
      TypeError: a range is given for a text.
    """
    if bounds and kind is None and default is None:
        raise TypeError(f"{help!r}: an option with a range needs kind=int or kind=float")
    return Option(
        default=default,
        help=help,
        kind=kind or (str if default is None else type(default)),
        choices=choices,
        is_required=required,
        bounds=bounds,
        is_path=path,
        may_be_empty=may_be_empty,
        may_have_wildcards=may_have_wildcards,
        page=page,
    )


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
      **of_flag: as `flag`.
    """
    metadata = {"flag": flag(default, help, **of_flag), "parse": parse, "identifies": identifies}
    return dataclasses.field(metadata=metadata)


def options(make: Callable[..., Any], *, identifies: bool = True, **flags: Option) -> Any:
    """A field that `make` makes of several flags, which it takes by name."""
    return dataclasses.field(metadata={"flags": flags, "make": make, "identifies": identifies})


def variable(name: str) -> Any:
    """A field that is the text of an environment variable; empty if that is not set."""
    return dataclasses.field(metadata={"variable": name})


def flags_of(configuration: type) -> dict[str, Option]:
    """Name -> option of every flag of a configuration."""
    found: dict[str, Option] = {}
    for field in dataclasses.fields(configuration):
        if "flag" in field.metadata:
            found[field.name] = field.metadata["flag"]
        found |= field.metadata.get("flags", {})
    return found


def free_to_change(configuration: type) -> frozenset[str]:
    """The fields that a resumed run may have another value of."""
    fields = dataclasses.fields(configuration)
    return frozenset(field.name for field in fields if not field.metadata.get("identifies", True))


def values_of(
    configuration: type, given: Mapping[str, Any], environment: Mapping[str, str]
) -> dict[str, Any]:
    """Field -> value, for the fields that have flags or a variable.

    Args:
      configuration: a dataclass.
      given: flag -> value.
      environment: variable -> text.

    Raises:
      ValueError: a text that a field cannot be made of.
    """
    values = {}
    for field in dataclasses.fields(configuration):
        about = field.metadata
        if "flag" in about:
            value = given[field.name]
            parsed = about["parse"] and value is not None
            values[field.name] = about["parse"](value) if parsed else value
        elif "flags" in about:
            values[field.name] = about["make"](**{name: given[name] for name in about["flags"]})
        elif "variable" in about:
            values[field.name] = environment.get(about["variable"], "")
    return values
