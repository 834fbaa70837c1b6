"""The page of all flags, docs/flags.md, made from the options of the scripts.

    python -m mlperf_bert.flags_page

writes it again.
"""

import dataclasses
import functools
import runpy
from pathlib import Path

from mlperf_bert import options
from mlperf_bert.options import Option
from mlperf_bert.tensorflow_import import tensorflow

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "flags.md"
EXPLAINED_IN = {
    "checkpoint_add_gradacc.py": "checkpoints.md",
    "create_pretraining_data.py": "data.md",
    "mlperf_bert/convert/from_hugging_face.py": "checkpoints.md",
    "mlperf_bert/convert/to_hugging_face.py": "checkpoints.md",
    "mlperf_bert/portable/export.py": "portable_step.md",
    "pick_eval_samples.py": "data.md",
    "run_finetuning.py": "finetuning.md",
    "run_pretraining.py": "training.md",
    "tf2_encoder_checkpoint_converter.py": "checkpoints.md",
}
"""Script, also in the package -> the page on it."""
_RUN, _EXPORT = "run_pretraining.py", "mlperf_bert/portable/export.py"
_HEAD = """\
# All flags

This page has the flags of the scripts at the top of the repository, of `convert/` and of
`portable/export.py`, below the name of the page that explains them. `--help` prints those of any
command that takes flags. A file of `mlperf_bert/` is started as a module:
`python -m mlperf_bert.portable.export`, which takes the flags of `run_pretraining.py` too.
`--flagfile=FILE` reads flags of a file; flags after it override it. The default stands in brackets,
then what else may be given. A flag whose default is `true` or `false` is turned on by its name, and
off by `no` before it: `--noshuffle`.
"""


@functools.cache
def options_of(script: str) -> dict[str, Option]:
    """Name -> option of each flag of a script, which is imported and not run."""
    taken: dict[str, Option] = {}
    for each in runpy.run_path(str(ROOT / script)).values():
        if isinstance(each, type) and dataclasses.is_dataclass(each):
            taken |= options.flags_of(each)
    return taken


def _section(script: str) -> str:
    """The section of the page on a script."""
    explained_in = EXPLAINED_IN[script]
    lines = [f"## {script}", "", f"[{Path(explained_in).stem}]({explained_in})", ""]
    elsewhere = options_of(_RUN) if script == _EXPORT else {}
    for name, about in options_of(script).items():
        if name not in elsewhere:
            values = f" ({values})" if (values := _values(about)) else ""
            more = f" ([{Path(about.page).stem}]({about.page}))" if about.page else ""
            lines.append(f"- `--{name}`{values}: {about.help}{more}")
    return "\n".join(lines)


def _values(about: Option) -> str:
    """The default, and what else may be given: `float32`; `bfloat16`, or `1`; >= 1."""
    default = about.default
    shown = f"`{str(default).lower() if about.takes is bool else default}`"
    if about.required:
        shown = "required"
    elif default in (None, ""):
        shown = ""
    others = ", ".join(f"`{choice}`" for choice in about.choices if choice != default)
    return "; ".join(filter(None, [shown, others, about.range]))


def page() -> str:
    """The text of the page."""
    return "\n\n".join([_HEAD.rstrip(), *map(_section, EXPLAINED_IN)]) + "\n"


if __name__ == "__main__":
    tensorflow()  # before the scripts import it
    PAGE.write_text(page(), encoding="utf-8")
