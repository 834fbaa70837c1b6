"""Batches from records, with TensorFlow: reading, checking, packing."""
