"""Finds how files were read: in which order, how many distinct bytes, how many calls at once.

Everything works on arrays: a trace of a million calls takes seconds. TERMS defines the words.
"""

import numpy as np
import pandas as pd

SEQUENTIAL, STRIDED, RANDOM, UNKNOWN = "sequential", "strided", "random", "unknown"
PATTERNS = [SEQUENTIAL, STRIDED, RANDOM, UNKNOWN]
TERMS = {
    SEQUENTIAL: "a read that starts where the previous read of the same open file ended; the first "
    "one at byte 0",
    STRIDED: "a read that leaves the same gap (bytes skipped, or gone back) as the read before it, "
    "and the gap is not 0",
    RANDOM: "any other read",
    UNKNOWN: "a read whose offset or whose file's opening was not seen: of descriptors from before "
    "the trace or from a parent, or whose position more than one thread or process moves",
    "page-cache hit ratio": "1 - storage bytes / bytes of read calls, at least 0; storage bytes "
    "also hold what was read ahead, and what programs and their libraries mapped. Unknown where "
    "storage gave over a quarter more than read calls returned, where the counters miss processes "
    "whose calls were recorded, and with libaio and io_uring",
    "at least": "the true figure may be higher: what a process used that came and went between two "
    "samples is known only if another process waited for it",
    "read amplification": "bytes of read calls / bytes of distinct data",
    "queue depth": "calls that had begun and not returned; of block I/O, requests issued and not "
    "completed. The mean is that of the time with at least one",
    "pass": "one reading of all training data. The first pass ends when as many bytes were read as "
    "there are distinct ones among those that were read, and so on; because data are read ahead, a "
    "pass is not exactly an epoch",
}
"""Word -> what it means, as the page says it."""

_FILE_SHIFT = 44  # files of up to 16 TiB side by side in one address


def patterns(reads: pd.DataFrame) -> pd.Series:
    """The pattern of each read: SEQUENTIAL, STRIDED, RANDOM or UNKNOWN.

    Args:
      reads: in order of time, with `opening`, `offset_bytes` and `size_bytes`.
    """
    known = reads.dropna(subset=["opening", "offset_bytes"])
    openings, begins = known["opening"], known["offset_bytes"]
    gaps = begins - (begins + known["size_bytes"]).groupby(openings).shift(fill_value=0)
    same_gap = gaps == gaps.groupby(openings).shift()
    patterns = pd.Series(UNKNOWN, reads.index, dtype=object)
    patterns[known.index] = np.where(gaps == 0, SEQUENTIAL, np.where(same_gap, STRIDED, RANDOM))
    return patterns


def distinct_bytes(files: np.ndarray, offsets: np.ndarray, sizes: np.ndarray) -> int:
    """The number of bytes that were read at least once; `files` are numbers from 0."""
    begins = (files.astype(np.int64) << _FILE_SHIFT) + offsets.astype(np.int64)
    order = np.argsort(begins)
    begins, ends = begins[order], (begins + sizes.astype(np.int64))[order]
    reached = np.maximum.accumulate(np.concatenate([[0], ends[:-1]]))
    return int(np.maximum(ends - np.maximum(begins, reached), 0).sum())


def queue_depth(begins_ns: np.ndarray, latencies_ns: np.ndarray) -> dict | None:
    """Mean and maximum of the calls that had begun and not returned, and the seconds with any.

    None if no call took time.
    """
    times = np.concatenate([begins_ns, begins_ns + latencies_ns]).astype(np.int64)
    moves = np.repeat([1, -1], len(begins_ns))
    order = np.lexsort((moves, times))  # at equal times, calls return before others begin
    times, depths = times[order], np.cumsum(moves[order])
    spans = np.diff(times, append=times[-1:])
    busy_ns = int(spans[depths > 0].sum())
    if not busy_ns:
        return None
    mean = round(float((spans * depths).sum() / busy_ns), 4)
    return {"mean": mean, "max": int(depths.max()), "busy_seconds": round(busy_ns / 1e9, 6)}
