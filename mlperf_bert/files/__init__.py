"""Paths, whole files, locks and records, local or in a bucket; no other subpackage asks which."""
