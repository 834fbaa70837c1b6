"""MLPerf Training BERT pre-training: the parts behind the root scripts.

Imports go one way: files -> mlperf | data | model | optimization -> checkpoints | input -> programs
-> training -> convert | submission | finetuning | portable -> root scripts
(tests/test_architecture.py).
"""

import importlib.util
import sys
from types import TracebackType


def _in_one_line(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Names the package that this Python lacks; any other error is shown as before."""
    package = (getattr(error, "name", None) or "mlperf_bert").partition(".")[0]
    if kind is ModuleNotFoundError and importlib.util.find_spec(package) is None:
        name = sys.argv[0].rpartition("/")[2]
        remedy = "run make setup, then source .venv/bin/activate"
        print(f"{name}: {sys.executable} lacks {package}: {remedy}", file=sys.stderr)
    else:
        _before(kind, error, trace)


_before, sys.excepthook = sys.excepthook, _in_one_line
