"""Commands on MLPerf BERT logs of any submitter: compare, curve, expect, standing."""

import mlperf_bert  # noqa: F401 - first: it says in one line what this Python lacks
