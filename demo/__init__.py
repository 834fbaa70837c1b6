"""The whole benchmark in miniature: `python -m demo` runs it."""
