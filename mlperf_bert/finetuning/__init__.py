"""Fine-tuning on GLUE and SQuAD."""
