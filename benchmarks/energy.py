"""What a reading of the energy sensors costs.

    python -m benchmarks.energy --readings=2000

Reads this host's own power zones, or, if it shows none, three generated files in their place.
Prints the processor time of a reading, of all threads, and its share of the interval between two
readings.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from mlperf_bert.files import paths
from mlperf_bert.mlperf import energy
from mlperf_bert.options import whole_number

ZONES = ("package-0", "package-1", "dram")


def generate(folder: Path) -> Path:
    """Writes power zones as the kernel shows them."""
    for number, name in enumerate(ZONES):
        zone = folder / f"intel-rapl:{number}"
        zone.mkdir()
        for file, content in (
            ("name", name), ("energy_uj", 1000), ("max_energy_range_uj", 65_532_610_987)
        ):  # fmt: skip
            (zone / file).write_text(f"{content}\n")
    return folder


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--readings", type=whole_number, default=2000, help="readings a turn")
    parser.add_argument("--turns", type=whole_number, default=5)
    given = parser.parse_args(paths.words_with_home())

    def seconds_per_reading() -> float:
        began = time.process_time()
        for _ in range(given.readings):
            meter.read()
        return (time.process_time() - began) / given.readings

    with tempfile.TemporaryDirectory() as folder:
        meter = energy.meter()
        read = meter.plan
        if "unknown" in read:
            read = f"{len(ZONES)} generated files ({read})"
            meter = energy.meter(rapl=generate(Path(folder)))
        turns = sorted(seconds_per_reading() for _ in range(given.turns))
    cost = statistics.median(turns)
    print(f"read: {read}")
    print(
        f"{1e6 * cost:.0f} µs of a processor a reading (median of {given.turns} turns, "
        f"{1e6 * turns[0]:.0f} to {1e6 * turns[-1]:.0f}), "
        f"{cost / energy.INTERVAL_SECONDS:.2%} of the interval"
    )


if __name__ == "__main__":
    main()
