"""MLPerf Training BERT pre-training: the parts behind the root scripts.

Imports go one way: mlperf | data | model | optimization -> checkpoints | input -> training ->
submission | finetuning | portable | convert -> root scripts (tests/test_architecture.py).
"""
