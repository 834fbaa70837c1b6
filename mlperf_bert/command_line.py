"""What the root scripts share: ranges of flags, and errors as one line each."""

import contextlib
import errno
import gc
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from operator import ge, gt, le, lt
from pathlib import Path
from typing import Any, TypeVar

from absl import app, flags

from mlperf_bert import options
from mlperf_bert.files.paths import StoreUnavailable, kind_of, reason, require_supported
from mlperf_bert.messages import REMEDIES, Problems, as_lines, ends_in_one_line, printable
from mlperf_bert.options import IS_EMPTY, first_empty, with_home
from mlperf_bert.signals import Interrupted, raise_on_ctrl_c
from mlperf_bert.tensorflow_import import tensorflow

_Configuration = TypeVar("_Configuration")
_LISTS = ("--input_file", "--eval_input_file")
_MAY_BE_EMPTY = {"undefok"}  # absl's own, and those of `paths`
_SEVERAL = re.compile(r"\n(?=flag --)")  # how absl separates them
_COMPARISONS = {"at_least": ge, "above": gt, "at_most": le, "below": lt}
_LARGEST = {int: 2**63 - 1, float: 3.4028234e38}  # of int64 and float32


def in_range(*names: str, **bounds: float) -> None:
    """Refuses numeric flags that are not `at_least`, `above`, `at_most`, `below`; None passes.

    NaN and infinities are refused too. A validator, not absl's own bounds: these accept NaN, and
    report only the first bad flag.
    """
    given = " and ".join(f"{name.replace('_', ' ')} {bound}" for name, bound in bounds.items())
    tests = [(_COMPARISONS[name], bound) for name, bound in bounds.items()]

    def holds(value: float | None) -> bool:
        if value is None:
            return True
        largest = _LARGEST[type(value)]
        if value > largest:
            raise flags.ValidationError(f"must be a number at most {largest:.6g}")
        return abs(value) <= largest and all(compare(value, bound) for compare, bound in tests)

    for name in names:
        flags.register_validator(name, holds, f"must be a number {given}")


class _Paths(flags.ArgumentParser):
    """Values of flags that are paths: home folders stand in place of "~"."""

    def parse(self, argument: str) -> str:
        return with_home(argument)


def paths(*names: str, may_be_empty: bool = False) -> None:
    """Expands "~" in paths, several with commas; refuses those that are neither local nor stored.

    None passes, and so does an empty string if it `may_be_empty`.
    """
    _MAY_BE_EMPTY.update(names if may_be_empty else ())

    def all_supported(value: str | None) -> bool:
        for path in (value or "").split(","):
            try:
                require_supported(path.strip())
            except ValueError as error:
                raise flags.ValidationError(str(error)) from error
        return True

    for name in names:
        flags.FLAGS[name].parser = _Paths()
        flags.register_validator(name, all_supported)


def no_wildcards(*names: str) -> None:
    """Refuses names of checkpoints and their folders that TensorFlow takes for patterns."""
    for name in names:
        flags.register_validator(
            name,
            lambda value: not set(value or "") & set("*?[\\"),
            "has one of * ? [ \\, which TensorFlow takes for wildcards: it would not find its "
            "checkpoints there; choose another name",
        )


_DEFINE: dict[type, Callable[..., Any]] = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
}
flags.disclaim_key_flags()  # `define` defines them for the script that calls it


def define(configuration: type, *, script: str | None = None) -> None:
    """Defines the flags of a configuration, with their checks.

    Args:
      configuration: a dataclass whose fields are options.
      script: the one whose flags they are, if it is not the caller.
    """
    for name, about in options.flags_of(configuration).items():
        common: dict[str, Any] = {"required": about.required, "module_name": script}
        if about.choices:
            flags.DEFINE_enum(name, about.default, about.choices, about.help, **common)
        else:
            _DEFINE[about.takes](name, about.default, about.help, **common)
        if about.path:
            paths(name, may_be_empty=about.may_be_empty)
            if not about.may_have_wildcards:
                no_wildcards(name)
        if about.bounds:
            in_range(name, **about.bounds)


def read(configuration: type[_Configuration], **others: object) -> _Configuration:
    """The configuration that flags and environment describe.

    Args:
      configuration: as in `define`.
      **others: the fields that have no flag.

    Raises:
      ValueError: a flag does not say what its field needs, or the configuration refuses it.
    """
    values = flags.FLAGS.flag_values_dict()
    return configuration(**options.values_of(configuration, values, os.environ), **others)


def warn(text: str) -> None:
    """Prints what the user should know, in one line; the script goes on."""
    print(f"{Path(sys.argv[0]).name}: warning: {printable(text)}", file=sys.stderr)


@contextlib.contextmanager
def resumable() -> Iterator[None]:
    """Ctrl-C becomes Interrupted: the same command goes on."""
    try:
        yield
    except KeyboardInterrupt as interruption:
        text = str(interruption) or "interrupted; run the same command again to resume"
        raise Interrupted(text) from interruption


@contextlib.contextmanager
def tensorflow_explained(out_of_memory: str) -> Iterator[None]:
    """TensorFlow's failures, and jax's, become ValueErrors; what may pass becomes Interrupted.

    Args:
      out_of_memory: what to do when there is too little.
    """
    errors = tensorflow().errors
    try:
        yield
    except StoreUnavailable as error:
        raise Interrupted(str(error)) from error
    except FloatingPointError as error:
        raise ValueError(str(error)) from error
    except errors.OpError as error:
        # A device is gone, as the host of a TPU, or a store that records are read from.
        if kind_of(error) is StoreUnavailable:
            text = f"TensorFlow failed: {reason(error)}; repeat the command later"
            raise Interrupted(text) from error
        if refused := next((n for n in REMEDIES if os.strerror(n) in reason(error)), None):
            fewer = ", or lower --num_parallel_files" if "num_parallel_files" in flags.FLAGS else ""
            remedy = REMEDIES[refused] + (fewer if refused == errno.EMFILE else "")
            raise ValueError(f"{reason(error).replace('; ', ': ', 1)}; {remedy}") from error
        if isinstance(error, errors.ResourceExhaustedError):
            raise ValueError(f"out of memory ({reason(error)}); {out_of_memory}") from error
        raise ValueError(f"TensorFlow failed: {reason(error)}") from error
    except RuntimeError as error:
        jax = sys.modules.get("jax")  # a run without it does not load it
        if not jax or not isinstance(error, jax.errors.JaxRuntimeError):
            raise
        raise _explained(reason(error)[:300], out_of_memory) from error


def _explained(text: str, out_of_memory: str) -> Exception:
    """What an error of jax becomes."""
    if text.startswith("UNAVAILABLE"):  # a device is gone
        return Interrupted(f"jax failed: {text}; repeat the command later")
    if "RESOURCE_EXHAUSTED" in text:
        others = "end other processes that hold memory of the device (nvidia-smi names them)"
        return ValueError(f"out of memory ({text}); {others}, or {out_of_memory}")
    return ValueError(f"jax failed: {text}")


def run(
    main: Callable[[], None],
    argv: list[str] | None = None,
    *,
    prepare: Callable[[], None] | None = None,
) -> None:
    """Parses the flags and runs a script's `main`; ends the process.

    `prepare` runs just after the flags are parsed: TensorFlow has asked absl to be called then, and
    looks for its devices.

    Bad flags end it with a line for each and exit code 1; what `main` raises, as `ends_in_one_line`
    says.
    """
    script = Path((argv or sys.argv)[0]).name

    @ends_in_one_line(script)
    def guarded(_: Sequence[str]) -> None:
        raise_on_ctrl_c()
        main()

    def parsed(given: Sequence[str]) -> list[str]:
        rest = parse(script, given)
        try:
            if prepare:
                prepare()
        except (ValueError, OSError) as error:
            sys.exit(f"{script}: {as_lines(error)}")
        return rest

    # What has been imported is never garbage: without this, Python looks through all of TensorFlow
    # again and again while a model is built, and once more at the end.
    gc.freeze()
    app.run(guarded, argv, flags_parser=parsed)


def parse(script: str, argv: Sequence[str]) -> list[str]:
    """Parses the flags; if any is bad, ends the process with exit code 1 and a line for each.

    A word that no flag reads is bad too, and so is an empty value, which a shell's variable gives
    that is not set. Returns the script's name alone.
    """
    for name in set(flags.FLAGS) - _MAY_BE_EMPTY:
        _refuse_an_empty_value(flags.FLAGS[name])
    try:
        if (empty := first_empty(argv)) and re.match("--?flagfile[= ]", empty):
            raise ValueError(f"{empty} names no file; give one, or leave the flag out")
        _refuse_a_list_that_counts_once(argv)
        rest = flags.FLAGS(argv)
        if unread := rest[1:]:
            raise ValueError(
                f"{' '.join(unread[:2])}{' ...' * (len(unread) > 2)}: not read by any flag; write "
                "--name=value, without spaces, and --noname for false; quote a pattern, as in "
                "--input_file='part-*', so that the shell leaves it alone"
            )
    except UnicodeDecodeError as error:
        sys.exit(f"{script}: --flagfile names a file that is not text ({error.reason})")
    except (flags.Error, OSError) as error:
        sys.exit(f"{script}: {Problems(_SEVERAL.split(str(error)))}")
    except ValueError as error:
        sys.exit(f"{script}: {as_lines(error)}")
    for text in _overridden(argv[1:]):
        warn(text)
    for name in sorted(_MAY_BE_EMPTY):
        if name in flags.FLAGS and flags.FLAGS[name].value == "":
            warn(f"--{name}= is empty: it counts as not given")
    return rest


def _refuse_an_empty_value(flag: flags.Flag) -> None:
    def holds(value: Any) -> bool:
        texts = value if isinstance(value, list) else [value]
        has_values = bool(texts) and all(str(text).strip() for text in texts)
        return flag.using_default_value or has_values

    flags.register_validator(flag.name, holds, IS_EMPTY)


def _refuse_a_list_that_counts_once(argv: Sequence[str]) -> None:
    """Raises ValueError for --input_file=part-{1,2}, of which absl would take the last one."""
    for before, word in itertools.pairwise(argv):
        name, equals, _ = word.partition("=")
        if equals and name in _LISTS and before.startswith(f"{name}=") and before != word:
            raise ValueError(
                f"{before} {word}: only the last one counts; give one value in quotes, with commas "
                f"or as a glob: the shell has made several of a brace, as in {name}=part-{{1,2}}"
            )


def _overridden(words: Sequence[str]) -> Iterator[str]:
    """Names each flag that a flag file after it sets again.

    What stands before --flagfile=/dev/null are a launcher's defaults: these may be overridden.
    """

    def names(words: Sequence[str]) -> set[str]:
        given = {word.lstrip("-").partition("=")[0] for word in words if word.startswith("-")}
        return {name if name in flags.FLAGS else name.removeprefix("no") for name in given}

    before: set[str] = set()
    for word in words:
        if word.lstrip("-") == "flagfile=/dev/null":
            before = set()
        elif word.lstrip("-").startswith("flagfile="):
            of_file = names(flags.FLAGS.read_flags_from_files([word], force_gnu=False))
            for name in sorted(before & of_file):
                yield f"--{name} does not count: {word} after it sets it; give --flagfile first"
        else:
            before |= names([word])
