"""Text becomes records: clean, split, tokenize, mask, write."""
