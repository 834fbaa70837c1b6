"""Makes demo/reference_runs.json again: curves of five demos, which every demo is watched beside.

    python -m demo.reference_runs --output_dir=build/five_demos

Each demo has a seed of its own: another text, other weights, another order. Ten minutes on two
cores; a command that was stopped goes on.
"""

import argparse
import shutil
import sys
import time
from pathlib import Path

from demo.__main__ import REPOSITORY, make_data, run_steps, training_step
from mlperf_bert.files import paths
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.mlperf.logs import has_ended
from mlperf_results import other_runs

REFERENCE_RUNS = REPOSITORY / "demo" / "reference_runs.json"
SEEDS = range(101, 106)


@ends_in_one_line("reference_runs")
def main() -> int:
    """Run all, and write the file."""
    parser = argparse.ArgumentParser(prog="python -m demo.reference_runs")
    parser.add_argument("--output_dir", type=Path, default=Path("build/five_demos"))
    given = parser.parse_args(paths.words_with_home())
    folder = given.output_dir.absolute()
    for seed in SEEDS:
        one, start = folder / str(seed), time.monotonic()
        if not has_ended(one / "run"):
            make_data(one, seed, start)
            run_steps([training_step(one, seed, reference=None)], start)
        shutil.copyfile(one / "run" / "bert.log", folder / f"result_{seed}.txt")
    others = other_runs.own_reference(str(folder))
    others.words = f"{len(SEEDS)} other demos"
    other_runs.save(others, str(REFERENCE_RUNS))
    print(f"{len(others)} runs in {REFERENCE_RUNS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
