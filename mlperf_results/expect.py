"""Says how long runs take on an accelerator, by the published results that are nearest to it.

    python -m mlperf_results.expect --accelerator=H100 --count=8 --batch=448

prints the published rows on as many accelerators, or on the nearest numbers of them, and their
range. Nothing is predicted.
"""

import argparse
import difflib
import math
import statistics
import sys
from collections.abc import Sequence

from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.options import expanded_arguments, whole_number
from mlperf_results import published
from mlperf_results.published import Entry, comparable, family_of

_MOST_SHOWN = 12
_FP8_UP_TO = 512
"""Results on more H100s than this have configurations that do not enable FP8."""
_WITHOUT_FP8 = "A100 A30 V100 RTX A5000".split()


def precision_of(entry: Entry) -> str:
    """Returns the precision of most products, FP8 or not, by the system's flags or its chip.

    Source: "FP8 in published results" of benchmarks/NOTES.md.
    """
    if entry.family.startswith("H100"):
        return "FP8" if (entry.accelerators or 0) < _FP8_UP_TO else "no FP8"
    return "no FP8" if entry.family.startswith(tuple(_WITHOUT_FP8)) else "unknown"


def nearest(family: str, count: int, batch: int | None, entries: Sequence[Entry]) -> list[Entry]:
    """Returns the published rows that answer the question, the latest first.

    These are rows on `count` accelerators, with the batch if any has it; else rows on the next
    smaller and the next larger number of accelerators.
    """
    known = [e for e in comparable(entries)[::-1] if e.family == family and e.accelerators]
    if not known:
        names = {e.family.lower(): e.family for e in comparable(entries) if e.accelerators}
        near = difflib.get_close_matches(family.lower(), names, n=5, cutoff=0)
        raise ValueError(
            f"--accelerator={family}: nobody published a comparable result on it; the nearest "
            f"names are {', '.join(names[name] for name in near)}"
        )
    counts = {e.accelerators or 0 for e in known}
    beside = [max((n for n in counts if n < count), default=0)]
    beside += [min((n for n in counts if n > count), default=0)]
    rows = [e for e in known if e.accelerators in ([count] if count in counts else beside)]
    return [e for e in rows if e.global_batch_size == batch] or rows


def lines_of(family: str, count: int, batch: int | None, rows: Sequence[Entry]) -> list[str]:
    """Returns the answer for a terminal: what was published, its range, the rows."""
    counts = sorted({e.accelerators or 0 for e in rows})
    batches = sorted({e.global_batch_size for e in rows if e.global_batch_size})
    lines = [
        f"{_joined(counts)} {family}: {len(rows)} published result{'s' * (len(rows) > 1)} of the "
        "closed division, of software that its makers tuned for this benchmark"
    ]
    if count not in counts:
        lines.append(f"nobody published {count:,} {family}: these are the nearest numbers of them")
    if batch and batch not in batches:
        lines.append(f"nobody published batch {batch:,} on them: these have {_joined(batches)}")
    lines.append(f"  minutes to 0.720: {_range([e.minutes for e in rows])}")
    lines.append(f"  samples/s: {_range([e.samples_per_second_median for e in rows])}")
    cells = [("accelerators", "batch", "precision", "minutes", "samples/s", "result")]
    cells += [
        (
            str(e.accelerators),
            _number(e.global_batch_size),
            precision_of(e),
            _number(e.minutes),
            _number(e.samples_per_second_median),
            e.name,
        )
        for e in _nearest_first(rows, count)[:_MOST_SHOWN]
    ]
    widths = [max(map(len, column)) for column in zip(*cells)]
    for *numbers, name in cells:
        padded = [f"{cell:>{width}}" for cell, width in zip(numbers, widths)]
        lines.append(f"  {'  '.join(padded)}  {name}")
    if (more := len(rows) - _MOST_SHOWN) > 0:
        lines.append(f"  and {more} more")
    return lines


def _nearest_first(rows: Sequence[Entry], count: int) -> list[Entry]:
    return sorted(rows, key=lambda e: abs(math.log2((e.accelerators or 1) / count)))


def _joined(numbers: Sequence[int]) -> str:
    return ", ".join(f"{number:,}" for number in numbers)


def _range(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "unknown"
    median, least, most = map(_number, (statistics.median(known), min(known), max(known)))
    return f"{median} in the median, {least} to {most}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    # What rounds to 100 would end in a point.
    return f"{value:,.0f}" if isinstance(value, int) or value >= 99.95 else f"{value:#.3g}"


@ends_in_one_line("expect")
def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the published rows; returns 1 with one line if there are none."""
    parser = argparse.ArgumentParser(prog="python -m mlperf_results.expect")
    parser.add_argument(
        "--accelerator", required=True, help="H100, A100 PCIe, or as its driver names it"
    )
    parser.add_argument(
        "--count", type=whole_number, required=True, help="of accelerators in the whole system"
    )
    parser.add_argument("--batch", type=whole_number, help="global batch size")
    options = parser.parse_args(expanded_arguments(arguments))
    family = family_of(options.accelerator, options.count)
    rows = nearest(family, options.count, options.batch, published.load())
    print("\n".join(lines_of(family, options.count, options.batch, rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
