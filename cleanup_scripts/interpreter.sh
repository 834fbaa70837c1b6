#!/usr/bin/env bash
# Prints the Python to use: $PYTHON, else the one that `make setup` made, else python3.
venv=$(dirname "${BASH_SOURCE[0]}")/../.venv/bin/python
if [ -n "${PYTHON:-}" ]; then echo "$PYTHON"; elif [ -x "$venv" ]; then echo "$venv"; else echo python3; fi
