"""From a Wikipedia extract to batches: clean, split, tokenize, mask, record, read."""
