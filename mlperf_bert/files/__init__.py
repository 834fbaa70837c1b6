"""Local or in a bucket: paths, whole files and folders, locks, records. Nobody else asks which."""
