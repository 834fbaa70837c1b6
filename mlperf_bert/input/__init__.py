"""Records to batches, with TensorFlow: reading, checking, packing."""
