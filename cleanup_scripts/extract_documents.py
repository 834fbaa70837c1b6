"""Documents to text as WikiExtractor writes it."""

from clean_up import main

if __name__ == "__main__":
    raise SystemExit(main(__file__))
