"""Devices, the loop and its events, one whole run."""
