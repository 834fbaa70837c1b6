"""What runs mean: compare, curve, expect, standing; usable on anybody's MLPerf BERT logs."""

import mlperf_bert  # noqa: F401 - first: it says in one line what this Python lacks
