"""What anybody's MLPerf BERT logs mean: compare, curve, expect, standing."""

import mlperf_bert  # noqa: F401 - first: it says in one line what this Python lacks
