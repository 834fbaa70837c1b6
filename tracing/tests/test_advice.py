"""Each rule of advice: a trace where it applies, and one where it does not."""

import re
from pathlib import Path

import pytest

from tracing.tests import by_hand
from tracing.tests.by_hand import DATA_BYTES


def advised(
    folder: Path,
    *,
    size: int = 10_000,
    step: int = 1,
    storage: tuple = (0, 0, 10),
    passes: int = 2,
    ledger: dict | None = None,
    latency_s: float = 0.001,
    damaged: int = 0,
) -> list[str]:
    """The advice for a trace of 10 s by hand.

    Args:
      size, step: of the reads, and which one follows which in the file: 1 is sequential.
      storage: parts of 10 of the data that had come from storage in second 0, 1, ... and then on.
      passes: over the file of 40,000 bytes, which is opened for each, in seconds 1, 3, ...
      ledger: seconds of the training's block, if it logs them.
    """
    data, writing_of_log = by_hand.training(folder, ledger)
    num, lines = DATA_BYTES // size, []
    for turn in range(passes):
        begin = 1 + 2 * turn
        lines += [by_hand.opened(begin, data, fd=3 + turn)]
        for n in range(num):
            offset = n * step % num * size
            at = begin + 0.1 + 1.2 * n / (num - 1)
            lines.append(by_hand.pread(at, data, offset, size, fd=3 + turn, latency_s=latency_s))
    lines += [*writing_of_log, *["7 no line of strace\n"] * damaged]
    processes = [
        by_hand.process(s, 7, 1, 0, storage[min(s, len(storage) - 1)] * DATA_BYTES // 10)
        for s in range(10)
    ]
    return by_hand.make(folder / "trace", lines, processes=processes)["advice"]


WAITS = {"input_wait_seconds": 3, "compute_seconds": 4, "saving_seconds": 0.5}
COMPUTES = {"input_wait_seconds": 0.5, "compute_seconds": 6.9, "saving_seconds": 0.1}
FROM_STORAGE = tuple(range(0, 50, 5))  # each pass again
RULES = {
    "small": (
        {"size": 400, "storage": FROM_STORAGE},
        {"storage": FROM_STORAGE},
        r"^100% of the reads of TFRecords are below 4 KiB, and 100% go on where",
    ),
    "small, but not one after the other": (
        {"size": 400, "storage": FROM_STORAGE},
        {"size": 400, "step": 37, "storage": FROM_STORAGE},
        r"^100% of the reads of TFRecords are below 4 KiB",
    ),
    "random": (
        {"size": 400, "step": 37, "storage": FROM_STORAGE},
        {"size": 400, "storage": FROM_STORAGE},
        r"^\d\d% of the bytes of TFRecords were read at random offsets",
    ),
    "cached after the first pass": (
        {"storage": (0, 0, 10)},
        # The third of three passes comes from storage again, the second does not.
        {"storage": (0, 0, 10, 10, 10, 10, 20), "passes": 3},
        r"^the page cache holds all training data after pass 1: .* below 40,000 bytes of data",
    ),
    "cached from the start": (
        {"storage": (0, 0)},
        {"storage": FROM_STORAGE},
        r"^the page cache held all training data from the start: this run says nothing about",
    ),
    "one pass cannot say what is cached after it": (
        {"storage": (0, 0, 10)},
        {"storage": (0, 0, 10), "passes": 1},
        r"^the page cache holds all training data after pass 1",
    ),
    "waiting": (
        {"ledger": WAITS, "storage": FROM_STORAGE},
        {"ledger": COMPUTES, "storage": FROM_STORAGE},
        r"^the training waited for its input 40% of the time, where MLPerf Storage allows 10%",
    ),
    "one read at a time": (
        {"ledger": WAITS, "storage": FROM_STORAGE},
        {"ledger": WAITS, "storage": FROM_STORAGE, "latency_s": 0.9},
        r"^while the training waited, [\d.]+ reads were under way on average",
    ),
    "saving": (
        {"ledger": WAITS | {"saving_seconds": 3}, "storage": FROM_STORAGE},
        {"ledger": WAITS, "storage": FROM_STORAGE},
        r"^checkpoints held the training up for 30% of the time",
    ),
    "losses": (
        {"damaged": 3, "storage": FROM_STORAGE},
        {"storage": FROM_STORAGE},
        r"^3 events were lost: calls and bytes are at least those shown here",
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_applies_to_one_trace_and_not_to_another(tmp_path, without_page, name):
    there, absent, words = RULES[name]
    for folder, trace in (("there", there), ("absent", absent)):
        (tmp_path / folder).mkdir()
        found = [line for line in advised(tmp_path / folder, **trace) if re.search(words, line)]
        assert len(found) == (folder == "there"), found


def test_a_good_run_needs_no_advice(tmp_path):
    assert advised(tmp_path, ledger=COMPUTES, storage=FROM_STORAGE) == []
    page = (tmp_path / "trace" / "summary.html").read_text()
    assert "What these figures say" not in page
