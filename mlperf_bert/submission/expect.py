"""How long a run takes on an accelerator: from published results.

    python -m mlperf_bert.submission.expect --accelerator=H100 --count=8 --batch=448 --nodes=1

prints minutes to 0.720, samples/s and energy, each with an interval of 80%, the systems that they
rest on, and with `--price_per_hour` money: expectation.py has the method. Without arguments it
prints, in Markdown, the table of all hardware that two submitters or more have published, and the
errors of the method.
"""

import argparse
import contextlib
import dataclasses
import sys
from collections.abc import Sequence

from mlperf_bert.files import paths
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.mlperf.rules import NUM_RUNS_PER_RESULT
from mlperf_bert.options import whole_number
from mlperf_bert.submission import published
from mlperf_bert.submission.entry import family_of
from mlperf_bert.submission.expectation import (
    BATCH,
    COUNT,
    LEVEL,
    MINUTES,
    NODES,
    RATE,
    Errors,
    Expectation,
    Published,
    Question,
    three_digits,
)

COMMAND = "python -m mlperf_bert.submission.expect"
SOURCE = "closed division, rounds 1.0 to 5.0"
_NUM_SUBMITTERS_IN_TABLE = 2
_NUM_SYSTEMS_SHOWN = 3


def lines_of(expected: Expectation) -> list[str]:
    """Return an expectation for a terminal."""
    energy = expected.kilowatt_hours
    return [
        f"{expected.question}: from {expected.basis()} ({SOURCE}); the {LEVEL:.0%} intervals in "
        f"brackets and the errors are those of {len(expected.errors.families)} results, each "
        "expected from others",
        f"  minutes to 0.720: {expected.minutes}; {_errors_text(expected.errors, MINUTES)}",
        f"  samples/s: {expected.samples_per_second}; {_errors_text(expected.errors, RATE)}",
        f"  kWh of a run: {energy or 'unknown: nobody published the power of this family'}",
        f"  rests on: {names_of(expected)}",
    ]


def names_of(expected: Expectation) -> str:
    """Return the names of the first systems that an expectation rests on."""
    names = ", ".join(entry.name for entry in expected.results[:_NUM_SYSTEMS_SHOWN])
    more = len(expected.results) - _NUM_SYSTEMS_SHOWN
    return names + (f" and {more} more" if more > 0 else "")


def _errors_text(errors: Errors, figure: int) -> str:
    middle, far = (errors.relative(figure, quantile) for quantile in (0.5, 0.9))
    return f"off by {middle:.1%} in the median, {far:.0%} at the 90th percentile"


def price_line(minutes: Sequence[float], price_per_hour: float) -> str:
    """Return the price of a run and of a result; minutes are expected, least and most."""

    def of(number: int) -> str:
        price, least, most = (three_digits(m * price_per_hour / 60 * number) for m in minutes)
        return f"{price} ({least} to {most})"

    return (
        f"  price: a run {of(1)}, the {NUM_RUNS_PER_RESULT} of a result {of(NUM_RUNS_PER_RESULT)}; "
        f"of the timed minutes alone, at {price_per_hour:g} an hour for the whole system"
    )


def table(known: Published) -> str:
    """Return expectations of all hardware of two submitters or more, in Markdown."""
    lines = ["| accelerators | results | submitters | minutes to 0.720 | samples/s | kWh |"]
    lines += ["|---|---|---|---|---|---|"]
    for family, count in sorted({(e.family, e.accelerators or 0) for e in known.entries}):
        each = known.expectation(Question(family, count))
        if each.num_submitters >= _NUM_SUBMITTERS_IN_TABLE:
            figures = each.minutes, each.samples_per_second, each.kilowatt_hours or ""
            cells = [each.question, len(each.results), each.num_submitters, *figures]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def table_of_errors(known: Published) -> str:
    """Return the errors of every kind of question, in Markdown."""
    each = "median, 90th percentile, in the interval"
    lines = [f"| its count | also given | results | samples/s: {each} | minutes: {each} |"]
    lines += ["|---|---|---|---|---|"]
    names = {BATCH: "batch", NODES: "nodes"}
    for is_published, count in ((True, "published"), (False, "hidden")):
        for given in ((), (BATCH,), (NODES,), (BATCH, NODES)):
            errors = known.errors((COUNT, *given), is_published)
            cells = [count, " and ".join(names[n] for n in given), str(len(errors.families))]
            for figure in (RATE, MINUTES):
                middle, far = (errors.relative(figure, quantile) for quantile in (0.5, 0.9))
                held = errors.level_and_coverage(figure)[1]
                cells.append(f"{middle:.1%}, {far:.0%}, {held:.0%}")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _price(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= float(text) < 1e9:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r}: give the price of an hour, below 1,000,000,000")


def _answer(given: argparse.Namespace) -> list[str]:
    known = Published(published.load())
    family = family_of(given.accelerator, given.count)
    expected = known.expectation(Question(family, given.count, given.batch, given.nodes))
    lines = lines_of(expected)
    if given.price_per_hour is not None:
        lines.append(price_line(dataclasses.astuple(expected.minutes), given.price_per_hour))
    return lines


@ends_in_one_line("expect")
def main(arguments: Sequence[str] | None = None) -> int:
    """Print an expectation, or the tables; return 1 with one line if there is none."""
    parser = argparse.ArgumentParser(prog=COMMAND)
    parser.add_argument("--accelerator", help="H100, A100 PCIe, or as its driver names it")
    parser.add_argument("--count", type=whole_number, help="of accelerators in the whole system")
    parser.add_argument("--batch", type=whole_number, help="global batch size")
    parser.add_argument("--nodes", type=whole_number, help="that the accelerators are in")
    parser.add_argument("--price_per_hour", type=_price, help="of the whole system")
    given = parser.parse_args(paths.words_with_home(arguments))
    asks = {name for name, value in vars(given).items() if value is not None}
    if asks and not {"accelerator", "count"} <= asks:
        parser.error("give both --accelerator and --count, or no argument at all for the tables")
    if given.nodes and given.nodes > given.count:
        parser.error(f"--nodes={given.nodes}: more than --count={given.count} accelerators")
    if asks:
        print("\n".join(_answer(given)))
    else:
        known = Published(published.load())
        print(f"{table(known)}\n\n{table_of_errors(known)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
