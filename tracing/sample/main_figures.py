"""The main figures of a trace's page, from its tables, by pandas alone."""

import sys
from pathlib import Path

import pandas as pd

folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
calls = pd.read_parquet(folder / "file_ops.parquet")
calls = calls[calls["error"].isna()]
renames = calls[calls["kind"] == "rename"].astype(str).set_index("path")["new_path"].to_dict()
of_path = pd.read_parquet(folder / "files.parquet").astype({"path": str}).set_index("path")
named = calls["path"].astype(str).replace(renames).map(of_path["file_class"])
calls["file_class"] = named.astype(object).fillna(calls["file_class"].astype(object))
calls = calls[calls["kind"].isin(["read", "write"])]
by_class = calls.groupby(["file_class", "kind"], observed=True)
classes = by_class["size_bytes"].agg(calls="size", bytes="sum", median_bytes="median")
classes["median_us"] = by_class["latency_ns"].median() / 1000
classes["p99_us"] = by_class["latency_ns"].quantile(0.99) / 1000
phases = pd.read_parquet(folder / "spans.parquet").sort_values("monotonic_ns", kind="stable")
phases["seconds"] = (phases["end_monotonic_ns"] - phases["monotonic_ns"]) / 1e9
for name, kind in (("tfrecords", "read"), ("checkpoints", "write")):
    moved = calls[(calls["file_class"] == name) & (calls["kind"] == kind)]
    sums = [moved.loc[moved["monotonic_ns"].between(*span), "size_bytes"].sum()
            for span in zip(phases["monotonic_ns"], phases["end_monotonic_ns"])]  # fmt: skip
    phases[f"{name}_{kind}_bytes"] = sums
samples = pd.read_parquet(folder / "processes.parquet")
cpu_seconds = samples.groupby("pid")[["user_ms", "system_ms"]].max().to_numpy().sum() / 1000
peak_bytes = samples.groupby("monotonic_ns")["resident_bytes"].sum().max()
print(classes.round(1).to_string(), phases.iloc[:, [2, -3, -2, -1]].to_string(), sep="\n\n")
print(f"\nprocessor time of what was sampled {cpu_seconds:.2f} s, peak memory {peak_bytes:,} bytes")
