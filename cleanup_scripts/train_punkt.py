"""Learns the sentence splitter's tables from your own text."""

from clean_up import main

if __name__ == "__main__":
    raise SystemExit(main(__file__))
