"""What the process that `starts` forks has imported: all that the root scripts import."""

import os

# No wait before a request to an object store is tried again: TensorFlow reads it when imported.
os.environ.setdefault("GCS_RETRY_CONFIG_INIT_DELAY_TIME_US", "0")

from mlperf_bert.convert import exporting, importing, tf1_tf2  # noqa: F401
from mlperf_bert.data import dataset, evaluation_shard  # noqa: F401
from mlperf_bert.finetuning import sweep  # noqa: F401
from mlperf_bert.training import inspection, offline, reporting, run  # noqa: F401
