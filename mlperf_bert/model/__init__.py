"""BERT with both pre-training heads, its losses and its metrics."""
