"""Clean-up stage .3: one sentence a line."""

from clean_up import main

if __name__ == "__main__":
    raise SystemExit(main(__file__))
