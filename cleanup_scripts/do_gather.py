"""Gathers the cleaned files into parts of about the same size."""

from clean_up import main

if __name__ == "__main__":
    raise SystemExit(main(__file__))
