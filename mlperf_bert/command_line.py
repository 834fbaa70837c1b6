"""What the root scripts share: options as flags of absl, and errors as one line each."""

import contextlib
import functools
import gc
import itertools
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from absl import app, flags, logging

from mlperf_bert import options
from mlperf_bert.messages import Problems, as_lines, ends_in_one_line, printable
from mlperf_bert.options import Option, expand_home, first_empty
from mlperf_bert.signals import Interrupted, handled, raise_on_ctrl_c

_Configuration = TypeVar("_Configuration")
_LISTS = ("--input_file", "--eval_input_file")
_SEVERAL = re.compile(r"\n(?=flag --)")  # how absl separates them
_DEFINE: dict[type, Callable[..., Any]] = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
}
flags.disclaim_key_flags()  # `define` defines them for the script that calls it


class _Unreadable(str):
    """A text that its flag cannot read."""

    why: BaseException | None


def define(*configurations: type) -> None:
    """Defines the flags of configurations, dataclasses whose fields are options."""
    for name, about in itertools.chain(*(options.flags_of(c).items() for c in configurations)):
        if about.choices:
            flags.DEFINE_enum(
                name, about.default, about.choices, about.help, required=about.required
            )
        else:
            _DEFINE[about.takes](name, about.default, about.help, required=about.required)
        _register_check(name, about)


def _register_check(name: str, about: Option) -> None:
    """Replaces absl's check, which accepts NaN and ends at the first value that it cannot read."""
    flag: Any = flags.FLAGS[name]
    read = flag.parse

    def read_or_keep(text: str) -> None:
        try:
            read(expand_home(text) if about.path else text)
        except (flags.Error, ValueError) as error:
            flag.value = _Unreadable(text)
            flag.value.why = error.__context__ or error

    def holds(value: Any) -> bool:
        if problem := getattr(value, "why", None) or about.problem(value):
            raise flags.ValidationError(problem)
        return True

    flag.parse = read_or_keep
    flags.register_validator(name, holds)


def read(configuration: type[_Configuration], **others: object) -> _Configuration:
    """The configuration that flags and environment describe.

    Args:
      configuration: as in `define`.
      **others: the fields that have no flag.
    """
    values = flags.FLAGS.flag_values_dict()
    return configuration(**options.values_of(configuration, values, os.environ), **others)


def warn(text: str) -> None:
    """Prints what the user should know, in one line; the script continues."""
    print(f"{Path(sys.argv[0]).name}: warning: {printable(text)}", file=sys.stderr)


@contextlib.contextmanager
def resumable() -> Iterator[None]:
    """Signals become Interrupted: the same command resumes."""
    # Process 1 of a container would ignore them. Training handles them by itself.
    for number in set(handled()) - {signal.SIGINT}:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt as interruption:
        text = str(interruption) or "interrupted; run the same command again to resume"
        raise Interrupted(text) from interruption


def run(
    main: Callable[[], None],
    *configurations: type,
    beside: Callable[[Mapping[str, Any]], list[str]] = lambda _: [],
    **advice: str,
) -> None:
    """Defines and parses the flags of configurations, and runs a script's `main`; ends the process.

    If flags are bad, `beside` says what else is wrong, given the values of the other flags.

    With bad flags it prints a line for each and the exit code is 1. What `main` raises is handled
    by `ends_in_one_line`, which takes the `advice`.
    """
    define(*configurations)
    logging.set_verbosity(logging.ERROR)

    in_one_line = ends_in_one_line(Path(sys.argv[0]).name, **advice)

    @in_one_line
    def guarded(_: Sequence[str]) -> None:
        raise_on_ctrl_c()
        main()

    # Imported modules are never garbage: without this, Python looks through all of TensorFlow
    # again and again while a model is built, and once more at the end.
    gc.freeze()
    parser = functools.partial(parse, beside=beside)
    sys.exit(in_one_line(app.run)(guarded, flags_parser=parser))


def parse(
    argv: Sequence[str],
    beside: Callable[[Mapping[str, Any]], list[str]] = lambda _: [],
) -> list[str]:
    """Parses the flags; if any is bad, ends the process with exit code 1 and a line for each.

    A word that no flag reads is bad too. Returns the script's name alone.
    """
    script = Path(argv[0]).name
    try:
        _refuse_what_absl_passes_over(argv)
        rest = flags.FLAGS(argv)
        if unread := rest[1:]:
            raise ValueError(
                f"{' '.join(unread[:2])}{' ...' * (len(unread) > 2)}: not read by any flag; write "
                "--name=value, without spaces, and --noname for false; quote a pattern, as in "
                "--input_file='part-*', so that the shell leaves it alone"
            )
    except BrokenPipeError:  # --help was printed to a program that has ended
        raise
    except (flags.Error, ValueError, OSError) as error:
        if isinstance(error, UnicodeDecodeError):
            error = ValueError(f"--flagfile names a file that is not text ({error.reason})")
        told = _SEVERAL.split(str(error)) if isinstance(error, flags.Error) else [as_lines(error)]
        wrong = set(re.findall(r"^flag --(\w+)=", str(error), re.MULTILINE))
        right = {n: v for n, v in flags.FLAGS.flag_values_dict().items() if n not in wrong}
        sys.exit(f"{script}: {Problems([*told, *beside(right)])}")
    for name in flags.FLAGS:
        if flags.FLAGS[name].present and flags.FLAGS[name].value == "":
            warn(f"--{name}= is empty: it counts as not given")
    return rest


def _refuse_what_absl_passes_over(argv: Sequence[str]) -> None:
    """Raises ValueError for --flagfile= without a name, and for --input_file=part-{1,2}."""
    if (empty := first_empty(argv)) and re.match("--?flagfile[= ]", empty):
        raise ValueError(f"{empty} names no file; give one, or leave the flag out")
    for before, word in itertools.pairwise(argv):
        name, equals, _ = word.partition("=")
        if equals and name in _LISTS and before.startswith(f"{name}=") and before != word:
            raise ValueError(
                f"{before} {word}: only the last one counts; give one value in quotes, with commas "
                f"or as a glob: the shell has made several of a brace, as in {name}=part-{{1,2}}"
            )
