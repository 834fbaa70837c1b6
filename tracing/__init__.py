"""Traces of what a training run does to storage, memory, processors and GPUs, on one clock."""
