"""Writes the articles of documents as text in the form of WikiExtractor."""

from clean_up import main

if __name__ == "__main__":
    raise SystemExit(main(__file__))
