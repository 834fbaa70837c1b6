"""Conversion of checkpoints from and to other layouts: TF1, TF2, Hugging Face."""
