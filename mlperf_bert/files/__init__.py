"""Paths, whole files, locks and records, local or in a bucket; no other room asks which."""
