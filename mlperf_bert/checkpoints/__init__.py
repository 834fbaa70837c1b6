"""Names, reading, conversion and saving of checkpoints."""
