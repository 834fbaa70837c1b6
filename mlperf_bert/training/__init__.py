"""Devices, the training step, the loop, evaluation."""
