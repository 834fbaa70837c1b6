"""How many bytes of other data are read between two reads of the same 4,096 bytes."""

import bisect
import sys
from pathlib import Path

import pandas as pd

if len(sys.argv) != 2 or not Path(sys.argv[1], "file_ops.parquet").is_file():
    sys.exit("reuse_distances.py: give the folder of a trace, which holds file_ops.parquet")
reads = pd.read_parquet(Path(sys.argv[1]) / "file_ops.parquet").dropna(subset=["offset_bytes"])
reads = reads.sort_values("monotonic_ns")
reads = reads[(reads["kind"] == "read") & (reads["size_bytes"] > 0)]
reads = reads.astype({"path": object, "offset_bytes": int})
extents = zip(reads["offset_bytes"], reads["size_bytes"])
reads["block"] = [range(at // 4096, (at + size - 1) // 4096 + 1) for at, size in extents]
blocks = reads[["path", "block"]].explode("block", ignore_index=True)
blocks = blocks[blocks["block"] != blocks.groupby("path")["block"].shift()]
last_read: dict[tuple[str, int], int] = {}
in_order: list[int] = []
distances: list[int] = []
for now, block in enumerate(zip(blocks["path"], blocks["block"])):
    at = bisect.bisect_left(in_order, last_read.get(block, now))
    distances.append(4096 * (len(in_order) - at - 1))
    in_order[at:] = [*in_order[at + 1 :], now]
    last_read[block] = now
blocks = blocks.assign(distance=distances).query("distance >= 0")
print(blocks["distance"].describe(percentiles=[0.5, 0.95, 0.99]))
