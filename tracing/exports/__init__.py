"""A finished trace in the formats of other tools, a module each; tracing/export.py calls them."""
