"""MLPerf Training BERT pre-training: the parts behind the root scripts.

Imports go one way: mlperf | data | model | optimization -> checkpoints -> training -> root scripts
(tests/test_architecture.py).
"""
