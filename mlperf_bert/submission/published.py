"""Every published BERT result of MLPerf Training, rounds 1.0 to 5.0, as a table of facts.

    pandas.read_parquet("mlperf_bert/submission/published.parquet")

is the table, whose `attrs` say where the numbers come from, and under which licence.

    python -m mlperf_bert.submission.published clones

makes it again from clones of the nine repositories, clones/training_results_v1.0 to _v5.0. Asking
the official RCP checker about every system takes some minutes.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from mlperf_bert.files import paths
from mlperf_bert.files.whole import require_writable
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.mlperf.rules import RULESETS
from mlperf_bert.submission.entry import Entry
from mlperf_bert.submission.run_logs import require_free

TABLE = Path(__file__).with_name("published.parquet")
ROUNDS = tuple(ruleset.removesuffix(".0") for ruleset in RULESETS)
PANDAS_ATTRS = b"PANDAS_ATTRS"
"""Where pandas keeps a table's `attrs`."""


def load(path: Path = TABLE) -> list[Entry]:
    """Return the rows of the table.

    Raises:
      ValueError: the file is not such a table; one line says how to get it again.
    """
    try:
        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
        return [Entry(**{name: _tuples(value) for name, value in row.items()}) for row in rows]
    except (OSError, TypeError, pyarrow.ArrowException) as error:
        reason = next(iter(str(error).splitlines()), "")
        raise ValueError(
            f"{path}: no table of published results ({reason:.200}); take it from the repository "
            "again, or make it: python -m mlperf_bert.submission.published"
        ) from error


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def provenance() -> Mapping[str, object]:
    """Return what the table says of itself: about, licence, commits of its sources."""
    return json.loads(pyarrow.parquet.read_schema(TABLE).metadata[PANDAS_ATTRS])


@ends_in_one_line("published")
def main(arguments: Sequence[str] | None = None) -> int:
    """Make the table from clones; return 1 with one line if something is missing."""
    parser = argparse.ArgumentParser(prog="python -m mlperf_bert.submission.published")
    parser.add_argument("clones", type=Path, help="holds training_results_v1.0 to _v5.0")
    parser.add_argument("--output", type=Path, default=TABLE)
    given = parser.parse_args(paths.words_with_home(arguments))
    require_writable(given.output)
    require_free({"--output": str(given.output)})
    from mlperf_bert.submission import collecting  # the official tools, which a reader needs not

    entries, commits = collecting.collect(given.clones)
    collecting.save(entries, commits, given.output)
    print(f"{len(entries)} systems in {given.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
