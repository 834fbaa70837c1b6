"""Schedules, LAMB and AdamW as the reference computes them, gradient aggregation."""
