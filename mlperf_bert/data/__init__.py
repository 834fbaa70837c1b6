"""From a Wikipedia extract to records: clean, split, tokenize, mask, write."""
