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

`--help` prints the flags of any script. This page has those of the scripts at the top of the
repository, of `convert/` and of `portable/`, below the name of the page that explains them.
`portable/export.py` takes those of `run_pretraining.py` too. Other commands (`python -m ...`,
`cleanup_scripts/`, `tracing/trace.sh`) also print theirs with `--help`. A file of `mlperf_bert/` is
started as a module: `python -m mlperf_bert.portable.export`. `--flagfile=FILE` reads flags of a
file; flags after it override it. The default stands in brackets, then what else may be given. A
flag whose default is `true` or `false` is turned on by its name, and off by `no` before it:
`--noshuffle`. `python -m mlperf_bert.flags_page` writes this page.
"""
_NUMBER = "must be a number "
_SIGNS = {"at least": ">=", "at most": "<=", "above": ">", "below": "<", " and": ","}


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
    said = [validator.message for validator in flag.validators if validator.message]
    bounds = "".join(each for each in said if each.startswith(_NUMBER)).removeprefix(_NUMBER)
    return {
        "name": flag.name,
        "is_text": "string" in flag.flag_type() and "enum" not in flag.flag_type(),
        "choices": getattr(flag.parser, "enum_values", None),
        "range": re.sub("|".join(_SIGNS), lambda words: _SIGNS[words[0]], bounds),
        "default": flag.default,
        "is_required": any("must have a value" in each for each in said),
        # absl puts an enum's values before it, and a remark behind that of a list.
        "meaning": re.sub("^<[^>]*>: |;\\s+repeat this option[^;]*$", "", flag.help),
    }


def _described_action(action: argparse.Action) -> dict[str, Any]:
    return {
        "name": action.option_strings[-1][2:] if action.option_strings else action.dest,
        "is_positional": not action.option_strings,
        "choices": action.choices,
        "default": action.default,
        "is_required": action.required,
        "meaning": action.help or "",
    }


def section(script: str, found: Sequence[dict[str, Any]]) -> str:
    """Returns the section of the page on a script."""
    page = _EXPLAINED_IN[script]
    lines = [f"## {script}", "", f"[{Path(page).stem}]({page})", ""]
    for flag in found:
        dashes = "" if flag.get("is_positional") else "--"
        values = f" ({values})" if (values := _values(flag)) else ""
        meaning = " ".join(flag["meaning"].split())
        if other := flag.get("page"):
            meaning += f" ([{Path(other).stem}]({other}))"
        lines.append(f"- `{dashes}{flag['name']}`{values}: {meaning}")
    return "\n".join(lines)


def _values(flag: dict[str, Any]) -> str:
    """The default, and what else may be given: `float32`; `bfloat16`, or `1`; >= 1."""
    default = flag["default"]
    values = [f"`{choice}`" for choice in flag["choices"] or () if choice != default]
    if flag["is_required"]:
        shown = "required"
    elif isinstance(default, bool):
        shown = f"`{str(default).lower()}`"
    else:
        text = ",".join(default) if isinstance(default, list) else default
        shown = "" if text in (None, "") else f"`{text}`"
    return "; ".join(filter(None, [shown, ", ".join(values), flag.get("range", "")]))


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
