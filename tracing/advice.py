"""What a trace's own figures say to do, in words: each rule is silent unless it applies."""

from collections.abc import Callable

from tracing import access, files, mllog
from tracing.access_figures import Access
from tracing.loaded import Loaded

_SMALL_BYTES = 4096
_MOST_WAIT = 0.1
"""Share of its time for which a training may wait: MLPerf Storage asks for 90% utilization."""
_NOTHING = 0.01


def advice(trace: Loaded, found: Access, summary: dict) -> list[str]:
    """The words of every rule that applies; `summary` has what `figures.summary` computes."""
    return [words for rule in RULES if (words := rule(trace, found, summary))]


def _small_reads(trace: Loaded, found: Access, summary: dict) -> str | None:
    reads = found.reads[found.reads["file_class"] == files.TFRECORDS]
    if reads.empty:
        return None
    small = (reads["size_bytes"] < _SMALL_BYTES).mean()
    sequential = (reads["pattern"] == access.SEQUENTIAL).mean()
    if small < 0.5 or sequential < 0.5:
        return None
    return (
        f"{small:.0%} of the reads of TFRecords are below 4 KiB, and {sequential:.0%} go on where "
        "the one before ended: a larger read buffer makes fewer calls of them"
    )


def _random_reads(trace: Loaded, found: Access, summary: dict) -> str | None:
    classes = summary["access"]["file_classes"] or {}
    share = classes.get(files.TFRECORDS, {}).get("patterns", {}).get(access.RANDOM, {})
    share = share.get("share_of_bytes") or 0
    if share < 0.5:
        return None
    return (
        f"{share:.0%} of the bytes of TFRecords were read at random offsets, where nothing can be "
        "read ahead: read whole files in a random order, and shuffle their records in memory"
    )


def _cached(trace: Loaded, found: Access, summary: dict) -> str | None:
    passes = [p for p in summary["access"]["passes"] or [] if p["storage_bytes"] is not None]
    shares = [each["storage_bytes"] / each["call_bytes"] for each in passes]
    if not shares or max(shares[1:], default=0) > _NOTHING:
        return None
    if shares[0] <= _NOTHING:
        return (
            "the page cache held all training data from the start: this run says nothing about "
            "storage; python -m tracing.sweep --cache=cold reads them from it"
        )
    if len(shares) == 1:
        return None
    return (
        "the page cache holds all training data after pass 1: from there on this run says nothing "
        f"about storage; a limit of memory below {passes[0]['call_bytes']:,} bytes of data does "
        "(python -m tracing.sweep --memory)"
    )


def _share(trace: Loaded, kind: str) -> float:
    """Of the blocks' time by the log's ledger; 0 without one."""
    blocks = [(end - begin, s) for begin, end, s in mllog.ledger_shares(trace.table("mllog"))]
    total = sum(lasting for lasting, _ in blocks)
    return sum(lasting * s.get(kind, 0) for lasting, s in blocks) / total / 100 if total else 0.0


def _input_wait(trace: Loaded, found: Access, summary: dict) -> str | None:
    share = _share(trace, "input wait")
    if share <= _MOST_WAIT:
        return None
    return (
        f"the training waited for its input {share:.0%} of the time, where MLPerf Storage allows "
        f"{_MOST_WAIT:.0%}: the storage or the reading is too slow for this accelerator"
    )


def _one_at_a_time(trace: Loaded, found: Access, summary: dict) -> str | None:
    depth = summary["access"]["queue_depth"].get("read_calls", {}).get("mean", 0)
    if _share(trace, "input wait") <= _MOST_WAIT or not 0 < depth < 1.5:
        return None
    return (
        f"while the training waited, {depth:.1f} reads were under way on average: more files at "
        "once (--num_parallel_files) give the storage more to do"
    )


def _saving(trace: Loaded, found: Access, summary: dict) -> str | None:
    share = _share(trace, "saving")
    if share <= _MOST_WAIT:
        return None
    return (
        f"checkpoints held the training up for {share:.0%} of the time: save less often, or "
        "while the training goes on (--async_checkpoint)"
    )


def _lost(trace: Loaded, found: Access, summary: dict) -> str | None:
    if not (lost := trace.losses.total()):
        return None
    return f"{lost:,} events were lost: calls and bytes are at least those shown here"


RULES: tuple[Callable[[Loaded, Access, dict], str | None], ...] = (
    _small_reads, _random_reads, _cached, _input_wait, _one_at_a_time, _saving, _lost,
)  # fmt: skip
