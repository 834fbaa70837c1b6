"""What published results let expect of all hardware, and how often that is right.

    python -m mlperf_results.benchmarks.expect_table

prints, in Markdown, the table of all hardware that three submitters or more have published, and the
errors of the method: every result is predicted from those of the other submitters.
"""

import sys

from mlperf_bert.messages import ends_in_one_line
from mlperf_results import published
from mlperf_results.expect import BATCH, COUNT, MINUTES, NODES, RATE, Published, Question

_NUM_SUBMITTERS_IN_TABLE = 3


def table(known: Published) -> str:
    """Return expectations of all hardware of three submitters or more, in Markdown."""
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


@ends_in_one_line("expect_table")
def main() -> None:
    """Print the tables."""
    known = Published(published.load())
    print(f"{table(known)}\n\n{table_of_errors(known)}")


if __name__ == "__main__":
    sys.exit(main())
