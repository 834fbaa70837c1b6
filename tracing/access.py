"""How files were read: order, reuse, distinct bytes, and how many calls at once.

Everything works on arrays: a trace of a million calls takes seconds. TERMS defines the words.
"""

from dataclasses import dataclass

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
    "reuse distance": "bytes of distinct data, of all files, that were read between two reads of "
    "the same block of 4,096 bytes; a block that two reads in sequence share counts as read once",
    "page-cache hit ratio": "1 - storage bytes / bytes of read calls, at least 0; storage bytes "
    "also hold what was read ahead, and what programs and their libraries mapped",
    "read amplification": "bytes of read calls / bytes of distinct data",
    "queue depth": "calls that had begun and not returned; of block I/O, requests issued and not "
    "completed. The mean is that of the time with at least one",
    "pass": "one reading of all training data. The first pass ends when as many bytes were read as "
    "there are distinct ones among those that were read, and so on; because data are read ahead, a "
    "pass is not exactly an epoch",
}
"""Word -> what it means, as the page says it."""

BLOCK_BYTES = 4096  # a page of the page cache
MOST_BLOCK_READS = 1_000_000
_ACCESSES_AT_ONCE = 4_000_000
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
    found = pd.Series(UNKNOWN, reads.index, dtype=object)
    found[known.index] = np.where(gaps == 0, SEQUENTIAL, np.where(same_gap, STRIDED, RANDOM))
    return found


def distinct_bytes(files: np.ndarray, offsets: np.ndarray, sizes: np.ndarray) -> int:
    """How many bytes of the files were read at least once; `files` are numbers from 0."""
    begins = (files.astype(np.int64) << _FILE_SHIFT) + offsets.astype(np.int64)
    order = np.argsort(begins, kind="stable")
    begins, ends = begins[order], (begins + sizes.astype(np.int64))[order]
    reached = np.maximum.accumulate(np.concatenate([[0], ends[:-1]]))
    return int(np.maximum(ends - np.maximum(begins, reached), 0).sum())


@dataclass(frozen=True)
class Reuse:
    """Reads of blocks, in order of time."""

    rate: float
    """The share of the blocks that was looked at; 1.0 = all, and the distances are exact."""
    calls: np.ndarray
    """int64: which call each read of a block belongs to."""
    distances: np.ndarray
    """float64 bytes; NaN for a block's first read."""


def reuse(
    files: np.ndarray,
    offsets: np.ndarray,
    sizes: np.ndarray,
    goes_on: np.ndarray,
    *,
    most: int = MOST_BLOCK_READS,
) -> Reuse:
    """Reuse distances of blocks.

    Exact (a stack distance counted by inversions) up to `most` reads of blocks. Beyond, blocks are
    picked by a hash of their address, and distances are divided by the share picked, with the error
    that this sampling has. Source: Waldspurger et al., SHARDS, FAST 2015.

    Args:
      files, offsets, sizes: of reads in order of time; `files` are numbers from 0.
      goes_on: the reads that start where the previous one of their open file ended.
      most: reads of blocks to look at, about.
    """
    # A block that the read before ended within is not a new read of this block.
    begins = offsets // BLOCK_BYTES + (goes_on & (offsets % BLOCK_BYTES > 0))
    counts = np.maximum((offsets + sizes - 1) // BLOCK_BYTES - begins + 1, 0).astype(np.int64)
    addresses = (files.astype(np.int64) << _FILE_SHIFT) // BLOCK_BYTES + begins.astype(np.int64)
    total = int(counts.sum())
    rate = min(1.0, most / max(total, 1))
    calls, blocks = [], []
    cuts = np.arange(_ACCESSES_AT_ONCE, total, _ACCESSES_AT_ONCE)
    for part in np.split(np.arange(len(counts)), np.searchsorted(np.cumsum(counts), cuts)):
        of_call = np.repeat(part, counts[part])
        firsts = np.cumsum(counts[part]) - counts[part]
        within = np.arange(len(of_call)) - np.repeat(firsts, counts[part])
        block = addresses[of_call] + within
        picked = _is_picked(block, rate)
        calls.append(of_call[picked])
        blocks.append(block[picked])
    distances = stack_distances(np.concatenate(blocks)) * BLOCK_BYTES / rate
    return Reuse(rate, np.concatenate(calls), distances)


def _is_picked(blocks: np.ndarray, rate: float) -> np.ndarray:
    """Always the same blocks, spread evenly: the finalizer of splitmix64 as a hash."""
    if rate == 1.0:
        return np.ones(len(blocks), bool)
    mixed = blocks.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return mixed < np.uint64(rate * 2.0**64)


def stack_distances(blocks: np.ndarray) -> np.ndarray:
    """How many distinct blocks lie between two reads of the same one; float64, NaN at first reads.

    A block read in between counts once, at its first read there: one whose own previous read lies
    before. So the distance is a count of earlier reads with an earlier previous read.
    """
    num = len(blocks)
    order = np.argsort(blocks, kind="stable")
    again = np.zeros(num, bool)
    again[1:] = blocks[order][1:] == blocks[order][:-1]
    previous = np.full(num, -1, np.int64)
    previous[order[1:][again[1:]]] = order[:-1][again[1:]]
    ranks = np.empty(num, np.int64)
    ranks[np.argsort(previous, kind="stable")] = np.arange(num)
    # All reads up to the previous one have an earlier previous read, and are not part of it.
    distances = _num_smaller_before(ranks) - (previous + 1)
    return np.where(previous < 0, np.nan, distances)


def _num_smaller_before(ranks: np.ndarray) -> np.ndarray:
    """For each element of a permutation of 0..n-1, how many smaller ones stand before it.

    Sorts by one bit after the other from the highest; at each bit a 1 stands behind the zeros
    before it that share its higher bits.
    """
    num = len(ranks)
    values, counts = ranks.copy(), np.zeros(num, np.int64)
    positions = np.arange(num)
    for bit in reversed(range(max(num - 1, 0).bit_length())):
        # Elements with the same higher bits stand together, from the smallest possible one on.
        starts = (values >> (bit + 1)) << (bit + 1)
        is_one = (values >> bit) & 1
        ones = np.cumsum(is_one) - is_one
        ones_before = ones - ones[starts]
        zeros_before = positions - starts - ones_before
        counts += is_one * zeros_before
        moved = starts + np.where(is_one, (1 << bit) + ones_before, zeros_before)
        placed = np.empty((2, num), np.int64)
        placed[:, moved] = values, counts
        values, counts = placed
    return counts[ranks]  # sorted by value now


@dataclass(frozen=True)
class InFlight:
    """How many calls had begun and not returned, over time."""

    times: np.ndarray
    """Nanoseconds, int64; the depth changes at these."""
    depths: np.ndarray
    """From each time to the next; the last one is 0."""

    @classmethod
    def of(cls, begins_ns: np.ndarray, latencies_ns: np.ndarray) -> "InFlight":
        """The depth over time, from the beginning and latency of each of one or more calls."""
        times = np.concatenate([begins_ns, begins_ns + latencies_ns]).astype(np.int64)
        moves = np.repeat([1, -1], len(begins_ns))
        order = np.lexsort((moves, times))  # one that returns makes room for one that begins
        return cls(times[order], np.cumsum(moves[order]))

    def figures(self) -> dict | None:
        """Mean, median and p95 while busy, maximum, busy seconds; None if no call took time."""
        spans = np.diff(self.times, append=self.times[-1])
        busy = self.depths > 0
        total = int(spans[busy].sum())
        if not total:
            return None
        seconds_at = np.bincount(self.depths[busy], weights=spans[busy] / 1e9)
        reached = np.cumsum(seconds_at) / seconds_at.sum()
        return {
            "mean": round(float((spans * self.depths).sum() / total), 4),
            "p50": int(np.searchsorted(reached, 0.5)),
            "p95": int(np.searchsorted(reached, 0.95)),
            "max": int(self.depths.max()),
            "busy_seconds": round(total / 1e9, 6),
        }

    def mean_over(self, edges_ns: np.ndarray) -> np.ndarray:
        """The mean depth between each two edges."""
        spans = np.diff(self.times, append=self.times[-1])
        area = np.concatenate([[0.0], np.cumsum(spans * self.depths)[:-1]])
        return np.diff(np.interp(edges_ns, self.times, area)) / np.diff(edges_ns)
