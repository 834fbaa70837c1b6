"""A finished trace in the formats of other tools, a module for each; tracing/export.py calls them."""
