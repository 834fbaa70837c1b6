"""Prints the lines of every subpackage beside its maximum, and those of the tests.

python -m tests.helpers.count
"""

import collections
import functools
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Lines of Python without tests; of cloud those of shell. Each is 3% above what its subpackage has;
# it may rise with a named capability (docs/architecture.md).
MAX_LINES = {
    "benchmarks": 1_990,
    "cleanup_scripts": 275,
    "cloud": 275,
    "demo": 845,
    "mlperf_bert": 1_007,
    "mlperf_bert/checkpoints": 840,
    "mlperf_bert/convert": 604,
    "mlperf_bert/data": 3_570,
    "mlperf_bert/files": 972,
    "mlperf_bert/finetuning": 1_840,
    "mlperf_bert/input": 800,
    "mlperf_bert/mlperf": 1_707,
    "mlperf_bert/model": 1_385,
    "mlperf_bert/model/kernels": 450,
    "mlperf_bert/optimization": 395,
    "mlperf_bert/portable": 795,
    "mlperf_bert/programs": 1_540,
    "mlperf_bert/submission": 1_812,
    "mlperf_bert/training": 4_420,
    "mlperf_results": 1_484,
    "root": 545,
    "tracing": 5_350,
}


@functools.cache
def lines() -> dict[str, int]:
    """Subpackage -> its lines, of all files that git knows or will know."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    total = collections.Counter(dict.fromkeys(MAX_LINES, 0))
    for name in map(Path, listed):
        suffixes = (".sh", ".sbatch") if name.parts[0] == "cloud" else (".py",)
        if name.suffix in suffixes and (ROOT / name).is_file():
            text = (ROOT / name).read_text(encoding="utf-8")
            total[subpackage_of(name)] += len(text.splitlines())
    return total


def subpackage_of(name: Path) -> str:
    """`mlperf_bert/data`; the top of the package, the root and the tests count as subpackages."""
    first, *folders = name.parts[:-1] or ["root"]
    if "tests" in name.parts or name.name == "conftest.py":
        return "tests" if first in ("tests", "root") else f"{first}/tests"
    if first == "mlperf_bert":
        return "/".join([first, *folders])
    if folders and folders[0] == "benchmarks":
        return f"{first}/benchmarks"
    return "root" if first in ("pages", "environment") else first


def main() -> None:
    """Prints the table."""
    print(f"{'subpackage':26} lines maximum")
    for subpackage, number in sorted(lines().items()):
        print(f"{subpackage:26}{number:6}{MAX_LINES.get(subpackage, ''):>8}")


if __name__ == "__main__":
    main()
