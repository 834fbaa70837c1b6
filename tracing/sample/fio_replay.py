"""Writes the reads of a trace's TFRecords for fio, at their times, one job for each thread."""

import sys
from pathlib import Path

import pandas as pd

if len(sys.argv) != 2 or not Path(sys.argv[1], "file_ops.parquet").is_file():
    sys.exit("fio_replay.py: give the folder of a trace, which holds file_ops.parquet")
calls = pd.read_parquet(Path(sys.argv[1]) / "file_ops.parquet").dropna(subset=["offset_bytes"])
calls = calls.sort_values("monotonic_ns")
of_data = (calls["kind"] == "read") & (calls["file_class"] == "tfrecords")
reads = calls[of_data & (calls["size_bytes"] > 0)]
began = reads["monotonic_ns"].min()
with Path("replay.fio").open("w", encoding="utf-8") as jobs:
    jobs.write("[global]\nioengine=psync\ninvalidate=0\n")
    for tid, thread in reads.groupby("tid"):
        lines = ["fio version 3 iolog"]
        for path in thread["path"].unique():
            lines += [f"1 {path} add", f"1 {path} open"]
        for call in thread.assign(at_us=(thread["monotonic_ns"] - began) // 1000 + 1).itertuples():
            read = f"{call.offset_bytes:.0f} {call.size_bytes}"
            lines.append(f"{call.at_us} {call.path} read {read}")
        Path(f"{tid}.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
        jobs.write(f"[{tid}]\nread_iolog={tid}.log\n")
