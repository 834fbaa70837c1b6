"""Clean-up stage .1: drops the <doc> tags and titles of WikiExtractor's output."""

from clean_up import main

if __name__ == "__main__":
    raise SystemExit(main(__file__))
