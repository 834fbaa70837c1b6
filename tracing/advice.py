"""What a trace's own figures say to do, in words: each rule is silent unless it applies."""

from collections.abc import Iterator

from tracing import access, files, mllog
from tracing.calls import Losses
from tracing.loaded import Trace

_SMALL_BYTES = 4096
_MOST_WAIT = 0.1
"""Share of its time for which a training may wait: MLPerf Storage asks for 90% utilization."""
_NOTHING = 0.01


def advice(trace: Trace) -> list[str]:
    """The words of every rule that applies; the summary has the figures of the tables already."""
    figures = trace.summary["access"]
    rules = [
        *_of_reads(trace, figures),
        *_of_cache(figures["passes"] or []),
        *_of_time(trace, figures),
    ]
    return [words for applies, words in rules if applies]


def _of_reads(trace: Trace, figures: dict) -> Iterator[tuple[bool, str]]:
    reads = trace.reads[trace.reads["file_class"] == files.TFRECORDS]
    # Of no reads the shares are NaN, which no rule applies to.
    small = (reads["size_bytes"] < _SMALL_BYTES).mean()
    sequential = (reads["pattern"] == access.SEQUENTIAL).mean()
    yield (
        small >= 0.5 and sequential >= 0.5,
        f"{small:.0%} of the reads of TFRecords are below 4 KiB, and {sequential:.0%} go on where "
        "the one before ended: a larger read buffer makes fewer calls of them",
    )
    of_class = (figures["file_classes"] or {}).get(files.TFRECORDS)
    share = of_class["patterns"][access.RANDOM]["share_of_bytes"] or 0 if of_class else 0
    yield (
        share >= 0.5,
        f"{share:.0%} of the bytes of TFRecords were read at random offsets, where nothing can be "
        "read ahead: read whole files in a random order, and shuffle their records in memory",
    )


def _of_cache(passes: list[dict]) -> Iterator[tuple[bool, str]]:
    known = [each for each in passes if each["storage_bytes"] is not None]
    shares = [each["storage_bytes"] / each["call_bytes"] for each in known]
    if not shares or max(shares[1:], default=0) > _NOTHING:
        return
    yield (
        shares[0] <= _NOTHING,
        "the page cache held all training data from the start: this run says nothing about "
        "storage; python -m tracing.sweep --cache=cold reads them from it",
    )
    yield (
        shares[0] > _NOTHING and len(shares) > 1,
        "the page cache holds all training data after pass 1: from there on this run says nothing "
        f"about storage; a limit of memory below {known[0]['call_bytes']:,} bytes of data does "
        "(python -m tracing.sweep --memory)",
    )


def _of_time(trace: Trace, figures: dict) -> Iterator[tuple[bool, str]]:
    """Of what the log's ledger says of the blocks' time, nothing without one; and of losses."""
    blocks = [(end - begin, s) for begin, end, s in mllog.ledger_shares(trace.table("mllog"))]
    total = 100 * sum(lasting for lasting, _ in blocks) or 1
    waiting, saving = (
        sum(lasting * shares.get(kind, 0) for lasting, shares in blocks) / total
        for kind in ("input wait", "saving")
    )
    yield (
        waiting > _MOST_WAIT,
        f"the training waited for its input {waiting:.0%} of the time, where MLPerf Storage allows "
        f"{_MOST_WAIT:.0%}: the storage or the reading is too slow for this accelerator",
    )
    depth = figures["queue_depth"].get("read_calls", {}).get("mean", 0)
    yield (
        waiting > _MOST_WAIT and 0 < depth < 1.5,
        f"while the training waited, {depth:.1f} reads were under way on average: more files at "
        "once (--num_parallel_files) give the storage more to do",
    )
    yield (
        saving > _MOST_WAIT,
        f"checkpoints held the training up for {saving:.0%} of the time: save less often, or "
        "while the training goes on (--async_checkpoint)",
    )
    lost = Losses(**trace.summary["losses"]).total()
    yield lost > 0, f"{lost:,} events were lost: calls and bytes are at least those shown here"
