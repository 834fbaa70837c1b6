"""The page of all flags, docs/flags.md, made from the root scripts themselves.

    python -m mlperf_bert.flags_page

writes it again. Each script is asked in a process of its own, since absl keeps one set of flags for
a process; these are forked by one that has imported TensorFlow, which takes most of the time.
`python -m mlperf_bert.flags_page SCRIPT` prints that script's flags as JSON.
"""

import argparse
import contextlib
import dataclasses
import json
import multiprocessing
import re
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from absl import flags

from mlperf_bert import options
from mlperf_bert.messages import Progress
from mlperf_bert.tensorflow_import import tensorflow

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "flags.md"
_EXPLAINED_IN = {
    "checkpoint_add_gradacc.py": "checkpoints.md",
    "create_pretraining_data.py": "data.md",
    "mlperf_bert/convert/from_hugging_face.py": "checkpoints.md",
    "mlperf_bert/convert/to_hugging_face.py": "checkpoints.md",
    "mlperf_bert/portable/compile_step.py": "portable_step.md",
    "mlperf_bert/portable/export.py": "portable_step.md",
    "mlperf_bert/portable/run_step.py": "portable_step.md",
    "pick_eval_samples.py": "data.md",
    "run_finetuning.py": "finetuning.md",
    "run_pretraining.py": "training.md",
    "tf2_encoder_checkpoint_converter.py": "checkpoints.md",
}
"""Script, also in the package -> the page on it."""
_ON_FLAGS = {
    "check": "submissions.md",
    "check_initial_accuracy": "submissions.md",
    "observer": "../mlperf_results/docs/watching.md",
}
"""Flag of run_pretraining.py that is not an option of a run -> the page on it."""
_HEAD = """\
# All flags

Every flag of the scripts at the top of the repository, of `convert/` and of `portable/`: what it
takes, its default, and the page that explains it. `python -m mlperf_bert.flags_page` writes this
page. Every script also prints its flags with `--help`, and so do other commands that have some
(`python -m ...`, `cleanup_scripts/`, `tracing/trace.sh`). `portable/export.py` takes the flags of
`run_pretraining.py` too. A file of `mlperf_bert/` is started as a module, such as
`python -m mlperf_bert.portable.export`; exported folders have `run_step.py` and `compile_step.py`.
`--flagfile=FILE` reads flags from a file; flags after it override it. A flag that takes true or
false is turned on by its name, and off by `no` before it: `--noshuffle`.
"""


def flags_of(script: Path) -> list[dict[str, Any]]:
    """Returns name, values, default and meaning of each flag of a script, in its order.

    A script with absl's flags is imported and not run; one with argparse runs until it would parse.
    """
    defined = runpy.run_path(str(script), run_name=script.name)
    if "FLAGS" in defined:
        found = defined["FLAGS"].flags_by_module_dict()[script.name]
        pages = _ON_FLAGS | _pages_on_options(defined)
        return [_described(flag) | {"page": pages.get(flag.name)} for flag in found]
    return [_described_action(action) for action in _parser_of(defined)._actions[1:]]


def _pages_on_options(defined: dict[str, Any]) -> dict[str, str]:
    """Flag -> page, of the configurations that a script has defined flags of."""
    configurations = [value for value in defined.values() if dataclasses.is_dataclass(value)]
    found = [options.flags_of(each) for each in configurations if isinstance(each, type)]
    return {n: about.page for each in found for n, about in each.items() if about.page}


def _parser_of(defined: dict[str, Any]) -> argparse.ArgumentParser:
    parses = mock.patch.object(
        argparse.ArgumentParser, "parse_args", autospec=True, side_effect=SystemExit
    )
    with parses as asked, contextlib.suppress(SystemExit):
        defined["main"]()
    return asked.call_args.args[0]


def _described(flag: flags.Flag) -> dict[str, Any]:
    kind = flag.flag_type()
    values = {"bool": "true or false", "int": "a whole number", "float": "a number"}.get(kind, "")
    if kind == "string enum":
        values = ", ".join(f"`{value}`" for value in getattr(flag.parser, "enum_values", ()))
    bounds = [validator.message for validator in flag.validators if validator.message]
    ranges = [found[1] for each in bounds if (found := re.match("must be a number (.+)", each))]
    return {
        "name": flag.name,
        "values": ", ".join(filter(None, [values, *ranges])),
        "default": flag.default,
        "is_required": any("must have a value" in each for each in bounds),
        "meaning": re.sub("^<[^>]*>: ", "", flag.help),  # absl puts an enum's values there
    }


def _described_action(action: argparse.Action) -> dict[str, Any]:
    values = "true or false" if action.nargs == 0 else ""
    if action.choices:
        values = ", ".join(f"`{value}`" for value in action.choices)
    elif action.type in (int, float):
        values = "a whole number" if action.type is int else "a number"
    return {
        "name": action.option_strings[-1][2:] if action.option_strings else action.dest,
        "is_positional": not action.option_strings,
        "values": values,
        "default": action.default,
        "is_required": action.required,
        "meaning": action.help or "",
    }


def section(script: str, found: Sequence[dict[str, Any]]) -> str:
    """Returns the section of the page on a script."""
    rows = [f"## {script}", "", "| flag | takes | default | meaning | more |", "|---" * 5 + "|"]
    for flag in found:
        dashes = "" if flag.get("is_positional") else "--"
        page = flag.get("page") or _EXPLAINED_IN[script]
        cells = [
            f"`{dashes}{flag['name']}`",
            flag["values"],
            "must be given" if flag["is_required"] else _default(flag["default"]),
            " ".join(flag["meaning"].split()),
            f"[{Path(page).stem}]({page})",
        ]
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(rows)


def _default(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{','.join(value) if isinstance(value, list) else value}`"


def scripts() -> list[Path]:
    """Returns the root scripts, and those of the package that take flags as they do."""
    at_the_root = {path for path in ROOT.glob("*.py") if path.name != "conftest.py"}
    return sorted({*at_the_root, *(ROOT / name for name in _EXPLAINED_IN)})


def name_of(script: Path) -> str:
    """Returns the path of a script below the top of the repository."""
    return script.relative_to(ROOT).as_posix()


def main(arguments: Sequence[str]) -> None:
    """Prints one script's flags, or writes the page."""
    if arguments:
        print(json.dumps(flags_of(Path(arguments[0]))))
        return
    print("importing TensorFlow", flush=True)
    tensorflow()
    sections, every = [], scripts()
    with (
        Progress(total=len(every), unit="scripts", description="flags") as progress,
        multiprocessing.get_context("fork").Pool(maxtasksperchild=1) as pool,
    ):
        for script, found in zip(every, pool.imap(flags_of, every)):
            sections.append(section(name_of(script), found))
            progress.advance(1)
    text = "\n\n".join([_HEAD.rstrip(), *sections]) + "\n"
    if changes := text != PAGE.read_text(encoding="utf-8"):
        PAGE.write_text(text, encoding="utf-8")
    print(f"{PAGE}: {'written again' if changes else 'as it was'}")


if __name__ == "__main__":
    main(sys.argv[1:])
