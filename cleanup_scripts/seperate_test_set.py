"""Clean-up stage .4: takes the evaluation articles out."""

from clean_up import main

if __name__ == "__main__":
    raise SystemExit(main(__file__))
