"""Checkpoints from and to the layouts of others: TF1, TF2, Hugging Face."""
