"""Local or in a bucket: where paths lead, whole files, locks, records. Nobody else asks which."""
