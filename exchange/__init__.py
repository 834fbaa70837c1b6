"""Formats of others that both tracing/ and mlperf_bert/portable/ write; imports neither."""
